"""Point-to-point messages between the workers of a group, posted in the order of one list.

Who sends and who receives post a message at the same place of a list that all of them follow
(backends/wavefront/schedule.py), so between two workers messages match in the order they were
posted: no tags. With nccl what is posted together is one group of operations on one communicator
per transport, which is opened at the start; `wait` makes the computing stream wait, not the host.
With gloo every message has a work of its own.

`dtype`: what floating-point messages are rounded to on their way (--hybrid-messages bf16).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

Message = tuple["Tensor | None", "Tensor | None", int]
"""what is sent, or where to receive it, and the other end's place in the group"""


class Arrival:
    """Something on its way here."""

    def __init__(self, work: Any, landed: Tensor, into: Tensor):
        self.work, self.landed, self.into = work, landed, into

    def wait(self) -> None:
        if self.work is not None:
            self.work.wait()
        if self.landed is not self.into:
            self.into.copy_(self.landed)


class Transport:
    """`ranks`: global ranks of the group's workers, by their place in it."""

    def __init__(self, ranks: list[int], group: Any, dtype: torch.dtype | None = None):
        self.ranks, self.group, self.dtype = ranks, group, dtype
        self.grouped = dist.get_backend(group) != "gloo"
        self.bytes_sent = 0
        self.under_way: list[tuple[Any, Tensor]] = []

    def open(self, device: torch.device) -> None:
        """Open the communicator: the first operation makes the host wait for all workers."""
        dist.all_reduce(torch.zeros(1, device=device), group=self.group)

    def exchange(self, messages: Iterable[Message], *, exact: bool = False) -> list[Arrival | None]:
        """Post messages; returns what arrives, in their order, `None` for what is sent. `exact`:
        nothing is rounded."""
        operations: list[dist.P2POp] = []
        landings: list[tuple[Tensor, Tensor] | None] = []
        """of each message: where it lands, and where it belongs"""
        for out, into, peer in messages:
            tensor = self._outgoing(out, exact) if into is None else self._landing(into, exact)
            landings.append(None if into is None else (tensor, into))
            if tensor.numel():
                kind = dist.isend if into is None else dist.irecv
                operations.append(dist.P2POp(kind, tensor, self.ranks[peer], self.group))
        works = self._post(operations)
        return [m and Arrival(works.get(id(m[0])), *m) for m in landings]

    def _post(self, operations: list[dist.P2POp]) -> dict[int, Any]:
        """Tensor → the work of receiving it; sends are kept until they are gone (`drain`)."""
        if self.grouped and operations:
            works = dist.batch_isend_irecv(operations)
            works = works if len(works) == len(operations) else works * len(operations)
        else:
            works = [op.op(op.tensor, op.peer, group=op.group) for op in operations]
        received = {}
        for op, work in zip(operations, works):
            if op.op is dist.irecv:
                received[id(op.tensor)] = work
            else:
                self.under_way.append((work, op.tensor))
                self.bytes_sent += op.tensor.numel() * op.tensor.element_size()
        return received

    def _outgoing(self, tensor: Tensor | None, exact: bool) -> Tensor:
        assert tensor is not None
        return tensor.contiguous().to(tensor.dtype if exact else self.on_the_way(tensor))

    def _landing(self, into: Tensor, exact: bool) -> Tensor:
        dtype = into.dtype if exact else self.on_the_way(into)
        if dtype == into.dtype and into.is_contiguous():
            return into
        return torch.empty(into.shape, dtype=dtype, device=into.device)

    def on_the_way(self, tensor: Tensor) -> torch.dtype:
        """The type in which such a message travels."""
        return self.dtype if self.dtype is not None and tensor.is_floating_point() else tensor.dtype

    def drain(self) -> None:
        """Wait until all sends are done, and let go of their tensors."""
        for work, _ in self.under_way:
            work.wait()
        self.under_way.clear()


def flatten(tensors: list[Tensor]) -> Tensor:
    return torch.cat([t.reshape(-1) for t in tensors])
