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

Each rank tells the referee, a thread of rank 0, what it puts where, with what is to be sent; the
referee plays by the rules and answers with what arrives.

Stricter than nccl: any operation makes a communicator of all members of its group (nccl: one for
each pair, if the first is a message), and messages between different pairs of a group keep the
order of each rank. Not here: streams of computation, which have to be where the host is.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import threading
import time
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing import connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

NAME = "pretend_nccl"
SLOTS = "PRETEND_NCCL_SLOTS"
"""the environment variable that says how many communicators run at a time; 1 if there is none"""
PATIENCE = 1.0

TYPES = ["float64", "float32", "float16", "bfloat16", "int64", "int32", "int8", "uint8", "bool"]
REDUCTIONS = {
    "SUM": torch.add,
    "AVG": torch.add,
    "PRODUCT": torch.mul,
    "MIN": torch.minimum,
    "MAX": torch.maximum,
}
SEND, RECEIVE, OPEN, MESSAGES = "send", "receive", "open", "messages"


class WrongProgramError(RuntimeError):
    """What nccl would refuse, hang on or, worse, do."""


# What is put on a communicator


@dataclass
class Message:
    kind: str
    peer: int
    type: str
    size: int
    data: bytes = b""
    passed: bool = False

    def __str__(self) -> str:
        way = "to" if self.kind == SEND else "from"
        return f"{self.kind} of {self.size} {self.type} {way} rank {self.peer}"


@dataclass
class Operation:
    rank: int
    number: int
    """that the rank knows it by"""
    group: str
    members: list[int]
    kind: str
    """MESSAGES, OPEN or the name of a collective"""
    agreed: tuple = ()
    """what has to be the same on all members: root, reduction, types and sizes"""
    inputs: list[bytes] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    runs: bool = False

    def __str__(self) -> str:
        if self.kind == MESSAGES:
            return " and ".join(str(m) for m in self.messages if not m.passed)
        return " ".join(map(str, (self.kind, *self.agreed)))

    def open_to(self, peer: int, *kinds: str) -> list[Message]:
        """Messages to or from that rank that have not passed."""
        wanted = kinds or (SEND, RECEIVE)
        return [m for m in self.messages if (m.peer, m.passed) == (peer, False) if m.kind in wanted]

    @property
    def done(self) -> bool:
        return self.kind == MESSAGES and all(m.passed for m in self.messages)


# The referee


class Referee:
    """The rules, applied to what ranks have put on their communicators. Knows no processes."""

    def __init__(self, slots: int):
        self.slots = slots
        self.waiting: dict[int, list[Operation]] = defaultdict(list)
        """by rank, what is not done, in the order in which it was put"""

    def put(self, operation: Operation) -> list[tuple[Operation, list[bytes]]]:
        """Returns what is done now, and what arrives by that."""
        self.waiting[operation.rank].append(operation)
        ended: list[tuple[Operation, list[bytes]]] = []
        while done := [end for heads in self.heads().values() for end in self.run(heads)]:
            ended += done
            for operation, _ in done:
                self.waiting[operation.rank].remove(operation)
        return ended

    def heads(self) -> dict[str, dict[int, Operation]]:
        """The operation that each rank has come to on each communicator; slots are given out."""
        found: dict[str, dict[int, Operation]] = defaultdict(dict)
        for rank, operations in self.waiting.items():
            mine: dict[str, Operation] = {}
            for operation in operations:
                mine.setdefault(operation.group, operation)
            free = self.slots - sum(operation.runs for operation in operations)
            for group, operation in mine.items():
                if free and not operation.runs and operation.kind != OPEN:
                    operation.runs, free = True, free - 1
                found[group][rank] = operation
        return found

    def run(self, heads: dict[int, Operation]) -> list[tuple[Operation, list[bytes]]]:
        """Let pass what can pass on a communicator."""
        for one, other in itertools.combinations(heads.values(), 2):
            check_fit(one, other)
        running = {rank: op for rank, op in heads.items() if op.runs or op.kind == OPEN}
        first = next(iter(heads.values()))
        if first.kind != MESSAGES and len(running) == len(first.members):
            operations = [running[rank] for rank in first.members]
            if all(operation.kind == first.kind for operation in operations):
                return list(zip(operations, results(operations)))
        for one, other in itertools.permutations(running.values(), 2):
            for sent, received in pairs(one, other):
                received.data = sent.data
                sent.passed = received.passed = True
        return [
            (operation, [m.data for m in operation.messages if m.kind == RECEIVE])
            for operation in running.values()
            if operation.done
        ]

    def picture(self) -> str:
        lines = [f"nothing moves any more ({SLOTS}={self.slots}):"]
        for group, heads in sorted(self.heads().items()):
            for rank, operation in sorted(heads.items()):
                where = f"communicator {group} of ranks {operation.members}"
                lines.append(f"  rank {rank}, {where}: {operation}, {self.why(operation, heads)}")
        return "\n".join(lines)

    def why(self, operation: Operation, heads: dict[int, Operation]) -> str:
        if not operation.runs and operation.kind != OPEN:
            taken = [op.group for op in self.waiting[operation.rank] if op.runs]
            return f"waits for a slot, taken by communicator {', '.join(taken)}"
        peers = [m.peer for m in operation.messages if not m.passed]
        late = []
        for peer in sorted(set(peers or operation.members) - {operation.rank}):
            there = heads.get(peer)
            if there is None:
                late.append(f"rank {peer}, which has put nothing there")
            elif not (there.runs or there.kind == OPEN):
                late.append(f"rank {peer}, which has no slot for it")
            elif there.kind == MESSAGES and not there.open_to(operation.rank):
                late.append(f"rank {peer}, which is at another message")
        return f"waits for {' and '.join(late)}"


def pairs(one: Operation, other: Operation) -> list[tuple[Message, Message]]:
    """Messages from one to the other that both ends have come to."""
    return list(zip(one.open_to(other.rank, SEND), other.open_to(one.rank, RECEIVE)))


def check_fit(one: Operation, other: Operation) -> None:
    """Refuse what two ranks have come to on a communicator, if it can never go on."""
    if MESSAGES not in (one.kind, other.kind):
        fits = (one.kind, one.agreed) == (other.kind, other.agreed)
    elif one.kind != other.kind:
        fits = not (one.open_to(other.rank) or other.open_to(one.rank))
    else:
        met = pairs(one, other) + pairs(other, one)
        fits = all((s.type, s.size) == (r.type, r.size) for s, r in met)
        fits = fits and bool(met or not (one.open_to(other.rank) and other.open_to(one.rank)))
    if not fits:
        raise WrongProgramError(
            f"communicator {one.group} of ranks {one.members}: rank {one.rank} is at "
            f"{one}, rank {other.rank} at {other}, which do not fit"
        )


def results(operations: Sequence[Operation]) -> list[list[bytes]]:
    """What a collective gives each of its members, which are in the group's order."""
    kind, agreed = operations[0].kind, operations[0].agreed
    inputs = [operation.inputs for operation in operations]
    if kind in (OPEN, "barrier"):
        return [[] for _ in inputs]
    if kind == "all_gather":
        return [[data for each in inputs for data in each] for _ in inputs]
    if kind == "all_to_all":
        return [[each[i] for each in inputs] for i in range(len(inputs))]
    if kind == "broadcast":
        return [[] if rank == agreed[0] else inputs[agreed[0]] for rank in range(len(inputs))]
    # the rest reduces
    where, reduction, type_ = agreed[:3]
    columns = [[tensor_of(data, type_) for data in column] for column in zip(*inputs)]
    sums = [functools.reduce(REDUCTIONS[reduction], column) for column in columns]
    if reduction == "AVG":
        sums = [total / len(inputs) for total in sums]
    totals = [bytes_of(total) for total in sums]
    if kind == "reduce_scatter":
        return [[total] for total in totals]
    return [totals if kind == "all_reduce" or rank == where else [] for rank in range(len(inputs))]


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


def bytes_of(tensor: Tensor) -> bytes:
    return tensor.detach().reshape(-1).view(torch.uint8).numpy().tobytes()


def tensor_of(data: bytes, type_: str) -> Tensor:
    dtype = getattr(torch, type_)
    return torch.frombuffer(bytearray(data), dtype=dtype) if data else torch.empty(0, dtype=dtype)


def type_of(tensor: Tensor) -> str:
    return str(tensor.dtype).rpartition(".")[2]


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
