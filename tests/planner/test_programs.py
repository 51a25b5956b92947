"""What the backends do in an update, against what can be worked out for costs that are flat."""

from __future__ import annotations

import pytest
from tiny_jobs import Flat, job

from fairseq_hybrid.backends.wavefront.options import stacked
from fairseq_hybrid.backends.wavefront.schedule import (
    BACKWARD,
    FORWARD,
    OUTPUT_GRAD,
    SEND,
    STEP,
    Action,
)
from fairseq_hybrid.backends.wavefront.simulate import COLLECTIVE, Link
from fairseq_hybrid.config import DECOUPLED
from fairseq_hybrid.planner import programs
from fairseq_hybrid.planner.choose import alternatives, best, chunks, layer_splits, predict, ranked
from fairseq_hybrid.planner.plan import DATA_PARALLEL, HYBRID, MODEL_PARALLEL, SINGLE, Plan
from fairseq_hybrid.planner.programs import Update

STEPS, CHUNK = 8, 2
UNITS = 2 * STEPS // CHUNK
"""of a batch: encoder and decoder"""


def flat(**attributes) -> Flat:
    costs = Flat()
    for name, value in attributes.items():
        setattr(costs, name, value)
    return costs


def seconds(backend: str, workers: int, layers: tuple[int, ...], costs=None, **options) -> float:
    plan = Plan(backend, workers, layers, CHUNK)
    return predict(plan, job(workers, STEPS, **options), costs or Flat()).seconds


def test_one_worker():
    plan = Plan(SINGLE, 1, (4,), STEPS)
    assert predict(plan, job(1, STEPS), Flat()).seconds == 2 * 4 * (1 + 2) + 5


def test_data_parallel_is_one_worker_and_the_sum():
    costs = flat(link=Link(bandwidth=10), copy_seconds=0.001)
    work = job(2, STEPS)
    prediction = predict(Plan(DATA_PARALLEL, 2, (4,), STEPS), work, costs)
    size = 4 * work.model.numbers
    assert prediction.seconds == pytest.approx(
        29 + size / 10 + programs.DDP_SUM_COPIES * size / 1e3
    )
    assert prediction.sent == (size, size)  # a ring of two: once there, once back


@pytest.mark.parametrize("stages", [2, 4])
def test_the_wavefront_fills_and_drains_once(stages):
    each = 4 // stages
    rounds = UNITS * stages + stages - 1
    expected = rounds * each * (1 + 2) + 5
    assert seconds(HYBRID, stages, (each,) * stages) == pytest.approx(expected)


def test_the_slowest_stage_sets_the_pace():
    """3 layers above 1: a unit takes 3 s, and one of the lower stage fills the pipeline."""
    expected = 2 * UNITS * 3 * 3 + 1 * 3 + 5
    assert seconds(HYBRID, 2, (1, 3)) == pytest.approx(expected)


def test_model_parallel_computes_all_heads_in_one_place():
    expected = (2 * UNITS + 1) * 2 * 3 + 2 * 5
    assert seconds(MODEL_PARALLEL, 2, (2, 2)) == pytest.approx(expected)


def test_late_gradients_of_the_last_stage_fill_its_waiting():
    """While the wavefront drains, two seconds per layer; above that they take time of their own."""
    sooner = 2 * 2  # a backward unit of two layers
    for late, gain in ((0, 0), (3, 3), (sooner, sooner), (5, sooner)):
        took = seconds(HYBRID, 2, (2, 2), flat(late_seconds=late))
        assert took == pytest.approx(seconds(HYBRID, 2, (2, 2)) - gain)


def test_late_gradients_of_others_come_before_their_units():
    """The first unit of the lower stage comes after three seconds per layer: there is time."""
    work = job(2, STEPS)
    update = Update(
        Plan(HYBRID, 2, (2, 2), CHUNK), work.model, work.updates[0], flat(late_seconds=5)
    )
    for stage, first in ((0, OUTPUT_GRAD), (1, BACKWARD)):
        mine = [a.op for a in update.actions(late=[1]) if a.stage == stage]
        assert next(op for op in mine if op in (OUTPUT_GRAD, BACKWARD)) == first


def test_groups_of_stages_are_data_parallel_to_each_other():
    costs = flat(link=Link(bandwidth=100))
    work = job(4, STEPS)
    plan = Plan(HYBRID, 4, (2, 2), CHUNK)
    owned = work.model.shares((2, 2), head_on_last=False).owned
    without = predict(Plan(HYBRID, 2, (2, 2), CHUNK), job(2, STEPS), costs)
    prediction = predict(plan, work, costs)
    assert prediction.seconds == pytest.approx(without.seconds + 4 * max(owned) / 100, rel=0.02)
    assert sum(prediction.sent) == pytest.approx(2 * sum(without.sent) + 2 * 4 * sum(owned))


def test_with_input_feeding_only_the_encoder_is_spread():
    units = 2 * STEPS // CHUNK  # the encoder's, of both batches
    expected = (units + 1) * 2 * 3 + 5
    assert seconds(HYBRID, 2, (2, 2), input_feeding=True) == pytest.approx(expected)


def test_a_layer_that_reads_both_ways_runs_first_and_whole():
    """On stage 0: over the whole batch, so that one layer is left for the chunks of the encoder."""
    # Stage 0 takes 1 + 4 + 2 * 4 = 13 s for a batch forward, stage 1 takes 16.
    expected = (1 + 1 + 2 * 16) + 5 + 2 * (1 + 1 + 2 * 16)
    got = seconds(HYBRID, 2, (2, 2), encoder_bidirectional_first=True)
    assert got == pytest.approx(expected)


def test_bytes_are_those_of_states_and_shared_parameters():
    work = job(2, STEPS)
    prediction = predict(Plan(HYBRID, 2, (2, 2), CHUNK), work, Flat())
    rows, hidden = 3 * STEPS, work.model.hidden
    up = 2 * 2 * rows * hidden * 4  # 2 batches, encoder and decoder
    home = 2 * rows * hidden * 4  # the batch of worker 0
    shared = 4 * sum(work.model.shares((2, 2), head_on_last=False).shared)
    assert sum(prediction.sent) == 2 * (up + home) + 2 * shared


def test_units_batches_and_messages_cost_something_beside_their_work():
    rounds = 2 * UNITS + 1
    plain = rounds * 6 + 5
    assert seconds(HYBRID, 2, (2, 2), flat(unit=lambda: 0.5)) == pytest.approx(plain + rounds)
    assert seconds(HYBRID, 2, (2, 2), flat(prepare=lambda: 7)) == pytest.approx(plain + 2 * 7)
    # Sending and receiving keep both workers from computing, all the time that it takes.
    costs = flat(message=lambda size: size / 1e4)
    assert seconds(HYBRID, 2, (2, 2), costs) > plain + 2 * 2 * UNITS * 3 * CHUNK * 6 * 4 / 1e4
    for alone in (flat(unit=lambda: 9), flat(prepare=lambda: 9), costs):
        assert seconds(DATA_PARALLEL, 2, (4,), alone) == UNITS * 4 * 3 + 5


def test_updates_cost_what_a_worker_owns():
    work, costs = job(2, STEPS), flat(number_seconds=1.0)
    owned = work.model.shares((2, 2), head_on_last=False).owned
    assert sum(owned) == work.model.numbers
    single = predict(Plan(SINGLE, 1, (4,), STEPS), work, costs)
    hybrid = predict(Plan(HYBRID, 2, (2, 2), CHUNK), work, costs)
    assert single.seconds == 29 + work.model.numbers
    assert hybrid.seconds == pytest.approx((2 * UNITS + 1) * 6 + 5 + max(owned))


def test_memory_is_counted_by_worker():
    work = job(2, STEPS)
    single = predict(Plan(SINGLE, 1, (4,), STEPS), work, Flat()).memory
    double = predict(Plan(DATA_PARALLEL, 2, (4,), STEPS), work, Flat()).memory
    hybrid = predict(Plan(HYBRID, 2, (2, 2), CHUNK), work, Flat()).memory
    assert [len(m) for m in (single, double, hybrid)] == [1, 2, 2]
    assert double[0] - single[0] == 4 * work.model.numbers  # the buffer of gradients
    assert max(hybrid) < double[0]


OPTIONS = ({}, {"input_feeding": True}, {"encoder_bidirectional_first": True})


def stuck(actions: list[Action], workers: int) -> list[Action]:
    """What is left where every worker does one thing at a time, and waits at a transfer for its
    other end, at a collective for all who are in it."""
    members: dict[str, set[int]] = {}
    for action in actions:
        if action.op == COLLECTIVE:
            members.setdefault(action.kind, set()).add(action.stage)
    programs = [[a for a in actions if a.concerns(w)][::-1] for w in range(workers)]
    moved = True
    while moved:
        moved = False
        for mine in programs:
            if not mine:
                continue
            a = mine[-1]
            concerned = members[a.kind] if a.op == COLLECTIVE else {a.stage, a.peer} - {None}
            others = [programs[w][-1] if programs[w] else None for w in concerned]
            if all(o and (o == a or (a.op == o.op == COLLECTIVE and a.kind == o.kind))
                   for o in others):  # fmt: skip
                moved = True
                for w in concerned:
                    programs[w].pop()
    return [a for mine in programs for a in mine]


def test_what_is_stuck_is_found():
    there, back = Action(SEND, 0, None, 1), Action(SEND, 1, None, 0)
    both = [Action(COLLECTIVE, w, kind="sum") for w in (0, 1)]
    assert stuck([there, *both, back], 2) == []
    # worker 0 is in the sum before it sends, worker 1 waits for what it sends
    assert len(stuck([both[0], there, both[1]], 2)) == 4


@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: next(iter(o), "plain"))
@pytest.mark.parametrize("workers", [2, 3, 4, 8])
def test_every_alternative_runs_to_its_end(workers, options):
    """Every stage makes every unit forward and back once, and a step; nobody is stuck."""
    work, costs = job(workers, 7, **options), flat(link=Link(0.1, 1000))
    plans = list(alternatives(work, costs, (SINGLE, DATA_PARALLEL, HYBRID, MODEL_PARALLEL)))
    assert len(plans) == len(set(plans)) > 2
    assert any(not plan.exact for plan in plans) == ("input_feeding" not in options)
    for plan in plans:
        update = Update(plan, work.model, work.updates[0][: plan.workers], costs)
        actions = update.actions()
        assert stuck(actions, plan.workers) == []
        for worker in range(plan.workers):
            mine = [a for a in actions if a.stage == worker]
            stage, first = worker % plan.stages, worker - worker % plan.stages
            units = sorted(update.shape(first).units(stage))
            for op in (FORWARD, BACKWARD):
                assert sorted(a.unit for a in mine if a.op == op) == units
            assert [a.op for a in mine].count(STEP) == 1
            assert mine[-1].op == programs.UPDATE
        timeline = update.timeline()
        assert timeline.seconds > 0
        assert 0 <= timeline.idle < 1
        assert sum(timeline.sent) == sum(timeline.received)
        for worker in range(plan.workers):  # no worker does two things at a time
            spans = [span for span in timeline.spans if span.worker == worker]
            assert all(a.end <= b.begin + 1e-9 for a, b in zip(spans, spans[1:]))


def test_decoupled_nobody_waits_for_the_pipeline_to_fill_or_drain():
    """At 1 s a layer there and 2 s back: two batches of equal stages, and a head."""
    work = job(2, STEPS)
    plan = Plan(HYBRID, 2, (2, 2), CHUNK, DECOUPLED)
    prediction = predict(plan, work, Flat())
    assert 2 * UNITS * 6 + 5 <= prediction.seconds < seconds(HYBRID, 2, (2, 2))
    exact = predict(Plan(HYBRID, 2, (2, 2), CHUNK), work, Flat())
    assert prediction.sent == exact.sent
    assert min(prediction.memory) > max(exact.memory)  # batches of two updates are under way


def test_what_is_not_exact_is_ranked_and_not_chosen():
    found = ranked(job(2, STEPS), flat(link=Link(0.0, 100.0)))
    assert any(not prediction.plan.exact for prediction in found)
    assert best(found).plan.exact
    assert best([p for p in found if p.plan.backend == HYBRID]).plan.exact


def test_gradients_of_weights_that_come_late_fill_the_drain():
    """The stage below needs two backward units of its own after the last one of the stage above."""
    plain = seconds(HYBRID, 2, (2, 2))
    own = flat(weights=lambda layer, sizes: 1.0)  # 2 batches, 4 layers on a stage: 8 s
    assert seconds(HYBRID, 2, (2, 2), own) == pytest.approx(plain + 8)
    assert seconds(DATA_PARALLEL, 2, (4,), own) == seconds(DATA_PARALLEL, 2, (4,))


def test_all_computation_is_as_slow_as_it_is_when_all_compute():
    slow = flat(slow_down=lambda kind, busy: 1 + (busy > 1))
    for plan in (Plan(HYBRID, 2, (2, 2), CHUNK), Plan(DATA_PARALLEL, 2, (4,), CHUNK)):
        plain = predict(plan, job(2, STEPS), Flat()).seconds
        assert predict(plan, job(2, STEPS), slow).seconds == pytest.approx(2 * plain)
    assert seconds(SINGLE, 1, (4,), slow) == seconds(SINGLE, 1, (4,))


def test_alternatives_are_ranked_and_one_worker_is_not_chosen():
    found = ranked(job(2, STEPS), flat(link=Link(1e3, 1)))  # a link on which nothing pays
    assert found[0].plan.backend == SINGLE
    assert best(found).plan.backend != SINGLE
    assert [p.words_per_second for p in found] == sorted(
        (p.words_per_second for p in found), reverse=True
    )


def test_data_parallel_is_chosen_where_a_unit_costs_much_and_the_sum_little():
    assert best(ranked(job(2, STEPS), Flat())).plan.backend == DATA_PARALLEL


def test_the_wavefront_is_chosen_where_sums_are_dear():
    class ByRows(Flat):
        def layer(self, layer, sizes, backward):
            return (1 + backward) * sum(sizes)

    costs = ByRows()
    costs.link = Link(0.0, 10.0)
    assert best(ranked(job(2, STEPS), costs)).plan.backend == HYBRID


def test_spreads_are_equal_shares_and_the_partition():
    class Uneven(Flat):
        def layer(self, layer, sizes, backward):
            return 9.0 if layer in lowest else 1.0

    work = job(2, STEPS)
    lowest = (work.model.parts.encoder_layers[0], work.model.parts.decoder_layers[0])
    assert layer_splits(work, CHUNK, Uneven()) == [(2, 2), (1, 3)]
    assert layer_splits(work, CHUNK, Flat()) == [(2, 2)]
    assert layer_splits(job(4, STEPS), CHUNK, Flat()) == [(2, 2), (1, 1, 1, 1)]
    assert layer_splits(job(2, STEPS, encoder_layers=1), CHUNK, Flat()) == []


def test_chunks_double_up_to_the_longest_sentence():
    assert chunks(24) == [2, 4, 8, 16, 24]
    assert chunks(16) == [2, 4, 8, 16]
    assert chunks(1) == [1]


def test_layers_are_stacked():
    assert stacked((1, 3)) == [range(0, 1), range(1, 4)]
