"""Who computes and who sends what, in which order: an update of all workers as one list of actions.

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
once. The backward pass is the same from its end, gradients going where results came from.

Whatever an update does is an `Action`: forward and backward units, heads, the gradients of weights,
embeddings, and every transfer. A transfer is *one* action of both its ends, and a worker's program
is what concerns it, in the order of the list. So whichever action comes first among those not done
yet, all its participants have nothing before it to do: no deadlock, even if every send blocks until
it is received and each worker does one thing at a time, as nccl does on one communicator.

Who receives posts its receive when it comes to the transfer in its program, and waits for it where
the data is used. `AHEAD` says how many units lie between the two.

Lists are made by builders.py, run by executor.py and timed by simulate.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

WHOLE, ENCODER, DECODER = "whole", "encoder", "decoder"

FORWARD, BACKWARD = "forward", "backward"
"""of a unit; backward gives the gradients of inputs and states"""
EMBED, EMBED_GRAD = "embed", "embedding gradients"
HEAD, OUTPUT_GRAD = "head", "output weights' gradient"
"""attention, softmax and loss, there and back; then what nobody waits for (late_gradients.py)"""
WEIGHT_GRAD = "weight gradients"
"""of the layers, of all units"""
STEP = "step"
SEND, REDUCE, REFRESH = "send", "reduce", "refresh"
"""transfers: of a unit's result or gradient; of gradients to the owner of a slice; of the new
weights of a slice"""
TRANSFERS = frozenset((SEND, REDUCE, REFRESH))

UP, TOP, STATE = "up", "top", "state"
"""a unit's result on its way to the next stage, or home, and the final states on theirs"""
D_UP, D_TOP, D_STATE = "d up", "d top", "d state"
"""their gradients, which go back"""
GRADIENT = {UP: D_UP, TOP: D_TOP, STATE: D_STATE}

AHEAD = 3
"""units that a stage runs between posting a receive and needing it"""


class Unit(NamedTuple):
    """What a stage computes at a time."""

    batch: int
    part: str
    """`ENCODER`, `DECODER`, or `WHOLE`: the layers that read whole sentences, on stage 0 only"""
    chunk: int


class Action(NamedTuple):
    op: str
    stage: int
    """who computes; of a transfer, who sends"""
    unit: Unit | None = None
    peer: int | None = None
    """of a transfer: who receives"""
    kind: str = ""
    """of what is sent"""
    update: int = 0
    """0: this one; -1: the one before (decoupled)"""

    def concerns(self, worker: int) -> bool:
        return worker in (self.stage, self.peer)


@dataclass(frozen=True)
class Shape:
    """What a schedule depends on."""

    stages: int
    chunks: tuple[tuple[int, int], ...]
    """(encoder, decoder) of each batch"""
    homes: tuple[int, ...]
    """where each batch was loaded"""
    whole: bool = False
    """stage 0 first runs a layer over whole sentences"""
    states_home: bool = False
    """the decoder runs at home (no decoder chunks here), from the final states of all layers"""
    owners: tuple[int, ...] = ()
    """stages that own a slice of what several stages use"""
    users: tuple[int, ...] = ()
    """stages that use it"""

    def units(self, stage: int) -> list[Unit]:
        """In the order of the forward pass."""
        found = []
        for batch, (encoder, decoder) in enumerate(self.chunks):
            if self.whole and stage == 0:
                found.append(Unit(batch, WHOLE, 0))
            found += [Unit(batch, ENCODER, k) for k in range(encoder)]
            found += [Unit(batch, DECODER, k) for k in range(decoder)]
        return found

    def sends(self, stage: int, unit: Unit) -> Iterator[Action]:
        """What follows a unit's forward run."""
        if unit.part == WHOLE:
            return
        home, last = self.homes[unit.batch], self.stages - 1
        if stage < last:
            yield Action(SEND, stage, unit, stage + 1, UP)
        elif home != stage:
            yield Action(SEND, stage, unit, home, TOP)
        ends = unit.part == ENCODER and unit.chunk == self.chunks[unit.batch][0] - 1
        if self.states_home and ends and home != stage:
            yield Action(SEND, stage, unit, home, STATE)

    def exchange(self, op: str) -> list[Action]:
        """`REDUCE`: gradients of slices to their owners; `REFRESH`: new weights from them."""
        pairs = [(user, owner) for owner in self.owners for user in self.users if user != owner]
        if op == REFRESH:
            pairs = [(owner, user) for user, owner in pairs]
        return [Action(op, source, None, target) for source, target in pairs]


@dataclass(frozen=True)
class Schedule:
    stages: int
    actions: tuple[Action, ...]

    def program(self, worker: int) -> list[Action]:
        """What `worker` has to do, in order."""
        return [action for action in self.actions if action.concerns(worker)]


def forward_pass(shape: Shape, update: int = 0, ahead: int = AHEAD) -> list[Action]:
    """All units with their transfers, bottom up."""
    todo = [shape.units(stage) for stage in range(shape.stages)]
    actions = _relay(FORWARD, todo, shape.sends, UP, ahead)
    return [action._replace(update=update) for action in actions]


def backward_pass(shape: Shape, update: int = 0, ahead: int = AHEAD) -> list[Action]:
    """The units in reverse with the gradients they hand down; what the heads send (`from_heads`)
    lies there already."""
    last = shape.stages - 1
    todo = [shape.units(last - place)[::-1] for place in range(shape.stages)]

    def sends(place: int, unit: Unit) -> Iterator[Action]:
        if unit.part != WHOLE and place < last:
            yield Action(SEND, place, unit, place + 1, D_UP)

    def turned(action: Action) -> Action:
        peer = None if action.peer is None else last - action.peer
        return action._replace(stage=last - action.stage, peer=peer, update=update)

    return [turned(action) for action in _relay(BACKWARD, todo, sends, D_UP, ahead)]


def from_heads(shape: Shape, home: int | None = None, update: int = 0) -> list[Action]:
    """The gradients that heads send to the top stage, and to all where the decoder runs at home;
    those from one home, or from all."""
    found = []
    for stage in range(shape.stages):
        for unit in reversed(shape.units(stage)):
            for action in shape.sends(stage, unit):
                if action.kind != UP and home in (None, action.peer):
                    kind = GRADIENT[action.kind]
                    found.append(Action(SEND, action.peer, unit, stage, kind, update))
    return sorted(found, key=_last_first)


def _last_first(action: Action) -> tuple:
    """In the order in which the backward pass needs them."""
    unit = action.unit
    return -unit.batch, unit.part == ENCODER, -unit.chunk, action.stage, action.peer


def _relay(op: str, todo: Sequence[Sequence[Unit]], sends, kind: str, ahead: int) -> list[Action]:
    """Units that pass from place to place, each `ahead` rounds behind the place before."""
    done = [0] * len(todo)
    arrives: list[dict[Unit, int]] = [{} for _ in todo]
    """unit → the round in which a place takes it up"""
    first = [True] + [False] * (len(todo) - 1)
    actions: list[Action] = []
    now = 0
    while any(done[place] < len(units) for place, units in enumerate(todo)):
        for place, units in enumerate(todo):
            if done[place] == len(units):
                continue
            unit = units[done[place]]
            if not first[place] and unit.part != WHOLE and arrives[place].get(unit, now + 1) > now:
                continue
            done[place] += 1
            actions.append(Action(op, place, unit))
            for action in sends(place, unit):
                actions.append(action)
                if action.kind == kind:
                    arrives[action.peer][unit] = now + ahead
        now += 1
    return actions


def even(steps: int, chunk: int) -> int:
    """The shortest chunks that are as few as those of `chunk` steps: the longest one is what the
    stages wait for."""
    return -(-steps // -(-steps // chunk))


def text(actions: Iterable[Action], stages: int) -> str:
    """A line for each worker: what it does, in order; transfers at the sender."""
    signs = {FORWARD: "F", BACKWARD: "B", HEAD: "H", WEIGHT_GRAD: "W", OUTPUT_GRAD: "O"}
    signs |= {EMBED: "E", EMBED_GRAD: "e", STEP: "step", REDUCE: "reduce", REFRESH: "refresh"}
    lines: list[list[str]] = [[] for _ in range(stages)]
    for action in actions:
        unit = action.unit and f"{action.unit.batch}{action.unit.part[0]}{action.unit.chunk}"
        late = "'" * -action.update
        sign = signs.get(action.op) or f"{action.kind.replace(' ', '')}:"
        there = "" if action.peer is None else f">{action.peer}"
        lines[action.stage].append(f"{sign}{unit or ''}{late}{there}")
    return "\n".join(f"{stage}: {' '.join(line)}" for stage, line in enumerate(lines))
