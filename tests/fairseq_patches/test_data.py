"""fairseq's data sets on numpy 2, and batches of all their sentences."""

from __future__ import annotations

import numpy
import pytest
import torch
from fairseq.data import TokenBlockDataset, data_utils, token_block_dataset

import fairseq_hybrid  # noqa: F401  (installs the entry)

LINES = [torch.tensor([5, 6, 2]), torch.tensor([7, 2])]


def blocks() -> list[list[int]]:
    sizes = [len(line) for line in LINES]
    cut = TokenBlockDataset(LINES, sizes, block_size=None, pad=1, eos=2, break_mode="eos")
    return [cut[i].tolist() for i in range(len(cut))]


def test_text_is_cut_at_the_end_of_lines():
    assert blocks() == [[5, 6, 2], [7, 2]]


@pytest.mark.skipif(hasattr(numpy, "compat"), reason="numpy before 2 has what fairseq asks for")
def test_which_fairseq_alone_cannot(monkeypatch):
    monkeypatch.setattr(token_block_dataset, "np", numpy)
    with pytest.raises(AttributeError, match="compat"):
        blocks()


LENGTHS = numpy.random.default_rng(0).integers(3, 40, 500)
LIMITS = [
    {"max_sentences": 32},
    {"max_tokens": 400},
    {"max_tokens": 90, "max_sentences": 13},
]


def batches(count: int, make=None, known=True, **limits) -> list[list[int]]:
    """Of the first sentences, by length; ``known``: their lengths in one array."""
    order = numpy.argsort(LENGTHS[:count], kind="stable")
    made = (make or data_utils.batch_by_size)(
        order if known else iter(order.tolist()),
        LENGTHS.__getitem__,
        num_tokens_vec=LENGTHS[order] if known else None,
        **limits,
    )
    return [batch.tolist() for batch in made]


@pytest.mark.parametrize("limits", LIMITS, ids=str)
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("count", [500, 496, 8, 5, 1])
def test_every_sentence_is_in_one_batch(count, known, limits):
    made = batches(count, known=known, required_batch_size_multiple=8, **limits)
    assert sorted(i for batch in made for i in batch) == list(range(count))
    for batch in made:
        assert len(batch) < 8 or len(batch) % 8 == 0
        assert len(batch) <= limits.get("max_sentences", count)
        assert len(batch) * max(LENGTHS[batch]) <= limits.get("max_tokens", numpy.inf)


@pytest.mark.parametrize("limits", LIMITS, ids=str)
@pytest.mark.parametrize("multiple", [1, 8])
def test_all_batches_but_the_last_are_fairseqs_own(multiple, limits):
    limits = {"required_batch_size_multiple": multiple, **limits}
    alone = batches(500, data_utils.batch_by_size.__wrapped__, **limits)
    made = batches(500, **limits)
    assert made[: len(alone)] == alone
    assert len(made) == len(alone) + (multiple == 8)


def test_no_sentences_are_no_batches():
    assert batches(0, max_sentences=32, required_batch_size_multiple=8) == []


def test_fairseq_alone_leaves_sentences_out():
    limits = {"max_sentences": 32, "required_batch_size_multiple": 8}
    alone = batches(500, data_utils.batch_by_size.__wrapped__, **limits)
    assert sum(map(len, alone)) == 496
