"""Shapes of updates to make schedules of, and what every schedule of them has to keep to.

`synchronous_needs` and `decoupled_needs` say in their own way, from a shape alone, which actions an
update has and which of them each one needs before it; `stuck` plays the workers' programs.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterable, Sequence

import pytest

from fairseq_hybrid.backends.wavefront.schedule import (
    BACKWARD,
    D_STATE,
    D_TOP,
    D_UP,
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
    STEP,
    TOP,
    TRANSFERS,
    UP,
    WEIGHT_GRAD,
    WHOLE,
    Action,
    Shape,
    Unit,
)

Needs = dict[Action, list[Action]]
"""action → what has to be done before"""

STAGES = range(1, 9)
every_number_of_stages = pytest.mark.parametrize("stages", STAGES)


def equal(stages: int, encoder: int, decoder: int, **more) -> Shape:
    """A batch from each stage, all of one length."""
    return Shape(stages, ((encoder, decoder),) * stages, tuple(range(stages)), **more)


def owners(stages: int) -> list[tuple[int, ...]]:
    """Nobody, all, all but stage 0, one."""
    return [(), (*range(stages),), (*range(1, stages),), (stages - 1,)]


def every_variant(stages: int) -> list[Shape]:
    """Batches unlike each other; both kinds of home; layers for whole sentences; decoders that run
    at home; in all combinations, each with one of `owners`."""
    dice = random.Random(stages)
    found = []
    for batches, c in itertools.product((1, 2, stages, 8), (1, 2, 6)):
        ragged = tuple((dice.randint(1, c), dice.randint(1, c)) for _ in range(batches))
        alone = tuple((encoder, 0) for encoder, _ in ragged)
        for chunks in (((c, c),) * batches, ((1, c),) * batches, ragged, alone):
            for last, whole in itertools.product((False, True), repeat=2):
                homes = tuple(stages - 1 if last else b % stages for b in range(batches))
                own = dice.choice(owners(stages))
                users = tuple(range(stages)) if own and stages > 1 else ()
                own = own if users else ()
                found.append(Shape(stages, chunks, homes, whole, chunks is alone, own, users))
    return found


def units(shape: Shape, stage: int) -> list[Unit]:
    """What a stage has to run, in order: the batches one after the other, each in time."""
    found = []
    for batch, (encoder, decoder) in enumerate(shape.chunks):
        if shape.whole and stage == 0:
            found.append(Unit(batch, WHOLE, 0))
        found += [Unit(batch, ENCODER, chunk) for chunk in range(encoder)]
        found += [Unit(batch, DECODER, chunk) for chunk in range(decoder)]
    return found


def _handed_up(shape: Shape) -> list[Unit]:
    return [unit for unit in units(shape, 0) if unit.part != WHOLE]


def _goes_home(shape: Shape) -> list[tuple[int, Unit, int, str]]:
    """(from, unit, home, kind)"""
    last, found = shape.stages - 1, []
    for unit in _handed_up(shape):
        home = shape.homes[unit.batch]
        found.append((last, unit, home, TOP))
        if shape.states_home and unit[1:] == (ENCODER, shape.chunks[unit.batch][0] - 1):
            found += [(stage, unit, home, STATE) for stage in range(shape.stages)]
    return [way for way in found if way[0] != way[2]]


def _exchanged(op: str, shape: Shape) -> list[Action]:
    pairs = [(owner, user) for owner in shape.owners for user in shape.users if owner != user]
    return [Action(op, *((a, None, b) if op == REFRESH else (b, None, a))) for a, b in pairs]


def forward_needs(shape: Shape) -> Needs:
    """Of the forward units and the heads."""
    needs: Needs = {Action(EMBED, 0): []}
    for stage in range(shape.stages):
        mine = [Action(FORWARD, stage, unit) for unit in units(shape, stage)]
        needs |= {run: [before] for before, run in itertools.pairwise(mine)}
        needs |= {run: [] for run in mine[:1]}
        needs[Action(HEAD, stage)] = list(mine)
    needs.update({run: [*before, Action(EMBED, 0)]
                  for run, before in needs.items() if run[:2] == (FORWARD, 0)})  # fmt: skip
    for unit, stage in itertools.product(_handed_up(shape), range(shape.stages - 1)):
        up = Action(SEND, stage, unit, stage + 1, UP)
        needs[up] = [Action(FORWARD, stage, unit)]
        needs[Action(FORWARD, stage + 1, unit)].append(up)
    for stage, unit, home, kind in _goes_home(shape):
        way = Action(SEND, stage, unit, home, kind)
        needs[way] = [Action(FORWARD, stage, unit)]
        needs[Action(HEAD, home)].append(way)
    for action in _exchanged(REFRESH, shape):
        needs[action] = []
        needs[Action(HEAD, action.peer)].append(action)
    return needs


def backward_needs(shape: Shape, update: int = 0) -> Needs:
    """Of the backward units and what follows them; the heads have run."""
    needs: Needs = {}
    for stage in range(shape.stages):
        mine = [Action(BACKWARD, stage, u, update=update) for u in units(shape, stage)[::-1]]
        needs |= {run: [before] for before, run in itertools.pairwise(mine)}
        needs |= {run: [] for run in mine[:1]}
        needs[Action(WEIGHT_GRAD, stage, update=update)] = list(mine)
        if stage == 0:
            needs[Action(EMBED_GRAD, 0, update=update)] = list(mine)
    for unit, stage in itertools.product(_handed_up(shape), range(1, shape.stages)):
        down = Action(SEND, stage, unit, stage - 1, D_UP, update)
        needs[down] = [Action(BACKWARD, stage, unit, update=update)]
        needs[Action(BACKWARD, stage - 1, unit, update=update)].append(down)
    for stage, unit, home, kind in _goes_home(shape):
        kind = {TOP: D_TOP, STATE: D_STATE}[kind]
        way = Action(SEND, home, unit, stage, kind, update)
        needs[way] = []
        needs[Action(BACKWARD, stage, unit, update=update)].append(way)
    return needs


def _head_needs(shape: Shape) -> Needs:
    """Of what follows a head."""
    needs: Needs = {}
    for stage in range(shape.stages):
        needs[Action(OUTPUT_GRAD, stage)] = [Action(HEAD, stage)]
        needs[Action(STEP, stage)] = []
    for action in _exchanged(REDUCE, shape):
        needs[action] = [Action(OUTPUT_GRAD, action.stage)]
        needs[Action(STEP, action.peer)].append(action)
    return needs


def synchronous_needs(shape: Shape) -> Needs:
    back = backward_needs(shape)
    for action, needed in back.items():
        if action.op == BACKWARD or action.kind in (D_TOP, D_STATE):
            needed.append(Action(HEAD, action.stage))
    return _with_last_steps(forward_needs(shape) | _head_needs(shape) | back)


def decoupled_needs(shape: Shape, before: Shape | None) -> Needs:
    back = {} if before is None else backward_needs(before, -1)
    return _with_last_steps(forward_needs(shape) | _head_needs(shape) | back)


def _with_last_steps(needs: Needs) -> Needs:
    """A stage's step comes after all that it computes."""
    for action in needs:
        if action.op not in (*TRANSFERS, STEP):
            needs[Action(STEP, action.stage)].append(action)
    return needs


def check_complete_and_in_order(actions: Sequence[Action], needs: Needs) -> None:
    """All is done once, and nothing before what it needs."""
    assert Counter(actions) == Counter(needs.keys())
    at = {action: place for place, action in enumerate(actions)}
    for action, needed in needs.items():
        assert all(at[before] < at[action] for before in needed), action


def programs_of(actions: Iterable[Action], stages: int) -> list[list[Action]]:
    found: list[list[Action]] = [[] for _ in range(stages)]
    for action in actions:
        for worker in {action.stage, action.peer} - {None}:
            found[worker].append(action)
    return found


def stuck(programs: Sequence[Sequence[Action]]) -> list[int]:
    """Workers that never finish if each does one thing at a time, strictly in order, and a
    transfer takes place only while both its ends have come to it."""
    ends = [[*program, None] for program in programs]
    at = [0] * len(ends)
    awake = [*range(len(ends))]
    while awake:
        me = awake.pop()
        while (action := ends[me][at[me]]) is not None:
            if action.peer is not None:
                other = action.peer if action.stage == me else action.stage
                if ends[other][at[other]] != action:
                    break
                at[other] += 1
                awake.append(other)
            at[me] += 1
    return [worker for worker, program in enumerate(ends) if program[at[worker]] is not None]
