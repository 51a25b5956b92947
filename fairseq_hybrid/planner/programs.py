"""An update by a plan: the list of actions that its workers run, and what each of them costs.

The list is that of training, made by the builders of backends/wavefront for each replica, and
around it what backend and trainer do: exchange of batches, sums over replicas, statistics, the
optimizer. With one stage nothing is passed and nothing shared: that is a single worker or, with
several replicas, data parallelism. An `Update` is what `simulate` asks for costs.

While a worker computes all others are taken to compute too, and to slow it down.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from fairseq_hybrid.backends.wavefront.builders import decoupled, synchronous
from fairseq_hybrid.backends.wavefront.options import stacked
from fairseq_hybrid.backends.wavefront.schedule import (
    BACKWARD,
    D_STATE,
    DECODER,
    EMBED,
    EMBED_GRAD,
    ENCODER,
    FORWARD,
    HEAD,
    OUTPUT_GRAD,
    REDUCE,
    REFRESH,
    SEND,
    STATE,
    WEIGHT_GRAD,
    Action,
    Schedule,
    Shape,
)
from fairseq_hybrid.backends.wavefront.simulate import COLLECTIVE, Timeline, simulate
from fairseq_hybrid.planner.costs import (
    COPY,
    KINDS,
    PREPARE,
    UPDATE,
    CostModel,
    late_weights,
    ring,
)
from fairseq_hybrid.planner.job import FLOAT, BatchShape, Model, Shares
from fairseq_hybrid.planner.plan import MODEL_PARALLEL, Plan

EXCHANGE, SUM, NORM, STATISTICS = "exchange of batches", "sum", "norm", "statistics"
"""collectives"""
SMALL = {EXCHANGE: 2, NORM: 2, STATISTICS: 3}
"""how many small all-reduces one is: shapes and words of the batches; the norm of the gradient and
where the time went; fairseq's statistics and its check of the norm"""
SUM_COPIES, DDP_SUM_COPIES = 1, 3
"""passes over the gradients when replicas sum them; fairseq's legacy_ddp copies them into a buffer,
divides, and copies them back"""


@dataclass(frozen=True)
class Update:
    plan: Plan
    model: Model
    batches: Sequence[BatchShape]
    """worker i loads the i-th"""
    costs: CostModel

    def timeline(self) -> Timeline:
        """With the output weights' gradient on the last stage where it takes less time."""
        late: list[Collection[int]] = [()]
        if self.plan.exact and self._seconds(Action(OUTPUT_GRAD, self.plan.stages - 1)):
            late.append((self.plan.stages - 1,))
        link, workers = self.costs.link, self.plan.workers
        times = [simulate(self.actions(stages), self, link, workers) for stages in late]
        best = min(times, key=lambda timeline: timeline.seconds)
        return replace(best, spans=[span._replace(kind=KINDS[span.kind]) for span in best.spans])

    # What is done

    def actions(self, late: Collection[int] = ()) -> list[Action]:
        """Of all workers. `late`: as `synchronous` has it, stages of every replica."""
        stages, everybody = self.plan.stages, range(self.plan.workers)
        splits, sums = stages > 1, stages < self.plan.workers
        found: list[Action] = []
        for first in everybody[::stages]:
            if splits:
                replica = range(first, first + stages)
                found += self._together(f"{EXCHANGE} {first}", replica)
                found += [Action(PREPARE, worker) for worker in replica]
            found += [_moved(action, first) for action in self.schedule(first, late).actions]
        if sums:
            found += [Action(COPY, worker) for worker in everybody]
            for stage in range(stages):
                found += self._together(f"{SUM} {stage}", everybody[stage::stages])
        for first in everybody[::stages] if splits else ():
            found += self._together(f"{NORM} {first}", range(first, first + stages))
        if len(everybody) > 1:
            found += self._together(STATISTICS, everybody)
        return found + [Action(UPDATE, worker) for worker in everybody]

    @staticmethod
    def _together(what: str, workers: Sequence[int]) -> list[Action]:
        return [Action(COLLECTIVE, worker, kind=what) for worker in workers]

    def schedule(self, first: int, late: Collection[int] = ()) -> Schedule:
        """What the replica from this worker on runs; its stages begin with 0."""
        shape = self.shape(first)
        if self.plan.exact:
            return synchronous(shape, late)
        return decoupled(shape, shape, lambda action: self.seconds(_moved(action, first)))

    def shape(self, first: int) -> Shape:
        stages, chunk, model = range(self.plan.stages), self.plan.chunk, self.model
        return Shape(
            len(stages),
            tuple(
                (b.chunks(ENCODER, chunk), 0 if model.feeding else b.chunks(DECODER, chunk))
                for b in self._of_replica(first)
            ),
            tuple(map(self._home, stages)),
            whole=model.parts.whole_sentence_layers > 0,
            states_home=model.feeding,
            owners=tuple(stage for stage in stages if self.shares.shared[stage]),
            users=tuple(stages) if any(self.shares.shared) else (),
        )

    @property
    def _head_on_last(self) -> bool:
        return self.plan.backend == MODEL_PARALLEL

    def _home(self, batch: int) -> int:
        return self.plan.stages - 1 if self._head_on_last else batch

    def _of_replica(self, worker: int) -> Sequence[BatchShape]:
        first = worker - worker % self.plan.stages
        return self.batches[first : first + self.plan.stages]

    @cached_property
    def shares(self) -> Shares:
        return self.model.shares(self.plan.layers, self._head_on_last)

    # What it costs

    @cached_property
    def _known(self) -> dict[Action, float]:
        return {}

    def seconds(self, action: Action) -> float:
        if action not in self._known:
            busy = 1.0
            if action.op != COLLECTIVE:
                busy = self.costs.slow_down(KINDS[action.op], self.plan.workers)
            self._known[action] = busy * self._seconds(action)
        return self._known[action]

    def _seconds(self, action: Action) -> float:
        """Without contention."""
        op, costs = action.op, self.costs
        worker, stage = action.stage, action.stage % self.plan.stages
        batches, layers = self._of_replica(worker), stacked(self.plan.layers)[stage]
        if op in (FORWARD, BACKWARD):
            return self._unit(action)
        if op in (EMBED, EMBED_GRAD):
            rows = sum(batch.rows(part) for batch in batches for part in self.model.sides)
            return costs.embed(rows, op == EMBED_GRAD)
        if op == HEAD:
            return max(sum(self._heads(worker)) - self._late(worker), 0.0)
        if op == OUTPUT_GRAD:
            return self._late(worker)
        if op == WEIGHT_GRAD:
            splits = self.plan.stages > 1
            return late_weights(self.model, layers, batches, costs) if splits else 0.0
        if op == PREPARE:
            copied = 0 if self.plan.exact else self.model.layer_numbers(layers)
            return costs.prepare() * len(batches) + costs.copy(copied * FLOAT)
        if op == SEND:
            return costs.message(self.size(action))
        if op in (REDUCE, REFRESH):
            return costs.copy(self.size(action)) + costs.message(self.size(action))
        if op == COPY:
            copies = SUM_COPIES if self.plan.stages > 1 else DDP_SUM_COPIES
            return costs.copy(copies * self.shares.owned[stage] * FLOAT)
        if op == COLLECTIVE:
            return self._collective(action)
        if op == UPDATE:
            return costs.update(self.shares.owned[stage]) + costs.rest(self.plan.workers)
        return 0.0  # the trainer's step is our UPDATE

    def _unit(self, action: Action) -> float:
        unit, stages = action.unit, self.plan.stages
        assert unit is not None
        sizes = self._of_replica(action.stage)[unit.batch].unit(unit, self.plan.chunk)
        layers = self.model.layers_of(stacked(self.plan.layers)[action.stage % stages], unit.part)
        cost = self.costs.chunk if stages > 1 else self.costs.layer
        seconds = sum(cost(layer, sizes, action.op == BACKWARD) for layer in layers)
        return seconds + (self.costs.unit() if stages > 1 else 0.0)

    def _at_home(self, worker: int) -> Iterator[BatchShape]:
        for number, batch in enumerate(self._of_replica(worker)):
            if self._home(number) == worker % self.plan.stages:
                yield batch

    def _heads(self, worker: int) -> Iterator[float]:
        for batch in self._at_home(worker):
            yield from (self.costs.head(self.model, batch, back) for back in (False, True))

    def _late(self, worker: int) -> float:
        """Of its heads, what several stages compute where they would wait."""
        if self.plan.stages == 1:
            return 0.0
        return sum(self.costs.late(self.model, batch) for batch in self._at_home(worker))

    def _collective(self, action: Action) -> float:
        size, what = self.size(action), action.kind.rpartition(" ")[0] or action.kind
        if what == SUM:
            return self.costs.all_reduce(self._replicas, self._summed(action.stage))
        workers = self.plan.workers if what == STATISTICS else self.plan.stages
        assert not size
        return SMALL[what] * self.costs.all_reduce(workers)

    @property
    def _replicas(self) -> int:
        return self.plan.workers // self.plan.stages

    def _summed(self, worker: int) -> float:
        """Bytes of the gradients that replicas sum."""
        return self.shares.owned[worker % self.plan.stages] * FLOAT

    def size(self, action: Action) -> float:
        stages, unit = self.plan.stages, action.unit
        if action.op == COLLECTIVE:
            sums = action.kind.startswith(SUM)
            return ring(self._replicas, self._summed(action.stage)) if sums else 0.0
        if unit is None:
            owner = action.stage if action.op == REFRESH else action.peer
            assert owner is not None
            return self.shares.shared[owner % stages] * FLOAT
        batch = self._of_replica(action.stage)[unit.batch]
        if action.kind in (STATE, D_STATE):
            whose = action.peer if action.kind == D_STATE else action.stage
            assert whose is not None
            numbers = 2 * self.plan.layers[whose % stages] * batch.sentences
        else:
            numbers = sum(batch.unit(unit, self.plan.chunk))
        return numbers * self.model.hidden * FLOAT


def _moved(action: Action, first: int) -> Action:
    """Of a replica whose stages begin with worker `first`."""
    if not first:
        return action
    peer = None if action.peer is None else action.peer + first
    return action._replace(stage=action.stage + first, peer=peer)
