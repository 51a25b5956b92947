"""How long things take, as a measured profile says: the costs that a simulation runs on.

`CostModel` is what `programs.py` asks for; `MeasuredCosts` answers from the measurements of
`profile.py`, `devices.ProjectedCosts` from the description of a device. Between the points of
measurement times are interpolated, beyond them extrapolated, in straight lines.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from fairseq_hybrid.backends.wavefront.schedule import (
    BACKWARD,
    DECODER,
    EMBED,
    EMBED_GRAD,
    FORWARD,
    HEAD,
    OUTPUT_GRAD,
    REDUCE,
    REFRESH,
    SEND,
    STEP,
    WEIGHT_GRAD,
    WHOLE,
)
from fairseq_hybrid.backends.wavefront.simulate import COLLECTIVE, WAIT, Link
from fairseq_hybrid.models.lstm_layer import LSTMLayer
from fairseq_hybrid.planner.job import FLOAT, BatchShape, Model

COPY, UPDATE = "copy", "update"
PREPARE = "prepare"
"""an action of ours: from words to batches and a schedule"""
KINDS = {
    **{PREPARE: FORWARD, EMBED: FORWARD, FORWARD: FORWARD, HEAD: HEAD, OUTPUT_GRAD: HEAD},
    **{BACKWARD: BACKWARD, EMBED_GRAD: BACKWARD, WEIGHT_GRAD: BACKWARD},
    **{SEND: COPY, REDUCE: COPY, REFRESH: COPY, COPY: COPY, STEP: UPDATE, UPDATE: UPDATE},
    **{COLLECTIVE: WAIT, WAIT: WAIT},
}
"""what an action is → the kind of work that it is, in tables and pictures"""
ALL_REDUCE = "meet"  # as the profiles in the cache have it


class CostModel(Protocol):
    """Seconds that a worker alone on the machine needs."""

    link: Link
    projected: bool

    def layer(self, layer: LSTMLayer, sizes: Sequence[int], backward: bool) -> float:
        """One layer over a chunk of time with so many sentences at each step."""

    def chunk(self, layer: LSTMLayer, sizes: Sequence[int], backward: bool) -> float:
        """The same in a wavefront, whose stages may have a kernel of their own (split_lstm.py)."""

    def weights(self, layer: LSTMLayer, sizes: Sequence[int]) -> float:
        """What such a kernel leaves for later: the weights' gradients, of a whole batch at once."""

    def unit(self) -> float:
        """What a unit of the wavefront takes in one direction beside its layers."""

    def prepare(self) -> float:
        """What a batch takes before its wavefront: packing, making the schedule."""

    def embed(self, rows: int, backward: bool) -> float:
        """Looking words up, or adding to their gradients."""

    def head(self, model: Model, batch: BatchShape, backward: bool) -> float:
        """Attention, softmax and loss; with input feeding the decoder too."""

    def late(self, model: Model, batch: BatchShape) -> float:
        """Of the head's backward pass: the output weights' gradient (late_gradients.py)."""

    def copy(self, size: float) -> float:
        """Copying or adding up so many bytes."""

    def message(self, size: float) -> float:
        """Processor time, of sender and receiver each, that computation has to do without."""

    def update(self, numbers: int) -> float:
        """Clipping and the optimizer's step for so many numbers."""

    def all_reduce(self, workers: int, size: float = 0.0) -> float:
        """An all-reduce of so many bytes."""

    def rest(self, workers: int) -> float:
        """What an update takes beside its parts."""

    def slow_down(self, kind: str, busy: int) -> float:
        """How much longer it takes while `busy` workers compute."""


class Line(NamedTuple):
    """fixed + each * x"""

    fixed: float
    each: float

    def __call__(self, x: float) -> float:
        return self.fixed + self.each * x

    @classmethod
    def through(cls, points: Sequence[tuple[float, float]]) -> Line:
        """Through the first and the last point; from the origin where that would fall below it."""
        (x, y), (far, top) = points[0], points[-1]
        each = (top - y) / (far - x) if far > x else y / x
        fixed = y - each * x
        return cls(fixed, each) if each > 0 and fixed >= 0 else cls(0.0, top / far)


class LayerTimes(NamedTuple):
    """Seconds of a layer, by time steps and sentences."""

    steps: Sequence[int]
    sentences: Sequence[int]
    forward: Sequence[Sequence[float]]
    """[steps][sentences]"""
    backward: Sequence[Sequence[float]]
    weights: Sequence[Sequence[float]] = ()

    def __call__(self, steps: float, sentences: float, backward: bool) -> float:
        return self._at(self.backward if backward else self.forward, steps, sentences)

    def late(self, steps: float, sentences: float) -> float:
        return self._at(self.weights, steps, sentences)

    def _at(self, grid: Sequence[Sequence[float]], steps: float, sentences: float) -> float:
        column = [interpolate(self.sentences, row, sentences) for row in grid]
        return max(interpolate(self.steps, column, steps), 0.0)


def interpolate(xs: Sequence[float], ys: Sequence[float], x: float) -> float:
    """Piecewise linear, the outermost pieces going on."""
    if len(xs) == 1:
        return ys[0] * x / xs[0]
    i = min(max(bisect_right(xs, x), 1), len(xs) - 1)
    share = (x - xs[i - 1]) / (xs[i] - xs[i - 1])
    return ys[i - 1] + share * (ys[i] - ys[i - 1])


def kind_of(layer: LSTMLayer) -> str:
    """Layers of the same kind take the same time."""
    marks = {
        "both ways": layer.bidirectional,
        "residual": layer.residual,
        "dropout": layer.dropout.p > 0,
    }
    sizes = f"{layer.lstm.input_size} to {layer.hidden_size}"
    return ", ".join([sizes, *(mark for mark, given in marks.items() if given)])


def full_steps(sizes: Sequence[int]) -> int:
    """How many leading time steps have all sentences running."""
    return sum(size == sizes[0] for size in sizes)


class MeasuredCosts:
    """Costs from a profile (the dictionary that `profile.measure_job` gives)."""

    projected = False

    def __init__(self, profile: dict[str, Any]):
        self.profile = profile
        self.link = Link(*profile["link"])
        self.tables = {
            kind: {name: LayerTimes(**table) for name, table in tables.items()}
            for kind, tables in profile["layers"].items()
        }
        self.lines = {name: Line(*line) for name, line in profile["lines"].items()}

    def layer(self, layer: LSTMLayer, sizes: Sequence[int], backward: bool) -> float:
        # As `lstm_layer._run_forward` does it: a fused kernel as long as all sentences run, and a
        # packed one for the rest. A bidirectional layer runs the packed one for all.
        tables = self.tables[kind_of(layer)]
        full = 0 if layer.bidirectional else full_steps(sizes)
        seconds = tables["dense"](full, sizes[0], backward) if full else 0.0
        if full < len(sizes):
            rest = sizes[full:]
            seconds += tables["packed"](len(rest), sum(rest) / len(rest), backward)
        return seconds

    def chunk(self, layer: LSTMLayer, sizes: Sequence[int], backward: bool) -> float:
        split = self.tables[kind_of(layer)].get("split")
        if split is None:
            return self.layer(layer, sizes, backward)
        return split(len(sizes), sum(sizes) / len(sizes), backward)

    def weights(self, layer: LSTMLayer, sizes: Sequence[int]) -> float:
        split = self.tables[kind_of(layer)].get("split")
        return 0.0 if split is None else split.late(len(sizes), sum(sizes) / len(sizes))

    def unit(self) -> float:
        return self.lines["wavefront"].each / 2

    def prepare(self) -> float:
        return self.lines["wavefront"].fixed

    def embed(self, rows: int, backward: bool) -> float:
        return self.lines["embed back" if backward else "embed"](rows)

    def head(self, model: Model, batch: BatchShape, backward: bool) -> float:
        return self.lines["head back" if backward else "head"](batch.rows(DECODER))

    def late(self, model: Model, batch: BatchShape) -> float:
        return 0.0 if model.feeding else self.lines["output weights"](batch.rows(DECODER))

    def copy(self, size: float) -> float:
        return self.lines["copy"](size)

    def message(self, size: float) -> float:
        # With cores to spare it is done beside the computation.
        spare = self.profile["cores"] > self.profile["workers"]
        return 0.0 if spare else self.profile["message_cpu"] * size

    def update(self, numbers: int) -> float:
        return self.lines["update"](numbers)

    def all_reduce(self, workers: int, size: float = 0.0) -> float:
        return self.lines[ALL_REDUCE](ring(workers, size)) if workers > 1 else 0.0

    def rest(self, workers: int) -> float:
        return self.profile["rest"] + (self.profile["rest_together"] if workers > 1 else 0.0)

    def slow_down(self, kind: str, busy: int) -> float:
        if busy == 1:
            return 1.0
        workers = self.profile["workers"]
        kind = FORWARD if kind == BACKWARD else COPY if kind == UPDATE else kind
        all_busy = self.profile["slow_down"][kind]
        return 1 + (all_busy - 1) * (busy - 1) / (workers - 1)


def ring(workers: int, size: float) -> float:
    """Bytes that each worker sends in an all-reduce of so many."""
    return 2 * (workers - 1) * size / workers


def late_weights(
    model: Model, layers: Sequence[int], batches: Sequence[BatchShape], costs: CostModel
) -> float:
    """Of some layers, of batches that have passed through them as a wavefront."""
    return sum(
        costs.weights(layer, batch.sizes(part))
        for part in model.sides
        for layer in model.layers_of(layers, part)
        for batch in batches
    )


def layer_costs(
    model: Model, batches: Sequence[BatchShape], chunk: int, costs: CostModel
) -> tuple[list[float], list[float]]:
    """Seconds of each layer, encoder's and decoder's together, and of a cut between two of them.

    The embeddings belong to the lowest layer. What goes home from the top layer does so wherever
    the cuts are.
    """
    units = [unit for b, batch in enumerate(batches) for unit in model.units(b, batch, chunk)]
    sizes = {unit: batches[unit.batch].unit(unit, chunk) for unit in units}
    work = [
        sum(
            costs.chunk(layer, sizes[unit], backward)
            for unit in units
            for layer in model.layers_of(range(i, i + 1), unit.part)
            for backward in (False, True)
        )
        + late_weights(model, range(i, i + 1), batches, costs)
        for i in range(model.layers)
    ]
    rows = sum(sum(sizes[unit]) for unit in units if unit.part != WHOLE)
    work[0] += costs.embed(rows, backward=False) + costs.embed(rows, backward=True)
    messages = 2 * sum(unit.part != WHOLE for unit in units)
    seconds = messages * costs.link.latency
    seconds += 2 * rows * model.hidden * FLOAT / costs.link.bandwidth
    return work, [seconds] * (model.layers - 1)
