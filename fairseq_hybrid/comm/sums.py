"""All-reduce over the process group, or through memory that the workers of one machine share.

An all-reduce between CPU workers of one machine copies everything into a socket, out of it and into
place, on the cores that the workers compute with. With shared memory a worker writes its summands
where all can read them; after a barrier each worker adds up for itself:

    worker 0   write a0, b0 ...... | barrier | a0 + a1, b0 + b1
    worker 1   write a1, b1 .......| barrier | a0 + a1, b0 + b1

The barrier is the only message of an update. All add in the order of their ranks, so the sums are
the same to the last digit. The memory has two halves, which updates use in turn: the barrier of an
update shows that every worker has read the sums of the one before, whose half can be written again.

The memory belongs to no file (memfd) and is freed with the last worker, however that ends. Its
pages are committed on first use.
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
"""that a block is computed and reduced in: each is under way while the next one is computed"""
MAX_SHARING = 4
"""workers that sum through memory: each of them reads what all others wrote"""
ALIGN = 64
TOKEN_BYTES = 16
"""at the end of the memory: random, so that a worker knows that it opened the right one"""


class AllReduce:
    """Ordinary all-reduces, which run in the background."""

    def __init__(self, group: Any):
        self.group, self.world = group, dist.get_world_size(group)
        self.bytes_sent = 0

    def room(self, size: int, like: Tensor) -> Tensor:
        """A buffer for so many summands."""
        return like.new_empty(size)

    def begin(self, flat: Tensor) -> Callable[[], Tensor]:
        """Start the sum of a `room` or part of it; returns a function that waits for it, flat."""
        self.bytes_sent += ring_bytes(flat, self.world)
        work = dist.all_reduce(flat, group=self.group, async_op=True)

        def result() -> Tensor:
            work.wait()
            return flat.flatten()

        return result

    def begin_in_parts(
        self, block: Tensor, compute: Callable[[int, Tensor], None]
    ) -> Callable[[], Tensor]:
        """`begin` for a block to be filled now: `compute(first, rows)` fills rows from `first`."""
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
        """Called once an update, after its last `begin`."""

    def all_taken(self) -> None:
        """Called once an update, when all its sums have been waited for."""


class SharedMemoryAllReduce(AllReduce):
    """Of workers on one machine. `room` is in the memory, results are not."""

    def __init__(self, group: Any, memory: Tensor):
        super().__init__(group)
        self.memory = memory.view(2, self.world, -1)
        self.rank = dist.get_rank(group)
        self.half = self.used = 0
        self.barrier: Any = None

    def room(self, size: int, like: Tensor) -> Tensor:
        begin, length = self.used, size * like.element_size()
        self.used += -(-length // ALIGN) * ALIGN
        return self.memory[self.half, self.rank, begin : begin + length].view(like.dtype)

    def begin(self, flat: Tensor) -> Callable[[], Tensor]:
        length = flat.numel() * flat.element_size()
        self.bytes_sent += (self.world - 1) * length  # each of the others reads it
        first = flat.data_ptr() - self.memory[self.half, self.rank].data_ptr()
        all_W = self.memory[self.half, :, first : first + length].view(flat.dtype)

        def result() -> Tensor:
            if self.barrier is not None:
                self.barrier.wait()
                self.barrier = None
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
        self.barrier = dist.all_reduce(torch.zeros(1), group=self.group, async_op=True)

    def all_taken(self) -> None:
        self.half, self.used = 1 - self.half, 0


def make_all_reduce(group: Any, params: Sequence[Tensor], *, share: bool = True) -> AllReduce:
    """For the gradients of these parameters; through shared memory if all workers can have it."""
    size = sum(p.numel() * p.element_size() + 2 * ALIGN for p in params)
    share = share and dist.get_world_size(group) <= MAX_SHARING
    whole = 2 * dist.get_world_size(group) * (-(-size // ALIGN) * ALIGN)
    memory = shared_memory(group, whole, params) if share else None
    where = "by messages" if memory is None else "in memory that the workers share"
    logger.info(f"gradients are summed {where}")
    return AllReduce(group) if memory is None else SharedMemoryAllReduce(group, memory)


def shared_memory(group: Any, size: int, params: Sequence[Tensor]) -> Tensor | None:
    """So many bytes that all workers of a group see; None on all of them where one cannot.

    Not for GPUs: `params` say where the workers compute.
    """
    if dist.get_world_size(group) < 2 or not hasattr(os, "memfd_create"):
        return None
    if any(p.device.type != "cpu" for p in params):
        return None
    memory = _map(group, size + TOKEN_BYTES)
    return None if memory is None else memory[:-TOKEN_BYTES]


def _map(group: Any, size: int) -> Tensor | None:
    """The same memory on all workers, or None on all."""
    first, handle = dist.get_rank(group) == 0, None
    offer: list[Any] = [None]
    if first:
        token = secrets.token_bytes(TOKEN_BYTES)
        try:
            handle = os.memfd_create("fairseq_hybrid")
            os.ftruncate(handle, size)
            os.pwrite(handle, token, size - TOKEN_BYTES)
            offer = [(f"/proc/{os.getpid()}/fd/{handle}", token, _host())]
        except OSError:  # not allowed, or more than there is
            pass
    dist.broadcast_object_list(offer, dist.get_process_group_ranks(group)[0], group=group)
    memory = None
    if offer[0] is not None:
        path, token, host = offer[0]
        memory = _open(path, token, host, size)
    everywhere = torch.tensor(memory is not None, dtype=torch.int32)
    dist.all_reduce(everywhere, dist.ReduceOp.MIN, group=group)
    if handle is not None:
        os.close(handle)  # it is mapped
    return memory if everywhere else None


def _host() -> tuple[str, int, int]:
    """The boot of the machine, and the network and process namespaces of this worker.

    Containers on one machine share the first and count as different hosts.
    """
    boot = Path("/proc/sys/kernel/random/boot_id").read_text()
    network, processes = (os.stat(f"/proc/self/ns/{kind}").st_ino for kind in ("net", "pid"))
    return boot, network, processes


def _open(path: str, token: bytes, host: tuple[str, int, int], size: int) -> Tensor | None:
    """None if there is no such file, as on another machine, or it is another one."""
    try:
        if _host() != host:
            return None
        with open(path, "rb") as file:
            file.seek(size - TOKEN_BYTES)
            if file.read() != token:
                return None
        return torch.from_file(path, shared=True, size=size, dtype=torch.uint8)
    except (OSError, RuntimeError):
        return None


def ring_bytes(tensor: Tensor, workers: int) -> int:
    """What each worker sends in an all-reduce."""
    return 2 * (workers - 1) * tensor.numel() * tensor.element_size() // workers
