"""Point-to-point messages between the workers of a group, posted in the order of one list.

Who sends and who receives post a message at the same place of a list that all of them follow
(backends/wavefront/schedule.py), so between two workers messages match in the order they were
posted: no tags. With nccl what is posted together is one group of operations on one communicator
per transport, which is opened at the start; `wait` makes the computing stream wait, not the host.
With gloo every message has a work of its own.

`dtype`: what floating-point messages are rounded to on their way (--hybrid-messages bf16).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

Message = tuple["Tensor | None", "Tensor | None", int]
"""what is sent, or where to receive it, and the other end's place in the group"""

Operation = tuple[bool, Tensor, int]
"""sends or receives, what, and the other end's global rank"""


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
        operations: list[Operation] = []
        landings: list[tuple[Tensor, Tensor] | None] = []
        """of each message: where it lands, and where it belongs"""
        for out, into, peer in messages:
            sends = into is None
            tensor = self._outgoing(out, exact) if into is None else self._landing(into, exact)
            landings.append(None if into is None else (tensor, into))
            if tensor.numel():
                operations.append((sends, tensor, self.ranks[peer]))
        works = self._post(operations)
        return [m and Arrival(works.get(id(m[0])), *m) for m in landings]

    def _post(self, operations: Sequence[Operation]) -> dict[int, Any]:
        """Tensor → the work of receiving it; sends are kept until they are gone (`drain`)."""
        received = {}
        for (sends, tensor, _), work in zip(operations, self._works(operations)):
            if sends:
                self.under_way.append((work, tensor))
                self.bytes_sent += tensor.numel() * tensor.element_size()
            else:
                received[id(tensor)] = work
        return received

    def _works(self, operations: Sequence[Operation]) -> list[Any]:
        if not self.grouped or not operations:
            return [
                (dist.isend if sends else dist.irecv)(tensor, rank, group=self.group)
                for sends, tensor, rank in operations
            ]
        works = dist.batch_isend_irecv([
            dist.P2POp(dist.isend if sends else dist.irecv, tensor, rank, self.group)
            for sends, tensor, rank in operations
        ])  # fmt: skip
        return works if len(works) == len(operations) else works * len(operations)

    def _outgoing(self, tensor: Tensor | None, exact: bool) -> Tensor:
        assert tensor is not None
        return tensor.contiguous().to(tensor.dtype if exact else self.message_dtype(tensor))

    def _landing(self, into: Tensor, exact: bool) -> Tensor:
        dtype = into.dtype if exact else self.message_dtype(into)
        if dtype == into.dtype and into.is_contiguous():
            return into
        return torch.empty(into.shape, dtype=dtype, device=into.device)

    def message_dtype(self, tensor: Tensor) -> torch.dtype:
        """The type in which such a message travels."""
        return self.dtype if self.dtype is not None and tensor.is_floating_point() else tensor.dtype

    def drain(self) -> None:
        """Wait until all sends are done, and let go of their tensors."""
        for work, _ in self.under_way:
            work.wait()
        self.under_way.clear()


def flatten(tensors: list[Tensor]) -> Tensor:
    return torch.cat([t.reshape(-1) for t in tensors])
