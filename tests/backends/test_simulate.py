"""How long an update takes: the clock that runs over its actions, against other ways to tell."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable

import pytest
from schedule_cases import (
    Needs,
    decoupled_needs,
    equal,
    every_number_of_stages,
    every_variant,
    programs_of,
    synchronous_needs,
)

from fairseq_hybrid.backends.wavefront.builders import decoupled, synchronous
from fairseq_hybrid.backends.wavefront.schedule import (
    BACKWARD,
    ENCODER,
    FORWARD,
    HEAD,
    OUTPUT_GRAD,
    REDUCE,
    REFRESH,
    SEND,
    STEP,
    TRANSFERS,
    UP,
    Action,
    Schedule,
    Shape,
    Unit,
)
from fairseq_hybrid.backends.wavefront.simulate import COLLECTIVE, WAIT, Link, Timeline, simulate


class Given:
    """Seconds by op, or by action; bytes of every transfer, or by action."""

    def __init__(self, seconds: dict | Callable, bytes_: float | Callable = 0.0):
        self.by_op, self.bytes = seconds, bytes_

    def seconds(self, action: Action) -> float:
        return (
            self.by_op.get(action.op, 0.0) if isinstance(self.by_op, dict) else self.by_op(action)
        )

    def size(self, action: Action) -> float:
        return self.bytes(action) if callable(self.bytes) else self.bytes


UNITS = {FORWARD: 1.0, BACKWARD: 1.0}


def drawn(dice: random.Random, most: int) -> Callable:
    numbers: dict = defaultdict(lambda: dice.randint(0, most))
    return lambda action: 0 if action.op in TRANSFERS else numbers[action]


def plans(stages: int, dice: random.Random, count: int) -> list[tuple[Schedule, Needs]]:
    """Some schedules, of either kind, with what every action of theirs needs."""
    shapes = dice.sample(every_variant(stages), count)
    found = [(synchronous(s, late), synchronous_needs(s)) for s in shapes for late in ((), (0,))]
    shapes = [shape for shape in shapes if not shape.states_home]
    for shape, before in zip(shapes, shapes[::-1]):
        plan = decoupled(shape, before, Given(drawn(dice, 3)).seconds)
        found.append((plan, decoupled_needs(shape, before)))
    return found


def busy(timeline: Timeline) -> float:
    return sum(span.end - span.begin for span in timeline.spans if span.kind != WAIT)


# Free links


def longest_path(plan: Schedule, needs: Needs, costs: Given) -> float:
    """From what has to wait for what alone, from the order in which a worker computes, and from
    that in which messages of units pass its link, each way."""
    end: dict[Action, float] = {}
    free, out, into = ([0.0] * plan.stages for _ in range(3))
    for action in plan.actions:
        waits = [free[action.stage], *(end[before] for before in needs[action])]
        if action.op == SEND:
            waits += [out[action.stage], into[action.peer]]
            out[action.stage] = into[action.peer] = max(waits)
        end[action] = max(waits) + costs.seconds(action)
        if action.op not in TRANSFERS:
            free[action.stage] = end[action]
    return max(end.values())


@every_number_of_stages
def test_makespan_is_the_longest_path(stages):
    """Whatever the actions cost; the idle share is what is not work in it."""
    dice = random.Random(stages)
    for plan, needs in plans(stages, dice, 6):
        costs = Given(drawn(dice, 50))
        timeline = simulate(plan.actions, costs)
        assert timeline.seconds == longest_path(plan, needs, costs)
        work = sum(costs.seconds(action) for action in plan.actions)
        assert busy(timeline) == work
        assert timeline.idle == pytest.approx(1 - work / (stages * timeline.seconds))


@every_number_of_stages
def test_fills_turns_and_drains(stages):
    """Equal units: one more for each stage above the first, in either direction."""
    units = 5 * stages
    timeline = simulate(synchronous(equal(stages, 3, 2)).actions, Given(UNITS))
    assert timeline.seconds == 2 * (units + stages - 1)
    for stage in range(stages):
        assert timeline.spent(stage, FORWARD) == timeline.spent(stage, BACKWARD) == units
        assert timeline.idle_share(stage) == pytest.approx((stages - 1) / (units + stages - 1))
    assert timeline.idle == pytest.approx((stages - 1) / (units + stages - 1))


def test_the_output_weights_fill_the_turn_and_the_drain():
    """On stage 0 before its first gradients come, on the last one after its units."""
    shape, costs = equal(2, 3, 2), Given({**UNITS, OUTPUT_GRAD: 2.0})
    early = simulate(synchronous(shape).actions, costs)
    late = simulate(synchronous(shape, (1,)).actions, costs)
    assert simulate(synchronous(shape).actions, Given(UNITS)).seconds == 22
    assert (early.seconds, late.seconds) == (24, 23)
    assert [late.idle_share(stage) for stage in (0, 1)] == pytest.approx([1 / 23, 1 / 23])


def test_without_work_nobody_waits():
    timeline = simulate(synchronous(Shape(3, (), ())).actions, Given({}))
    assert (timeline.seconds, timeline.idle, timeline.spans) == (0, 0, [])
    assert simulate([], Given({}), workers=4).workers == 4


def test_workers_beyond_the_last_stage_are_idle():
    timeline = simulate(synchronous(equal(2, 1, 1)).actions, Given(UNITS), workers=3)
    assert timeline.idle_share(2) == 1
    assert timeline.idle == pytest.approx((1 + 2 * 2 / 10) / 3)


# Links


def stepwise(plan: Schedule, needs: Needs, costs: Given, link: Link) -> float:
    """The same, worker by worker, each with a program of its own, as real ones do it: who sends
    goes on at once, who computes waits for what it needs, and what a worker sends and receives
    passes its link one after the other, each way, in the order of its program."""
    todo = programs_of(plan.actions, plan.stages)
    into = [[a for a in todo[me] if a.op == SEND and a.peer == me] for me in range(plan.stages)]
    clock, out_free, in_free = ([0.0] * plan.stages for _ in range(3))
    there: dict[Action, float] = {}
    moved = True
    while moved:
        moved = False
        for me, program in enumerate(todo):
            while program:
                action = program[0]
                if action.op == SEND and action.stage == me:
                    queue = into[action.peer]
                    if queue[0] != action:
                        break
                    queue.pop(0)
                    begin = max(clock[me], out_free[me], in_free[action.peer])
                    passed = begin + costs.size(action) / link.bandwidth
                    out_free[me] = in_free[action.peer] = passed
                    there[action] = passed + link.latency
                elif action.op not in TRANSFERS:
                    awaited = [before for before in needs[action] if before.op == SEND]
                    if any(before not in there for before in awaited):
                        break
                    clock[me] = max([clock[me], *(there[before] for before in awaited)])
                    clock[me] += costs.seconds(action)
                program.pop(0)
                moved = True
    assert not any(todo)
    return max(clock)


@every_number_of_stages
def test_as_the_workers_do_it(stages):
    """The time of the list is that of workers who know their own part of it only."""
    dice = random.Random(stages)
    for shape in dice.sample([s for s in every_variant(stages) if not s.owners], 8):
        late = dice.choice([(), (stages - 1,)])
        bytes_ = defaultdict(lambda: dice.randint(0, 30))
        costs = Given(drawn(dice, 50), bytes_.__getitem__)
        link = Link(latency=dice.randint(0, 3), bandwidth=dice.choice([0.5, 1, 4]))
        plan, needs = synchronous(shape, late), synchronous_needs(shape)
        timeline = simulate(plan.actions, costs, link)
        assert timeline.seconds == pytest.approx(stepwise(plan, needs, costs, link))
        sent = [sum(bytes_[a] for a in plan.actions if a.op == SEND and a.stage == s)
                for s in range(stages)]  # fmt: skip
        assert timeline.sent == sent
        assert sum(timeline.received) == sum(sent)


def test_rate_and_latency():
    """One batch of one and one chunk, whose home is stage 0; by hand: each message takes half a
    second to pass and half a second more to be there."""
    costs = Given({**UNITS, HEAD: 1.0}, 2.0)
    plan = synchronous(Shape(2, ((1, 1),), (0,)))
    timeline = simulate(plan.actions, costs, Link(0.5, 4.0))
    begins = [(s.worker, s.kind, s.begin) for s in timeline.spans if s.kind != WAIT]
    assert sorted(begins) == [
        (0, BACKWARD, 9.0), (0, BACKWARD, 10.0), (0, FORWARD, 0.0), (0, FORWARD, 1.0),
        (0, HEAD, 5.0), (1, BACKWARD, 7.0), (1, BACKWARD, 8.0), (1, FORWARD, 2.0),
        (1, FORWARD, 3.0), (1, HEAD, 4.0),
    ]  # fmt: skip
    assert (timeline.seconds, timeline.sent, timeline.received) == (11.0, [8.0, 8.0], [8.0, 8.0])


def test_messages_of_units_queue_up_at_both_ends():
    """The second waits for its sender's link; that of another sender for its receiver's."""
    a, b, c = (Unit(0, ENCODER, k) for k in range(3))
    sends = [Action(SEND, 0, a, 2, UP), Action(SEND, 0, b, 1, UP), Action(SEND, 1, c, 2, UP)]
    runs = [Action(FORWARD, 2, a), Action(FORWARD, 1, b), Action(FORWARD, 2, c)]
    timeline = simulate([*sends, *runs], Given({FORWARD: 1.0}, 3.0), Link(0.0, 1.0))
    begins = [s.begin for s in timeline.spans if s.kind == FORWARD]
    assert begins == [3.0, 6.0, 6.0]


def test_slices_pass_beside_units():
    """They do not hold units up; but what passes both links meanwhile holds them up."""
    unit, link = Unit(0, ENCODER, 0), Link(0.5, 4.0)
    start, bulk, end = Action(OUTPUT_GRAD, 0), Action(REDUCE, 0, None, 1), Action(STEP, 1)
    send, run = Action(SEND, 0, unit, 1, UP), Action(FORWARD, 1, unit)
    seconds = {OUTPUT_GRAD: 1.0, FORWARD: 1.0, STEP: 1.0}
    costs = Given(seconds, lambda action: {REDUCE: 8.0, SEND: 4.0}[action.op])

    def begins(*actions: Action) -> list[float]:
        spans = simulate(actions, costs, link).spans
        return [s.begin for s in spans if s.kind in (FORWARD, STEP)]

    assert begins(start, bulk, end) == [1 + 8 / 4 + 0.5]
    assert begins(start, bulk, send, run, end) == [1 + 4 / 4 + 0.5, 1 + 12 / 4 + 0.5]
    assert begins(start, send, bulk, run, end) == [2.5, 3.5]  # it had passed before
    other = Action(REDUCE, 0, None, 2), Action(STEP, 2)
    assert begins(start, bulk, other[0], end, other[1]) == [3.5, 1 + 16 / 4 + 0.5]


def test_new_weights_are_awaited_by_the_head():
    shape = Shape(2, ((1, 1), (1, 1)), (0, 1), owners=(1,), users=(0, 1))
    size = lambda action: 40.0 if action.op == REFRESH else 0.0  # noqa: E731
    costs = Given({**UNITS, HEAD: 1.0}, size)
    timeline = simulate(synchronous(shape).actions, costs, Link(0.0, 4.0))
    heads = {span.worker: span.begin for span in timeline.spans if span.kind == HEAD}
    assert heads == {0: 2.0 + 40 / 4, 1: 5.0}  # they leave when stage 1 has run its first unit
    assert (timeline.sent, timeline.received) == ([0.0, 40.0], [40.0, 0.0])


def test_a_transfer_may_cost_both_ends_time():
    unit = Unit(0, ENCODER, 0)
    actions = [Action(SEND, 0, unit, 1, UP), Action(FORWARD, 1, unit)]
    timeline = simulate(actions, Given({SEND: 2.0, FORWARD: 1.0}))
    assert timeline.seconds == 3.0
    assert [timeline.spent(worker, SEND) for worker in (0, 1)] == [2.0, 2.0]


def test_collectives_wait_for_everybody():
    """Those of one kind that stand together; then they take all of their workers time."""
    works = [Action(FORWARD, stage, Unit(0, ENCODER, stage)) for stage in range(3)]
    sums = [Action(COLLECTIVE, stage, kind="sum") for stage in (0, 1)]
    costs = Given(
        lambda a: 1.0 if a.op == COLLECTIVE else 1.0 + a.stage,
        lambda a: 5.0,
    )
    timeline = simulate([*works, *sums, works[0]], costs)
    begins = {s.worker: s.begin for s in timeline.spans if s.kind == COLLECTIVE}
    assert begins == {0: 2.0, 1: 2.0}
    assert timeline.seconds == 4.0
    assert timeline.sent == timeline.received == [5.0, 5.0, 0.0]
