"""Two wavefronts at once, as plain data: forward of one update, backward of the one before.

A worker of a synchronous update waits while the wavefront fills and while it drains. If backward
runs one update late (decoupled.py), its gradients from above lie ready when the update begins, and
what the top stage has for itself is there at once: while stage 0 begins with forward units, the top
stage begins with backward units, and nobody waits. With two stages, batches a and b of one encoder
and one decoder chunk each, backward units (twice as long) in brackets, H the head:

    time →
    stage 1  [B ]a A b B [b ][A ][a ]HHHHHHHHHHHH
    stage 0  a A b B [B ]HHHHHHHHHHHH[b ][A ][a ]        (a, b: encoder, A, B: decoder)

Merging only has to choose, at each stage, what comes next. Here a clock runs over estimated costs:
a stage that is free takes what it could begin earliest, and if it could begin several things the
one that comes first in an `Order`. Several orders are tried, and the one that ends first is taken.
All workers compute the same list from the same shapes.

As in schedule.py a transfer is one event of both its ends in one list for all workers, so no order
whatever can deadlock; what is chosen badly only takes longer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from fairseq_hybrid.backends.wavefront.schedule import TOP, Event, Run, Schedule, Send, Unit

AHEAD, BACK, HEAD = "forward", "backward", "head"

Order = tuple[str, str, str]
ORDERS: dict[str, Callable[[int, int], Order]] = {
    # Lower stages run their heads early, so the heads' gradients travel while others compute.
    "forward first": lambda stage, stages: (AHEAD, BACK, HEAD),
    "upper half backward first": lambda stage, stages: (
        (BACK, AHEAD, HEAD) if 2 * stage >= stages else (AHEAD, BACK, HEAD)
    ),
    "backward first": lambda stage, stages: (BACK, AHEAD, HEAD),
}
WORTH = 0.99
"""an order must take less than this share of the time of those before it to be preferred"""


class Head(NamedTuple):
    """Attention, softmax and loss of the batches at home there, forward and backward."""

    stage: int


class Step(NamedTuple):
    wave: str
    """of AHEAD, BACK, HEAD"""
    event: Event | Head

    def concerns(self, worker: int) -> bool:
        e = self.event
        return worker in (e.source, e.target) if isinstance(e, Send) else worker == e.stage


@dataclass(frozen=True)
class Merged:
    stages: int
    steps: tuple[Step, ...]
    makespan: float
    """time from the first to the last computation if transfers took none"""
    work: float
    """what all stages compute together"""

    def program(self, worker: int) -> list[Step]:
        """What `worker` has to do, in order."""
        return [step for step in self.steps if step.concerns(worker)]

    @property
    def efficiency(self) -> float:
        """Share of the workers' time in which they have something to do, 0 to 1."""
        return self.work / (self.stages * self.makespan) if self.work else 1.0


class Costs(NamedTuple):
    """Estimated times, in any unit."""

    ahead: Callable[[int, Unit], float]
    """(stage, unit) → of its forward run"""
    back: Callable[[int, Unit], float]
    head: Callable[[int], float]
    """stage → of its head, forward and backward"""


def merge(forward: Schedule, before: Schedule | None, costs: Costs, back_costs: Costs) -> Merged:
    """One update: the units of `forward`, and those of `before`, a forward schedule, in reverse.

    `before` None: there is none (the first update). `costs` are those of `forward`'s batches,
    `back_costs` those of `before`'s.
    """
    back = Schedule(forward.stages, ()) if before is None else before.reverse()
    best: Merged | None = None
    for order in ORDERS.values():
        made = _Clock(forward, back, costs, back_costs, order).run()
        if best is None or made.makespan < WORTH * best.makespan:
            best = made
    return best


@dataclass
class _Wave:
    """What is left to do of one of the two passes."""

    todo: list[list[Unit]]
    sends: dict[tuple[int, Unit], list[Send]] = field(default_factory=lambda: defaultdict(list))
    """(stage, unit) → what follows its run"""
    early: list[Send] = field(default_factory=list)
    """what follows nothing"""
    awaited: set[tuple[int, Unit]] = field(default_factory=set)
    arrived: dict[tuple[int, Unit], float] = field(default_factory=dict)
    at: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, schedule: Schedule, *, back: bool) -> _Wave:
        wave = cls([[] for _ in range(schedule.stages)], at=[0] * schedule.stages)
        for event in schedule.events:
            if isinstance(event, Run):
                wave.todo[event.stage].append(event.unit)
            elif back and event.kind == TOP:
                wave.early.append(event)
            else:
                wave.sends[event.source, event.unit].append(event)
                if event.kind != TOP:
                    wave.awaited.add((event.target, event.unit))
        return wave

    def ended(self, stage: int) -> bool:
        return self.at[stage] == len(self.todo[stage])

    def next(self, stage: int) -> tuple[Unit, float] | None:
        """The unit that comes next at a stage and when its input is there, if that is known."""
        if self.ended(stage):
            return None
        place = stage, self.todo[stage][self.at[stage]]
        if place in self.awaited and place not in self.arrived:
            return None
        return place[1], self.arrived.get(place, 0.0)


class _Clock:
    def __init__(self, forward: Schedule, back: Schedule, costs: Costs, back_costs: Costs, order):
        self.stages = forward.stages
        self.ahead, self.back = _Wave.of(forward, back=False), _Wave.of(back, back=True)
        self.cost = {AHEAD: costs.ahead, BACK: back_costs.back}
        self.head_cost = costs.head
        self.order = [order(stage, self.stages) for stage in range(self.stages)]
        self.free = [0.0] * self.stages
        self.work = 0.0
        self.headed = [False] * self.stages
        last, top = self.stages - 1, [e for e in forward.events if getattr(e, "kind", "") == TOP]
        homes = {event.unit: event.target for event in top}
        self.missing = [0] * self.stages
        for unit in self.ahead.todo[last]:
            self.missing[homes.get(unit, last)] += 1
        self.homes = homes
        self.home_at = [0.0] * self.stages
        self.steps = [Step(BACK, event) for event in self.back.early]

    def run(self) -> Merged:
        choices = [self._choose(stage) for stage in range(self.stages)]
        while any(choices):
            # What can begin earliest, whoever does it: so the list grows in the order of time.
            start, stage, wave, unit = min(choice for choice in choices if choice)
            if wave == HEAD:
                self._head(stage, start)
                choices[stage] = self._choose(stage)
                continue
            for concerned in self._unit(stage, wave, unit, start):
                choices[concerned] = self._choose(concerned)
        return Merged(self.stages, tuple(self.steps), max(self.free), self.work)

    def _choose(self, stage: int) -> tuple[float, int, str, Unit | None] | None:
        """What a stage does next, as far as it is known, and from when on."""
        ready = self._ready(stage)
        if not ready:
            return None
        earliest = min(start for _, start in ready.values())
        for wave in self.order[stage]:
            if wave in ready and ready[wave][1] == earliest:
                return earliest, stage, wave, ready[wave][0]
        return None

    def _ready(self, stage: int) -> dict[str, tuple[Unit | None, float]]:
        """Wave → what a stage can do next of it, and from when on."""
        found = {}
        for name, wave in ((AHEAD, self.ahead), (BACK, self.back)):
            following = wave.next(stage)
            if following is not None:
                found[name] = following[0], max(following[1], self.free[stage])
        if self.ahead.ended(stage) and not self.missing[stage] and not self.headed[stage]:
            found[HEAD] = None, max(self.home_at[stage], self.free[stage])
        return found

    def _take(self, stage: int, start: float, cost: float) -> float:
        self.work += cost
        self.free[stage] = start + cost
        return self.free[stage]

    def _head(self, stage: int, start: float) -> None:
        self._take(stage, start, self.head_cost(stage))
        self.headed[stage] = True
        self.steps.append(Step(HEAD, Head(stage)))

    def _unit(self, stage: int, name: str, unit: Unit, start: float) -> set[int]:
        """Let it be done; returns the stages that can do something else now."""
        wave = self.ahead if name == AHEAD else self.back
        end = self._take(stage, start, self.cost[name](stage, unit))
        wave.at[stage] += 1
        self.steps.append(Step(name, Run(stage, unit)))
        concerned = {stage}
        for event in wave.sends.get((stage, unit), ()):
            self.steps.append(Step(name, event))
            concerned.add(event.target)
            if event.kind != TOP:
                wave.arrived[event.target, unit] = end
        if name == AHEAD and stage == self.stages - 1:
            home = self.homes.get(unit, stage)
            self.missing[home] -= 1
            self.home_at[home] = max(self.home_at[home], end)
        return concerned
