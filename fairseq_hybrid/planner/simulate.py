"""What happens when: a discrete-event model of workers that compute, send and wait.

Every worker has a program, a list of

    Compute      so many seconds of its own, longer while others compute (contention)
    Post         send bytes, without waiting; a lane's messages go one after the other
    Await        wait until a message has arrived
    Collective   a barrier of some workers, then so many seconds together

Computation and messages progress side by side. While several lanes of a worker are busy they share
its bandwidth; a message arrives when its bytes are sent and the latency has passed. `simulate`
returns a `Timeline`: who did what from when to when, and what it sent.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Union

WAITING = "wait"
EPSILON = 1e-12
"""seconds that count as none"""


class Compute(NamedTuple):
    kind: str
    name: str
    seconds: float


class Post(NamedTuple):
    lane: Hashable
    key: Hashable
    size: float


class Await(NamedTuple):
    key: Hashable


class Collective(NamedTuple):
    key: Hashable
    workers: tuple[int, ...]
    seconds: float
    size: float = 0.0
    """bytes that each of them sends in it"""


Instruction = Union[Compute, Post, Await, Collective]
Program = Sequence[Instruction]


class Link(NamedTuple):
    """What lies between two workers: seconds until a byte is there, bytes per second."""

    latency: float = 0.0
    bandwidth: float = float("inf")


NO_DELAY = Link()


class Span(NamedTuple):
    worker: int
    kind: str
    name: str
    begin: float
    end: float


@dataclass(frozen=True)
class Timeline:
    workers: int
    spans: list[Span]
    seconds: float
    sent: list[float]
    """bytes, by worker"""

    def spent(self, worker: int, kind: str) -> float:
        return sum(s.end - s.begin for s in self.spans if (s.worker, s.kind) == (worker, kind))

    @property
    def idle(self) -> float:
        """Share of all workers' time in which they wait or are done, 0 to 1."""
        if not self.seconds:
            return 0.0
        busy = sum(span.end - span.begin for span in self.spans if span.kind != WAITING)
        return 1 - busy / (self.workers * self.seconds)


def simulate(
    programs: Sequence[Program],
    link: Link = NO_DELAY,
    slow_down: Callable[[str, int], float] = lambda kind, busy: 1.0,
) -> Timeline:
    """Run all programs to their end.

    `slow_down(kind, busy)`: how much longer a computation of this kind takes than alone while
    `busy` workers compute.
    """
    return _Simulation(programs, link, slow_down).run()


@dataclass
class _Worker:
    program: Program
    at: int = 0
    left: float = 0.0
    """seconds of the computation under way that are still to do"""
    since: float | None = None
    """when the step under way began"""

    @property
    def step(self) -> Instruction | None:
        return self.program[self.at] if self.at < len(self.program) else None

    @property
    def computes(self) -> bool:
        return self.since is not None and isinstance(self.step, Compute)


@dataclass
class _Lane:
    source: int
    queue: deque[list] = field(default_factory=deque)
    """[key, seconds left at full bandwidth] of each message"""


class _Simulation:
    def __init__(self, programs, link, slow_down):
        self.workers = [_Worker(program) for program in programs]
        self.link, self.slow_down = link, slow_down
        self.now = 0.0
        self.lanes: dict[tuple[int, Hashable], _Lane] = {}
        self.arrives: dict[Hashable, float] = {}
        """message → when it arrives, once its bytes are sent"""
        self.entered: dict[Hashable, set[int]] = {}
        """collective → workers that are in it"""
        self.ends: dict[Hashable, float] = {}
        """collective → when it ends, once all its workers are in it"""
        self.later: list[float] = []
        """when messages arrive and collectives end, as a heap"""
        self.spans: list[Span] = []
        self.sent = [0.0] * len(programs)

    def run(self) -> Timeline:
        while True:
            while any([self._proceed(i) for i in range(len(self.workers))]):
                pass
            if all(worker.step is None for worker in self.workers):
                return Timeline(len(self.workers), self.spans, self.now, self.sent)
            self._advance()

    # What takes no time

    def _proceed(self, index: int) -> bool:
        """Go on as far as possible now; returns whether that was anywhere."""
        worker, moved = self.workers[index], False
        while worker.step is not None and self._passes(index, worker):
            worker.at, worker.since, moved = worker.at + 1, None, True
        return moved

    def _passes(self, index: int, worker: _Worker) -> bool:
        """Whether the worker's step is done by now; begins it if it has not begun."""
        step = worker.step
        if isinstance(step, Post):
            self._post(index, step)
            return True
        if worker.since is None:
            worker.since = self.now
            if isinstance(step, Compute):
                worker.left = step.seconds
            if isinstance(step, Collective):
                self._enter(index, step)
        if isinstance(step, Compute):
            if worker.left > EPSILON:
                return False
            self._note(index, step.kind, step.name)
            return True
        until = self.arrives if isinstance(step, Await) else self.ends
        if until.get(step.key, float("inf")) > self.now + EPSILON:
            return False
        self._note(index, WAITING, "wait")
        return True

    def _post(self, index: int, post: Post) -> None:
        lane = self.lanes.setdefault((index, post.lane), _Lane(index))
        lane.queue.append([post.key, post.size / self.link.bandwidth])
        self.sent[index] += post.size
        self._deliver()

    def _enter(self, index: int, collective: Collective) -> None:
        here = self.entered.setdefault(collective.key, set())
        here.add(index)
        self.sent[index] += collective.size
        if here == set(collective.workers):
            self.ends[collective.key] = self._after(collective.seconds)

    def _after(self, seconds: float) -> float:
        """That time, which will be waited for."""
        heapq.heappush(self.later, self.now + seconds)
        return self.now + seconds

    def _note(self, index: int, kind: str, name: str) -> None:
        since = self.workers[index].since
        if self.now > since:
            self.spans.append(Span(index, kind, name, since, self.now))

    # What takes time

    def _advance(self) -> None:
        """Let time pass until the next thing is done."""
        computing = [worker for worker in self.workers if worker.computes]
        pace = [1 / self.slow_down(worker.step.kind, len(computing)) for worker in computing]
        flowing = [lane for lane in self.lanes.values() if lane.queue]
        rate = [1 / sum(other.source == lane.source for other in flowing) for lane in flowing]
        while self.later and self.later[0] <= self.now + EPSILON:
            heapq.heappop(self.later)
        ends = [worker.left / p for worker, p in zip(computing, pace)]
        ends += [lane.queue[0][1] / r for lane, r in zip(flowing, rate)]
        ends += [t - self.now for t in self.later[:1]]
        if not ends:
            stuck = [i for i, worker in enumerate(self.workers) if worker.step is not None]
            raise RuntimeError(
                f"workers {stuck} wait for each other: {self.workers[stuck[0]].step}"
            )
        passed = min(ends)
        self.now += passed
        for worker, p in zip(computing, pace):
            worker.left -= passed * p
        for lane, r in zip(flowing, rate):
            lane.queue[0][1] -= passed * r
        self._deliver()

    def _deliver(self) -> None:
        """Take what has been sent off the lanes: it arrives after the latency."""
        for lane in self.lanes.values():
            while lane.queue and lane.queue[0][1] <= EPSILON:
                self.arrives[lane.queue.popleft()[0]] = self._after(self.link.latency)
