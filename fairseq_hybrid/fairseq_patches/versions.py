"""Which fairseq and torch the plugin was tested with, and a clear line when they differ."""

from __future__ import annotations

import logging
import re

import fairseq
import torch

from fairseq_hybrid.errors import UserError

TESTED_FAIRSEQ = ("0.12.2", "0.12.3")
TESTED_TORCH = ("2.13",)
OLDEST_TORCH = (2, 6)

logger = logging.getLogger(__name__)


def version_numbers(version: str) -> tuple[int, ...]:
    """``"2.13.0+cpu"`` as ``(2, 13, 0)``."""
    return tuple(int(n) for n in re.findall(r"\d+", version.split("+")[0])[:3])


def complaint(name: str, found: str, tested: tuple[str, ...]) -> str | None:
    """The line to show if ``found`` is not one of the ``tested`` series, else None."""
    if any(version_numbers(found)[: len(version_numbers(t))] == version_numbers(t) for t in tested):
        return None
    return (
        f"{name} {found} is outside what fairseq_hybrid was tested with ({', '.join(tested)}): "
        f"it may work; if it does not, install {name} {tested[-1]}"
    )


def install() -> None:
    """Refuse a torch that lacks what we build on; warn about versions that were not tested."""
    if version_numbers(torch.__version__)[:2] < OLDEST_TORCH:
        raise UserError(
            f"torch {torch.__version__} is too old for fairseq_hybrid: "
            f"install torch {'.'.join(map(str, OLDEST_TORCH))} or newer"
        )
    for name, module, tested in (
        ("fairseq", fairseq, TESTED_FAIRSEQ),
        ("torch", torch, TESTED_TORCH),
    ):
        line = complaint(name, module.__version__, tested)
        if line:
            logger.warning(line)
