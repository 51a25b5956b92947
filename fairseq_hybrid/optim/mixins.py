"""Changing what an optimizer that fairseq has built does."""

from __future__ import annotations

from typing import Any


def mix_in(optimizer: Any, mixin: type, **attributes: Any) -> None:
    """Put `mixin` before the class of `optimizer`, whose name stays: checkpoints hold it."""
    kind = type(optimizer)
    optimizer.__class__ = type(kind.__name__, (mixin, kind), attributes)
