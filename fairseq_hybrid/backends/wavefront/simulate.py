"""How long a schedule takes: a clock that runs over the list that the executor runs.

    simulate(synchronous(shape).actions, costs).seconds, .idle, .spans

Every worker goes through its program. A computation begins when the worker is free and what it
needs has arrived; a message leaves when its sender comes to it. Messages of units go one after the
other through the links of both ends. Gradients and weights of slices, which are large and not
urgent, have a link to themselves but for the units' bytes that pass it meanwhile.

The length of chunks and what comes late are chosen by it, the planner plans by it, and `ideal` in
the log is the share of time in which it lets the workers compute.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from fairseq_hybrid.backends.wavefront.schedule import (
    BACKWARD,
    D_STATE,
    D_TOP,
    D_UP,
    FORWARD,
    HEAD,
    REDUCE,
    REFRESH,
    SEND,
    STATE,
    STEP,
    TOP,
    TRANSFERS,
    UP,
    Action,
)

WAIT = "wait"
COLLECTIVE = "collective"
"""an action of ours beside those of schedule.py: all stages with one `kind` do it together"""

AWAITED_BY = {
    UP: FORWARD, D_UP: BACKWARD, D_TOP: BACKWARD, D_STATE: BACKWARD, TOP: HEAD, STATE: HEAD,
    REFRESH: HEAD, REDUCE: STEP,
}  # fmt: skip


class Costs(Protocol):
    def seconds(self, action: Action) -> float:
        """That a computation takes its worker, in any unit; of a transfer, at either end."""

    def size(self, action: Action) -> float:
        """Bytes of a transfer; in a collective, of each of its workers."""


class Link(NamedTuple):
    """What lies between two workers: seconds until a byte is there, bytes per second."""

    latency: float = 0.0
    bandwidth: float = float("inf")


NO_DELAY = Link()


class Span(NamedTuple):
    worker: int
    kind: str
    """an action's op, or `WAIT`"""
    name: str
    begin: float
    end: float


@dataclass
class Timeline:
    workers: int
    spans: list[Span]
    seconds: float
    """from the first action to the last"""
    sent: list[float]
    """bytes, by worker"""
    received: list[float]

    def spent(self, worker: int, kind: str) -> float:
        return sum(s.end - s.begin for s in self.spans if (s.worker, s.kind) == (worker, kind))

    def idle_share(self, worker: int) -> float:
        """Of the time, in which it waits or is done, 0 to 1."""
        if not self.seconds:
            return 0.0
        mine = (s for s in self.spans if s.worker == worker and s.kind != WAIT)
        return 1 - sum(s.end - s.begin for s in mine) / self.seconds

    @property
    def idle(self) -> float:
        """The same of all workers."""
        return sum(map(self.idle_share, range(self.workers))) / self.workers


def simulate(
    actions: Sequence[Action], costs: Costs, link: Link = NO_DELAY, workers: int | None = None
) -> Timeline:
    """`workers`: how many there are, if the last ones may have no action."""
    count = 1 + max((max(a.stage, a.peer or 0) for a in actions), default=-1)
    clock = _Clock(max(count, workers or 1), costs, link)
    for action in actions:
        clock.do(action)
    clock.do_collectives()
    return Timeline(len(clock.free), clock.spans, max(clock.free), clock.sent, clock.received)


class _Bulk(NamedTuple):
    """A large message on its way."""

    begin: float
    bytes: float
    """with those before it in the queues of both ends"""
    source: int
    target: int
    passed: float
    """bytes of units that had passed both links when it began"""


@dataclass
class _Clock:
    workers: int
    costs: Costs
    link: Link
    spans: list[Span] = field(default_factory=list)

    def __post_init__(self) -> None:
        def zeros() -> list[float]:
            return [0.0] * self.workers

        self.free, self.sent, self.received = zeros(), zeros(), zeros()
        self.out_free, self.in_free = zeros(), zeros()
        """when a link's last message of a unit has passed"""
        self.unit_bytes = zeros()
        self.bulk_out, self.bulk_in = zeros(), zeros()
        """bytes of slices that wait for a link, since the last time that one was awaited"""
        self.arrived: dict[Hashable, float] = {}
        self.bulk: dict[Hashable, list[_Bulk]] = {}
        self.together: dict[str, list[Action]] = {}

    def do(self, action: Action) -> None:
        if action.op == COLLECTIVE:
            self.together.setdefault(action.kind, []).append(action)
            return
        self.do_collectives()
        if action.op in TRANSFERS:
            self._transfer(action)
        else:
            self._compute(action)

    def _transfer(self, action: Action) -> None:
        source, target, size = action.stage, action.peer, self.costs.size(action)
        assert target is not None
        self.sent[source] += size
        self.received[target] += size
        busy = self.costs.seconds(action)
        for end in (source, target) if busy else ():
            self._spend(end, action, busy)
        begin = self.free[source]
        if action.op == SEND:
            begin = max(begin, self.out_free[source], self.in_free[target])
            end = begin + size / self.link.bandwidth
            self.out_free[source] = self.in_free[target] = end
            self.unit_bytes[source] += size
            self.unit_bytes[target] += size
            key = target, AWAITED_BY[action.kind], action.update, self._unit(action)
            self.arrived[key] = max(self.arrived.get(key, 0.0), end + self.link.latency)
            return
        self.bulk_out[source] += size
        self.bulk_in[target] += size
        queued = max(self.bulk_out[source], self.bulk_in[target])
        passed = self.unit_bytes[source] + self.unit_bytes[target]
        key = target, AWAITED_BY[action.op]
        self.bulk.setdefault(key, []).append(_Bulk(begin, queued, source, target, passed))

    @staticmethod
    def _unit(action: Action) -> object:
        return None if action.kind in (TOP, STATE) else action.unit

    def _compute(self, action: Action) -> None:
        stage = action.stage
        key = stage, action.op, action.update, action.unit
        ready = self.arrived.pop(key, 0.0)
        for message in self.bulk.pop((stage, action.op), ()):
            passed = self.unit_bytes[message.source] + self.unit_bytes[message.target]
            size = message.bytes + (passed - message.passed) / 2
            ready = max(ready, message.begin + size / self.link.bandwidth + self.link.latency)
            self.bulk_in[stage] = self.bulk_out[message.source] = 0.0
        self._wait(stage, ready)
        self._spend(stage, action, self.costs.seconds(action))

    def do_collectives(self) -> None:
        """Who is in one waits for the others."""
        for members in self.together.values():
            ready = max(self.free[action.stage] for action in members)
            for action in members:
                self._wait(action.stage, ready)
                self._spend(action.stage, action, self.costs.seconds(action))
                self.sent[action.stage] += self.costs.size(action)
                self.received[action.stage] += self.costs.size(action)
        self.together.clear()

    def _wait(self, worker: int, until: float) -> None:
        if until > self.free[worker]:
            self.spans.append(Span(worker, WAIT, WAIT, self.free[worker], until))
            self.free[worker] = until

    def _spend(self, worker: int, action: Action, seconds: float) -> None:
        begin = self.free[worker]
        self.free[worker] = begin + seconds
        if seconds:
            self.spans.append(Span(worker, action.op, name(action), begin, begin + seconds))


def name(action: Action) -> str:
    unit = action.unit
    return action.kind or action.op if unit is None else f"{unit.part} {unit.batch}.{unit.chunk}"
