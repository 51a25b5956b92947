"""Dropout that does not wait for the random generator.

On CPU `torch.nn.functional.dropout` draws a double for every element, one after the other, which
in a small LSTM costs as much as the softmax. Here one 64-bit draw serves four elements: 16 bits
each, so the probability is rounded to a multiple of 1/65536, and the scale belongs to the rounded
probability, so that expectations are exact.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from fairseq.modules import FairseqDropout
from torch import Tensor


class Dropout(FairseqDropout):
    """fairseq's dropout (with its `--retain-dropout` at inference), with a cheaper mask."""

    def forward(self, x: Tensor) -> Tensor:
        mask = self.mask(x, x.shape)
        return x if mask is None else x * mask

    def mask(self, like: Tensor, shape: tuple[int, ...]) -> Tensor | None:
        """What to multiply with: 0 or 1 / (1 - p). None: nothing is dropped now."""
        if self.p == 0 or not (self.training or self.apply_during_inference):
            return None
        if like.device.type != "cpu":
            return F.dropout(like.new_ones(shape), self.p)
        elements = torch.Size(shape).numel()
        draws = torch.empty((elements + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
        dropped = min(round(self.p * 65536), 65535)
        kept = draws.view(torch.int16)[:elements] >= dropped - 32768
        return kept.to(like.dtype).mul_(65536 / (65536 - dropped)).view(shape)
