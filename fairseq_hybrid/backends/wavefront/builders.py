"""The two ways to order an update's actions (schedule.py): synchronous, and decoupled.

`synchronous` makes an update of its own batches alone. What nobody waits for fills the gaps: the
output weights' gradient while the backward pass comes down to a stage (`late`: or after its units,
while the stages below still have some to do), the layers' weight gradients when a stage's units are
done and the pipeline drains. The gradients of slices start on their way as soon as they are there,
new weights when the pipeline is filled.

`decoupled` runs the backward units one update late, mixed with the forward units of this one. The
gradients from above lie ready when the update begins, so while stage 0 begins with forward units
the top stage begins with backward units, and nobody waits. With two stages, batches a and b of one
encoder and one decoder chunk each, backward units in brackets, H the head:

    time →
    stage 1  [B ]a A b B [b ][A ][a ]HHHHHHHHHHHH
    stage 0  a A b B [B ]HHHHHHHHHHHH[b ][A ][a ]        (a, b: encoder, A, B: decoder)

It only has to choose, at each stage, what comes next: a clock runs over estimated costs, and a
stage that is free takes what it could begin earliest; if it could begin several things, what comes
first in an `Order`. Several orders are tried, and the one that ends first is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from fairseq_hybrid.backends.wavefront.schedule import (
    BACKWARD,
    EMBED,
    EMBED_GRAD,
    FORWARD,
    HEAD,
    OUTPUT_GRAD,
    REDUCE,
    REFRESH,
    SEND,
    STEP,
    TOP,
    WEIGHT_GRAD,
    WHOLE,
    Action,
    Schedule,
    Shape,
    Unit,
    backward_pass,
    forward_pass,
    from_heads,
)

Cost = Callable[[Action], float]
"""the time that an action takes its worker, in any unit"""


def synchronous(shape: Shape, late: Collection[int] = ()) -> Schedule:
    """`late`: the stages that leave the output weights' gradient until their units are done."""
    stages = range(shape.stages)
    actions = [Action(EMBED, 0), *_with_refresh(forward_pass(shape), shape)]
    reduce = _by_source(shape.exchange(REDUCE))
    for stage in reversed(stages[:-1]):
        actions += [Action(HEAD, stage), *from_heads(shape, stage)]
    # The top stage posts its receives before its own head.
    actions += [Action(HEAD, stages[-1]), *from_heads(shape, stages[-1])]
    for stage in stages:
        if stage not in late:
            actions += [Action(OUTPUT_GRAD, stage), *reduce.get(stage, ())]
    back = backward_pass(shape)
    ends = {action.stage: place for place, action in enumerate(back)}
    for place, action in enumerate(back):
        actions.append(action)
        if ends[action.stage] == place:
            actions += _after_units(action.stage, late, reduce)
    for stage in stages:
        if stage not in ends:  # nothing to run
            actions += _after_units(stage, late, reduce)
    return Schedule(shape.stages, tuple(actions) + tuple(Action(STEP, s) for s in stages))


def _with_refresh(ahead: list[Action], shape: Shape) -> list[Action]:
    """New weights go out when the pipeline is filled: the first units have the links to themselves,
    and heads, which need the weights, are far away."""
    top = shape.stages - 1
    filled = (i + 1 for i, a in enumerate(ahead) if a.op == FORWARD and a.stage == top)
    heads = (i for i, a in enumerate(ahead) if a.op == HEAD)  # of stages without a batch
    place = min(next(filled, 0), next(heads, len(ahead)))
    return [*ahead[:place], *shape.exchange(REFRESH), *ahead[place:]]


def _by_source(transfers: list[Action]) -> dict[int, list[Action]]:
    found: dict[int, list[Action]] = {}
    for action in transfers:
        found.setdefault(action.stage, []).append(action)
    return found


def _after_units(stage: int, late: Collection[int], reduce: dict[int, list[Action]]):
    """What a stage is left with. The layers' weights come last: under them gradients travel."""
    if stage in late:
        yield Action(OUTPUT_GRAD, stage)
        yield from reduce.get(stage, ())
    if stage == 0:
        yield Action(EMBED_GRAD, 0)
    yield Action(WEIGHT_GRAD, stage)


Order = tuple[str, str, str]
ORDERS: tuple[Callable[[int, int], Order], ...] = (
    # Lower stages run their heads early, so the heads' gradients travel while others compute.
    lambda stage, stages: (FORWARD, BACKWARD, HEAD),
    lambda stage, stages: (
        (BACKWARD, FORWARD, HEAD) if 2 * stage >= stages else (FORWARD, BACKWARD, HEAD)
    ),
    lambda stage, stages: (BACKWARD, FORWARD, HEAD),
)
WORTH = 0.99
"""an order must take less than this share of the time of those before it to be preferred"""


def decoupled(shape: Shape, before: Shape | None, cost: Cost) -> Schedule:
    """The units of `shape` and, one update late, the backward units of `before` (None: there is
    nothing outstanding, as in the first update)."""
    best: _Clock | None = None
    for order in ORDERS:
        clock = _Clock(shape, before, cost, [order(s, shape.stages) for s in range(shape.stages)])
        clock.run()
        if best is None or clock.end < WORTH * best.end:
            best = clock
    assert best is not None
    late = [] if before is None else from_heads(before, update=-1)
    actions = [*late, Action(EMBED, 0), *_with_refresh(best.actions, shape)]
    if before is not None:
        actions.append(Action(EMBED_GRAD, 0, update=-1))
        actions += [Action(WEIGHT_GRAD, stage, update=-1) for stage in range(shape.stages)]
    return Schedule(shape.stages, (*actions, *(Action(STEP, s) for s in range(shape.stages))))


def outstanding(before: Shape) -> Schedule:
    """What `decoupled` has left, by itself."""
    actions = [*from_heads(before, update=-1), *backward_pass(before, update=-1)]
    actions.append(Action(EMBED_GRAD, 0, update=-1))
    actions += [Action(WEIGHT_GRAD, stage, update=-1) for stage in range(before.stages)]
    return Schedule(before.stages, tuple(actions))


@dataclass
class _Queue:
    """The units of one of the two passes, by stage."""

    todo: list[list[Unit]]
    sends: Callable[[int, Unit], list[Action]]
    waits: set[tuple[int, Unit]] = field(default_factory=set)
    """(stage, unit) that another stage has to hand its input"""
    arrived: dict[tuple[int, Unit], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for stage, units in enumerate(self.todo):
            for unit in units:
                found = (a for a in self.sends(stage, unit) if a.kind != TOP)
                self.waits.update((action.peer, unit) for action in found)
            units.reverse()  # the next one is the last

    def next(self, stage: int) -> tuple[Unit, float] | None:
        """The unit that comes next at a stage and when its input is there, if that is known."""
        if not self.todo[stage]:
            return None
        unit = self.todo[stage][-1]
        if (stage, unit) in self.waits and (stage, unit) not in self.arrived:
            return None
        return unit, self.arrived.get((stage, unit), 0.0)


class _Clock:
    def __init__(self, shape: Shape, before: Shape | None, cost: Cost, orders: list[Order]):
        self.cost, self.orders = cost, orders
        self.reduce = _by_source(shape.exchange(REDUCE))
        stages = range(shape.stages)
        back = backward_pass(before, update=-1) if before is not None else []
        down: dict[tuple[int, Unit | None], list[Action]] = {}
        for action in back:
            if action.op == SEND:
                down.setdefault((action.stage, action.unit), []).append(action)
        back_todo = [
            [a.unit for a in back if a.op == BACKWARD and a.stage == s and a.unit] for s in stages
        ]
        self.queues = {
            FORWARD: _Queue(
                [shape.units(s) for s in stages], lambda s, unit: list(shape.sends(s, unit))
            ),
            BACKWARD: _Queue(back_todo, lambda s, unit: down.get((s, unit), [])),
        }
        self.updates = {FORWARD: 0, BACKWARD: -1}
        self.free = [0.0] * shape.stages
        self.heads = set(stages)
        """stages whose head is still to come"""
        self.home_at = [0.0] * shape.stages
        self.missing = [0] * shape.stages
        """units whose top states a head still waits for"""
        self.homes, self.last = shape.homes, shape.stages - 1
        for unit in shape.units(self.last):
            if unit.part != WHOLE:
                self.missing[shape.homes[unit.batch]] += 1
        self.actions: list[Action] = []

    @property
    def end(self) -> float:
        return max(self.free)

    def run(self) -> None:
        stages = range(len(self.free))
        choices = [self._choose(stage) for stage in stages]
        while any(choices):
            # What can begin earliest, whoever does it: so the list grows in the order of time.
            start, stage, op, unit = min(choice for choice in choices if choice)
            for concerned in self._do(start, stage, op, unit):
                choices[concerned] = self._choose(concerned)

    def _choose(self, stage: int) -> tuple[float, int, str, Unit | None] | None:
        """What a stage does next, as far as it is known, and from when on."""
        ready: dict[str, tuple[Unit | None, float]] = {}
        for op, queue in self.queues.items():
            following = queue.next(stage)
            if following is not None:
                ready[op] = following[0], max(following[1], self.free[stage])
        forward_done = not self.queues[FORWARD].todo[stage]
        if stage in self.heads and forward_done and not self.missing[stage]:
            ready[HEAD] = None, max(self.home_at[stage], self.free[stage])
        if not ready:
            return None
        earliest = min(start for _, start in ready.values())
        op = next(op for op in self.orders[stage] if op in ready and ready[op][1] == earliest)
        return earliest, stage, op, ready[op][0]

    def _do(self, start: float, stage: int, op: str, unit: Unit | None) -> set[int]:
        """Returns the stages that can do something else now."""
        if op == HEAD:
            mine = [Action(HEAD, stage), Action(OUTPUT_GRAD, stage)]
            self.free[stage] = start + sum(map(self.cost, mine))
            self.heads.remove(stage)
            self.actions += [*mine, *self.reduce.get(stage, ())]
            return {stage}
        assert unit is not None
        queue, action = self.queues[op], Action(op, stage, unit, update=self.updates[op])
        end = self.free[stage] = start + self.cost(action)
        queue.todo[stage].pop()
        self.actions.append(action)
        concerned = {stage}
        for send in queue.sends(stage, unit):
            self.actions.append(send)
            concerned.add(send.peer)
            if send.kind != TOP:
                queue.arrived[send.peer, unit] = end
        if op == FORWARD and stage == self.last and unit.part != WHOLE:
            home = self.homes[unit.batch]
            self.missing[home] -= 1
            self.home_at[home] = max(self.home_at[home], end)
            concerned.add(home)
        return concerned
