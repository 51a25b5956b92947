"""Every schedule on nccl's terms, without nccl: messages in lanes, each strictly in order.

A lane (source, target, kind) is a communicator with a stream of its own at both ends. What is put
on it, `isend` or `irecv`, is done in order, and a message passes only when both ends have come to
it. First as a simulation of all schedules, as the executor (wavefront.py) uses them: all receives
of a pass are posted at its start, units wait for what they need alone, sends follow their unit.
Then the executor itself, one thread per worker, on lanes of this kind: gradients of one process.
"""

from __future__ import annotations

import copy
import itertools
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

import pytest
import torch
from gradient_cases import LENGTHS, loss_of, sample
from hybrid_lstm_reference import TinyTask, tiny_model
from torch import Tensor

from fairseq_hybrid.backends.wavefront import executor as wavefront
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
)
from fairseq_hybrid.comm.stopwatch import Stopwatch
from fairseq_hybrid.models.packing import Packing

# Simulation


def homes_of(batches: int, stages: int, head_on_last: bool) -> list[int]:
    return [stages - 1 if head_on_last else b % stages for b in range(batches)]


POST, SEND, WAIT = "post a receive", "send", "wait"


def steps_of(plan: Schedule, worker: int, *, forward: bool) -> list[tuple[str, Send]]:
    """What a worker does in one pass, but for computing, which takes no time here."""
    program = plan.program(worker)
    receives = [e for e in program if isinstance(e, Send) and e.target == worker]
    steps = [(POST, event) for event in receives]
    arrivals = defaultdict(list)
    for event in receives:
        arrivals[event.unit, event.kind].append(event)
    for event in program:
        if isinstance(event, Run):
            for kind in (UP,) if forward else (UP, TOP, STATE):
                steps += [(WAIT, arrival) for arrival in arrivals.pop((event.unit, kind), ())]
        elif event.source == worker:
            steps.append((SEND, event))
    if forward:
        steps += [(WAIT, arrival) for left in arrivals.values() for arrival in left]
    else:
        assert not arrivals  # a receive that nobody waits for
    return steps


def all_steps(plan: Schedule) -> list[list[tuple[str, Send]]]:
    """Of every worker: forward, then backward."""
    back = plan.reverse()
    return [
        steps_of(plan, worker, forward=True) + steps_of(back, worker, forward=False)
        for worker in range(plan.stages)
    ]


class WrongMessageError(Exception):
    """The two ends of a lane have come to different messages."""


def lane_of(event: Send) -> tuple:
    return event.source, event.target, event.kind


def pair_of(event: Send) -> tuple:
    return min(event[:2]), max(event[:2])


def simulate(
    workers: Sequence[Sequence[tuple[str, Send]]],
    communicator: Callable[[Send], Hashable] = lane_of,
    *,
    made_at_first_use: bool = False,
) -> set[Send]:
    """Run all workers as far as they get; returns the messages that never arrive.

    `communicator`: which messages share one. `made_at_first_use`: a worker that puts the first
    thing on a communicator stands still until the other end does so too.
    """
    queues: dict = defaultdict(deque)
    members: dict = defaultdict(set)
    arrived: set[Send] = set()
    at = [0] * len(workers)

    def put(me: int, what: str, event: Send) -> None:
        there = communicator(event)
        mine, others = queues[there, me], queues[there, sum(event[:2]) - me]
        mine.append((what, event))
        while mine and others and mine[0][0] != others[0][0]:
            (_, one), (_, other) = mine.popleft(), others.popleft()
            if one != other:
                raise WrongMessageError(one, other)
            arrived.add(one)

    def goes_on(me: int, what: str, event: Send) -> bool:
        if what == WAIT:
            return event in arrived
        if made_at_first_use:
            members[communicator(event)].add(me)
            if len(members[communicator(event)]) < 2:
                return False
        put(me, what, event)
        return True

    moving = True
    while moving:
        moving = False
        for me, steps in enumerate(workers):
            while at[me] < len(steps) and goes_on(me, *steps[at[me]]):
                at[me] += 1
                moving = True
    done = all(at[me] == len(steps) for me, steps in enumerate(workers))
    awaited = {event for steps in workers for _, event in steps}
    assert done == (arrived == awaited)  # nobody finishes with a message under way
    return awaited - arrived


def variants(stages: int):
    """Schedules of 1-8 batches: few and many chunks, all kinds of homes and layers."""
    for batches, c in itertools.product(range(1, 9), (1, 4)):
        for head_on_last, whole, states_home in itertools.product((False, True), repeat=3):
            chunks = [(1 + b % c, 0 if states_home else c) for b in range(batches)]
            homes = homes_of(batches, stages, head_on_last)
            yield schedule.wavefront(stages, chunks, homes, whole=whole, states_home=states_home)


@pytest.mark.parametrize("stages", range(1, 9))
def test_every_schedule_completes(stages):
    """Both passes end, and the n-th send of a lane is the n-th receive."""
    for plan in variants(stages):
        assert simulate(all_steps(plan)) == set()


PLAIN = dict(stages=3, chunks=[(2, 2)] * 3, homes=[0, 1, 2])
AT_HOME = dict(stages=3, chunks=[(2, 0)] * 3, homes=[0, 1, 2], whole=True, states_home=True)


@pytest.mark.parametrize("options", [PLAIN, AT_HOME])
def test_any_two_receives_of_a_lane_in_wrong_order_are_found(options):
    workers = all_steps(schedule.wavefront(**options))
    swaps = 0
    for worker, steps in enumerate(workers):
        lanes = defaultdict(list)
        for at, (what, event) in enumerate(steps):
            if what == POST:
                lanes[lane_of(event)].append(at)
        for places in lanes.values():
            for a, b in itertools.combinations(places, 2):
                wrong = list(steps)
                wrong[a], wrong[b] = wrong[b], wrong[a]
                with pytest.raises(WrongMessageError):
                    simulate([*workers[:worker], wrong, *workers[worker + 1 :]])
                swaps += 1
    assert swaps > 10


@pytest.mark.parametrize("options", [PLAIN, AT_HOME])
@pytest.mark.parametrize("what", [POST, SEND])
def test_a_message_with_one_end_only_is_found(options, what):
    """The last of its lane: an earlier one shows as a wrong message."""
    workers = all_steps(schedule.wavefront(**options))
    for worker, steps in enumerate(workers):
        last = {lane_of(event): event for kind, event in steps if kind == what}
        for event in last.values():
            left = [step for step in steps if step != (what, event)]
            missing = simulate([*workers[:worker], left, *workers[worker + 1 :]])
            assert event in missing


@pytest.mark.parametrize("options", [PLAIN, AT_HOME])
def test_with_one_communicator_per_pair_of_workers_nothing_would_move(options):
    """Why there are lanes: receives posted early stand before the sends."""
    assert simulate(all_steps(schedule.wavefront(**options)), pair_of)


@pytest.mark.parametrize("options", [PLAIN, AT_HOME])
def test_lanes_must_be_open_before_the_first_pass(options):
    """A communicator that nccl makes at its first use, when both ends have come to it, would stop
    the workers as they post their receives. Opened by all in one order first, lanes work."""
    workers = all_steps(schedule.wavefront(**options))
    assert simulate(workers, made_at_first_use=True)
    lanes = sorted({lane_of(event) for steps in workers for _, event in steps})
    hellos = [Send(source, target, ("hello",), kind) for source, target, kind in lanes]
    opened = [
        [(SEND if me == e.source else POST, e) for e in hellos if me in e[:2]] + list(steps)
        for me, steps in enumerate(workers)
    ]
    assert simulate(opened, made_at_first_use=True) == set()


# The executor in threads

SAMPLES = [sample(TinyTask(), i, 0) for i in range(len(LENGTHS))]
"""the batches, made here: their random numbers are the process's, not a thread's"""


@dataclass(eq=False)
class Operation:
    """A tensor put on a lane, to be read or written when its turn comes."""

    exchange: Exchange
    lane: tuple
    tensor: Tensor
    receives: bool
    done: bool = False

    def wait(self) -> None:
        self.exchange.wait(self)


class Exchange:
    """All lanes of a group, in one process.

    A message passes from memory to memory when both ends have put theirs on the lane and all
    before it have passed: at once or, if `late`, when its receiver waits for it. Whoever waits for
    longer than `patience` seconds fails, and all others with it.
    """

    def __init__(self, *, late: bool, patience: float = 30.0) -> None:
        self.late, self.patience = late, patience
        self.queues: dict = defaultdict(lambda: (deque(), deque()))
        self.changed = threading.Condition()
        self.broken: Exception | None = None

    def put(self, lane: tuple, tensor: Tensor, *, receives: bool) -> Operation:
        operation = Operation(self, lane, tensor, receives)
        with self.changed:
            self.queues[lane][receives].append(operation)
            if not self.late:
                self._pass_on(lane)
            self.changed.notify_all()
        return operation

    def wait(self, operation: Operation) -> None:
        deadline = time.monotonic() + self.patience
        with self.changed:
            while not operation.done:
                if self.broken:
                    raise RuntimeError(f"another worker failed: {self.broken!r}")
                if operation.receives:
                    self._pass_on(operation.lane, until=operation)
                if not operation.done and not self.changed.wait(deadline - time.monotonic()):
                    raise TimeoutError(f"nothing moves on lane {operation.lane}")

    def _pass_on(self, lane: tuple, until: Operation | None = None) -> None:
        sends, receives = self.queues[lane]
        while sends and receives and not (until and until.done):
            source, target = sends.popleft(), receives.popleft()
            assert source.tensor.shape == target.tensor.shape, f"wrong shape on lane {lane}"
            assert source.tensor.dtype == target.tensor.dtype, f"wrong dtype on lane {lane}"
            # Bytes into memory behind autograd's back, as a network does it.
            target.tensor.numpy()[...] = source.tensor.numpy()
            source.done = target.done = True
            self.changed.notify_all()

    def fail(self, error: Exception) -> None:
        with self.changed:
            self.broken = self.broken or error
            self.changed.notify_all()

    def left(self) -> int:
        return sum(len(queue) for ends in self.queues.values() for queue in ends)


@dataclass
class InOrderLanes:
    """`Lanes` of one worker, on an exchange."""

    exchange: Exchange
    worker: int
    under_way: list[Operation] = field(default_factory=list)

    def send(self, tensor: Tensor, lane: tuple) -> None:
        assert lane[0] == self.worker
        operation = self.exchange.put(lane, tensor.contiguous(), receives=False)
        self.under_way.append(operation)

    def receive(self, into: Tensor, lane: tuple) -> Operation:
        assert lane[1] == self.worker
        assert into.is_contiguous()
        return self.exchange.put(lane, into, receives=True)

    def drain(self) -> None:
        for operation in self.under_way:
            operation.wait()
        self.under_way.clear()


@dataclass(frozen=True)
class Case:
    stages: int
    chunk: int
    head_on_last: bool = False
    options: dict = field(default_factory=dict)
    late: bool = False

    @property
    def name(self) -> str:
        kind = "model_parallel" if self.head_on_last else "hybrid"
        late = " late" if self.late else ""
        return " ".join((f"{kind} {self.stages} chunk={self.chunk}{late}", *self.options))

    def model(self):
        return tiny_model(TinyTask(), encoder_layers=5, **self.options).train()

    def batches(self, parts) -> list[wavefront.Batch]:
        homes = homes_of(len(LENGTHS), self.stages, self.head_on_last)
        return [self._batch(parts, i, home) for i, home in enumerate(homes)]

    def _batch(self, parts, i: int, home: int) -> wavefront.Batch:
        inputs = SAMPLES[i]["net_input"]
        words = {ENCODER: inputs["src_tokens"], DECODER: inputs["prev_output_tokens"]}
        pads = {ENCODER: parts.source_pad, DECODER: parts.target_pad}
        packing = {part: Packing.from_tokens(words[part], pads[part]) for part in words}
        cuts = {part: [*range(0, p.steps, self.chunk), p.steps] for part, p in packing.items()}
        return wavefront.Batch(
            home=home,
            packing=packing,
            tokens={part: packing[part].pack(words[part]) for part in words},
            cuts=cuts if parts.decoder_splits else cuts | {DECODER: [0]},
        )

    def plan(self, parts) -> Schedule:
        batches = self.batches(parts)
        return schedule.wavefront(
            self.stages,
            [(len(b.cuts[ENCODER]) - 1, len(b.cuts[DECODER]) - 1) for b in batches],
            [batch.home for batch in batches],
            whole=parts.whole_sentence_layers > 0,
            states_home=not parts.decoder_splits,
        )

    def stage(self, parts, index: int, lanes: InOrderLanes) -> wavefront.Stage:
        ranges = layer_ranges(len(parts.encoder_layers), self.stages)
        encoder = [parts.encoder_layers[i] for i in ranges[index]]
        decoder = [parts.decoder_layers[i] for i in ranges[index]]
        wholes = parts.whole_sentence_layers if index == 0 else 0
        return wavefront.Stage(
            index=index,
            count=self.stages,
            layers={
                WHOLE: encoder[:wholes],
                ENCODER: encoder[wholes:],
                DECODER: decoder if parts.decoder_splits else [],
            },
            depths=[len(layers) for layers in ranges],
            hidden=parts.encoder_layers[-1].hidden_size,
            embed={ENCODER: parts.embed_source, DECODER: parts.embed_target},
            decodes=parts.decoder_splits,
            lanes=lanes,
            watch=Stopwatch(),
        )


@dataclass
class Worker:
    """One stage in a thread, with a copy of the model for itself."""

    case: Case
    index: int
    exchange: Exchange
    plan: Schedule
    model: torch.nn.Module
    loss: float = 0.0
    backward_passes: int = 0

    def __call__(self) -> None:
        try:
            self._update()
        except Exception as error:
            self.exchange.fail(error)

    def _update(self) -> None:
        parts = self.model.parallel_parts()
        stage = self.case.stage(parts, self.index, InOrderLanes(self.exchange, self.index))
        batches = self.case.batches(parts)
        tops = wavefront.run(stage, self.plan, batches, wavefront.Between(self._at_turn))
        home = [i for i, batch in enumerate(batches) if batch.home == self.index]
        if not home:
            assert len(tops) == 1
            tops[0].sum().backward()
            return
        each = len(tops) // len(home)
        pieces = [tops[n * each : (n + 1) * each] for n in range(len(home))]
        loss = sum(self._loss(parts, i, batches[i], mine) for i, mine in zip(home, pieces))
        self.loss = loss.item()
        loss.backward()

    def _at_turn(self) -> None:
        self.backward_passes += 1

    def _loss(self, parts, i: int, batch: wavefront.Batch, tops: list[Tensor]) -> Tensor:
        src, tgt = batch.packing[ENCODER], batch.packing[DECODER]
        if parts.decoder_splits:
            enc_MH, dec_NH = tops
            logits_NV, _ = parts.head(dec_NH, tgt, enc_MH, src)
        else:
            enc_MH, *stacks = tops
            states = [pair for stack in stacks for pair in zip(stack[::2], stack[1::2])]
            words = SAMPLES[i]["net_input"]["prev_output_tokens"]
            logits_NV, _ = parts.decode(words, enc_MH, src, states)
        targets = tgt.pack(SAMPLES[i]["target"])
        return torch.nn.functional.cross_entropy(logits_NV, targets, reduction="sum")


def run_workers(
    case: Case, plans: dict[int, Schedule] | None = None, patience: float = 30.0
) -> list[Worker]:
    """One update of all workers; `plans`: instead of the right one, for some."""
    model, exchange = case.model(), Exchange(late=case.late, patience=patience)
    plan = case.plan(model.parallel_parts())
    workers = [
        Worker(case, index, exchange, (plans or {}).get(index, plan), copy.deepcopy(model))
        for index in range(case.stages)
    ]
    threads = [threading.Thread(target=worker, daemon=True) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * patience + 10)
    assert not any(thread.is_alive() for thread in threads), "a worker hangs outside the lanes"
    if exchange.broken:
        raise exchange.broken
    assert exchange.left() == 0
    return workers


def reference(case: Case):
    """The model in one piece, all batches: its loss and itself, with gradients."""
    model, loss = case.model(), 0.0
    for each in SAMPLES:
        part = loss_of(model, each)[0]
        part.backward()
        loss += part.item()
    return loss, model


def check_gradients(case: Case, workers: list[Worker]) -> None:
    """Those of all workers add up to the model's in one piece."""
    loss, model = reference(case)
    assert sum(worker.loss for worker in workers) == pytest.approx(loss, rel=1e-12)
    copies = [dict(worker.model.named_parameters()) for worker in workers]
    for name, p in model.named_parameters():
        grads = [parameters[name].grad for parameters in copies]
        got = sum(grad for grad in grads if grad is not None)
        assert p.grad.abs().max() > 1e-6
        torch.testing.assert_close(got, p.grad, rtol=1e-9, atol=1e-11, msg=name)


BIDIRECTIONAL = {"encoder_bidirectional_first": True}
FEEDING = {"input_feeding": True}
cases = [
    Case(2, 1),
    Case(2, 2, head_on_last=True, late=True),
    Case(2, 2, options=BIDIRECTIONAL, late=True),
    Case(2, 100, options=FEEDING),
    Case(3, 2, late=True),
    Case(3, 100, head_on_last=True),
    Case(3, 100, options=BIDIRECTIONAL),
    Case(3, 1, head_on_last=True, options=FEEDING, late=True),
    Case(3, 2, options=FEEDING | BIDIRECTIONAL),
    Case(4, 1, late=True),
    Case(4, 2),
    Case(4, 1, head_on_last=True),
    Case(4, 2, head_on_last=True, options=BIDIRECTIONAL),
    Case(4, 2, options=FEEDING, late=True),
    Case(4, 2, head_on_last=True, options=FEEDING | BIDIRECTIONAL, late=True),
    Case(4, 1, options=FEEDING | BIDIRECTIONAL),
]


@pytest.mark.parametrize("case", cases, ids=[case.name for case in cases])
def test_executor_on_lanes_in_order(case):
    """The real forward and backward passes: gradients of one piece, to 1e-9 in float64."""
    workers = run_workers(case)
    assert [worker.backward_passes for worker in workers] == [1] * case.stages
    check_gradients(case, workers)
    for stage, layers in enumerate(layer_ranges(5, case.stages)):
        for worker in workers:
            for i, layer in enumerate(worker.model.encoder.layers):
                mine = worker.index == stage
                if i in layers:
                    assert all((p.grad is not None) == mine for p in layer.parameters())


@dataclass(frozen=True)
class OnlyForward(Schedule):
    """A plan that is wrong in the forward pass only."""

    right: Schedule

    def reverse(self) -> Schedule:
        return self.right.reverse()


def with_swapped_transfers(plan: Schedule, first: Send, second: Send) -> Schedule:
    swap = {first: second, second: first}
    return OnlyForward(plan.stages, tuple(swap.get(event, event) for event in plan.events), plan)


def transfers_of(plan: Schedule, batch: int, part: str, lane: tuple) -> list[Send]:
    sends = [event for event in plan.events if isinstance(event, Send) and lane_of(event) == lane]
    return [event for event in sends if event.unit[:2] == (batch, part)]


@pytest.mark.parametrize("late", [False, True])
def test_receives_in_wrong_order_do_not_pass_for_right(late):
    """Shapes that differ fail at once; where they agree, the gradients show it."""
    case = Case(2, 1, late=late)
    plan = case.plan(case.model().parallel_parts())
    first, second, *_ = transfers_of(plan, 0, ENCODER, (0, 1, UP))
    with pytest.raises(AssertionError, match="wrong shape"):
        run_workers(case, {1: with_swapped_transfers(plan, first, second)})
    first, second, *_ = transfers_of(plan, 3, DECODER, (0, 1, UP))
    workers = run_workers(case, {1: with_swapped_transfers(plan, first, second)})
    with pytest.raises(AssertionError):
        check_gradients(case, workers)


@pytest.mark.parametrize("late", [False, True])
def test_a_lost_message_is_a_failure_not_a_hang(late):
    """The last one up: nothing comes in its place."""
    case = Case(3, 2, late=late)
    plan = case.plan(case.model().parallel_parts())
    *_, lost = transfers_of(plan, len(LENGTHS) - 1, DECODER, (1, 2, UP))
    less = Schedule(plan.stages, tuple(event for event in plan.events if event != lost))
    with pytest.raises(TimeoutError, match="nothing moves on lane"):
        run_workers(case, {1: less}, patience=1.0)
