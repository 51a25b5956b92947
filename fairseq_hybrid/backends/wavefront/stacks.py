"""A stage's layers over one batch, chunk by chunk, forward and back.

`SplitStack` leaves the weights' gradients for later (models/split_lstm.py). `GraphStack` takes the
layers as they are, whatever kernel they call, records a small autograd graph per chunk, cut off at
the chunk's input and at the states it starts from, and has the weights' gradients at once: for
GPUs, autocast, and layers that read whole sentences.

Shape suffixes: N packed rows of one batch (models/packing.py), B sentences, H hidden.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from fairseq_hybrid.models.lstm_layer import LSTMLayer, State, run_layers
from fairseq_hybrid.models.packing import Packing
from fairseq_hybrid.models.split_lstm import SplitLayer, can_split


class Stack(Protocol):
    def forward(self, start: int, stop: int) -> Tensor:
        """Run times [start, stop), which come in order; returns the top layer's rows."""

    def final_states(self) -> list[State]:
        """Of each layer, at the sentences' ends."""

    def begin_backward(self, dfinal: list[State] | None) -> None:
        """Given the gradients of the final states; None: zeros."""

    def backward(self, start: int, stop: int, dy: Tensor) -> Tensor:
        """The same chunks from the last to the first; returns the inputs' gradients."""

    def first_gradients(self) -> list[State]:
        """After the first chunk: gradients of the states the layers started from."""

    def weight_gradients(self) -> None:
        """After all chunks: add what is left to the parameters' gradients."""


def make_stack(
    layers: Sequence[LSTMLayer], packing: Packing, x_NI: Tensor, states: list[State] | None
) -> Stack:
    """`x_NI` is filled chunk by chunk, `states` are those the layers start from (None: zeros)."""
    kind = SplitStack if all(map(can_split, layers)) else GraphStack
    return kind(layers, packing, x_NI, states)


class SplitStack:
    def __init__(self, layers, packing, x_NI, states):
        self.runs: list[SplitLayer] = []
        for layer, state in zip(layers, states or [None] * len(layers)):
            self.runs.append(SplitLayer(layer, packing, x_NI, state))
            x_NI = self.runs[-1].y_NH
        self.y_NH, self.packing = x_NI, packing

    def forward(self, start: int, stop: int) -> Tensor:
        for run in self.runs:
            run.forward(start, stop)
        return self.y_NH[self.packing.chunk(start, stop)[0]]

    def final_states(self) -> list[State]:
        return [run.final_state() for run in self.runs]

    def begin_backward(self, dfinal: list[State] | None) -> None:
        self.y_NH = None
        for run, dstate in zip(self.runs, dfinal or [None] * len(self.runs)):
            run.begin_backward(dstate)

    def backward(self, start: int, stop: int, dy: Tensor) -> Tensor:
        for run in reversed(self.runs):
            dy = run.backward(start, stop, dy)
        return dy

    def first_gradients(self) -> list[State]:
        return [(run.dh_BH, run.dc_BH) for run in self.runs]

    def weight_gradients(self) -> None:
        while self.runs:
            self.runs.pop().weight_gradients()


class GraphStack:
    def __init__(self, layers, packing, x_NI, states):
        self.layers, self.packing, self.x_NI = layers, packing, x_NI
        self.cut = None if states is None else _cut(states)
        """the states the next chunk starts from, as leaves of its graph"""
        self.first = self.cut
        self.chunks: dict[int, tuple[Tensor, Tensor, list[State], list[State]]] = {}
        """by first time: input, output, states at its end, and the same cut off"""

    def forward(self, start: int, stop: int) -> Tensor:
        rows, sizes = self.packing.chunk(start, stop)
        x = self.x_NI[rows].detach().requires_grad_()
        with torch.enable_grad():
            y, states = run_layers(self.layers, x, sizes, self.cut)
        self.cut = _cut(states)
        self.chunks[start] = x, y, states, self.cut
        return y.detach()

    def final_states(self) -> list[State]:
        return [(h.detach(), c.detach()) for h, c in self.cut]

    def begin_backward(self, dfinal: list[State] | None) -> None:
        for leaves, grads in zip(self.cut, dfinal or ()):
            for leaf, grad in zip(leaves, grads):
                leaf.grad = grad.to(leaf.dtype)

    def backward(self, start: int, stop: int, dy: Tensor) -> Tensor:
        x, y, states, cut = self.chunks.pop(start)
        ends, grads = [y], [dy.to(y.dtype)]
        for state, leaves in zip(states, cut):
            for end, leaf in zip(state, leaves):
                if leaf.grad is not None:
                    ends.append(end)
                    grads.append(leaf.grad)
        torch.autograd.backward(ends, grads)
        return x.grad

    def first_gradients(self) -> list[State]:
        return [(h.grad, c.grad) for h, c in self.first]

    def weight_gradients(self) -> None:
        pass


def _cut(states: Sequence[State]) -> list[State]:
    return [(h.detach().requires_grad_(), c.detach().requires_grad_()) for h, c in states]
