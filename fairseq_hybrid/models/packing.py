"""Batches without their padding.

A batch of sentences is kept as one matrix of *packed rows*: the first words of all sentences, then
all second words, and so on, the longest sentence first, so that the sentences which still run at
any time are the leading ones. Every cost then counts real words only, a sentence's numbers never
depend on its neighbours, and a chunk of time is a plain slice of rows.

`Packing` remembers where each row came from. It works for left- and right-padded batches alike,
so nothing else in the models has to know which side the padding was on.

Shape suffixes: B sentences, T columns of the padded batch, N packed rows (real tokens), R rows of
any kind, X anything else.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate

import torch
from torch import Tensor


@dataclass(frozen=True)
class Packing:
    """Where each packed row sits in the padded batch.

    `batch_sizes` lives on the CPU, as `torch.nn.utils.rnn.PackedSequence` wants it; the index
    tensors live where the tokens live.
    """

    batch_sizes: Tensor
    """[steps] how many sentences still run at each time, never increasing."""
    order_B: Tensor
    """sorted position → row of the batch (longest sentence first)."""
    inverse_B: Tensor
    """row of the batch → sorted position."""
    rows_N: Tensor
    """packed row → row of the padded batch flattened to [B * T]."""
    shape: tuple[int, int]
    """(B, T) of the padded batch."""

    @classmethod
    def from_tokens(cls, tokens_BT: Tensor, pad: int) -> Packing:
        """The packing of a batch padded with `pad` on either side."""
        bsz, columns = tokens_BT.shape
        real_BT = tokens_BT.ne(pad)
        # A row of nothing but padding (only dummy batches have one) counts as one token.
        lengths_B = real_BT.sum(dim=1).clamp_(min=1)
        sorted_B, order_B = lengths_B.sort(descending=True, stable=True)
        first_B = real_BT.to(torch.uint8).argmax(dim=1)[order_B]
        time_T = torch.arange(int(sorted_B[0]), device=tokens_BT.device)
        runs_TB = time_T.unsqueeze(1) < sorted_B
        rows_TB = time_T.unsqueeze(1) + (order_B * columns + first_B)
        return cls(
            batch_sizes=runs_TB.sum(dim=1).cpu(),
            order_B=order_B,
            inverse_B=order_B.argsort(),
            rows_N=rows_TB[runs_TB],
            shape=(bsz, columns),
        )

    def to(self, device: torch.device) -> Packing:
        """The same with its index tensors on `device`."""
        indices = ("order_B", "inverse_B", "rows_N")
        return replace(self, **{name: getattr(self, name).to(device) for name in indices})

    @property
    def steps(self) -> int:
        """Length of the longest sentence."""
        return self.batch_sizes.numel()

    def chunk(self, start: int, stop: int) -> tuple[slice, Tensor]:
        """Times [start, stop) as a slice of packed rows, and their batch sizes."""
        return slice(self.starts[start], self.starts[stop]), self.batch_sizes[start:stop]

    @cached_property
    def starts(self) -> list[int]:
        """The first row of each time, and the number of all rows."""
        return [0, *accumulate(self.batch_sizes.tolist())]

    @cached_property
    def before_N(self) -> Tensor:
        """For each row but those of the first time: the row of the word before."""
        sizes = self.batch_sizes.to(self.rows_N.device)
        rows = torch.arange(self.starts[1], self.rows_N.numel(), device=self.rows_N.device)
        return rows - sizes[:-1].repeat_interleave(sizes[1:])

    @cached_property
    def last_B(self) -> Tensor:
        """For each sentence, the longest first: the row of its last word."""
        sentences = torch.arange(self.starts[1], device=self.batch_sizes.device)
        steps = (self.batch_sizes.unsqueeze(0) > sentences.unsqueeze(1)).sum(dim=1)
        starts = torch.tensor(self.starts, device=self.batch_sizes.device)
        return (starts[steps - 1] + sentences).to(self.rows_N.device)

    def pack(self, x_BTX: Tensor) -> Tensor:
        """Padded [B, T, ...] → packed rows [N, ...]."""
        return x_BTX.flatten(0, 1).index_select(0, self.rows_N)

    def unpack(self, x_NX: Tensor) -> Tensor:
        """Packed rows [N, ...] → padded [B, T, ...] with zeros on the padding."""
        bsz, columns = self.shape
        flat = x_NX.new_zeros(bsz * columns, *x_NX.shape[1:])
        return flat.index_copy_(0, self.rows_N, x_NX).view(bsz, columns, *x_NX.shape[1:])

    def padding_mask(self) -> Tensor:
        """[B, T], true on padding."""
        bsz, columns = self.shape
        mask = torch.ones(bsz * columns, dtype=torch.bool, device=self.rows_N.device)
        return mask.index_fill_(0, self.rows_N, False).view(bsz, columns)
