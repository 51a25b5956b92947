"""Schedules as plain data: every one is complete, in order and free of deadlocks.

For 1-8 stages, synchronous and decoupled, with all kinds of batches and owners. Nothing here runs a
model; test_gradients.py does.
"""

from __future__ import annotations

import gc
import itertools
import random
from collections import Counter, defaultdict

import pytest
from schedule_cases import (
    STAGES,
    backward_needs,
    check_complete_and_in_order,
    decoupled_needs,
    equal,
    every_number_of_stages,
    every_variant,
    forward_needs,
    programs_of,
    stuck,
    synchronous_needs,
    units,
)

from fairseq_hybrid.backends.wavefront import builders, schedule
from fairseq_hybrid.backends.wavefront.builders import (
    ORDERS,
    WORTH,
    decoupled,
    outstanding,
    synchronous,
)
from fairseq_hybrid.backends.wavefront.options import layer_ranges
from fairseq_hybrid.backends.wavefront.schedule import (
    AHEAD,
    BACKWARD,
    D_UP,
    ENCODER,
    FORWARD,
    HEAD,
    OUTPUT_GRAD,
    SEND,
    TOP,
    TRANSFERS,
    UP,
    WEIGHT_GRAD,
    Action,
    Schedule,
    Shape,
    Unit,
    text,
)


@pytest.fixture(autouse=True, scope="module")
def _no_walks_through_torch():
    """Millions of small tuples start the garbage collector often: spare it what is there now."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def unit_cost(action: Action) -> float:
    return {FORWARD: 1.0, BACKWARD: 2.0}.get(action.op, 0.0)


def check(plan: Schedule, needs) -> None:
    check_complete_and_in_order(plan.actions, needs)
    programs = programs_of(plan.actions, plan.stages)
    assert programs == [plan.program(worker) for worker in range(plan.stages)]
    assert stuck(programs) == []


@every_number_of_stages
def test_every_synchronous_schedule(stages):
    """Everything once, nothing before what it needs, no deadlock; the output weights' gradient in
    the turn or after the units."""
    sets = itertools.cycle([(), (stages - 1,), (*range(stages),)])
    for shape, late in zip(every_variant(stages), sets):
        plan = synchronous(shape, late)
        check(plan, synchronous_needs(shape))
        for stage in range(stages):
            mine = [a.op for a in plan.actions if a.stage == stage and a.op not in TRANSFERS]
            back = [at for at, op in enumerate(mine) if op == BACKWARD]
            assert all((mine.index(OUTPUT_GRAD) > at) == (stage in late) for at in back)
            assert mine.index(WEIGHT_GRAD) == len(mine) - 2  # then the step


def random_costs(dice: random.Random):
    known: dict = defaultdict(lambda: dice.choice((0.0, 0.5, 1.0, 1.0, 3.0)))
    return lambda action: (4 if action.op == HEAD else 1) * known[action]


@every_number_of_stages
def test_every_decoupled_schedule(stages):
    """All kinds of batches after all kinds of others, or after none; and what is left by itself."""
    dice = random.Random(stages)
    possible = [shape for shape in every_variant(stages) if not shape.states_home]
    shapes = dice.sample(possible, 24)
    for shape, before in zip(shapes, [None, None, *shapes]):
        cost = dice.choice((unit_cost, random_costs(dice)))
        check(decoupled(shape, before, cost), decoupled_needs(shape, before))
        check(outstanding(shape), backward_needs(shape, -1))


@every_number_of_stages
def test_the_two_passes_alone(stages):
    """The backward pass is the forward pass from its end: units in reverse, gradients going down
    where results went up."""
    for shape in every_variant(stages):
        ahead, back = schedule.forward_pass(shape), schedule.backward_pass(shape)
        others = (HEAD, schedule.EMBED, schedule.REFRESH)
        needs = {
            action: [needed for needed in before if needed.op not in others]
            for action, before in forward_needs(shape).items() if action.op not in others
        }  # fmt: skip
        check_complete_and_in_order(ahead, needs)
        for stage in range(stages):
            for actions, op, order in ((ahead, FORWARD, 1), (back, BACKWARD, -1)):
                ran = [action.unit for action in actions if action[:2] == (op, stage)]
                assert ran == units(shape, stage)[::order] == shape.units(stage)[::order]
        up = {(a.stage, a.unit, a.peer) for a in ahead if a.kind == UP}
        assert {(a.peer, a.unit, a.stage) for a in back if a.kind == D_UP} == up


# Deadlocks


def test_two_workers_that_send_first_are_stuck():
    """`stuck` finds the simplest deadlock there is."""
    there, back = (Action(SEND, a, Unit(0, ENCODER, 0), b, UP) for a, b in ((0, 1), (1, 0)))
    assert stuck([[there, back], [back, there]]) == [0, 1]
    assert stuck([[there, back], [there, back]]) == []
    assert stuck([[there], []]) == [0]


def test_waiting_for_the_result_before_sending_on_is_found():
    """A worker that awaits its own batch's result first stops all others."""
    programs = programs_of(synchronous(equal(3, 2, 2)).actions, 3)
    result = next(action for action in programs[0] if action.kind == TOP)
    programs[0].remove(result)
    programs[0].insert(0, result)
    assert stuck(programs) == [0, 1, 2]


ALL = {"owners": (0, 1, 2), "users": (0, 1, 2)}
MUTATED = {
    "hybrid": synchronous(equal(3, 2, 2, **ALL)),
    "input feeding": synchronous(equal(3, 2, 0, states_home=True, **ALL), (2,)),
    "decoupled": decoupled(equal(3, 2, 2, **ALL), equal(3, 2, 1, **ALL), unit_cost),
}


@pytest.mark.parametrize("plan", MUTATED.values(), ids=MUTATED)
def test_any_two_transfers_with_one_peer_in_wrong_order_are_found(plan):
    programs = programs_of(plan.actions, 3)
    swaps = 0
    for worker, program in enumerate(programs):
        by_peer = defaultdict(list)
        for at, action in enumerate(program):
            if action.op in TRANSFERS:
                by_peer[frozenset((action.stage, action.peer))].append(at)
        for places in by_peer.values():
            for a, b in itertools.pairwise(places):
                wrong = list(program)
                wrong[a], wrong[b] = wrong[b], wrong[a]
                assert worker in stuck([*programs[:worker], wrong, *programs[worker + 1 :]])
                swaps += 1
    assert swaps > 40


@pytest.mark.parametrize("plan", MUTATED.values(), ids=MUTATED)
def test_a_transfer_with_one_end_only_is_found(plan):
    programs = programs_of(plan.actions, 3)
    for worker, program in enumerate(programs):
        for at, action in enumerate(program):
            if action.op in TRANSFERS:
                less = program[:at] + program[at + 1 :]
                assert stuck([*programs[:worker], less, *programs[worker + 1 :]])


# What is in the gaps


def units_between(program: list[Action], op: str, kind: str) -> Counter:
    """How many units a worker runs between posting a receive and running the unit that needs it →
    how often."""
    found: Counter = Counter()
    for at, action in enumerate(program):
        if action.kind == kind and action.peer == program[-1].stage:
            runs = [a.unit for a in program[at:] if a.op == op]
            found[runs.index(action.unit)] += 1
    return found


@pytest.mark.parametrize("ahead", [0, 1, AHEAD, 5])
def test_receives_are_posted_some_units_ahead(ahead):
    """As many as asked for, but where a stage has nothing to run in between; never more, so that
    few buffers are under way."""
    shape = equal(4, 6, 5)
    there = schedule.forward_pass(shape, ahead=ahead)
    back = schedule.backward_pass(shape, ahead=ahead)
    for actions, op, kind in ((there, FORWARD, UP), (back, BACKWARD, D_UP)):
        for worker, program in enumerate(programs_of(actions, 4)):
            found = units_between([*program, Action(op, worker)], op, kind)
            first = 0 if op == FORWARD else 3
            assert sum(found.values()) == (44 if worker != first else 0)
            if found:
                assert found == {**{n: 1 for n in range(ahead)}, ahead: 44 - ahead}


def test_as_text():
    shape = Shape(2, ((2, 1), (1, 1)), (0, 1), owners=(1,), users=(0, 1))
    assert text(synchronous(shape, late=(1,)).actions, 2).splitlines() == [
        "0: E F0e0 up:0e0>1 F0e1 up:0e1>1 F0d0 up:0d0>1 F1e0 up:1e0>1 F1d0 up:1d0>1 H "
        "dtop:0d0>1 dtop:0e1>1 dtop:0e0>1 O reduce>1 B1d0 B1e0 B0d0 B0e1 B0e0 e W step",
        "1: F0e0 refresh>0 top:0e0>0 F0e1 top:0e1>0 F0d0 top:0d0>0 F1e0 F1d0 H "
        "B1d0 dup:1d0>0 B1e0 dup:1e0>0 B0d0 dup:0d0>0 B0e1 dup:0e1>0 B0e0 dup:0e0>0 O W step",
    ]
    assert text(decoupled(shape, shape, unit_cost).actions, 2).splitlines() == [
        "0: dtop:0d0'>1 dtop:0e1'>1 dtop:0e0'>1 E F0e0 up:0e0>1 F0e1 up:0e1>1 F0d0 up:0d0>1 "
        "F1e0 up:1e0>1 F1d0 up:1d0>1 B1d0' B1e0' B0d0' B0e1' B0e0' H O reduce>1 e' W' step",
        "1: B1d0' dup:1d0'>0 B1e0' dup:1e0'>0 B0d0' dup:0d0'>0 B0e1' dup:0e1'>0 B0e0' "
        "dup:0e0'>0 F0e0 refresh>0 top:0e0>0 F0e1 top:0e1>0 F0d0 top:0d0>0 F1e0 F1d0 H O W' step",
    ]


def makespan(plan: Schedule, cost) -> float:
    """Played from the list by a clock for each stage; links are free."""
    free, there = [0.0] * plan.stages, defaultdict(float)
    for action in plan.actions:
        stage = action.stage
        if action.op in TRANSFERS:
            op = {UP: FORWARD, TOP: HEAD}.get(action.kind, BACKWARD)
            key = action.peer, op, None if op == HEAD else action.unit
            there[key] = max(there[key], free[stage])
        else:
            free[stage] = max(free[stage], there[stage, action.op, action.unit]) + cost(action)
    return max(free)


@pytest.mark.parametrize("head", [0.0, 1.0, 10.0])
def test_two_decoupled_stages_never_wait(head):
    """Backward taking twice as long as forward, whatever the number of chunks; but for what is not
    worth another order."""
    for chunks in range(1, 12):
        shape = equal(2, chunks, chunks)
        cost = lambda a: head if a.op == HEAD else unit_cost(a)  # noqa: E731
        span = makespan(decoupled(shape, shape, cost), cost)
        assert 4 * chunks * 3 + head > (WORTH - 1e-9) * span


def test_more_decoupled_stages_wait_less_than_synchronous_ones():
    cost = lambda a: 3.0 if a.op == HEAD else unit_cost(a)  # noqa: E731
    for stages in range(3, 9):
        for chunks in (1, 2, 6):
            shape = equal(stages, chunks, chunks)
            late = makespan(decoupled(shape, shape, cost), cost)
            timely = makespan(synchronous(shape), cost)
            assert timely == 3 * (2 * chunks * stages + stages - 1) + 3
            assert late <= timely / WORTH


def test_the_first_decoupled_update_has_no_backward_pass():
    for stages in STAGES:
        plan = decoupled(equal(stages, 3, 2), None, unit_cost)
        assert not [a for a in plan.actions if a.op == BACKWARD or a.update]
        cost = lambda a: 7.0 if a.op == HEAD else unit_cost(a)  # noqa: E731
        assert makespan(plan, cost) == 5 * stages + stages - 1 + 7


def test_the_best_order_depends_on_the_batches(monkeypatch):
    dice, found = random.Random(1), {order: set() for order in range(len(ORDERS))}
    for stages in (2, 4):
        shapes = [s for s in every_variant(stages) if not s.states_home]
        for shape, before in zip(dice.sample(shapes, 16), dice.sample(shapes, 16)):
            cost = dice.choice((unit_cost, random_costs(dice)))
            best, spans = makespan(decoupled(shape, before, cost), cost), []
            for order in ORDERS:
                with monkeypatch.context() as patch:
                    patch.setattr(builders, "ORDERS", (order,))
                    spans.append(makespan(decoupled(shape, before, cost), cost))
            assert best <= min(spans) / 0.98
            found[spans.index(min(spans))].add(stages)
    assert all(found.values())


# Layers and chunks


def test_layer_ranges():
    """All layers in order, none twice, equal shares or one more on the upper stages."""
    for layers in range(1, 30):
        for stages in range(1, layers + 1):
            ranges = layer_ranges(layers, stages)
            assert len(ranges) == stages
            assert [i for layers_here in ranges for i in layers_here] == [*range(layers)]
            sizes = [len(layers_here) for layers_here in ranges]
            assert min(sizes) >= 1
            assert max(sizes) - min(sizes) <= 1
            assert sizes[-1] == max(sizes)


def test_even_chunks_are_as_few_and_no_longer():
    for steps in range(1, 60):
        for chunk in range(1, 70):
            length = schedule.even(steps, chunk)
            assert 1 <= length <= min(chunk, steps)
            assert -(-steps // length) == -(-steps // chunk)
            assert length == 1 or -(-steps // (length - 1)) > -(-steps // length)
