"""Sums over the workers: by messages, or through memory that the workers of one machine share.

An all-reduce between CPU workers of one machine copies everything into a socket, out of it and into
place, on the cores that the workers compute with. Here a worker writes what it has to add into
memory that all of them see; when all have written, each adds up for itself:

    worker 0   write a0, b0 ...... | met | a0 + a1, b0 + b1
    worker 1   write a1, b1 .......| met | a0 + a1, b0 + b1

`met` is the only message of an update. All add in the order of their ranks, so they get the same to
the last digit. The memory has two halves, for updates in turns: who has met the others for an
update knows that they are done with the one before, so its half can be written again.

The memory belongs to no file (memfd): it is gone with the last worker, however that ends. What is
not used of it costs nothing.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

logger = logging.getLogger(__name__)

PARTS = 3
"""of what is computed for a sum alone: each is under way while the next one is computed"""
MOST = 4
"""workers that share memory: each of them reads what all others wrote"""
ALIGN = 64
TOKEN = 16
"""bytes at the end, by which a worker knows that what it opened is the right thing"""


class Messages:
    """Ordinary all-reduces, which run in the background."""

    def __init__(self, group: Any):
        self.group, self.world = group, dist.get_world_size(group)
        self.bytes_sent = 0

    def room(self, size: int, like: Tensor) -> Tensor:
        """For so many numbers to be added."""
        return like.new_empty(size)

    def begin(self, flat: Tensor) -> Callable[[], Tensor]:
        """Add what lies in some `room`, or in a part of it; returns how to get the sum, flat."""
        self.bytes_sent += ring_bytes(flat, self.world)
        work = dist.all_reduce(flat, group=self.group, async_op=True)

        def result() -> Tensor:
            work.wait()
            return flat.flatten()

        return result

    def begin_in_parts(
        self, block: Tensor, compute: Callable[[int, Tensor], None]
    ) -> Callable[[], Tensor]:
        """Of a block that is computed now: `compute` gets a row number and the rows from there."""
        results = []
        size = -(-block.size(0) // PARTS)
        for begin in range(0, block.size(0), size):
            part = block[begin : begin + size]
            compute(begin, part)
            results.append(self.begin(part))

        def result() -> Tensor:
            for part_result in results:
                part_result()
            return block.flatten()

        return result

    def all_begun(self) -> None:
        """The sums of this update."""

    def all_taken(self) -> None:
        """The results of this update."""


class SharedMemory(Messages):
    """Of workers on one machine. `room` is in the memory, results are not."""

    def __init__(self, group: Any, memory: Tensor):
        super().__init__(group)
        self.memory = memory.view(2, self.world, -1)
        self.rank = dist.get_rank(group)
        self.half = self.used = 0
        self.met: Any = None

    def room(self, size: int, like: Tensor) -> Tensor:
        begin, length = self.used, size * like.element_size()
        self.used += -(-length // ALIGN) * ALIGN
        return self.memory[self.half, self.rank, begin : begin + length].view(like.dtype)

    def begin(self, flat: Tensor) -> Callable[[], Tensor]:
        length = flat.numel() * flat.element_size()
        self.bytes_sent += (self.world - 1) * length  # to be read by each of the others
        first = flat.data_ptr() - self.memory[self.half, self.rank].data_ptr()
        all_W = self.memory[self.half, :, first : first + length].view(flat.dtype)

        def result() -> Tensor:
            if self.met is not None:
                self.met.wait()
                self.met = None
            total = torch.add(all_W[0], all_W[1])
            for more in all_W[2:]:
                total += more
            return total

        return result

    def begin_in_parts(
        self, block: Tensor, compute: Callable[[int, Tensor], None]
    ) -> Callable[[], Tensor]:
        compute(0, block)
        return self.begin(block)

    def all_begun(self) -> None:
        self.met = dist.all_reduce(torch.zeros(1), group=self.group, async_op=True)

    def all_taken(self) -> None:
        self.half, self.used = 1 - self.half, 0


def connect(group: Any, params: Sequence[Tensor], *, share: bool = True) -> Messages:
    """For the gradients of these parameters; memory where all workers can have it."""
    size = sum(p.numel() * p.element_size() + 2 * ALIGN for p in params)
    whole = 2 * dist.get_world_size(group) * (-(-size // ALIGN) * ALIGN)
    memory = shared_memory(group, whole, params) if share else None
    way = "by messages" if memory is None else "in memory that the workers share"
    logger.info(f"gradients are summed {way}")
    return Messages(group) if memory is None else SharedMemory(group, memory)


def shared_memory(group: Any, size: int, params: Sequence[Tensor]) -> Tensor | None:
    """So many bytes that all workers of a group see, or None on all of them.

    Not for GPUs: `params` say where the workers compute.
    """
    suits = 1 < dist.get_world_size(group) <= MOST and all(p.device.type == "cpu" for p in params)
    if not (suits and hasattr(os, "memfd_create")):
        return None
    memory = _map(group, size + TOKEN)
    return None if memory is None else memory[:-TOKEN]


def _map(group: Any, size: int) -> Tensor | None:
    """The same memory on all workers, or None on all."""
    first, handle = dist.get_rank(group) == 0, None
    offer: list[Any] = [None]
    if first:
        token = secrets.token_bytes(TOKEN)
        try:
            handle = os.memfd_create("fairseq_hybrid")
            os.ftruncate(handle, size)
            os.pwrite(handle, token, size - TOKEN)
            offer = [(f"/proc/{os.getpid()}/fd/{handle}", token, _host())]
        except OSError:  # not allowed, or more than there is
            pass
    dist.broadcast_object_list(
        offer, dist.get_global_rank(group or dist.group.WORLD, 0), group=group
    )
    memory = _open(*offer[0], size) if offer[0] is not None else None
    everywhere = torch.tensor(memory is not None, dtype=torch.int32)
    dist.all_reduce(everywhere, dist.ReduceOp.MIN, group=group)
    if handle is not None:
        os.close(handle)  # it is mapped
    return memory if everywhere else None


def _host() -> tuple[str, int, int]:
    """Which boot of which machine, and the network and processes that this worker sees there.

    Containers, and the devices of devices.sh, have the first in common, and are hosts all the same.
    """
    boot = Path("/proc/sys/kernel/random/boot_id").read_text()
    return boot, *(os.stat(f"/proc/self/ns/{kind}").st_ino for kind in ("net", "pid"))


def _open(path: str, token: bytes, host: tuple[str, int, int], size: int) -> Tensor | None:
    """None if it is not there, as on another machine, or is something else there."""
    try:
        if _host() != host:
            return None
        with open(path, "rb") as file:
            file.seek(size - TOKEN)
            if file.read() != token:
                return None
        return torch.from_file(path, shared=True, size=size, dtype=torch.uint8)
    except (OSError, RuntimeError):
        return None


def ring_bytes(tensor: Tensor, workers: int) -> int:
    """What each worker sends in an all-reduce."""
    return 2 * (workers - 1) * tensor.numel() * tensor.element_size() // workers
