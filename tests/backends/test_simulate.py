"""A synchronous update as a list of actions: complete, free of deadlock, printed, and timed."""

from __future__ import annotations

import random
from collections import defaultdict

import pytest
from test_schedule import Case, every_number_of_stages, every_variant, stuck

from fairseq_hybrid.backends.wavefront import schedule
from fairseq_hybrid.backends.wavefront.schedule import STATE, TOP, Run, Send
from fairseq_hybrid.backends.wavefront.simulate import (
    BACKWARD,
    FORWARD,
    HEAD,
    OUTPUT_GRAD,
    SEND,
    WEIGHT_GRAD,
    Action,
    UpdateCosts,
    simulate,
    synchronous,
    text,
)


def program(actions: list[Action], worker: int) -> list:
    """What it does, in the terms of `stuck`."""
    mine = (a for a in actions if worker in (a.stage, a.peer))
    return [
        Send(a.stage, a.peer, a.unit, a.kind) if a.op == SEND else Run(a.stage, (a.op, a.unit))
        for a in mine
    ]


def constant(unit=1.0, weights=0.0, head=0.0, output=0.0) -> UpdateCosts:
    return UpdateCosts(
        forward=lambda *_: unit,
        backward=lambda *_: unit,
        weights=lambda _: weights,
        head=lambda _: head,
        output=lambda _: output,
    )


@every_number_of_stages
def test_every_variant(stages):
    """All units run forward and back, everybody does the rest once, in order, nobody is stuck."""
    for case in every_variant(stages):
        plan = case.schedule()
        for late in ((), {stages - 1}):
            actions = synchronous(plan, late)
            assert stuck([program(actions, worker) for worker in range(stages)]) == []
            for stage in range(stages):
                mine = [a for a in actions if a.stage == stage and a.op != SEND]
                units = plan.units(stage)
                ahead = [(FORWARD, unit) for unit in units]
                back = [(BACKWARD, unit) for unit in reversed(units)]
                output = [(OUTPUT_GRAD, None)]
                expected = [*ahead, (HEAD, None), *(output if stage not in late else [])]
                expected += [*back, (WEIGHT_GRAD, None), *(output if stage in late else [])]
                assert [(a.op, a.unit) for a in mine] == expected
            sends = sum(isinstance(event, Send) for event in plan.events)
            assert sum(a.op == SEND for a in actions) == 2 * sends


def test_as_text():
    actions = synchronous(schedule.wavefront(2, [(2, 1), (1, 1)], [0, 1]), late={1})
    assert text(actions).splitlines() == [
        "0: F0e0 up:0e0>1 F0e1 up:0e1>1 F0d0 up:0d0>1 F1e0 up:1e0>1 F1d0 up:1d0>1 H "
        "top:0d0>1 top:0e1>1 top:0e0>1 O B1d0 B1e0 B0d0 B0e1 B0e0 W",
        "1: F0e0 top:0e0>0 F0e1 top:0e1>0 F0d0 top:0d0>0 F1e0 F1d0 H "
        "B1d0 up:1d0>0 B1e0 up:1e0>0 B0d0 up:0d0>0 B0e1 up:0e1>0 B0e0 up:0e0>0 W O",
    ]


@every_number_of_stages
def test_fills_turns_and_drains(stages):
    """Equal units: one more for each stage above the first, in either direction."""
    units = 5 * stages
    plan = Case(stages, ((3, 2),) * stages).schedule()
    timeline = simulate(synchronous(plan), constant())
    assert timeline.seconds == 2 * (units + stages - 1)
    assert timeline.busy == (2.0 * units,) * stages
    assert timeline.efficiency == pytest.approx(units / (units + stages - 1))


def test_the_output_weights_fill_the_turn_and_the_drain():
    """On stage 0 before its first gradients come, on the last one after its units."""
    plan = Case(2, ((3, 2),) * 2).schedule()
    early = simulate(synchronous(plan), constant(output=2))
    late = simulate(synchronous(plan, {1}), constant(output=2))
    assert simulate(synchronous(plan), constant()).seconds == 22
    assert (early.seconds, late.seconds) == (24, 23)
    assert late.idle == pytest.approx((1 / 23, 1 / 23))


def stepwise(actions: list[Action], stages: int, costs: UpdateCosts) -> float:
    """The same, worker by worker, each with a list of its own: as real ones do it."""
    todo = [[a for a in actions if a.stage == s] for s in range(stages)]
    expected: dict = defaultdict(int)
    turned = False
    for_head = set()
    for a in actions:
        turned = turned or a.op == HEAD
        if a.op == SEND and not turned and a.kind in (TOP, STATE):
            for_head.add(id(a))
        if a.op == SEND:
            expected[a.peer, None if id(a) in for_head else (a.unit, turned)] += 1
    clock, arrivals = [0.0] * stages, defaultdict(list)
    after_turn = [False] * stages
    moved = True
    while moved:
        moved = False
        for s in range(stages):
            while todo[s]:
                a = todo[s][0]
                key = (s, None) if a.op == HEAD else (s, (a.unit, after_turn[s]))
                if a.op != SEND and len(arrivals[key]) < expected[key]:
                    break
                todo[s].pop(0)
                moved = True
                after_turn[s] = after_turn[s] or a.op == HEAD
                if a.op == SEND:
                    to = None if id(a) in for_head else (a.unit, after_turn[s])
                    arrivals[a.peer, to].append(clock[s])
                else:
                    clock[s] = max([clock[s], *arrivals[key]]) + costs.of(a)
    assert not any(todo)
    return max(clock)


@every_number_of_stages
def test_as_the_workers_do_it(stages):
    """The time of the list is that of workers who know their own part of it only."""
    dice = random.Random(stages)
    for case in dice.sample(every_variant(stages), 12):
        actions = synchronous(case.schedule(), dice.choice([(), {stages - 1}]))
        drawn: dict = defaultdict(lambda: dice.randint(0, 50))
        costs = UpdateCosts(
            forward=lambda s, unit, drawn=drawn: drawn[FORWARD, s, unit],
            backward=lambda s, unit, drawn=drawn: drawn[BACKWARD, s, unit],
            weights=lambda s, drawn=drawn: drawn[WEIGHT_GRAD, s],
            head=lambda s, drawn=drawn: drawn[HEAD, s],
            output=lambda s, drawn=drawn: drawn[OUTPUT_GRAD, s],
        )
        timeline = simulate(actions, costs)
        assert timeline.seconds == stepwise(actions, stages, costs)
        work = sum(costs.of(a) for a in actions if a.op != SEND)
        assert sum(timeline.busy) == work


def test_a_delay_is_waited_for():
    plan = Case(2, ((1, 1),)).schedule()
    assert simulate(synchronous(plan), constant()).seconds == 6
    assert simulate(synchronous(plan), constant(), delay=0.5).seconds > 6


def test_without_work_nobody_waits():
    empty = schedule.wavefront(3, [], [])
    assert simulate(synchronous(empty), constant(unit=0)).efficiency == 1.0
