"""Which worker has the gradients and the optimizer state of which parameter.

Every worker keeps all weights, so that validation, checkpoints and generation are ordinary, but
each parameter is *owned* by one stage: its gradient and its optimizer state exist there alone, and
the copies elsewhere are out of date until `refresh`. What only one stage uses belongs to it; what
several use (attention and softmax) belongs to one of them, which gets the others' gradients while
the reverse wavefront runs and sends the new weights while the next wavefront runs (shared.py): as
much traffic as summing everywhere, but one optimizer step and one optimizer state for all.

A checkpoint holds everything: `gather_state` brings the owners' optimizer state to the worker that
writes it, under the numbers an ordinary optimizer would give, and after loading `forget` drops what
belongs to others. So a checkpoint does not tell how many workers wrote it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from fairseq_hybrid.comm.lanes import flatten
from fairseq_hybrid.optim.optimizer import GradientGroup
from fairseq_hybrid.optim.rows import parts


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


class Ownership:
    def __init__(self, module: nn.Module, owners: Mapping[nn.Parameter, int], group: Group):
        self.module, self.owners, self.group = module, owners, group
        self.names = {name: p for name, p in module.named_parameters() if p.requires_grad}
        parameters = list(self.names.values())
        self.owned = [p for p in parameters if owners[p] == group.stage]
        self.dirty = False
        """whether an update has been made since the last `refresh`"""

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
                tensors[name]
                for name, p in self.names.items()
                if self.owners[p] == stage and name in tensors
            ]
            if not theirs:
                continue
            flat = flatten([t.detach() for t in theirs])
            dist.broadcast(flat, rank, group=self.group.handle)
            if stage != self.group.stage:
                for tensor, new in zip(theirs, flat.split([t.numel() for t in theirs])):
                    tensor.detach().copy_(new.view_as(tensor))

    def gather_state(self, optimizer: Any) -> dict[str, Any] | None:
        """The state dict an ordinary optimizer would have, on rank 0; None on the others.

        `optimizer` is fairseq's, around torch's; every worker of the first group takes part.
        """
        if not self.group.is_first:
            return None
        if self.group.stage > 0:
            self._send_state(optimizer)
            return None
        state_dict = optimizer.state_dict()
        numbers = dict(state_dict["state"])
        mine = set(self._numbered(optimizer, self.owned))
        # Half-precision optimizers make (zero) state for foreign parameters too.
        numbers = {n: s for n, s in numbers.items() if n in mine or n not in self._all(optimizer)}
        for rank in self.group.ranks[1:]:
            numbers.update(self._receive_state(rank))
        state_dict["state"] = dict(sorted(numbers.items()))
        return state_dict

    def forget(self, optimizer: Any) -> None:
        """Drop the optimizer state of what other workers own."""
        inner = optimizer.optimizer
        foreign = [p for p, s in self.owners.items() if s != self.group.stage]
        for p in _optimized(optimizer, foreign):
            inner.state.pop(p, None)

    def _numbered(self, optimizer: Any, parameters: Iterable[nn.Parameter]) -> dict[int, Tensor]:
        """Number in the optimizer's state dict → the parameter it works on."""
        numbers = {}
        for group in optimizer.optimizer.param_groups:
            for p in group["params"]:
                numbers[id(p)] = len(numbers)
        wanted = _optimized(optimizer, parameters)
        return {numbers[id(p)]: p for p in wanted}

    def _all(self, optimizer: Any) -> set[int]:
        return set(self._numbered(optimizer, self.names.values()))

    def _send_state(self, optimizer: Any) -> None:
        state = optimizer.state_dict()["state"]
        mine = {n: state[n] for n in self._numbered(optimizer, self.owned) if n in state}
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
