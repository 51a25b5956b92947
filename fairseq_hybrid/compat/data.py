"""fairseq's data sets on numpy 2."""

from __future__ import annotations

from types import SimpleNamespace

import numpy
from fairseq.data import token_block_dataset


class Numpy:
    """numpy with ``np.compat.long``, which version 2 has no more."""

    compat = SimpleNamespace(long=int)

    def __getattr__(self, name: str):
        return getattr(numpy, name)


def install() -> None:
    """``--sample-break-mode eos`` and lines typed to a language model ask for it."""
    if not hasattr(numpy, "compat"):
        token_block_dataset.np = Numpy()
