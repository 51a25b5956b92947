"""What each backend's workers do in an update, as programs for the simulator.

One description serves all of them. Workers form replicas of stages; a replica passes its batches
through its layers by the schedule of `wavefront/schedule.py`, computes the heads, goes back, sums
what several stages or replicas have gradients of, and updates. With one stage nothing is passed and
nothing shared: that is a single worker or, with several replicas, data parallelism.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from fairseq_hybrid.backends.wavefront import schedule
from fairseq_hybrid.backends.wavefront.options import stacked
from fairseq_hybrid.backends.wavefront.schedule import (
    DECODER,
    ENCODER,
    STATE,
    TOP,
    UP,
    Event,
    Run,
    Send,
    Unit,
)
from fairseq_hybrid.planner.costs import BACKWARD, COPY, FORWARD, HEAD, UPDATE, CostModel, ring
from fairseq_hybrid.planner.job import FLOAT, BatchShape, Model, Shares
from fairseq_hybrid.planner.plan import MODEL_PARALLEL, Plan
from fairseq_hybrid.planner.simulate import Await, Collective, Compute, Instruction, Post

REFRESH, REDUCE = "refresh", "reduce"
EXCHANGES = 2
"""small collectives before a wavefront: shapes and words of the batches"""
STATISTICS = 3
"""small collectives at the end of an update: fairseq's statistics and its check of the norm"""
REPLICA_STATISTICS = 2
"""more of them in a replica of several stages: the norm of the gradient, where the time went"""
SUM_COPIES, DDP_SUM_COPIES = 1, 3
"""passes over the gradients when replicas sum them; fairseq's legacy_ddp copies them into a buffer,
divides, and copies them back"""


def programs_of(
    plan: Plan, model: Model, batches: Sequence[BatchShape], costs: CostModel
) -> list[list[Instruction]]:
    """A program for each worker; worker i loads `batches[i]`."""
    size = len(plan.layers)
    replicas = [
        Replica(plan, model, tuple(batches[first : first + size]), costs, first)
        for first in range(0, plan.workers, size)
    ]
    return [replica.program(stage) for replica in replicas for stage in range(size)]


@dataclass(frozen=True)
class Replica:
    """The workers from rank `first` on, one per stage."""

    plan: Plan
    model: Model
    batches: tuple[BatchShape, ...]
    costs: CostModel
    first: int

    @property
    def stages(self) -> int:
        return len(self.plan.layers)

    @property
    def head_on_last(self) -> bool:
        return self.plan.backend == MODEL_PARALLEL

    @cached_property
    def homes(self) -> list[int]:
        last = self.stages - 1
        return [last if self.head_on_last else i for i in range(len(self.batches))]

    @cached_property
    def shares(self) -> Shares:
        return self.model.shares(self.plan.layers, self.head_on_last)

    @cached_property
    def schedule(self) -> schedule.Schedule:
        chunk, feeding = self.plan.chunk, self.model.feeding
        return schedule.wavefront(
            self.stages,
            [(b.chunks(ENCODER, chunk), 0 if feeding else b.chunks(DECODER, chunk))
             for b in self.batches],
            self.homes,
            whole=self.model.parts.whole_sentence_layers > 0,
            states_home=feeding,
        )  # fmt: skip

    def program(self, stage: int) -> list[Instruction]:
        """An update."""
        return [
            *self._start(REFRESH, stage),
            *self._prepare(),
            *self._embed(stage, backward=False),
            *self._forward(stage),
            *self._finish(REFRESH, stage),
            *self._head(stage),
            *self._heads_home(stage),
            *([] if self._waits_last(stage) else self._late(stage)),
            *self._start(REDUCE, stage),
            *self._backward(stage),
            *self._embed(stage, backward=True),
            *(self._late(stage) if self._waits_last(stage) else []),
            *self._finish(REDUCE, stage),
            *self._sum_over_replicas(stage),
            *self._small_collectives(
                REPLICA_STATISTICS if self.stages > 1 else 0, "replica statistics"
            ),
            *self._statistics(),
            Compute(UPDATE, "update", self.costs.update(self.shares.owned[stage])),
            Compute(UPDATE, "rest", self.costs.rest(self.plan.workers)),
        ]

    def stage_seconds(self, stage: int, unit: Unit, backward: bool) -> float:
        sizes = self.batches[unit.batch].unit(unit, self.plan.chunk)
        layers = self.model.layers_of(stacked(self.plan.layers)[stage], unit.part)
        cost = self.costs.chunk if self.stages > 1 else self.costs.layer
        seconds = sum(cost(layer, sizes, backward) for layer in layers)
        return seconds + (self.costs.unit() if self.stages > 1 else 0.0)

    # The wavefront

    def _prepare(self) -> list[Instruction]:
        """All stages learn the shapes of all batches and make the schedule."""
        if self.stages == 1:
            return []
        seconds = self.costs.prepare() * len(self.batches)
        return [
            *self._small_collectives(EXCHANGES, "exchange"),
            Compute(FORWARD, "prepare", seconds),
        ]

    def _forward(self, stage: int) -> list[Instruction]:
        program = self.schedule.program(stage)
        steps = self._run(stage, program, {UP}, backward=False)
        home = [e for e in program if isinstance(e, Send) and e.target == stage and e.kind != UP]
        return steps + [step for event in home for step in self._receive(event)]

    def _heads_home(self, stage: int) -> list[Instruction]:
        """What the head has made goes ahead of all units."""
        program = self.schedule.reverse().program(stage)
        return [s for e in program if self._is_heads(e, stage) for s in self._post(e)]

    @staticmethod
    def _is_heads(event: Event, stage: int) -> bool:
        return isinstance(event, Send) and event.source == stage and event.kind != UP

    def _backward(self, stage: int) -> list[Instruction]:
        program = self.schedule.reverse().program(stage)
        rest = [event for event in program if not self._is_heads(event, stage)]
        return self._run(stage, rest, {UP, TOP, STATE}, backward=True)

    def _run(
        self, stage: int, program: Sequence[Event], needed: set[str], backward: bool
    ) -> list[Instruction]:
        """Compute the units, each after the messages it needs, and send."""
        arrivals: dict[Unit, list[Instruction]] = {}
        for event in program:
            if isinstance(event, Send) and event.target == stage and event.kind in needed:
                arrivals.setdefault(event.unit, []).extend(self._receive(event))
        steps: list[Instruction] = []
        for event in program:
            if isinstance(event, Run):
                steps += arrivals.get(event.unit, [])
                seconds = self.stage_seconds(stage, event.unit, backward)
                steps.append(
                    Compute(BACKWARD if backward else FORWARD, unit_name(event.unit), seconds)
                )
            elif event.source == stage:
                steps += self._post(event)
        return steps

    def _key(self, event: Send) -> tuple:
        return (self.first, event)

    def _post(self, event: Send) -> list[Instruction]:
        return self._send((event.target, event.kind), self._key(event), self._size(event))

    def _receive(self, event: Send) -> list[Instruction]:
        return self._arrive(self._key(event), self._size(event))

    def _send(self, lane: tuple, key: tuple, size: float) -> list[Instruction]:
        return [*self._handle(size), Post(lane, key, size)]

    def _arrive(self, key: tuple, size: float) -> list[Instruction]:
        return [Await(key), *self._handle(size)]

    def _handle(self, size: float) -> list[Instruction]:
        seconds = self.costs.message(size)
        return [Compute(COPY, "message", seconds)] if seconds else []

    def _size(self, event: Send) -> float:
        """Bytes of a message."""
        batch, home = self.batches[event.unit.batch], self.homes[event.unit.batch]
        if event.kind == STATE:
            stage = event.target if event.source == home else event.source
            numbers = 2 * self.plan.layers[stage] * batch.sentences
        else:
            numbers = sum(batch.unit(event.unit, self.plan.chunk))
        return numbers * self.model.hidden * FLOAT

    def _embed(self, stage: int, backward: bool) -> list[Instruction]:
        if stage > 0:
            return []
        parts = (ENCODER,) if self.model.feeding else (ENCODER, DECODER)
        rows = sum(batch.rows(part) for batch in self.batches for part in parts)
        seconds = self.costs.embed(rows, backward)
        return [Compute(BACKWARD if backward else FORWARD, "embed", seconds)]

    def _head(self, stage: int) -> list[Instruction]:
        mine = self._at_home(stage)
        seconds = [self.costs.head(self.model, b, back) for b in mine for back in (False, True)]
        now = sum(seconds) - sum(self._late_seconds(b) for b in mine)
        return [Compute(HEAD, "head", max(now, 0.0))] if mine else []

    def _at_home(self, stage: int) -> list[BatchShape]:
        return [b for b, home in zip(self.batches, self.homes) if home == stage]

    def _late_seconds(self, batch: BatchShape) -> float:
        """Of the head's backward pass, what several stages compute where they would wait."""
        return self.costs.late(self.model, batch) if self.stages > 1 else 0.0

    def _late(self, stage: int) -> list[Instruction]:
        seconds = sum(self._late_seconds(b) for b in self._at_home(stage))
        return [Compute(HEAD, "output weights", seconds)] if seconds else []

    def _waits_last(self, stage: int) -> bool:
        """Whether a stage leaves the output weights until its units are done."""
        return stage == self.stages - 1 == self.shares.output_owner

    # What several stages use (backends/wavefront/shared.py)

    def _shared(self, what: str) -> list[tuple[int, int, float]]:
        """Source, target and bytes: new weights go to all from their owner, gradients to it."""
        return [
            (owner, other, numbers * FLOAT) if what == REFRESH else (other, owner, numbers * FLOAT)
            for owner, numbers in self.shares.shared.items()
            for other in range(self.stages)
            if other != owner
        ]

    def _start(self, what: str, stage: int) -> list[Instruction]:
        steps = self._copy(sum(self.shares.shared.values()) * FLOAT)
        for source, target, size in self._shared(what):
            if source == stage:
                steps += self._send((target, what), (self.first, what, source, target), size)
        return steps

    def _finish(self, what: str, stage: int) -> list[Instruction]:
        steps: list[Instruction] = []
        for source, target, size in self._shared(what):
            if target == stage:
                steps += self._arrive((self.first, what, source, target), size) + self._copy(size)
        return steps

    def _copy(self, size: float) -> list[Instruction]:
        return [Compute(COPY, "copy", self.costs.copy(size))] if size else []

    # All workers

    def _sum_over_replicas(self, stage: int) -> list[Instruction]:
        replicas = self.plan.workers // self.stages
        if replicas == 1:
            return []
        size = self.shares.owned[stage] * FLOAT
        column = tuple(range(stage, self.plan.workers, self.stages))
        copies = SUM_COPIES if self.stages > 1 else DDP_SUM_COPIES
        seconds = self.costs.all_reduce(replicas, size)
        total = Collective(("sum", stage), column, seconds, ring(replicas, size))
        return [*self._copy(copies * size), total]

    def _statistics(self) -> list[Instruction]:
        everybody = tuple(range(self.plan.workers))
        seconds = STATISTICS * self.costs.all_reduce(self.plan.workers)
        return [Collective("statistics", everybody, seconds)] if len(everybody) > 1 else []

    def _small_collectives(self, count: int, what: str) -> list[Instruction]:
        stages = tuple(range(self.first, self.first + self.stages))
        seconds = count * self.costs.all_reduce(self.stages)
        return [Collective((self.first, what), stages, seconds)] if count else []


def unit_name(unit: Unit) -> str:
    return f"{unit.part} {unit.batch}.{unit.chunk}"
