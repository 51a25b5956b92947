"""The wavefront as plain data: every schedule is complete, in order and free of deadlocks.

All combinations of 1-8 stages, 1-8 micro-batches and 1-40 chunks, and fewer chunk counts in every
variant. Nothing here runs a model; test_lanes.py and test_gradients.py do.
"""

from __future__ import annotations

import functools
import gc
import itertools
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest

from fairseq_hybrid.backends.wavefront import schedule
from fairseq_hybrid.backends.wavefront.options import layer_ranges
from fairseq_hybrid.backends.wavefront.schedule import (
    DECODER,
    ENCODER,
    STATE,
    TOP,
    UP,
    WHOLE,
    Run,
    Schedule,
    Send,
    Unit,
)
from fairseq_hybrid.backends.wavefront.simulate import (
    HEAD,
    SimulatedUpdate,
    UpdateCosts,
    simulate,
    synchronous,
)

STAGES, BATCHES, CHUNKS = range(1, 9), range(1, 9), range(1, 41)
every_number_of_stages = pytest.mark.parametrize("stages", STAGES)


@pytest.fixture(autouse=True, scope="module")
def _no_walks_through_torch():
    """Millions of small tuples start the garbage collector often: spare it what is there now."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@dataclass(frozen=True)
class Case:
    stages: int
    chunks: tuple[tuple[int, int], ...]
    """(encoder, decoder) of each batch"""
    head_on_last: bool = False
    """model_parallel: all batches live on the last stage; otherwise on one stage each (hybrid)"""
    whole: bool = False
    states_home: bool = False

    @property
    def last(self) -> int:
        return self.stages - 1

    @property
    def homes(self) -> list[int]:
        return [self.last if self.head_on_last else b % self.stages for b in self.batches]

    @property
    def batches(self) -> range:
        return range(len(self.chunks))

    def schedule(self) -> Schedule:
        flags = {"whole": self.whole, "states_home": self.states_home}
        return schedule.wavefront(self.stages, self.chunks, self.homes, **flags)

    def units(self, stage: int) -> list[tuple]:
        """What a stage has to run, in order: the batches one after the other, each in time."""
        found = []
        for batch, (encoder, decoder) in enumerate(self.chunks):
            if self.whole and stage == 0:
                found.append((batch, WHOLE, 0))
            found += [(batch, ENCODER, chunk) for chunk in range(encoder)]
            found += [(batch, DECODER, chunk) for chunk in range(decoder)]
        return found

    def work(self) -> dict:
        """Everything that must happen: stage → units it runs, (source, target, kind) → units that
        are sent there."""
        chunks = [unit for unit in self.units(0) if unit[1] != WHOLE]
        work: dict = {stage: self.units(stage) for stage in range(self.stages)}
        work.update({(s, s + 1, UP): chunks for s in range(self.last)})
        for home in set(self.homes) - {self.last}:
            work[self.last, home, TOP] = [u for u in chunks if self.homes[u[0]] == home]
        if self.states_home:
            for home in set(self.homes):
                ends = [(b, ENCODER, self.chunks[b][0] - 1) for b in self.batches]
                ends = [unit for unit in ends if self.homes[unit[0]] == home]
                work.update({(s, home, STATE): ends for s in range(self.stages) if s != home})
        return work


def every_combination(stages: int) -> list[Case]:
    """Encoders of 1 to 40 chunks, decoders of 1 or 2."""
    return [Case(stages, ((c, 1 + c % 2),) * b) for b in BATCHES for c in CHUNKS]


def every_variant(stages: int) -> list[Case]:
    """Batches unlike each other, longer decoders, both kinds of home, layers for whole sentences,
    decoders that run at home; in all combinations of these."""
    dice = random.Random(stages)
    found = []
    for batches in BATCHES:
        for c in (1, 2, 6):
            shapes = [
                ((c, c),) * batches,
                ((1, c),) * batches,
                tuple((dice.randint(1, c), dice.randint(1, c)) for _ in range(batches)),
            ]
            for head_on_last in (False, True):
                for whole in (False, True):
                    found += [Case(stages, shape, head_on_last, whole) for shape in shapes]
                    alone = tuple((encoder, 0) for encoder, _ in shapes[2])
                    found.append(Case(stages, alone, head_on_last, whole, states_home=True))
    return found


def happenings(events: Sequence) -> dict:
    """Stage or (source, target, kind) → unit → place in the list of events."""
    found: dict = defaultdict(dict)
    for at, event in enumerate(events):
        if type(event) is Run:
            found[event.stage][event.unit] = at
        else:
            source, target, unit, kind = event
            found[source, target, kind][unit] = at
    return found


def check_complete(found: dict, work: dict, events: Sequence) -> None:
    """Each stage runs its units and each lane carries its messages, once and in order."""
    assert {place: list(ats) for place, ats in found.items()} == work
    assert len(events) == sum(map(len, work.values()))


def check_forward(case: Case, plan: Schedule) -> None:
    """All is done once; a unit runs when its input has come up, and is sent when it has run.

    That states pass from unit to unit, and from encoder to decoder, needs units in order only.
    """
    found = happenings(plan.events)
    check_complete(found, case.work(), plan.events)
    for place, sent in found.items():
        if isinstance(place, tuple):
            source, target, kind = place
            assert all(found[source][unit] < at for unit, at in sent.items())
            if kind == UP:
                assert all(at < found[target][unit] for unit, at in sent.items())


def check_mirrored(plan: Schedule, back: Schedule) -> None:
    """The same list from its end, transfers turned around."""
    assert back.stages == plan.stages
    assert back.events == tuple(
        event if len(event) == 2 else (event.target, event.source, event.unit, event.kind)
        for event in plan.events[::-1]
    )


def check_backward(case: Case, back: Schedule) -> None:
    """All is done once, units from the last to the first; a unit runs when the gradients from
    above and from home are there, and its own gradient is sent when it has run."""
    found = happenings(back.events)
    work = {
        place if isinstance(place, int) else (place[1], place[0], place[2]): units[::-1]
        for place, units in case.work().items()
    }
    check_complete(found, work, back.events)
    for place, sent in found.items():
        if isinstance(place, tuple):
            source, target, kind = place
            assert all(at < found[target][unit] for unit, at in sent.items())
            if kind == UP:
                assert all(found[source][unit] < at for unit, at in sent.items())


def stuck(programs: Sequence[Sequence]) -> list[int]:
    """Workers that never finish if each does one thing at a time, strictly in order, and a
    transfer takes place only while both its ends have come to it."""
    programs = [[*program, None] for program in programs]
    at = [0] * len(programs)
    awake = [*range(len(programs))]
    while awake:
        me = awake.pop()
        program, i = programs[me], at[me]
        while (event := program[i]) is not None:
            if type(event) is Send:
                other = event.target if event.source == me else event.source
                if programs[other][at[other]] != event:
                    break
                at[other] += 1
                if other not in awake:
                    awake.append(other)
            i += 1
        at[me] = i
    return [worker for worker, program in enumerate(programs) if program[at[worker]] is not None]


def programs_of(plan: Schedule, back: Schedule) -> list[list]:
    """What every worker does, forward and then backward."""
    return [plan.program(worker) + back.program(worker) for worker in range(plan.stages)]


def check_fills_and_drains_once(case: Case, plan: Schedule) -> None:
    """With units of equal cost no stage ever waits once it has begun."""
    units = sum(map(sum, case.chunks))
    expected = units / (units + case.stages - 1)
    assert forward_pass(plan, lambda *_: 1).efficiency == pytest.approx(expected, rel=1e-12)


def forward_pass(plan: Schedule, cost: Callable) -> SimulatedUpdate:
    actions = [*itertools.takewhile(lambda action: action.op != HEAD, synchronous(plan))]
    nothing = lambda _: 0.0  # noqa: E731
    return simulate(actions, UpdateCosts(cost, cost, nothing, nothing, nothing))


@every_number_of_stages
def test_every_combination(stages):
    """Complete, in order, mirrored backward, no deadlock, no waiting in the middle."""
    for case in every_combination(stages):
        plan = case.schedule()
        back = plan.reverse()
        check_forward(case, plan)
        check_mirrored(plan, back)
        assert stuck(programs_of(plan, back)) == []
        check_fills_and_drains_once(case, plan)


@every_number_of_stages
def test_every_variant(stages):
    """The same and the order of the backward pass, whatever the batches and wherever they live."""
    for case in every_variant(stages):
        plan = case.schedule()
        back = plan.reverse()
        check_forward(case, plan)
        check_mirrored(plan, back)
        check_backward(case, back)
        assert stuck(programs_of(plan, back)) == []
        if not case.whole:
            check_fills_and_drains_once(case, plan)


@every_number_of_stages
def test_programs_are_the_events_of_a_worker_in_order(stages):
    for case in (
        Case(stages, ((3, 2),) * 4, whole=True),
        Case(stages, ((2, 0),) * 9, states_home=True),
    ):
        plan = case.schedule()
        for worker in range(stages):
            mine = [e for e in plan.events if worker in (e[:1] if len(e) == 2 else e[:2])]
            assert plan.program(worker) == mine
            assert plan.units(worker) == [e.unit for e in mine if isinstance(e, Run)]


def test_two_workers_that_send_first_are_stuck():
    """The simulation finds the simplest deadlock there is."""
    there, back = (Send(*ends, Unit(0, ENCODER, 0), UP) for ends in ((0, 1), (1, 0)))
    assert stuck([[there, back], [back, there]]) == [0, 1]
    assert stuck([[there, back], [there, back]]) == []
    assert stuck([[there], []]) == [0]


def test_waiting_for_the_result_before_sending_on_is_found():
    """A worker that awaits its own batch's result first stops all others."""
    plan = Case(3, ((2, 2),) * 3).schedule()
    programs = programs_of(plan, plan.reverse())
    result = next(event for event in programs[0] if isinstance(event, Send) and event.kind == TOP)
    programs[0].remove(result)
    programs[0].insert(0, result)
    assert stuck(programs) == [0, 1, 2]


@pytest.mark.parametrize("states_home", [False, True])
def test_any_two_transfers_with_one_peer_in_wrong_order_are_found(states_home):
    chunks = ((2, 0 if states_home else 2),) * 3
    plan = Case(3, chunks, states_home=states_home).schedule()
    programs = programs_of(plan, plan.reverse())
    swaps = 0
    for worker, program in enumerate(programs):
        by_peer = defaultdict(list)
        for at, event in enumerate(program):
            if isinstance(event, Send):
                by_peer[frozenset(event[:2])].append(at)
        for places in by_peer.values():
            for a, b in zip(places, places[1:]):
                wrong = list(program)
                wrong[a], wrong[b] = wrong[b], wrong[a]
                assert worker in stuck([*programs[:worker], wrong, *programs[worker + 1 :]])
                swaps += 1
    assert swaps > 40


def longest_path(case: Case, cost) -> int:
    """From what has to wait for what alone: the unit before on a stage, and the stage below."""
    todo = [case.units(stage) for stage in range(case.stages)]

    @functools.cache
    def end(stage: int, unit: tuple) -> int:
        before = todo[stage][: todo[stage].index(unit)][-1:]
        waits = [end(stage, other) for other in before]
        if stage > 0:
            waits.append(end(stage - 1, unit))
        return cost(stage, unit) + max(waits, default=0)

    return max(end(stage, todo[stage][-1]) for stage in range(case.stages))


@every_number_of_stages
def test_makespan_is_the_longest_path(stages):
    """Whatever the units cost; and the efficiency is the work in it."""
    dice = random.Random(stages)
    for batches in (1, 2, 5):
        for _ in range(8):
            chunks = tuple((dice.randint(1, 6), dice.randint(0, 6)) for _ in range(batches))
            case = Case(stages, chunks, whole=dice.random() < 0.5)
            work = [(s, unit) for s in range(stages) for unit in case.units(s)]
            costs = {run: dice.randint(0, 100) for run in work}
            plan, cost = case.schedule(), lambda s, unit, costs=costs: costs[s, unit]
            span = longest_path(case, cost)
            timeline = forward_pass(plan, cost)
            assert timeline.seconds == span
            busy = sum(costs.values()) / (stages * span) if span else 1.0
            assert timeline.efficiency == pytest.approx(busy)


def test_makespan_of_equal_units():
    """One after the other, and one more for each stage above the first."""
    for stages in STAGES:
        plan = Case(stages, ((2, 3), (4, 1))).schedule()
        assert forward_pass(plan, lambda *_: 7).seconds == 7 * (10 + stages - 1)


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
