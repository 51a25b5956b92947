"""A process group for tests, on CPUs, with nccl's rules.

After `import pretend_nccl` there is `init_process_group("pretend_nccl")`. What it checks or does:

* No tags, no receiving from anyone; contiguous tensors of nccl's types, nccl's reductions.
* What is put on a communicator (a process group) runs in that order, one after the other. A message
  passes when both ends have come to it, a collective when all have. Both ends must have put
  operations there that fit: if not, all ranks fail with a line that names both.
* `batch_isend_irecv` is one operation, whose messages pass in any order.
* A rank runs operations of at most SLOTS communicators at a time, those that were put first, and
  each keeps its slot until it is done. A GPU promises no more.
* The first operation makes the communicator: the host waits until all members have come.
* Putting does not wait. What arrives is in a tensor after `wait` only, NaN before, and a tensor
  that is sent may not change until then. (`wait` holds up the host; on a GPU, a stream.)
* Nothing may be left when the process group is destroyed.
* When nothing has moved for PATIENCE seconds and no process computes, all ranks fail with a picture
  of who waits for whom.

Each rank tells the referee (nccl_rules.py), in a thread of rank 0, what it puts where and what is
to be sent, and is answered with what arrives.

Stricter than nccl: any operation makes a communicator of all members of its group (nccl: one for
each pair, if the first is a message), and messages between different pairs of a group keep the
order of each rank. Not here: streams of computation, which have to be where the host is.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from multiprocessing import connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from nccl_rules import (
    MESSAGES,
    OPEN,
    RECEIVE,
    REDUCTIONS,
    SEND,
    SLOTS,
    Message,
    Operation,
    Referee,
    WrongProgramError,
    bytes_of,
    tensor_of,
    type_of,
)
from torch import Tensor

NAME = "pretend_nccl"
PATIENCE = 1.0

TYPES = ["float64", "float32", "float16", "bfloat16", "int64", "int32", "int8", "uint8", "bool"]


# The referee


def serve(listener: connection.Listener, world: int, slots: int) -> None:
    """Play the referee for processes, until all have left."""
    referee, lines, processes = Referee(slots), {}, {}
    for line in [listener.accept() for _ in range(world)]:
        rank, processes[rank] = line.recv()
        lines[rank] = line
    moved = time.monotonic()

    def tell(rank: int, *what: Any) -> None:
        with contextlib.suppress(KeyError, OSError):  # it has left
            lines[rank].send(what)

    def refuse(why: str) -> None:
        referee.waiting.clear()
        for rank in sorted(lines, reverse=True):
            tell(rank, None, why)

    while lines:
        ready = connection.wait(list(lines.values()), timeout=0.05)
        for rank, line in [(rank, line) for rank, line in lines.items() if line in ready]:
            try:
                operation = line.recv()
            except (EOFError, ConnectionError):
                operation = None
            if operation is None:  # it leaves
                del lines[rank], processes[rank]
                continue
            try:
                for ended, data in referee.put(operation):
                    tell(ended.rank, ended.number, data)
            except WrongProgramError as error:
                refuse(str(error))
        if ready or not all(asleep(pid) for pid in processes.values()):
            moved = time.monotonic()
        elif any(referee.waiting.values()) and time.monotonic() - moved > PATIENCE:
            gone = "".join(f"\n  rank {r} has left" for r in range(world) if r not in lines)
            refuse(referee.picture() + gone)


def asleep(pid: int) -> bool:
    """Whether a process does not compute, and would not if it got a processor."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()  # of its main thread
    except OSError:  # it has ended
        return True
    return status.rpartition(")")[2].split()[0] in "SZX"


# A rank


class Line:
    """This process's line to the referee."""

    def __init__(self, store: Any, rank: int, world: int):
        self.works: dict[int, Work] = {}
        self.changed, self.sending = threading.Condition(), threading.Lock()
        self.refused: str | None = None
        self.server: threading.Thread | None = None
        if rank == 0:
            listener = connection.Listener(family="AF_UNIX")
            what = listener, world, int(os.environ.get(SLOTS, 1))
            self.server = threading.Thread(target=serve, args=what, daemon=True)
            self.server.start()
            store.set("referee", listener.address)
        self.line = connection.Client(store.get("referee").decode())
        self.line.send((rank, os.getpid()))
        threading.Thread(target=self._listen, daemon=True).start()

    def put(self, work: Work) -> None:
        with self.changed:
            if self.refused:
                raise WrongProgramError(self.refused)
            self.works[work.operation.number] = work
        with self.sending:
            self.line.send(work.operation)

    def finish(self, *, closes: bool) -> None:
        """Nothing may be left under way; the referee stays until all ranks have left."""
        with self.changed:
            self.changed.wait_for(lambda: self.refused or not self.works)
            if self.refused and self.works:
                raise WrongProgramError(self.refused)
        if closes:
            self.line.send(None)
            if self.server is not None:
                self.server.join()

    def _listen(self) -> None:
        while self.refused is None:
            try:
                number, what = self.line.recv()
            except (EOFError, OSError):
                number, what = None, "rank 0, which has the referee, has left"
            with self.changed:
                if number is None:
                    self.refused = what
                    for work in self.works.values():  # the next operation says why
                        work.settle()
                else:
                    work = self.works.pop(number)
                    work.arrived = what
                    work.settle()
                self.changed.notify_all()


class Work(dist.Work):
    """An operation under way."""

    def __init__(self, group: PretendNCCL, operation: Operation, into: list, kept: list):
        super().__init__()
        self.group, self.operation = group, operation
        self.into = into
        self.kept = [(tensor, bytes_of(tensor)) for tensor in kept]
        self.arrived: list[bytes] | None = None
        self.delivered = False
        self.future: torch.futures.Future | None = None

    def wait(self, timeout: Any = None) -> bool:
        line = self.group.line
        with line.changed:
            line.changed.wait_for(lambda: self.arrived is not None or line.refused)
            if self.arrived is None:
                raise WrongProgramError(line.refused)
            while not self.delivered:  # and what was put there before
                self.group.works.popleft().deliver()
        return True

    def deliver(self) -> None:
        if self.delivered:
            return
        assert self.arrived is not None
        self.delivered = True
        for tensor, before in self.kept:
            if bytes_of(tensor) != before:
                raise WrongProgramError(
                    f"rank {self.operation.rank} changed what it sends while it was under way: "
                    f"{self.operation.kind} on communicator {self.operation.group}"
                )
        for tensor, data in zip(self.into, self.arrived):
            tensor.data.copy_(tensor_of(data, type_of(tensor)).view_as(tensor))

    def settle(self) -> None:
        """For the C++ of torch's data parallelism, which takes no exceptions."""
        if self.future is not None and not self.future.done():
            if self.arrived is not None:
                self.deliver()
            self.future.set_result(self.into)

    def get_future(self) -> torch.futures.Future:
        with self.group.line.changed:
            if self.future is None:
                self.future = torch.futures.Future()
            if self.arrived is not None or self.group.line.refused:
                self.settle()
        return self.future

    def is_completed(self) -> bool:
        return self.arrived is not None


class PretendNCCL(dist.ProcessGroup):
    """A rank's end of a communicator."""

    line: Line
    numbers: Iterator[int]

    def __init__(self, options: Any):
        super().__init__(options.group_rank, options.group_size)
        self.members = list(options.global_ranks_in_group) or list(range(options.group_size))
        self.me, self.id = self.members[options.group_rank], str(options.group_id)
        self.works: deque[Work] = deque()
        self.batch: list[tuple[Message, Tensor]] | None = None
        self.opened = False
        self.is_first = not options.global_ranks_in_group
        if self.is_first:
            PretendNCCL.line = Line(options.store, self.me, options.group_size)
            PretendNCCL.numbers = itertools.count()

    def getBackendName(self) -> str:
        return NAME

    def refused(self, why: str) -> WrongProgramError:
        return WrongProgramError(f"rank {self.me}, communicator {self.id}: {why}")

    def _put(self, kind: str, into: Sequence[Tensor] = (), kept: Sequence[Tensor] = (), **rest):
        if self.batch is not None:
            raise self.refused(f"{kind} in a batch of messages")
        if not self.opened:
            self.opened = True
            self._put(OPEN).wait()
        operation = Operation(self.me, next(self.numbers), self.id, self.members, kind, **rest)
        work = Work(self, operation, list(into), list(kept))
        self.works.append(work)
        for tensor in into:
            if tensor.is_floating_point():
                tensor.data.fill_(float("nan"))
        self.line.put(work)
        return work

    def _check(self, what: str, *tensors: Tensor) -> None:
        for tensor in tensors:
            if type_of(tensor) not in TYPES:
                raise self.refused(f"{what} of {type_of(tensor)}, which nccl does not know")
            if tensor.is_sparse or not tensor.is_contiguous():
                raise self.refused(f"{what} of a tensor that is not contiguous")

    # Messages

    def _message(self, kind: str, tensors: list[Tensor], peer: int, tag: int) -> Work | None:
        (tensor,) = tensors
        self._check(kind, tensor)
        if tag != 0:
            raise self.refused(f"{kind} with tag {tag}: nccl has no tags")
        data = bytes_of(tensor) if kind == SEND else b""
        message = Message(kind, self.members[peer], type_of(tensor), tensor.numel(), data)
        if self.batch is not None:
            self.batch.append((message, tensor))
            return None
        return self._messages([(message, tensor)])

    def _messages(self, batch: list[tuple[Message, Tensor]]) -> Work:
        ends = {kind: [t for m, t in batch if m.kind == kind] for kind in (SEND, RECEIVE)}
        return self._put(MESSAGES, ends[RECEIVE], ends[SEND], messages=[m for m, _ in batch])

    def send(self, tensors: list[Tensor], peer: int, tag: int = 0) -> Work | None:
        return self._message(SEND, tensors, peer, tag)

    def recv(self, tensors: list[Tensor], peer: int, tag: int = 0) -> Work | None:
        return self._message(RECEIVE, tensors, peer, tag)

    def recv_anysource(self, tensors: list[Tensor], tag: int = 0) -> None:
        raise self.refused("receive from any rank: nccl has to know from which")

    def _start_coalescing(self, device: Any = None) -> None:
        self.batch = []

    def _end_coalescing(self, device: Any = None) -> Work:
        batch, self.batch = self.batch or [], None
        return self._messages(batch)

    # Collectives

    def _collective(self, kind, inputs, into, *agreed, varying: bool = False) -> Work:
        self._check(kind, *inputs, *into)
        sizes = () if varying else tuple(t.numel() for t in inputs)
        types = tuple(sorted({type_of(t) for t in [*inputs, *into]}))
        if len(types) > 1:
            raise self.refused(f"{kind} of different types: {', '.join(types)}")
        places = {tensor.data_ptr() for tensor in into}
        kept = [t for t in inputs if t.data_ptr() not in places]
        data = [bytes_of(tensor) for tensor in inputs]
        return self._put(kind, into, kept, agreed=(*agreed, *types, *sizes), inputs=data)

    def _reduction(self, options: Any) -> str:
        name = options.reduceOp.op.name if hasattr(options.reduceOp, "op") else options.reduceOp
        if name not in REDUCTIONS:
            raise self.refused(f"nccl does not reduce by {name}")
        return name

    def allreduce(self, tensors, opts=None) -> Work:
        opts = opts or dist.AllreduceOptions()
        return self._collective("all_reduce", tensors, tensors, None, self._reduction(opts))

    def reduce(self, tensors, opts) -> Work:
        into = tensors if opts.rootRank == self.rank() else []
        reduction = self._reduction(opts)
        return self._collective("reduce", tensors, into, opts.rootRank, reduction)

    def broadcast(self, tensors, opts) -> Work:
        into = [] if opts.rootRank == self.rank() else tensors
        return self._collective("broadcast", tensors, into, opts.rootRank)

    def allgather(self, outputs, inputs, opts=None) -> Work:
        return self._collective("all_gather", inputs, outputs[0])

    def all_gather_single(self, output, tensor, opts=None) -> Work:
        return self.allgather([list(output.view(self.size(), -1))], [tensor])

    def reduce_scatter(self, outputs, inputs, opts) -> Work:
        reduction = self._reduction(opts)
        return self._collective("reduce_scatter", inputs[0], outputs, None, reduction)

    def reduce_scatter_single(self, output, tensor, opts) -> Work:
        return self.reduce_scatter([output], [list(tensor.view(self.size(), -1))], opts)

    def alltoall(self, outputs, inputs, opts=None) -> Work:
        return self._collective("all_to_all", inputs, outputs, varying=True)

    def all_to_all_single(self, output, tensor, outputs, inputs, opts=None) -> Work:
        even = [len(tensor) // self.size()] * self.size()
        return self.alltoall(
            list(output.split(outputs or even)), list(tensor.split(inputs or even))
        )

    def barrier(self, opts=None) -> Work:
        return self._put("barrier")

    def shutdown(self) -> None:
        self.line.finish(closes=self.is_first)


def batch_isend_irecv(operations: list[dist.P2POp]) -> list[dist.Work]:
    """torch's own takes process groups in Python for some that have no batches."""
    group = operations[0].group or dist.group.WORLD
    if not isinstance(group, PretendNCCL):
        return one_by_one(operations)
    dist.distributed_c10d._check_p2p_op_list(operations)
    group._start_coalescing()
    for op in operations:
        way = group.send if op.op is dist.isend else group.recv
        way([op.tensor], op.group_peer, op.tag)
    return [group._end_coalescing()]


one_by_one = dist.batch_isend_irecv
dist.batch_isend_irecv = batch_isend_irecv
dist.Backend.register_backend(NAME, lambda options, _: PretendNCCL(options), True, ["cpu"])
