"""fairseq's data sets on numpy 2, and batches of all their sentences."""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

import numpy
from fairseq.data import data_utils, token_block_dataset


class Numpy:
    """numpy with ``np.compat.long``, which version 2 has no more."""

    compat = SimpleNamespace(long=int)

    def __getattr__(self, name: str):
        return getattr(numpy, name)


def install_numpy() -> None:
    """``--sample-break-mode eos`` and lines typed to a language model ask for it."""
    if not hasattr(numpy, "compat"):
        token_block_dataset.np = Numpy()


def install_batches() -> None:
    """``batch_by_size`` cuts off a last batch that is not a multiple of
    ``--required-batch-size-multiple``, 8 unless given: up to 7 sentences are never read."""
    without_the_rest = data_utils.batch_by_size

    @functools.wraps(without_the_rest)
    def batch_by_size(indices: Any, *args: Any, **kwargs: Any) -> list[Any]:
        if not isinstance(indices, numpy.ndarray):
            indices = numpy.fromiter(indices, dtype=numpy.int64, count=-1)
        if not len(indices):
            return []  # fairseq would look at the last of no batches
        batches = without_the_rest(indices, *args, **kwargs)
        # Batches are slices of `indices` in order; what was cut off was one within the limits.
        rest = indices[sum(map(len, batches)) :]
        return [*batches, rest] if len(rest) else batches

    data_utils.batch_by_size = batch_by_size
