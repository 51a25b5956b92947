"""Point-to-point messages between the workers of a group, in lanes that cannot block each other.

A lane is (source, target, kind). Messages of a lane arrive in the order they were sent; lanes do
not wait for one another. With gloo a lane is a tag. nccl has no tags and runs the messages of a
communicator one after the other, so there each lane is a process group of its own (two ranks),
with its own stream: `isend` and `irecv` only put work on it, and `wait` makes the computing stream
wait, not the host. Its first message is different: there the host waits for the other end. So
every lane is opened with one message at the start, by all workers in the same order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

Lane = tuple[int, int, str]
"""source and target, by position in the group, and kind"""


class Lanes:
    """This worker's ends of the lanes of its group.

    `groups`: the global ranks of each group's workers. Every worker of the job must make the same
    `Lanes` in the same order (nccl groups are made by all), so it is given all groups and picks
    its own.
    """

    def __init__(self, groups: Sequence[list[int]], group: Any, wanted: Iterable[Lane]) -> None:
        rank = dist.get_rank()
        lanes = sorted(set(wanted))
        self.ranks = next(ranks for ranks in groups if rank in ranks)
        self.tags = {lane: tag for tag, lane in enumerate(lanes, start=1)}
        self.groups: dict[Lane, Any] = {}
        self.bytes_sent = 0
        self.under_way: list[tuple[Any, Tensor]] = []
        if dist.get_backend(group) != "gloo":
            for ranks in groups:
                for lane in lanes:
                    pair = dist.new_group([ranks[lane[0]], ranks[lane[1]]])
                    if ranks is self.ranks:
                        self.groups[lane] = pair
        self.group = group
        if self.groups:
            self._open(lanes)

    def _open(self, lanes: Iterable[Lane]) -> None:
        me = self.ranks.index(dist.get_rank())
        word = torch.zeros(1, device=torch.device("cuda", torch.cuda.current_device()))
        for lane in lanes:
            if lane[0] == me:
                dist.send(word, self.ranks[lane[1]], group=self.groups[lane])
            elif lane[1] == me:
                dist.recv(word, self.ranks[lane[0]], group=self.groups[lane])

    def send(self, tensor: Tensor, lane: Lane) -> None:
        """Start sending; the tensor is kept until it is gone (`drain`)."""
        tensor = tensor.contiguous()
        if tensor.numel() == 0:
            return
        target, group, tag = self.ranks[lane[1]], *self._group_and_tag(lane)
        self.under_way.append((dist.isend(tensor, target, group=group, tag=tag), tensor))
        self.bytes_sent += tensor.numel() * tensor.element_size()

    def receive(self, into: Tensor, lane: Lane) -> Any:
        """Start receiving; `.wait()` on the result before `into` is read."""
        if into.numel() == 0:
            return _Nothing()
        source, group, tag = self.ranks[lane[0]], *self._group_and_tag(lane)
        return dist.irecv(into, source, group=group, tag=tag)

    def _group_and_tag(self, lane: Lane) -> tuple[Any, int]:
        own = self.groups.get(lane)
        return (self.group, self.tags[lane]) if own is None else (own, 0)

    def drain(self) -> None:
        """Wait until all sends are done, and let go of their tensors."""
        for work, _ in self.under_way:
            work.wait()
        self.under_way.clear()


class _Nothing:
    def wait(self) -> None:
        pass


def flatten(tensors: list[Tensor]) -> Tensor:
    return torch.cat([t.reshape(-1) for t in tensors])
