"""What each backend's workers do in an update, as programs for the simulator.

One description serves all of them. Workers form groups of stages; a group passes its batches
through its layers by the schedule of `wavefront/schedule.py`, computes the heads, goes back, sums
what several stages or groups have gradients of, and updates. With one stage nothing is passed and
nothing shared: that is a single worker or, with several groups, data parallelism.
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
from fairseq_hybrid.planner.costs import BACKWARD, COPY, FORWARD, HEAD, UPDATE, Costs, ring
from fairseq_hybrid.planner.job import FLOAT, BatchShape, Model, Shares
from fairseq_hybrid.planner.plan import MODEL_PARALLEL, Plan
from fairseq_hybrid.planner.simulate import Await, Compute, Meet, Post, Step

EXCHANGES = 2
"""small collectives before a wavefront: shapes and words of the batches"""
STATISTICS = 3
"""small collectives at the end of an update: fairseq's statistics and its check of the norm"""
GROUP_STATISTICS = 2
"""more of them in a group of stages: the norm of the gradient, where the time went"""
SUM_COPIES, DDP_SUM_COPIES = 1, 3
"""times that gradients are gone over when groups sum them; fairseq's legacy_ddp copies them into a
buffer, divides, and copies them back"""


def programs(
    plan: Plan, model: Model, batches: Sequence[BatchShape], costs: Costs
) -> list[list[Step]]:
    """A program for each worker; worker i loads `batches[i]`."""
    size = len(plan.layers)
    groups = [
        Group(plan, model, tuple(batches[first : first + size]), costs, first)
        for first in range(0, plan.workers, size)
    ]
    return [group.program(stage) for group in groups for stage in range(size)]


@dataclass(frozen=True)
class Group:
    """The workers from rank `first` on, one per stage."""

    plan: Plan
    model: Model
    batches: tuple[BatchShape, ...]
    costs: Costs
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

    def program(self, stage: int) -> list[Step]:
        """An update."""
        return [
            *self._start_refresh(stage),
            *self._prepare(),
            *self._embed(stage, backward=False),
            *self._forward(stage),
            *self._finish_refresh(stage),
            *self._head(stage),
            *self._heads_home(stage),
            *([] if self._waits_last(stage) else self._late(stage)),
            *self._start_reduce(stage),
            *self._backward(stage),
            *self._embed(stage, backward=True),
            *(self._late(stage) if self._waits_last(stage) else []),
            *self._finish_reduce(stage),
            *self._sum_over_groups(stage),
            *self._meetings(GROUP_STATISTICS if self.stages > 1 else 0, "group statistics"),
            *self._statistics(),
            Compute(UPDATE, "update", self.costs.update(self.shares.owned[stage])),
            Compute(UPDATE, "rest", self.costs.rest(self.plan.workers)),
        ]

    def stage_seconds(self, stage: int, unit: Unit, backward: bool) -> float:
        sizes = self.batches[unit.batch].unit(unit, self.plan.chunk)
        layers = self.model.layers_of(stacked(self.plan.layers)[stage], unit.part)
        seconds = sum(self.costs.layer(layer, sizes, backward) for layer in layers)
        return seconds + (self.costs.unit() if self.stages > 1 else 0.0)

    # The wavefront

    def _prepare(self) -> list[Step]:
        """Everybody gets to know all batches of the group, and makes the schedule."""
        if self.stages == 1:
            return []
        seconds = self.costs.prepare() * len(self.batches)
        return [*self._meetings(EXCHANGES, "exchange"), Compute(FORWARD, "prepare", seconds)]

    def _forward(self, stage: int) -> list[Step]:
        program = self.schedule.program(stage)
        steps = self._run(stage, program, {UP}, backward=False)
        home = [e for e in program if isinstance(e, Send) and e.target == stage and e.kind != UP]
        return steps + [step for event in home for step in self._receive(event)]

    def _heads_home(self, stage: int) -> list[Step]:
        """What the head has made goes ahead of all units."""
        program = self.schedule.reverse().program(stage)
        return [s for e in program if self._is_heads(e, stage) for s in self._post(e)]

    @staticmethod
    def _is_heads(event: Event, stage: int) -> bool:
        return isinstance(event, Send) and event.source == stage and event.kind != UP

    def _backward(self, stage: int) -> list[Step]:
        program = self.schedule.reverse().program(stage)
        rest = [event for event in program if not self._is_heads(event, stage)]
        return self._run(stage, rest, {UP, TOP, STATE}, backward=True)

    def _run(
        self, stage: int, program: Sequence[Event], needed: set[str], backward: bool
    ) -> list[Step]:
        """Compute the units, each after the messages it needs, and send."""
        arrivals: dict[Unit, list[Step]] = {}
        for event in program:
            if isinstance(event, Send) and event.target == stage and event.kind in needed:
                arrivals.setdefault(event.unit, []).extend(self._receive(event))
        steps: list[Step] = []
        for event in program:
            if isinstance(event, Run):
                steps += arrivals.get(event.unit, [])
                seconds = self.stage_seconds(stage, event.unit, backward)
                steps.append(Compute(BACKWARD if backward else FORWARD, name(event.unit), seconds))
            elif event.source == stage:
                steps += self._post(event)
        return steps

    def _key(self, event: Send) -> tuple:
        return (self.first, event)

    def _post(self, event: Send) -> list[Step]:
        return self._send((event.target, event.kind), self._key(event), self._size(event))

    def _receive(self, event: Send) -> list[Step]:
        return self._arrive(self._key(event), self._size(event))

    def _send(self, lane: tuple, key: tuple, size: float) -> list[Step]:
        return [*self._handle(size), Post(lane, key, size)]

    def _arrive(self, key: tuple, size: float) -> list[Step]:
        return [Await(key), *self._handle(size)]

    def _handle(self, size: float) -> list[Step]:
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

    def _embed(self, stage: int, backward: bool) -> list[Step]:
        if stage > 0:
            return []
        parts = (ENCODER,) if self.model.feeding else (ENCODER, DECODER)
        rows = sum(batch.rows(part) for batch in self.batches for part in parts)
        seconds = self.costs.embed(rows, backward)
        return [Compute(BACKWARD if backward else FORWARD, "embed", seconds)]

    def _head(self, stage: int) -> list[Step]:
        mine = self._at_home(stage)
        ways = (False, True)
        seconds = [self.costs.head(self.model, b, backward) for b in mine for backward in ways]
        now = sum(seconds) - sum(self._late_seconds(b) for b in mine)
        return [Compute(HEAD, "head", max(now, 0.0))] if mine else []

    def _at_home(self, stage: int) -> list[BatchShape]:
        return [b for b, home in zip(self.batches, self.homes) if home == stage]

    def _late_seconds(self, batch: BatchShape) -> float:
        """Of the head's backward pass, what a group of stages computes when it suits."""
        return self.costs.late(self.model, batch) if self.stages > 1 else 0.0

    def _late(self, stage: int) -> list[Step]:
        seconds = sum(self._late_seconds(b) for b in self._at_home(stage))
        return [Compute(HEAD, "output weights", seconds)] if seconds else []

    def _waits_last(self, stage: int) -> bool:
        """Whether a stage leaves the output weights until its units are done."""
        return stage == self.stages - 1 == self.shares.output_owner

    # What several stages use (backends/wavefront/shared.py)

    def _start_refresh(self, stage: int) -> list[Step]:
        return self._exchange_shared(stage, "refresh", to_owner=False)

    def _start_reduce(self, stage: int) -> list[Step]:
        return self._exchange_shared(stage, "reduce", to_owner=True)

    def _exchange_shared(self, stage: int, what: str, to_owner: bool) -> list[Step]:
        """New weights go from their owner to the others, gradients the other way."""
        shared = {owner: numbers * FLOAT for owner, numbers in self.shares.shared.items()}
        steps: list[Step] = self._copy(sum(shared.values()))
        for owner, size in shared.items():
            for other in range(self.stages):
                source, target = (other, owner) if to_owner else (owner, other)
                if source == stage != target:
                    key = (self.first, what, source, target)
                    steps += self._send((target, what), key, size)
        return steps

    def _finish_refresh(self, stage: int) -> list[Step]:
        steps: list[Step] = []
        for owner, numbers in self.shares.shared.items():
            if owner != stage:
                steps += self._arrive((self.first, "refresh", owner, stage), numbers * FLOAT)
                steps += self._copy(numbers * FLOAT)
        return steps

    def _finish_reduce(self, stage: int) -> list[Step]:
        if stage not in self.shares.shared:
            return []
        size = self.shares.shared[stage] * FLOAT
        steps: list[Step] = []
        for other in range(self.stages):
            if other != stage:
                steps += self._arrive((self.first, "reduce", other, stage), size)
                steps += self._copy(size)
        return steps

    def _copy(self, size: float) -> list[Step]:
        return [Compute(COPY, "copy", self.costs.copy(size))] if size else []

    # All workers

    def _sum_over_groups(self, stage: int) -> list[Step]:
        groups = self.plan.workers // self.stages
        if groups == 1:
            return []
        size = self.shares.owned[stage] * FLOAT
        column = tuple(range(stage, self.plan.workers, self.stages))
        copies = SUM_COPIES if self.stages > 1 else DDP_SUM_COPIES
        meet = Meet(("sum", stage), column, self.costs.meet(groups, size), ring(groups, size))
        return [*self._copy(copies * size), meet]

    def _statistics(self) -> list[Step]:
        everybody = tuple(range(self.plan.workers))
        seconds = STATISTICS * self.costs.meet(self.plan.workers)
        return [Meet("statistics", everybody, seconds)] if len(everybody) > 1 else []

    def _meetings(self, count: int, what: str) -> list[Step]:
        group = tuple(range(self.first, self.first + self.stages))
        seconds = count * self.costs.meet(self.stages)
        return [Meet((self.first, what), group, seconds)] if count else []


def name(unit: Unit) -> str:
    return f"{unit.part} {unit.batch}.{unit.chunk}"
