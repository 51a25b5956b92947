"""Which worker has the gradients and the optimizer state of which rows of which parameter.

Every worker keeps all weights, so that validation, checkpoints and generation are ordinary, but
each row of a parameter is *owned* by one stage: its gradient and its optimizer state exist there
alone, and the copies elsewhere are out of date until `refresh`. What only one stage uses belongs to
it as a whole. What several use (attention and softmax) is cut into slices, one for each stage: a
slice gets the others' gradients while the reverse wavefront runs, and its new weights go out while
the next wavefront runs (shared.py): as much traffic as summing everywhere, over all links alike,
but one optimizer step and one optimizer state for all.

To the optimizer a slice is a parameter of its own, a view of the whole one (`adopt`). A checkpoint
holds everything: `gather_state` brings the state of all slices to the worker that writes it, under
the numbers and in the shapes of an ordinary optimizer, and after loading `keep_share` leaves what
belongs to this worker. So a checkpoint does not tell how many workers wrote it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from fairseq_hybrid.comm.transport import flatten
from fairseq_hybrid.optim.optimizer import GradientGroup
from fairseq_hybrid.optim.rows import parts

Rows = tuple[range, ...]
"""of a parameter, by the stage that owns them: one after the other, some empty"""


@dataclass(frozen=True)
class Group:
    """The workers that hold one copy of the optimizer state between them: the stages."""

    stage: int
    ranks: list[int]
    """global rank of each stage"""
    handle: Any
    """process group on the devices"""
    meta: Any
    """process group on the host, for what is not a tensor"""

    @property
    def is_first(self) -> bool:
        return self.ranks[0] == 0


def all_of(p: nn.Parameter, owner: int, stages: int) -> Rows:
    """One stage owns it."""
    return tuple(range(p.size(0)) if s == owner else range(0) for s in range(stages))


class Ownership:
    def __init__(self, module: nn.Module, rows: Mapping[nn.Parameter, Rows], group: Group):
        self.module, self.rows, self.group = module, rows, group
        self.names = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self.mine: dict[nn.Parameter, nn.Parameter] = {}
        """what this worker owns some of → its slice: the parameter itself, or a view of rows"""
        for p in self.names.values():
            share = rows[p][group.stage]
            if len(share) == p.size(0):
                self.mine[p] = p
            elif share:
                self.mine[p] = nn.Parameter(p.detach()[share.start : share.stop])
        self.owned = list(self.mine.values())
        self.dirty = False
        """whether an update has been made since the last `refresh`"""

    def owner(self, p: nn.Parameter) -> int | None:
        """The stage that owns all of it, if one does."""
        return next((s for s, rows in enumerate(self.rows[p]) if len(rows) == p.size(0)), None)

    def adopt(self, optimizer: torch.optim.Optimizer) -> None:
        """Let the optimizer work on slices."""
        for group in optimizer.param_groups:
            group["params"] = [self.mine.get(p, p) for p in group["params"]]

    # Gradients

    def norm(self, shares: Sequence[GradientGroup], whole: GradientGroup) -> Tensor:
        """Norm of the whole gradient, the same on all workers, of this one's `shares` of it and of
        what is the same on all of them; each with the factors it will be multiplied by."""
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        for share in shares:
            total += self._square(share)
        dist.all_reduce(total, group=self.group.handle)
        root = (total + self._square(whole)).sqrt()
        return root.to(torch.promote_types(torch.float32, self.dtype))

    def _square(self, group: GradientGroup) -> Tensor | float:
        """The sum of the gradients' squares."""
        params, factor = group
        if not params:
            return 0.0
        grads = [p.grad for p in params]
        norms = [torch.linalg.vector_norm(parts(g), dtype=wide(g.dtype)) for g in grads]
        return torch.stack(norms).double().square().sum() * factor**2

    @property
    def device(self) -> torch.device:
        return next(iter(self.names.values())).device

    @property
    def dtype(self) -> torch.dtype:
        return next(iter(self.names.values())).dtype

    # Weights

    def refresh(self, *more: Mapping[str, Tensor]) -> None:
        """Bring all weights up to date everywhere, and `more` tensors kept by the same names."""
        if self.dirty:
            self._from_owners(self.names)
            self.dirty = False
        for tensors in more:
            self._from_owners(tensors)

    @torch.no_grad()
    def _from_owners(self, tensors: Mapping[str, Tensor]) -> None:
        for stage, rank in enumerate(self.group.ranks):
            theirs = [
                tensors[name].detach()[rows.start : rows.stop]
                for name, p in self.names.items()
                if name in tensors and (rows := self.rows[p][stage])
            ]
            if not theirs:
                continue
            flat = flatten(theirs)
            dist.broadcast(flat, rank, group=self.group.handle)
            if stage != self.group.stage:
                for tensor, new in zip(theirs, flat.split([t.numel() for t in theirs])):
                    tensor.copy_(new.view_as(tensor))

    # Optimizer state

    def gather_state(self, optimizer: Any) -> dict[str, Any] | None:
        """The state dict an ordinary optimizer would have, on rank 0; None on the others.

        `optimizer` is fairseq's, around torch's; every worker of the first group takes part.
        """
        if not self.group.is_first:
            return None
        state = optimizer.state_dict()
        numbers = self._numbers(optimizer)
        mine = {
            n: state["state"][n]
            for n, p in numbers.items()
            if n in state["state"] and p in self.mine
        }
        if self.group.stage > 0:
            self._send_state(mine)
            return None
        shares = [mine, *(self._receive_state(rank) for rank in self.group.ranks[1:])]
        # Half-precision optimizers make (zero) state for foreign parameters too.
        merged = {n: s for n, s in state["state"].items() if n not in numbers}
        for n, p in numbers.items():
            found = [
                (rows, share[n]) for rows, share in zip(self.rows[p], shares) if rows and n in share
            ]
            if found:
                merged[n] = _joined(found, p.size(0))
        return {**state, "state": dict(sorted(merged.items()))}

    def keep_share(self, optimizer: Any) -> None:
        """Of the state that was loaded, drop what other workers own."""
        inner = optimizer.optimizer
        for p in self.names.values():
            (tensor,) = _optimized(optimizer, [self.mine.get(p, p)]) or (None,)
            if tensor is None or tensor not in inner.state:
                continue
            rows = self.rows[p][self.group.stage]
            if not rows:
                inner.state.pop(tensor)
            elif len(rows) < p.size(0):
                inner.state[tensor] = {
                    key: value[rows.start : rows.stop].clone()
                    if _by_rows(value, p.size(0)) else value
                    for key, value in inner.state[tensor].items()
                }  # fmt: skip

    def _numbers(self, optimizer: Any) -> dict[int, nn.Parameter]:
        """Number in the optimizer's state dict → the parameter that it works on, or on a copy or a
        slice of."""
        numbers = {}
        for group in optimizer.optimizer.param_groups:
            for p in group["params"]:
                numbers[id(p)] = len(numbers)
        found = {}
        for p in self.names.values():
            for tensor in _optimized(optimizer, [self.mine.get(p, p)]):
                found[numbers[id(tensor)]] = p
        return found

    def _send_state(self, mine: dict[int, dict[str, Any]]) -> None:
        tensors = [v for values in mine.values() for v in values.values() if torch.is_tensor(v)]
        outline = {
            n: {k: _Outline.of(v) if torch.is_tensor(v) else v for k, v in values.items()}
            for n, values in mine.items()
        }
        dist.send_object_list([outline], self.group.ranks[0], group=self.group.meta)
        for tensor in tensors:
            dist.send(tensor.cpu().contiguous(), self.group.ranks[0], group=self.group.meta)

    def _receive_state(self, rank: int) -> dict[int, dict[str, Any]]:
        received: list[Any] = [None]
        dist.recv_object_list(received, rank, group=self.group.meta)
        state = received[0]
        for values in state.values():
            for key, value in values.items():
                if isinstance(value, _Outline):
                    values[key] = torch.empty(value.shape, dtype=value.dtype)
                    dist.recv(values[key], rank, group=self.group.meta)
        return state


@dataclass(frozen=True)
class _Outline:
    """Stands for a tensor that follows."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: Tensor) -> _Outline:
        return cls(tuple(tensor.shape), tensor.dtype)


def _by_rows(value: Any, rows: int) -> bool:
    return torch.is_tensor(value) and value.dim() > 0 and value.size(0) == rows


def _joined(found: Sequence[tuple[range, dict[str, Any]]], rows: int) -> dict[str, Any]:
    """The state of a parameter, given that of its slices; of one that has none yet, zeros."""
    (first_rows, first), *more = found
    if not more and len(first_rows) == rows:
        return first
    joined = {}
    for key, value in first.items():
        if not _by_rows(value, len(first_rows)):
            counts = [state[key] for _, state in found]  # of steps: slices without rows make none
            joined[key] = max(counts) if isinstance(value, (int, float)) else value
            continue
        joined[key] = value.new_zeros(rows, *value.shape[1:], device="cpu")
        for share, state in found:
            joined[key][share.start : share.stop] = state[key]
    return joined


def _optimized(optimizer: Any, parameters: Iterable[nn.Parameter]) -> list[Tensor]:
    """The tensors the optimizer updates for `parameters`: themselves, or float32 copies."""
    copies = getattr(optimizer, "fp32_params", None)
    twin = {} if copies is None else dict(zip(map(id, optimizer.fp16_params), copies))
    known = {id(p) for group in optimizer.optimizer.param_groups for p in group["params"]}
    found = [twin.get(id(p), p) for p in parameters]
    return [p for p in found if id(p) in known]


def wide(dtype: torch.dtype) -> torch.dtype:
    """The type to sum in."""
    return torch.promote_types(dtype, torch.float32)
