"""Which rows of a matrix any worker has a gradient for, and gradients as blocks of such rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from fairseq_hybrid.optim.rows import sparse_rows


def union(sets: Sequence[tuple[Tensor, int]], group: Any) -> tuple[list[Tensor], int]:
    """Unions over the workers of sets of numbers below a limit, ascending; and the bytes reduced.

    One byte per possible number: little beside a row of floats for each that is there.
    """
    sizes = [size for _, size in sets]
    flags = torch.zeros(sum(sizes), dtype=torch.uint8, device=sets[0][0].device)
    for (members, _), part in zip(sets, flags.split(sizes)):
        part[members] = 1
    dist.all_reduce(flags, dist.ReduceOp.MAX, group=group)
    return [part.nonzero().squeeze(1) for part in flags.split(sizes)], flags.numel()


def split_off(grad: Tensor, rows: Tensor) -> tuple[Tensor, Tensor | None]:
    """The block of `rows` (ascending) of a sparse gradient, zeros where it has none; and the rest
    of the gradient, if there is one."""
    grad = grad.coalesce()
    have, values = grad.indices()[0], grad.values()
    block = values.new_zeros(rows.numel(), *grad.shape[1:])
    place = torch.searchsorted(rows, have).clamp_(max=max(rows.numel() - 1, 0))
    inside = rows[place] == have if rows.numel() else torch.zeros_like(have, dtype=torch.bool)
    block[place[inside]] = values[inside]
    outside = ~inside
    rest = sparse_rows(have[outside], values[outside], grad) if outside.any() else None
    return block, rest
