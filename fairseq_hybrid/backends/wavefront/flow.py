"""A worker's part in the passes of an update's batches: buffers, and what an action does to them.

`Flow` has the tensors of the batches that go through a stage: inputs and outputs of its units, what
is to be sent and where what arrives belongs. executor.py decides what happens when. The layers run
chunk by chunk (stacks.py); the backward pass hands gradients on: to the stage below, to the
embeddings, from the decoder's first state to the encoder's last. `d…` is the gradient of `…`.

Shape suffixes: N packed rows of one batch (models/packing.py), B sentences, E embedding, H hidden.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fairseq_hybrid.backends.wavefront.schedule import (
    D_STATE,
    D_TOP,
    D_UP,
    DECODER,
    ENCODER,
    STATE,
    TOP,
    UP,
    WHOLE,
    Action,
    Unit,
)
from fairseq_hybrid.backends.wavefront.stacks import Stack, make_stack
from fairseq_hybrid.comm.stopwatch import Stopwatch
from fairseq_hybrid.models.lstm_layer import LSTMLayer, State
from fairseq_hybrid.models.packing import Packing
from fairseq_hybrid.models.parallel_parts import join_state


@dataclass(frozen=True)
class Stage:
    """A worker's share of the model."""

    index: int
    count: int
    layers: dict[str, Sequence[LSTMLayer]]
    """of each part of a unit: WHOLE, ENCODER, DECODER"""
    depths: Sequence[int]
    """number of encoder layers on every stage"""
    hidden: int
    embed: dict[str, Callable[[Tensor], Tensor]]
    """of ENCODER and DECODER; used on stage 0"""
    decodes: bool
    """False: the decoder runs at home (input feeding), which takes the encoder's final states"""
    watch: Stopwatch

    @property
    def first(self) -> bool:
        return self.index == 0

    @property
    def last(self) -> bool:
        return self.index == self.count - 1


@dataclass(frozen=True)
class Batch:
    """A batch of the group, as every stage sees it."""

    home: int
    packing: dict[str, Packing]
    """of ENCODER and DECODER"""
    tokens: dict[str, Tensor]
    """packed rows of words; used on stage 0"""
    cuts: dict[str, list[int]]
    """the times where chunks begin, and the end"""

    def times(self, unit: Unit) -> tuple[int, int]:
        """When a unit begins and ends."""
        if unit.part == WHOLE:
            return 0, self.packing[ENCODER].steps
        cuts = self.cuts[unit.part]
        return cuts[unit.chunk], cuts[unit.chunk + 1]

    def chunk(self, unit: Unit) -> slice:
        """Its packed rows."""
        return self.packing[_input_part(unit)].chunk(*self.times(unit))[0]

    def sizes(self, unit: Unit) -> Tensor:
        """How many sentences run at each of its times."""
        return self.packing[_input_part(unit)].chunk(*self.times(unit))[1]

    def chunks(self, part: str) -> int:
        return len(self.cuts[part]) - 1

    def rows(self, part: str) -> int:
        return self.packing[part].rows_N.numel()

    def ends_encoder(self, unit: Unit) -> bool:
        return unit.part == ENCODER and unit.chunk + 2 == len(self.cuts[ENCODER])


class Flow:
    def __init__(self, stage: Stage, batches: Sequence[Batch]):
        self.stage, self.batches = stage, batches
        self.parts = (ENCODER, DECODER) if stage.decodes else (ENCODER,)
        self.home = [i for i, batch in enumerate(batches) if batch.home == stage.index]
        self.like = next(w for layers in stage.layers.values() for w in _weights(layers))
        self.dtype = _message_dtype(self.like)
        self.stacks: dict[tuple[int, str], Stack] = {}
        """of each batch and part"""
        self.outputs: dict[Unit, Tensor] = {}
        """of units, until they are sent"""
        self.embedded: dict[str, Tensor] = {}
        self.inputs: dict[tuple[int, str], Tensor] = {}
        self.tops: dict[tuple[int, str], Tensor] = {}
        self.final: dict[tuple[int, int], Tensor] = {}
        """(batch, stage) → final states of its encoder layers, if the decoder runs at home"""
        self.dtop: dict[tuple[int, str], Tensor] = {}
        self.dfinal: dict[tuple[int, int], Tensor] = {}
        self.dy: dict[tuple[int, str], Tensor] = {}
        self.dx: dict[Unit, Tensor] = {}
        self.dembedded: dict[str, Tensor] = {}
        self.dinput: dict[tuple[int, str], Tensor] = {}
        self.turned = False
        for i, batch in enumerate(batches):
            for part in self.parts:
                if not stage.first:
                    self.inputs[i, part] = self._buffer(batch.rows(part))
                if i in self.home:
                    self.tops[i, part] = self._buffer(batch.rows(part))

    def _buffer(self, *shape: int) -> Tensor:
        return torch.empty(*shape, self.stage.hidden, dtype=self.dtype, device=self.like.device)

    def _states_buffer(self, batch: int, stage: int) -> Tensor:
        sentences = self.batches[batch].packing[ENCODER].shape[0]
        return self._buffer(2 * self.stage.depths[stage], sentences)

    # Messages

    def landing(self, action: Action) -> Tensor:
        """Where what arrives belongs."""
        (batch, part, _), kind = action.unit, action.kind
        if kind == STATE:
            landing = self.final[batch, action.stage] = self._states_buffer(batch, action.stage)
            return landing
        if kind == D_STATE:
            mine = self.stage.index
            landing = self.dfinal[batch, mine] = self._states_buffer(batch, mine)
            return landing
        if kind in (D_UP, D_TOP):
            self._begin_backward()
        place = {UP: self.inputs, TOP: self.tops}.get(kind, self.dy)
        return place[batch, part][self.batches[batch].chunk(action.unit)]

    def message(self, action: Action) -> Tensor:
        """What is to be sent; called once."""
        (batch, part, _), kind = action.unit, action.kind
        if kind in (UP, TOP):
            return self.outputs.pop(action.unit)
        if kind == STATE:
            return self.final[batch, self.stage.index]
        if kind == D_UP:
            return self.dx.pop(action.unit)
        if kind == D_STATE:
            return self.dfinal[batch, action.peer]
        return self.dtop[batch, part][self.batches[batch].chunk(action.unit)]

    # Forward

    def embed(self) -> None:
        """Look the words of all batches up at once: the embedding has one gradient then."""
        for part in self.parts:
            rows = torch.cat([batch.tokens[part] for batch in self.batches])
            with torch.enable_grad():
                self.embedded[part] = self.stage.embed[part](rows)
            pieces = self._split(part, self.embedded[part].detach())
            self.inputs.update({(i, part): piece for i, piece in enumerate(pieces)})

    def _split(self, part: str, rows: Tensor) -> Sequence[Tensor]:
        """Rows of all batches → batch by batch."""
        return rows.split([batch.rows(part) for batch in self.batches])

    def forward(self, unit: Unit) -> None:
        batch, place = self.batches[unit.batch], (unit.batch, unit.part)
        start, stop = batch.times(unit)
        if start == 0:
            self.stacks[place] = make_stack(
                self.stage.layers[unit.part],
                batch.packing[_input_part(unit)],
                self.inputs[unit.batch, _input_part(unit)],
                self._first_states(unit.batch) if unit.part == DECODER else None,
            )
        y = self.stacks[place].forward(start, stop)
        if unit.part == WHOLE:
            self.inputs[unit.batch, ENCODER] = y
            return
        y = y.to(self.dtype)  # it leaves the stage
        if self.stage.last and unit.batch in self.home:
            self.tops[place][batch.chunk(unit)] = y
        else:
            self.outputs[unit] = y
        if batch.ends_encoder(unit) and not self.stage.decodes:
            flat = [s.to(self.dtype) for state in self._encoder_states(unit.batch) for s in state]
            self.final[unit.batch, self.stage.index] = torch.stack(flat)

    def _encoder_stacks(self, batch: int) -> list[Stack]:
        """From the bottom up, as the decoder's layers lie above one another."""
        places = [(batch, WHOLE), (batch, ENCODER)]
        return [self.stacks[place] for place in places if place in self.stacks]

    def _encoder_states(self, batch: int) -> list[State]:
        return [state for stack in self._encoder_stacks(batch) for state in stack.final_states()]

    def _first_states(self, batch: int) -> list[State]:
        src, tgt = (self.batches[batch].packing[part] for part in (ENCODER, DECODER))
        return [join_state(state, src, tgt) for state in self._encoder_states(batch)]

    # The head

    def results(self) -> list[Tensor]:
        """What the heads of the batches at home here need, in order.

        For each batch: its top states, encoder's and decoder's; or, where the decoder runs at home,
        the encoder's only and the final states of each stage's layers, [2 * layers, B, H], h and c
        by turns. A worker without a batch gets a tensor of one zero.
        """
        if not self.home:
            return [self.like.new_zeros(1)]
        results = []
        for i in self.home:
            results += [self.tops[i, part] for part in self.parts]
            if not self.stage.decodes:
                results += [self.final[i, stage] for stage in range(self.stage.count)]
        return results

    def take_gradients(self, grads: list[Tensor]) -> None:
        """Of `results`."""
        for i in self.home:
            for part in self.parts:
                self.dtop[i, part] = grads.pop(0)
                if self.stage.last:
                    self.dy[i, part] = self.dtop[i, part]
            if not self.stage.decodes:
                for stage in range(self.stage.count):
                    self.dfinal[i, stage] = grads.pop(0)

    # Backward

    def _begin_backward(self) -> None:
        """Make the buffers, at the first receive or the first unit."""
        if self.turned:
            return
        self.turned = True
        for part in self.parts:
            for i, batch in enumerate(self.batches):
                if not (self.stage.last and i in self.home):
                    self.dy.setdefault((i, part), self._buffer(batch.rows(part)))
        for part, x in self.embedded.items():
            self.dembedded[part] = torch.empty_like(x)
            pieces = self._split(part, self.dembedded[part])
            self.dinput.update({(i, part): piece for i, piece in enumerate(pieces)})
        for batch, part in self.stacks:
            if part == WHOLE:
                # The embedding lies below the whole-sentence layers, and they below the chunks.
                self.dinput[batch, WHOLE] = self.dinput[batch, ENCODER]
                self.dy[batch, WHOLE] = torch.empty_like(self.inputs[batch, ENCODER])
                self.dinput[batch, ENCODER] = self.dy[batch, WHOLE]

    def backward(self, unit: Unit) -> None:
        self._begin_backward()
        batch, stack = self.batches[unit.batch], self.stacks[unit.batch, unit.part]
        start, stop = batch.times(unit)
        if unit.part == DECODER and stop == batch.packing[DECODER].steps:
            stack.begin_backward(None)
        if batch.ends_encoder(unit):
            self._end_states(unit.batch)
        rows = batch.chunk(unit)
        dx = stack.backward(start, stop, self.dy[unit.batch, unit.part][rows])
        if self.stage.first:
            self.dinput[unit.batch, unit.part][rows] = dx
        else:
            self.dx[unit] = dx.to(self.dtype)

    def _end_states(self, i: int) -> None:
        """The encoder's last states get their gradients, from the decoder's first ones."""
        packing = self.batches[i].packing
        if self.stage.decodes:
            dfirst = self.stacks[i, DECODER].first_gradients()
            dfinal = [join_state(state, packing[DECODER], packing[ENCODER]) for state in dfirst]
        else:
            dfinal = _pairs([*self.dfinal[i, self.stage.index].to(self.like.dtype, copy=True)])
        for stack, depth in zip(self._encoder_stacks(i), self._encoder_depths(i)):
            stack.begin_backward(dfinal[:depth])
            dfinal = dfinal[depth:]

    def _encoder_depths(self, i: int) -> list[int]:
        layers = self.stage.layers
        return [len(layers[part]) for part in (WHOLE, ENCODER) if (i, part) in self.stacks]

    def embedding_gradients(self) -> None:
        for part, x in self.embedded.items():
            if x.requires_grad:
                self._embedding_gradient(part, x)

    def _embedding_gradient(self, part: str, x: Tensor) -> None:
        x.backward(self.dembedded[part])

    def weight_gradients(self) -> None:
        while self.stacks:
            self.stacks.popitem()[1].weight_gradients()


def _input_part(unit: Unit) -> str:
    return DECODER if unit.part == DECODER else ENCODER


def _pairs(flat: list[Tensor]) -> list[State]:
    return list(zip(flat[::2], flat[1::2]))


def _weights(layers: Sequence[LSTMLayer]) -> list[Tensor]:
    return [weight for layer in layers for weight in layer.parameters()]


def _message_dtype(weight: Tensor) -> torch.dtype:
    """What travels between stages, in both directions, is of one type that all of them know.

    Under autocast the type of a layer's output is up to the kernel that computes it: half precision
    on a GPU, any on CPU. So it is made half precision where it leaves a stage.
    """
    kind = weight.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype
