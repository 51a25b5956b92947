"""Who computes and who sends what, in which order: the wavefront as plain data.

A *unit* is a chunk of time of one batch, in the encoder or the decoder. Every stage (a worker with
its share of the layers) runs the units in one fixed order; the state of the recurrence goes from
unit to unit inside the stage, the output goes to the stage above, and the top stage's output goes
home: to the worker that loaded the batch and computes its attention and softmax. With three
stages and two batches a, b of two encoder and two decoder chunks:

    time →
    stage 2           a1 a2 A1 A2 b1 b2 B1 B2 ▒▒▒ head of its own batch
    stage 1        a1 a2 A1 A2 b1 b2 B1 B2 ▒▒▒▒▒▒▒ head of b
    stage 0     a1 a2 A1 A2 b1 b2 B1 B2 ▒▒▒▒▒▒▒ head of a        (a: encoder, A: decoder)

The decoder's first chunk starts from the encoder's last state, which lies on the same stage, so
nothing waits between encoder and decoder or between batches: the pipeline fills once and drains
once, and who drains early starts its head early. Backward is the same list read from its end with
every transfer turned around.

The schedule is *one* list of events in which a transfer is a single event of both its ends. A
worker's program is what concerns it, in that order. So whichever event comes first among those
not done yet, all its participants have nothing before it to do: no deadlock, even if every send
blocks until it is received and each worker does one thing at a time, as with nccl on one queue.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Union

WHOLE, ENCODER, DECODER = "whole", "encoder", "decoder"
UP, TOP, STATE = "up", "top", "state"


class Unit(NamedTuple):
    """What a stage computes at a time."""

    batch: int
    part: str
    """`ENCODER`, `DECODER`, or `WHOLE`: the layers that read whole sentences, on stage 0 only"""
    chunk: int


class Run(NamedTuple):
    stage: int
    unit: Unit


class Send(NamedTuple):
    """The result of a unit on its way: `UP` a stage, or home as `TOP` output or final `STATE`."""

    source: int
    target: int
    unit: Unit
    kind: str


Event = Union[Run, Send]


@dataclass(frozen=True)
class Schedule:
    stages: int
    events: tuple[Event, ...]

    def program(self, worker: int) -> list[Event]:
        """What `worker` has to do, in order."""
        return [
            e
            for e in self.events
            if (worker == e.stage if isinstance(e, Run) else worker in (e.source, e.target))
        ]

    def units(self, stage: int) -> list[Unit]:
        return [e.unit for e in self.events if isinstance(e, Run) and e.stage == stage]

    def reverse(self) -> Schedule:
        """The backward pass: last things first, gradients going where results came from."""
        turned = (
            e if isinstance(e, Run) else e._replace(source=e.target, target=e.source)
            for e in reversed(self.events)
        )
        return Schedule(self.stages, tuple(turned))


def wavefront(
    stages: int,
    chunks: Sequence[tuple[int, int]],
    homes: Sequence[int],
    *,
    whole: bool = False,
    states_home: bool = False,
) -> Schedule:
    """The schedule for batches of `chunks[i] = (encoder, decoder)` chunks that live on `homes[i]`.

    `whole`: stage 0 first runs a layer over whole sentences. `states_home`: the decoder runs at
    home (no decoder chunks here), which needs the final states of all encoder layers.
    """
    order = [unit for b, counts in enumerate(chunks) for unit in _units(b, counts, whole)]
    last = {b: Unit(b, ENCODER, counts[0] - 1) for b, counts in enumerate(chunks)}
    todo = [[u for u in order if s == 0 or u.part != WHOLE] for s in range(stages)]
    done = [0] * stages
    arrived: list[set[Unit]] = [set(order), *(set() for _ in range(1, stages))]
    events: list[Event] = []
    while any(done[s] < len(todo[s]) for s in range(stages)):
        # A round: from the top down, so that every stage works on what came up a round before.
        for s in reversed(range(stages)):
            if done[s] == len(todo[s]) or todo[s][done[s]] not in arrived[s]:
                continue
            unit = todo[s][done[s]]
            done[s] += 1
            events.append(Run(s, unit))
            if unit.part == WHOLE:
                continue
            if s + 1 < stages:
                events.append(Send(s, s + 1, unit, UP))
                arrived[s + 1].add(unit)
            elif homes[unit.batch] != s:
                events.append(Send(s, homes[unit.batch], unit, TOP))
            if states_home and unit == last[unit.batch] and homes[unit.batch] != s:
                events.append(Send(s, homes[unit.batch], unit, STATE))
    return Schedule(stages, tuple(events))


def _units(batch: int, counts: tuple[int, int], whole: bool) -> list[Unit]:
    first = [Unit(batch, WHOLE, 0)] if whole else []
    encoder = [Unit(batch, ENCODER, k) for k in range(counts[0])]
    return first + encoder + [Unit(batch, DECODER, k) for k in range(counts[1])]


def even(steps: int, chunk: int) -> int:
    """The shortest chunks that are as few as those of `chunk` steps: the longest one is what the
    stages wait for."""
    return -(-steps // -(-steps // chunk))
