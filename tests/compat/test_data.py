"""fairseq's data sets on numpy 2."""

from __future__ import annotations

import numpy
import pytest
import torch
from fairseq.data import TokenBlockDataset, token_block_dataset

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
