"""nccl's rules, applied to what ranks put on their communicators; see pretend_nccl.py."""

from __future__ import annotations

import functools
import itertools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

SLOTS = "PRETEND_NCCL_SLOTS"
"""the environment variable that says how many communicators run at a time; 1 if there is none"""
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


def bytes_of(tensor: Tensor) -> bytes:
    return tensor.detach().reshape(-1).view(torch.uint8).numpy().tobytes()


def tensor_of(data: bytes, type_: str) -> Tensor:
    dtype = getattr(torch, type_)
    return torch.frombuffer(bytearray(data), dtype=dtype) if data else torch.empty(0, dtype=dtype)


def type_of(tensor: Tensor) -> str:
    return str(tensor.dtype).rpartition(".")[2]
