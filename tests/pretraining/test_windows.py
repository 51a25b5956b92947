"""Windows of words: what they hold, and that workers and epochs share them out."""

from __future__ import annotations

import pytest
import torch

from fairseq_hybrid.pretraining.windows import Minibatches, Windows

EOS = 2
BLOCKS = [torch.tensor([10, 11, 12, 13]), torch.tensor([14, 15])]


@pytest.mark.parametrize(
    ("through", "expected"),
    [
        (True, [[2, 2, 10], [2, 10, 11], [10, 11, 12], [11, 12, 13], [12, 13, 14], [13, 14, 15]]),
        (False, [[2, 2, 10], [2, 10, 11], [10, 11, 12], [11, 12, 13], [2, 2, 14], [2, 14, 15]]),
    ],
)
def test_windows_end_at_every_word(through, expected):
    windows = Windows(BLOCKS, context=3, eos=EOS, through=through)
    assert windows[torch.arange(len(windows))].tolist() == expected
    assert len(Windows([], context=3, eos=EOS, through=through)) == 0


def test_a_bigram_reads_single_words():
    windows = Windows(BLOCKS, context=1, eos=EOS, through=True)
    assert windows[torch.tensor([4, 0])].tolist() == [[14], [10]]


def batches(**options) -> list[list[int]]:
    windows = Windows([torch.arange(10, 33)], context=1, eos=EOS, through=True)
    return [batch[:, 0].tolist() for batch in Minibatches(windows, 3, **options)]


def test_workers_share_an_epoch_out_and_a_resume_goes_on():
    alone = batches(seed=1)
    assert len(alone) == 7
    assert len({word for batch in alone for word in batch}) == 21
    assert alone != batches(seed=2)
    two = [batches(seed=1, rank=rank, world=2) for rank in range(2)]
    assert [batch for pair in zip(*two) for batch in pair] == alone[:6]
    assert batches(seed=1, n=4) == alone[4:]
