"""What the actions of an update cost, so that schedules can be chosen by simulating them.

A worker measures once, when its first batch comes, what a step and a row of a layer take, a row of
the head, and a message; all take what worker 0 measured, so that they choose the same. Numbers are
rounded coarsely: what is chosen should not depend on noise.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from fairseq_hybrid.backends.wavefront.schedule import (
    BACKWARD,
    D_STATE,
    DECODER,
    ENCODER,
    FORWARD,
    HEAD,
    OUTPUT_GRAD,
    REDUCE,
    REFRESH,
    SEND,
    STATE,
    WEIGHT_GRAD,
    WHOLE,
    Action,
    Unit,
)
from fairseq_hybrid.backends.wavefront.simulate import Link
from fairseq_hybrid.backends.wavefront.stacks import make_stack
from fairseq_hybrid.models.lstm_layer import LSTMLayer
from fairseq_hybrid.models.packing import Packing
from fairseq_hybrid.models.products import linear

STEPS, FEW, MANY = 4, 8, 64
"""time steps, and sentences, that a layer is measured with"""
REPEATS = 3
PROBE = 1 << 18
"""numbers in a message that is measured"""
HEAD_PRODUCTS = 2.4
"""what a head takes, in products with the output weights: two, softmax, loss, attention"""


class Measured(NamedTuple):
    """Seconds."""

    forward_step: float
    """of a layer: per time step"""
    forward_row: float
    """per row"""
    backward_step: float
    backward_row: float
    weight_row: float
    """weights' gradients, where they come late"""
    product_row: float
    """of the output weights"""
    unit: float
    """of a layer: what a chunk takes beside its steps, in either direction"""
    latency: float
    bandwidth: float
    """bytes per second"""
    message: float
    """processor time of either end"""
    message_byte: float

    @property
    def link(self) -> Link:
        return Link(self.latency, self.bandwidth)


def measure(layer: LSTMLayer, output: nn.Linear) -> list[float]:
    """What `Measured` has of computation."""
    with torch.random.fork_rng():
        like = LSTMLayer(layer.lstm.input_size, layer.hidden_size).to(layer.lstm.weight_hh_l0)
    few, many = ([*map(statistics.median, zip(*_repeat(like, n)))] for n in (FEW, MANY))
    found = []
    for a, b in zip(few[:2], many[:2]):
        row = max(b - a, 1e-9) / (STEPS * (MANY - FEW))
        found += [max(a / STEPS - FEW * row, 0.0), row]
    weight_row = many[2] / (STEPS * MANY)
    pieces = min(_layer(like, MANY, 1)[0] for _ in range(REPEATS))
    unit = max(pieces - many[0], 0.0) / (STEPS - 1)
    x = output.weight.new_zeros(MANY, output.in_features)
    product = statistics.median(_seconds(lambda: linear(x, output.weight)) for _ in range(REPEATS))
    return [*found, weight_row, product / MANY, unit]


def _repeat(layer: LSTMLayer, sentences: int) -> list[tuple[float, float, float]]:
    return [_layer(layer, sentences) for _ in range(REPEATS + 1)][1:]


@torch.no_grad()
def _layer(layer: LSTMLayer, sentences: int, chunk: int = STEPS) -> tuple[float, float, float]:
    """Forward, backward, weights' gradients of a stage with one layer."""
    weight = layer.lstm.weight_hh_l0
    packing = Packing.from_tokens(torch.ones(sentences, STEPS, dtype=torch.long), pad=0)
    packing = packing.to(weight.device)
    x_NI = weight.new_zeros(sentences * STEPS, layer.lstm.input_size)
    zeros = weight.new_zeros(sentences, layer.hidden_size)
    stack = make_stack([layer], packing, x_NI, [(zeros, zeros)])
    starts = range(0, STEPS, chunk)
    forward = _seconds(lambda: [stack.forward(t, t + chunk) for t in starts])
    stack.begin_backward(None)
    dy = weight.new_zeros(sentences * chunk, layer.hidden_size)
    backward = _seconds(lambda: [stack.backward(t, t + chunk, dy) for t in reversed(starts)])
    weights = _seconds(stack.weight_gradients)
    return forward, backward, weights


def _seconds(job: Callable[[], Any]) -> float:
    _synchronize()
    begin = time.perf_counter()
    job()
    _synchronize()
    return time.perf_counter() - begin


def _synchronize() -> None:
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def measure_link(ranks: Sequence[int], group: Any, like: Tensor) -> list[float]:
    """Of messages between the first two of a group: latency, bytes per second, and the processor
    time that a message and a byte of it take either end."""
    if len(ranks) < 2:
        return [0.0, float("inf"), 0.0, 0.0]
    me, found = dist.get_rank(), []
    for size in (1, PROBE):
        message, times = like.new_zeros(size), []
        busy = time.process_time()
        for _ in range(2 * REPEATS):
            begin = time.perf_counter()
            for source, target in (ranks[:2], ranks[1::-1]):
                if me == source:
                    dist.send(message, target, group=group)
                elif me == target:
                    dist.recv(message, source, group=group)
            _synchronize()
            times.append((time.perf_counter() - begin) / 2)
        found.append((min(times), (time.process_time() - busy) / (4 * REPEATS)))
    moved = (PROBE - 1) * like.element_size()
    (latency, message), (seconds, busy) = found
    return [
        latency, moved / max(seconds - latency, 1e-9), message, max(busy - message, 0.0) / moved
    ]  # fmt: skip


def agree(mine: Sequence[float], group: Any) -> Measured:
    """What the first worker of all has measured, in steps of a quarter."""
    numbers = torch.tensor(list(mine), dtype=torch.float64)
    dist.broadcast(numbers, 0, group=group)
    return Measured(*map(_coarse, numbers.tolist()))


def _coarse(number: float) -> float:
    if number <= 0 or math.isinf(number):
        return number
    return 2 ** (round(4 * math.log2(number)) / 4)


@dataclass(frozen=True)
class UpdateCosts:
    """Of some batches on the stages of a model, split or not: `simulate.Costs`."""

    measured: Measured
    batches: Sequence[Any]
    """with `home`, `rows(part)`, `chunk(unit)` and `times(unit)`"""
    depths: Sequence[int]
    whole: int
    """layers that read whole sentences"""
    decodes: bool
    decoder_layers: int
    splits: bool
    """whether the layers' weights get their gradients when all units are done"""
    postpones: bool
    """whether the output weights do"""
    row_bytes: int
    """of a row of states"""
    slices: Mapping[str, Sequence[float]]
    """`REDUCE` and `REFRESH`: bytes of a slice, by owner"""

    def layers(self, stage: int, unit: Unit) -> int:
        if unit.part == WHOLE:
            return self.whole
        below = self.whole if unit.part == ENCODER and stage == 0 else 0
        return self.depths[stage] - below

    def seconds(self, action: Action) -> float:
        unit, stage, m = action.unit, action.stage, self.measured
        if action.op == FORWARD and unit is not None:
            return self._unit(stage, unit, m.forward_step, m.forward_row)
        if action.op == BACKWARD and unit is not None:
            late = 0 if self.splits else m.weight_row
            return self._unit(stage, unit, m.backward_step, m.backward_row + late)
        if action.op == WEIGHT_GRAD:
            parts = (ENCODER, DECODER) if self.decodes else (ENCODER,)
            rows = sum(batch.rows(part) for batch in self.batches for part in parts)
            return self.splits * rows * self.depths[stage] * m.weight_row
        if action.op == HEAD:
            decoder = 0.0 if self.decodes else 3 * self.decoder_layers * m.forward_row
            products = HEAD_PRODUCTS + (0 if self.postpones else 1)
            return self._rows(stage) * (products * m.product_row + decoder)
        if action.op == OUTPUT_GRAD:
            return self.postpones * self._rows(stage) * m.product_row
        if action.op == SEND:
            return m.message + self.size(action) * m.message_byte
        return 0.0

    def _unit(self, stage: int, unit: Unit, step: float, row: float) -> float:
        begin, end = self.batches[unit.batch].times(unit)
        rows = self.batches[unit.batch].chunk(unit)
        one = (end - begin) * step + (rows.stop - rows.start) * row
        return self.layers(stage, unit) * (one + self.measured.unit)

    def _rows(self, stage: int) -> int:
        """That are scored there."""
        return sum(batch.rows(DECODER) for batch in self.batches if batch.home == stage)

    def size(self, action: Action) -> float:
        if action.op == REDUCE and action.peer is not None:
            return self.slices[REDUCE][action.peer]
        if action.op == REFRESH:
            return self.slices[REFRESH][action.stage]
        if action.unit is None:
            return 0.0
        if action.kind in (STATE, D_STATE):
            return 0.0
        rows = self.batches[action.unit.batch].chunk(action.unit)
        return (rows.stop - rows.start) * self.row_bytes


@dataclass(frozen=True)
class EvenBatch:
    """As much of a batch as a simulation needs, all of its sentences of one length."""

    home: int
    steps: Mapping[str, int]
    sentences: int
    length: int
    """of a chunk"""

    def chunks(self, part: str) -> int:
        return -(-self.steps.get(part, 0) // self.length)

    def rows(self, part: str) -> int:
        return self.steps.get(part, 0) * self.sentences

    def times(self, unit: Unit) -> tuple[int, int]:
        steps = self.steps[ENCODER if unit.part == WHOLE else unit.part]
        chunks = 1 if unit.part == WHOLE else -(-steps // self.length)
        return 0, -(-steps // chunks)

    def chunk(self, unit: Unit) -> slice:
        return slice(0, self.times(unit)[1] * self.sentences)


def rough(number: float) -> int:
    """To two binary digits after the first: neighbours share one simulation."""
    grain = 2 ** max(int(number).bit_length() - 3, 0)
    return max(round(number / grain) * grain, 1)
