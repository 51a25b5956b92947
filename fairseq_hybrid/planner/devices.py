"""Costs on devices that are not here: projections from operation counts.

A device is described by a few numbers (`Device`); what a layer or the head takes is its number of
floating-point operations by the rate the device reaches, plus what its kernels cost however small
they are, plus the bytes it has to touch by the memory's bandwidth. The numbers of the named devices
are assumptions, written down here and in docs/planning.md, not measurements: whatever comes out is
marked "projected". Better ones of your own go into a JSON file:

    {"name": "mine", "count": 4, "flops": 9e12, "memory_bandwidth": 6e11, "memory": 16e9,
     "kernel": 1e-5, "step": 2e-5, "latency": 2e-5, "bandwidth": 1e10}
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fairseq_hybrid.backends.wavefront.schedule import DECODER, ENCODER
from fairseq_hybrid.backends.wavefront.simulate import Link
from fairseq_hybrid.errors import UserError
from fairseq_hybrid.models.lstm_layer import LSTMLayer
from fairseq_hybrid.planner.costs import ring
from fairseq_hybrid.planner.job import FLOAT, BatchShape, Model

SOFTMAX_PASSES = 6
"""over the logits, forward, loss and backward together"""
UPDATE_PASSES = 9
"""over each number: clipping (gradient in, out), Adam (four in, three out)"""
HEAD_KERNELS, ATTENTION_KERNELS = 20, 6
"""of the head in one direction; of a step of attention inside the decoder's time loop"""


@dataclass(frozen=True)
class Device:
    name: str
    flops: float
    """float32 operations per second that large products reach"""
    memory_bandwidth: float
    """bytes per second"""
    memory: float
    """bytes"""
    kernel: float
    """seconds that a kernel takes at least"""
    step: float
    """seconds that a time step of an LSTM layer takes at least"""
    latency: float
    """seconds of a message between two devices"""
    bandwidth: float
    """bytes per second that a device sends to others"""


DEVICES = {
    device.name: device
    for device in (
        Device("V100-nvlink", flops=12e12, memory_bandwidth=0.75e12, memory=16e9,
               kernel=10e-6, step=15e-6, latency=15e-6, bandwidth=40e9),
        Device("H100", flops=40e12, memory_bandwidth=2.8e12, memory=80e9,
               kernel=5e-6, step=10e-6, latency=15e-6, bandwidth=300e9),
        Device("cpu-1gbit", flops=60e9, memory_bandwidth=10e9, memory=16e9,
               kernel=5e-6, step=20e-6, latency=100e-6, bandwidth=117e6),
    )
}  # fmt: skip


def parse_devices(given: str) -> tuple[Device, int]:
    """`4xV100-nvlink`, or the name of a file with a description → device, number of them."""
    match = re.fullmatch(r"([1-9]\d*)x(.+)", given)
    if match and match[2] in DEVICES:
        return DEVICES[match[2]], int(match[1])
    if Path(given).is_file():
        return _read(given)
    known = ", ".join(f"4x{name}" for name in DEVICES)
    raise UserError(
        f"--devices {given} is neither known nor a file: give {known}, or a JSON file that "
        "describes a device (docs/planning.md)"
    )


def _read(path: str) -> tuple[Device, int]:
    fields = [field.name for field in dataclasses.fields(Device)]
    try:
        described = json.loads(Path(path).read_text())
        count, name = described.pop("count"), described.pop("name")
        numbers = {key: float(value) for key, value in described.items()}
        if {*numbers, "name"} != {*fields} or min(numbers.values()) <= 0 or int(count) < 1:
            raise ValueError
    except (ValueError, TypeError, KeyError, AttributeError):
        raise UserError(
            f"--devices {path} does not describe a device: give it count and {', '.join(fields)}, "
            "all but the name numbers above 0 (docs/planning.md)"
        ) from None
    return Device(str(name), **numbers), int(count)


class ProjectedCosts:
    """Costs on a device, from counts of operations and bytes."""

    projected = True

    def __init__(self, device: Device):
        self.device = device
        self.link = Link(device.latency, device.bandwidth)

    def layer(self, layer: LSTMLayer, sizes: Sequence[int], backward: bool) -> float:
        return self._twice_if(backward, self._layer(layer, sum(sizes), len(sizes)))

    chunk = layer

    def weights(self, layer: LSTMLayer, sizes: Sequence[int]) -> float:
        return 0.0  # cuDNN's kernel has them in its backward pass

    def _layer(self, layer: LSTMLayer, rows: int, steps: int) -> float:
        weights = sum(w.numel() for w in layer.parameters() if w.dim() > 1)
        directions = 2 if layer.bidirectional else 1
        return self._products(rows * weights) + directions * steps * self.device.step

    def _products(self, multiplications: float) -> float:
        return 2 * multiplications / self.device.flops

    @staticmethod
    def _twice_if(backward: bool, seconds: float) -> float:
        """Backward there are two products for each of the forward pass."""
        return 2 * seconds if backward else seconds

    def unit(self) -> float:
        return self.device.kernel

    def prepare(self) -> float:
        return 0.0

    def embed(self, rows: int, backward: bool) -> float:
        return self.device.kernel

    def head(self, model: Model, batch: BatchShape, backward: bool) -> float:
        head, hidden = model.parts.head, model.hidden
        source, target = batch.rows(ENCODER), batch.rows(DECODER)
        weights = hidden * 2 * hidden + head.output.weight.numel()
        if head.out_embed is not None:
            weights += head.out_embed.weight.numel()
        attention = 2 * hidden * len(batch.source)
        seconds = self._products(source * hidden * hidden + target * (weights + attention))
        seconds += HEAD_KERNELS * self.device.kernel
        if model.feeding:
            steps = len(batch.target)
            seconds += sum(
                self._layer(layer, target, steps) for layer in model.parts.decoder_layers
            )
            seconds += steps * ATTENTION_KERNELS * self.device.kernel
        logits = target * head.output.out_features * FLOAT
        return self._twice_if(backward, seconds) + self.copy(SOFTMAX_PASSES * logits / 4)

    def late(self, model: Model, batch: BatchShape) -> float:
        weights = 0 if model.feeding else model.parts.head.output.weight.numel()
        return self._products(batch.rows(DECODER) * weights)

    def copy(self, size: float) -> float:
        return 2 * size / self.device.memory_bandwidth  # in and out

    def message(self, size: float) -> float:
        return 0.0

    def update(self, numbers: int) -> float:
        return UPDATE_PASSES * numbers * FLOAT / self.device.memory_bandwidth

    def all_reduce(self, workers: int, size: float = 0.0) -> float:
        hops = 2 * (workers - 1)
        return hops * self.device.latency + ring(workers, size) / self.device.bandwidth

    def rest(self, workers: int) -> float:
        return 0.0

    def slow_down(self, kind: str, busy: int) -> float:
        return 1.0
