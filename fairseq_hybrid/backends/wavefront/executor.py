"""One forward and backward pass of a worker's layers over the batches of its group.

Follows the worker's program from schedule.py. The layers run chunk by chunk (stacks.py); backward
walks the units in reverse and hands gradients on: to the stage below, to the embeddings, from the
decoder's first state to the encoder's last. The weights' gradients come when all units are done.
To autograd all of it is one node between the tokens and the top states of the batches that are at
home here (`run`).

All messages of a pass are awaited from its start, so they travel while the worker computes.

Shape suffixes: N packed rows of one batch (models/packing.py), B sentences, E embedding, H hidden.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fairseq_hybrid.backends.wavefront.schedule import (
    DECODER,
    ENCODER,
    STATE,
    TOP,
    UP,
    WHOLE,
    Event,
    Run,
    Schedule,
    Send,
    Unit,
)
from fairseq_hybrid.backends.wavefront.stacks import Stack, make_stack
from fairseq_hybrid.comm.lanes import Lanes
from fairseq_hybrid.comm.stopwatch import COMPUTE, SEND, WAIT, Stopwatch
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
    lanes: Lanes
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

    def chunk(self, unit: Unit) -> tuple[slice, Tensor]:
        """Its packed rows, and how many sentences run at each of its times."""
        return self.packing[_input_part(unit)].chunk(*self.times(unit))

    def chunks(self, part: str) -> int:
        return len(self.cuts[part]) - 1

    def rows(self, part: str) -> int:
        return self.packing[part].rows_N.numel()

    def ends_encoder(self, unit: Unit) -> bool:
        return unit.part == ENCODER and unit.chunk + 2 == len(self.cuts[ENCODER])


@dataclass(frozen=True)
class Between:
    """What a worker does beside the units of a reverse pass."""

    at_turn: Callable[[], None] = lambda: None
    """when the heads' gradients are on their way, before the first unit"""
    at_end: Callable[[], None] = lambda: None
    """after the last unit"""


def run(
    stage: Stage,
    schedule: Schedule,
    batches: Sequence[Batch],
    between: Between,
) -> list[Tensor]:
    """Run the forward pass; returns what the heads of the batches at home here need, in order.

    For each batch: its top states, encoder's and decoder's; or, where the decoder runs at home,
    the encoder's only and the final states of each stage's layers, [2 * layers, B, H], h and c by
    turns. Backward through the result runs the reverse pass. A worker without a batch gets a tensor
    of one zero, to start the reverse pass from all the same.
    """
    anchor = torch.zeros(1, requires_grad=True)
    return list(_Node.apply(anchor, Forward(stage, schedule, batches), between))


class _Node(torch.autograd.Function):
    @staticmethod
    def forward(ctx, anchor: Tensor, forward: Forward, between: Between) -> tuple[Tensor, ...]:
        ctx.backward_pass, ctx.between = Backward(forward), between
        return tuple(forward.run())

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, *grads: Tensor):
        ctx.backward_pass.run(list(grads), ctx.between)
        ctx.backward_pass = None
        return None, None, None


class Messages:
    """What one pass awaits: posted at its start, in the order in which it was sent."""

    def __init__(self, stage: Stage, schedule: Schedule, landing: Callable[[Send], Tensor]):
        self.stage = stage
        self.arrivals: dict[tuple[Unit, str], list[Any]] = {}
        with stage.watch.span(SEND, "post receives"):
            for event in schedule.program(stage.index):
                if isinstance(event, Send) and event.target == stage.index:
                    lane = (event.source, event.target, event.kind)
                    arrival = stage.lanes.receive(landing(event), lane)
                    # The states of several stages come home under the same unit.
                    self.arrivals.setdefault((event.unit, event.kind), []).append(arrival)

    def wait(self, unit: Unit, *kinds: str) -> None:
        for kind in kinds:
            for arrival in self.arrivals.pop((unit, kind), ()):
                with self.stage.watch.span(WAIT, f"wait for {kind}"):
                    arrival.wait()

    def wait_for_all(self) -> None:
        for unit, kind in list(self.arrivals):
            self.wait(unit, kind)

    def send(self, message: Tensor, event: Send) -> None:
        with self.stage.watch.span(SEND, f"send {event.kind}"):
            self.stage.lanes.send(message, (event.source, event.target, event.kind))


class Forward:
    def __init__(self, stage: Stage, schedule: Schedule, batches: Sequence[Batch]):
        self.stage, self.schedule, self.batches = stage, schedule, batches
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
        for i, batch in enumerate(batches):
            for part in self.parts:
                if not stage.first:
                    self.inputs[i, part] = self.buffer(batch.rows(part))
                if i in self.home:
                    self.tops[i, part] = self.buffer(batch.rows(part))

    def buffer(self, *shape: int) -> Tensor:
        return torch.empty(*shape, self.stage.hidden, dtype=self.dtype, device=self.like.device)

    def states_buffer(self, batch: int, stage: int) -> Tensor:
        sentences = self.batches[batch].packing[ENCODER].shape[0]
        return self.buffer(2 * self.stage.depths[stage], sentences)

    def run(self) -> list[Tensor]:
        self.begin()
        for event in self.schedule.program(self.stage.index):
            self.do(event)
        return self.end()

    def begin(self) -> None:
        self.messages = Messages(self.stage, self.schedule, self._landing)
        if self.stage.first:
            with self.stage.watch.span(COMPUTE, "embed"):
                self._embed()

    def do(self, event: Event) -> None:
        """The next of this worker's events."""
        if isinstance(event, Run):
            self.messages.wait(event.unit, UP)
            with self.stage.watch.span(COMPUTE, _name(event.unit)):
                self._run(event.unit)
        elif event.source == self.stage.index:
            self.messages.send(self._message(event), event)

    def end(self) -> list[Tensor]:
        self.messages.wait_for_all()
        return self._results()

    def _landing(self, event: Send) -> Tensor:
        batch, part, _ = event.unit
        if event.kind == STATE:
            landing = self.final[batch, event.source] = self.states_buffer(batch, event.source)
            return landing
        place = self.inputs if event.kind == UP else self.tops
        return place[batch, part][self.batches[batch].chunk(event.unit)[0]]

    def _embed(self) -> None:
        """Look the words of all batches up at once: the embedding has one gradient then."""
        for part in self.parts:
            rows = torch.cat([batch.tokens[part] for batch in self.batches])
            with torch.enable_grad():
                self.embedded[part] = self.stage.embed[part](rows)
            pieces = self.split(part, self.embedded[part].detach())
            self.inputs.update({(i, part): piece for i, piece in enumerate(pieces)})

    def split(self, part: str, rows: Tensor) -> Sequence[Tensor]:
        """Rows of all batches → batch by batch."""
        return rows.split([batch.rows(part) for batch in self.batches])

    def _run(self, unit: Unit) -> None:
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
            self.tops[place][batch.chunk(unit)[0]] = y
        else:
            self.outputs[unit] = y
        if batch.ends_encoder(unit) and not self.stage.decodes:
            flat = [s.to(self.dtype) for state in self._encoder_states(unit.batch) for s in state]
            self.final[unit.batch, self.stage.index] = torch.stack(flat)

    def encoder_stacks(self, batch: int) -> list[Stack]:
        """From the bottom up, as the decoder's layers lie above one another."""
        places = [(batch, WHOLE), (batch, ENCODER)]
        return [self.stacks[place] for place in places if place in self.stacks]

    def _encoder_states(self, batch: int) -> list[State]:
        return [state for stack in self.encoder_stacks(batch) for state in stack.final_states()]

    def _first_states(self, batch: int) -> list[State]:
        src, tgt = (self.batches[batch].packing[part] for part in (ENCODER, DECODER))
        return [join_state(state, src, tgt) for state in self._encoder_states(batch)]

    def _message(self, event: Send) -> Tensor:
        if event.kind == STATE:
            return self.final[event.unit.batch, self.stage.index]
        return self.outputs.pop(event.unit)

    def _results(self) -> list[Tensor]:
        if not self.home:
            return [self.like.new_zeros(1)]
        results = []
        for i in self.home:
            results += [self.tops[i, part] for part in self.parts]
            if not self.stage.decodes:
                results += [self.final[i, stage] for stage in range(self.stage.count)]
        return results


class Backward:
    """The reverse of a forward pass. `dx` and `dy` are the gradients of inputs and outputs."""

    def __init__(self, forward: Forward):
        self.fwd, self.stage = forward, forward.stage
        self.dtop: dict[tuple[int, str], Tensor] = {}
        self.dfinal: dict[tuple[int, int], Tensor] = {}
        self.dy: dict[tuple[int, str], Tensor] = {}
        self.dx: dict[Unit, Tensor] = {}
        self.dembedded: dict[str, Tensor] = {}
        self.dinput: dict[tuple[int, str], Tensor] = {}

    def run(self, grads: list[Tensor], between: Between = Between()) -> None:  # noqa: B008
        self.begin(grads)
        between.at_turn()
        for event in self.schedule.program(self.stage.index):
            self.do(event)
        self.end()
        between.at_end()
        with self.stage.watch.span(SEND, "drain"):
            self.stage.lanes.drain()

    def begin(self, grads: list[Tensor]) -> None:
        self._take_home(grads)
        self._make_buffers()
        self.schedule = self.fwd.schedule.reverse()
        self.messages = Messages(self.stage, self.schedule, self._landing)
        for event in self.schedule.program(self.stage.index):
            # What comes from the head is there already, and may go ahead.
            if isinstance(event, Send) and event.source == self.stage.index and event.kind != UP:
                self.messages.send(self._message(event), event)

    def do(self, event: Event) -> None:
        """The next of this worker's events."""
        if isinstance(event, Run):
            self.messages.wait(event.unit, UP, TOP, STATE)
            with self.stage.watch.span(COMPUTE, f"back {_name(event.unit)}"):
                self._run(event.unit)
        elif event.source == self.stage.index and event.kind == UP:
            self.messages.send(self._message(event), event)

    def end(self) -> None:
        if self.stage.first:
            with self.stage.watch.span(COMPUTE, "back embed"):
                for part, x in self.fwd.embedded.items():
                    if x.requires_grad:
                        self._embeddings(part, x)
        with self.stage.watch.span(COMPUTE, "weights"):
            while self.fwd.stacks:
                self.fwd.stacks.popitem()[1].weight_gradients()

    def _embeddings(self, part: str, x: Tensor) -> None:
        x.backward(self.dembedded[part])

    def _take_home(self, grads: list[Tensor]) -> None:
        """The gradients of the forward pass's results, under the names they have here."""
        for i in self.fwd.home:
            for part in self.fwd.parts:
                self.dtop[i, part] = grads.pop(0)
            if not self.stage.decodes:
                for stage in range(self.stage.count):
                    self.dfinal[i, stage] = grads.pop(0)

    def _make_buffers(self) -> None:
        fwd = self.fwd
        for part in fwd.parts:
            for i, batch in enumerate(fwd.batches):
                at_home = self.stage.last and i in fwd.home
                self.dy[i, part] = self.dtop[i, part] if at_home else fwd.buffer(batch.rows(part))
        for part, x in fwd.embedded.items():
            self.dembedded[part] = torch.empty_like(x)
            pieces = fwd.split(part, self.dembedded[part])
            self.dinput.update({(i, part): piece for i, piece in enumerate(pieces)})
        for batch, part in fwd.stacks:
            if part == WHOLE:
                # The embedding lies below the whole-sentence layers, and they below the chunks.
                self.dinput[batch, WHOLE] = self.dinput[batch, ENCODER]
                self.dy[batch, WHOLE] = torch.empty_like(fwd.inputs[batch, ENCODER])
                self.dinput[batch, ENCODER] = self.dy[batch, WHOLE]

    def _landing(self, event: Send) -> Tensor:
        batch, part, _ = event.unit
        if event.kind == STATE:
            landing = self.fwd.states_buffer(batch, self.stage.index)
            self.dfinal[batch, self.stage.index] = landing
            return landing
        return self.dy[batch, part][self.fwd.batches[batch].chunk(event.unit)[0]]

    def _run(self, unit: Unit) -> None:
        batch, stack = self.fwd.batches[unit.batch], self.fwd.stacks[unit.batch, unit.part]
        start, stop = batch.times(unit)
        if unit.part == DECODER and stop == batch.packing[DECODER].steps:
            stack.begin_backward(None)
        if batch.ends_encoder(unit):
            self._end_states(unit.batch)
        rows = batch.chunk(unit)[0]
        dx = stack.backward(start, stop, self.dy[unit.batch, unit.part][rows])
        if self.stage.first:
            self.dinput[unit.batch, unit.part][rows] = dx
        else:
            self.dx[unit] = dx.to(self.fwd.dtype)

    def _end_states(self, i: int) -> None:
        """The encoder's last states get their gradients, from the decoder's first ones."""
        fwd, packing = self.fwd, self.fwd.batches[i].packing
        if self.stage.decodes:
            dfirst = fwd.stacks[i, DECODER].first_gradients()
            dfinal = [join_state(state, packing[DECODER], packing[ENCODER]) for state in dfirst]
        else:
            dfinal = _pairs([*self.dfinal[i, self.stage.index].to(fwd.like.dtype, copy=True)])
        for stack, depth in zip(fwd.encoder_stacks(i), self._encoder_depths(i)):
            stack.begin_backward(dfinal[:depth])
            dfinal = dfinal[depth:]

    def _encoder_depths(self, i: int) -> list[int]:
        layers = self.stage.layers
        return [len(layers[part]) for part in (WHOLE, ENCODER) if (i, part) in self.fwd.stacks]

    def _message(self, event: Send) -> Tensor:
        batch, part, _ = event.unit
        if event.kind == UP:
            return self.dx.pop(event.unit)
        if event.kind == TOP:
            return self.dtop[batch, part][self.fwd.batches[batch].chunk(event.unit)[0]]
        return self.dfinal[batch, event.target]


def _input_part(unit: Unit) -> str:
    return DECODER if unit.part == DECODER else ENCODER


def _pairs(flat: list[Tensor]) -> list[State]:
    return list(zip(flat[::2], flat[1::2]))


def _weights(layers: Sequence[LSTMLayer]) -> list[Tensor]:
    return [weight for layer in layers for weight in layer.parameters()]


def _name(unit: Unit) -> str:
    return f"{unit.part} {unit.batch}.{unit.chunk}"


def _message_dtype(weight: Tensor) -> torch.dtype:
    """What travels between stages, in both directions, is of one type that all of them know.

    Under autocast the type of a layer's output is up to the kernel that computes it: half precision
    on a GPU, any on CPU. So it is made half precision where it leaves a stage.
    """
    kind = weight.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype
