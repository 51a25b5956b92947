"""The executor's pass over a worker's program: what it posts and awaits, in which order.

With stand-ins for tensors and processes, so it is known of every schedule that its workers come to
an end on communicators as nccl has them: what is posted together passes together, everything else
strictly in the order in which it was posted, whatever the workers compute meanwhile. There are two,
one of units and one of slices; and it may be that only one of them is served at a time.
"""

from __future__ import annotations

import random
from collections import defaultdict
from types import SimpleNamespace

import pytest
from schedule_cases import equal, every_variant

from fairseq_hybrid.backends.wavefront.builders import decoupled, outstanding, synchronous
from fairseq_hybrid.backends.wavefront.executor import Executor
from fairseq_hybrid.backends.wavefront.schedule import (
    BACKWARD,
    FORWARD,
    HEAD,
    REDUCE,
    REFRESH,
    SEND,
    TRANSFERS,
    Action,
    Schedule,
)
from fairseq_hybrid.comm.stopwatch import Stopwatch

POST, WAIT = "post", "wait"
UNITS, SLICES = "units", "slices"


class Recorder:
    """Stands for flows, transport and shared parameters, and writes down what is asked of them."""

    def __init__(self, me: int):
        self.me, self.steps, self.computed = me, [], []
        self.begun: list[str] = []
        self.received: dict[str, list[Action]] = defaultdict(list)

    # Flow

    def message(self, action: Action) -> Action:
        assert action.stage == self.me
        return action

    def landing(self, action: Action) -> Action:
        assert action.peer == self.me
        return action

    def forward(self, unit) -> None:
        self.computed.append((FORWARD, unit))

    def backward(self, unit) -> None:
        self.computed.append((BACKWARD, unit))

    def embed(self) -> None:
        self.computed.append("embed")

    def results(self) -> list:
        self.computed.append("head")
        return []

    def take_gradients(self, grads) -> None:
        self.computed.append("gradients of the head")

    def embedding_gradients(self) -> None:
        self.computed.append("embedding gradients")

    def weight_gradients(self) -> None:
        self.computed.append("weight gradients")

    # Transport

    def exchange(self, messages) -> list:
        messages = list(messages)
        if messages:
            self.steps.append((POST, UNITS, [out or into for out, into, _ in messages]))
        return [
            into and SimpleNamespace(wait=lambda a=into: self.steps.append((WAIT, a)))
            for _, into, _ in messages
        ]

    def drain(self) -> None:
        self.computed.append("drain")

    # Shared

    def begin_refresh(self) -> None:
        assert not self.steps

    def begin_reduce(self) -> None:
        self.computed.append("begin reduce")

    def post(self, actions: list[Action]) -> None:
        for action in actions:
            self.steps.append((POST, SLICES, [action]))
            if action.peer == self.me:
                self.received[action.op].append(action)

    def finish_refresh(self) -> None:
        self.steps += [(WAIT, action) for action in self.received[REFRESH]]

    def finish_reduce(self) -> None:
        self.steps += [(WAIT, action) for action in self.received[REDUCE]]


def record(plan: Schedule, me: int) -> Recorder:
    """A worker's whole update."""
    found = Recorder(me)
    stage = SimpleNamespace(index=me, watch=Stopwatch())
    flows = {0: found, -1: found}
    late = lambda: found.computed.append("output weights' gradient")  # noqa: E731
    executor = Executor(stage, plan, flows, found, found, late)
    if any(action.op == HEAD for action in plan.actions):
        executor.until_head()
        executor.after_heads([])
    else:
        executor.finish()
    found.finish_reduce()
    return found


def stuck(workers: list[list[tuple]], one_at_a_time: bool) -> list[int]:
    """Workers that never finish, given what they post and await."""
    queues: dict = defaultdict(list)
    passed: set[Action] = set()
    at = [0] * len(workers)

    def queue(worker: int, action: Action) -> list[list[Action]]:
        return queues[worker, None if one_at_a_time else action.op == SEND]

    def passes(action: Action) -> bool:
        return all(action in (queue(end, action) or [[]])[0] for end in (action.stage, action.peer))

    moving = True
    while moving:
        moving = False
        for me, steps in enumerate(workers):
            while at[me] < len(steps):
                kind, *what = steps[at[me]]
                if kind == WAIT and what[0] not in passed:
                    break
                if kind == POST:
                    queue(me, what[1][0]).append(list(what[1]))
                at[me] += 1
                moving = True
        for waiting in list(queues.values()):
            for action in list(waiting[0]) if waiting else ():
                if passes(action):
                    passed.add(action)
                    moving = True
                    for end in (action.stage, action.peer):
                        mine = queue(end, action)
                        mine[0].remove(action)
                        if not mine[0]:
                            mine.pop(0)
    left = {worker for (worker, _), waiting in queues.items() if waiting}
    return sorted(left | {me for me, steps in enumerate(workers) if at[me] < len(steps)})


def unit_cost(action: Action) -> float:
    return {FORWARD: 1.0, BACKWARD: 2.0, HEAD: 3.0}.get(action.op, 0.0)


def plans(stages: int, count: int) -> list[Schedule]:
    dice = random.Random(stages)
    shapes = [s for s in every_variant(stages) if sum(map(sum, s.chunks)) < 30]
    shapes = dice.sample(shapes, count)
    sets = ((), (stages - 1,), (*range(stages),))
    found = [synchronous(shape, dice.choice(sets)) for shape in shapes]
    shapes = [shape for shape in shapes if not shape.states_home]
    pairs = zip(shapes, [None, *shapes])
    found += [decoupled(shape, before, unit_cost) for shape, before in pairs]
    return found + [outstanding(shape) for shape in shapes[:2]]


@pytest.mark.parametrize("one_at_a_time", [False, True])
@pytest.mark.parametrize("stages", [1, 2, 3, 4, 8])
def test_every_schedule_comes_to_an_end(stages, one_at_a_time):
    for plan in plans(stages, 24):
        workers = [record(plan, worker).steps for worker in range(stages)]
        assert stuck(workers, one_at_a_time) == []


ALL = {"owners": (0, 1, 2), "users": (0, 1, 2)}


@pytest.mark.parametrize("plan", [
    synchronous(equal(3, 2, 2, **ALL), (2,)),
    synchronous(equal(3, 2, 0, states_home=True, **ALL)),
    decoupled(equal(3, 2, 2, **ALL), equal(3, 3, 1, **ALL), unit_cost),
    outstanding(equal(3, 2, 2)),
], ids=["hybrid", "input feeding", "decoupled", "outstanding"])  # fmt: skip
def test_what_is_posted_and_awaited(plan):
    """Everything of the worker's program, in its order; a unit after what it needs was awaited."""
    for me in range(3):
        program, found = plan.program(me), record(plan, me)
        posted = [action for kind, *what in found.steps if kind == POST for action in what[1]]
        assert posted == [action for action in program if action.op in TRANSFERS]
        awaited = [what[0] for kind, *what in found.steps if kind == WAIT]
        assert sorted(awaited) == sorted(action for action in posted if action.peer == me)
        units = [(a.op, a.unit) for a in program if a.op in (FORWARD, BACKWARD)]
        assert [what for what in found.computed if what[0] in (FORWARD, BACKWARD)] == units
        assert found.computed[-1] == "drain"


def test_receives_up_front_would_stop_everybody():
    """So `stuck` can find something: in front of a program, on one communicator."""
    plan = synchronous(equal(3, 2, 2))
    workers = [record(plan, worker).steps for worker in range(3)]
    for me, steps in enumerate(workers):
        receives = [s for s in steps if s[0] == POST and s[2][0].peer == me]
        steps[:] = receives + [step for step in steps if step not in receives]
    assert stuck(workers, one_at_a_time=True) == [0, 1, 2]
