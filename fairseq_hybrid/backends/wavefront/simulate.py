"""A synchronous update of all workers as one list of actions, and how long it would take.

The list is what the executor does, in an order in which it could be done: forward units, heads, the
gradients of the output weights where they come early, backward units, the gradients of the layers'
weights, those of the output weights where they come late. `simulate` runs a clock over it:

    print(text(synchronous(schedule.wavefront(2, [(2, 1), (1, 1)], [0, 1]), late={1})))
    simulate(actions, costs).seconds, .idle

The length of chunks is chosen by it, and `ideal` in the log is the share of time in which it lets
the workers compute. Costs are numbers in any unit, the same on all workers, so that all of them
choose the same and a training can be repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fairseq_hybrid.backends.wavefront.schedule import STATE, TOP, UP, Event, Run, Schedule, Unit

FORWARD, HEAD, BACKWARD, SEND = "forward", "head", "backward", "send"
WEIGHT_GRAD, OUTPUT_GRAD = "weight gradients", "output weights' gradient"


class Action(NamedTuple):
    op: str
    stage: int
    """who computes, or sends"""
    unit: Unit | None = None
    peer: int | None = None
    """who receives"""
    kind: str = ""
    """of a message: `UP`, `TOP`, `STATE`, in either direction"""


@dataclass(frozen=True)
class UpdateCosts:
    """What each action takes, by stage (and unit)."""

    forward: Callable[[int, Unit], float]
    backward: Callable[[int, Unit], float]
    """gradients of inputs and states, and of weights if they don't come later"""
    weights: Callable[[int], float]
    """of all batches"""
    head: Callable[[int], float]
    """attention, softmax and loss, there and back, but for the output weights' gradient"""
    output: Callable[[int], float]

    def of(self, action: Action) -> float:
        if action.op in (FORWARD, BACKWARD):
            of_unit = self.forward if action.op == FORWARD else self.backward
            return of_unit(action.stage, action.unit)
        of_stage = {HEAD: self.head, WEIGHT_GRAD: self.weights, OUTPUT_GRAD: self.output}
        return of_stage[action.op](action.stage) if action.op in of_stage else 0.0


@dataclass(frozen=True)
class SimulatedUpdate:
    seconds: float
    """from the first action to the last"""
    busy: tuple[float, ...]
    """of each stage"""

    @property
    def idle(self) -> tuple[float, ...]:
        """Share of the time that each stage waits, 0 to 1."""
        return tuple(1 - busy / self.seconds if self.seconds else 0.0 for busy in self.busy)

    @property
    def efficiency(self) -> float:
        return 1 - sum(self.idle) / len(self.idle)


def synchronous(plan: Schedule, late: Collection[int] = ()) -> list[Action]:
    """The update whose forward pass is `plan`; `late`: the stages that leave the output weights'
    gradient until their units are done."""
    stages, back = range(plan.stages), plan.reverse()
    actions = [_action(event, FORWARD) for event in plan.events]
    actions += [Action(HEAD, stage) for stage in stages]
    # What heads send lies ready: it goes ahead of everything.
    ready = [e for e in back.events if not isinstance(e, Run) and e.kind != UP]
    actions += [_action(event, BACKWARD) for event in ready]
    actions += [Action(OUTPUT_GRAD, stage) for stage in stages if stage not in late]
    rest = (e for e in back.events if isinstance(e, Run) or e.kind == UP)
    actions += [_action(event, BACKWARD) for event in rest]
    actions += [Action(WEIGHT_GRAD, stage) for stage in stages]
    return actions + [Action(OUTPUT_GRAD, stage) for stage in stages if stage in late]


def _action(event: Event, op: str) -> Action:
    if isinstance(event, Run):
        return Action(op, event.stage, event.unit)
    return Action(SEND, event.source, event.unit, event.target, event.kind)


def simulate(actions: Sequence[Action], costs: UpdateCosts, delay: float = 0.0) -> SimulatedUpdate:
    """All workers go through their actions in this order; a message takes `delay`, and waits for
    nobody."""
    stages = 1 + max(action.stage for action in actions)
    free, busy = [0.0] * stages, [0.0] * stages
    arrived: dict[tuple[int, Unit | None], float] = {}
    """(stage, unit) → when all that it needs is there; no unit: what a head needs"""
    turned = False
    for action in actions:
        stage = action.stage
        turned = turned or action.op == HEAD
        if action.op == SEND:
            for_head = not turned and action.kind in (TOP, STATE)
            place = action.peer, None if for_head else action.unit
            arrived[place] = max(arrived.get(place, 0.0), free[stage] + delay)
            continue
        needed = arrived.pop((stage, action.unit), 0.0)
        seconds = costs.of(action)
        free[stage] = max(free[stage], needed) + seconds
        busy[stage] += seconds
    return SimulatedUpdate(max(free), tuple(busy))


def text(actions: Sequence[Action]) -> str:
    """A line for each worker: what it does, in order."""
    lines = (" ".join(_words(actions, s)) for s in range(1 + max(a.stage for a in actions)))
    return "\n".join(f"{stage}: {line}" for stage, line in enumerate(lines))


def _words(actions: Sequence[Action], stage: int) -> Iterator[str]:
    signs = {FORWARD: "F", BACKWARD: "B", HEAD: "H", WEIGHT_GRAD: "W", OUTPUT_GRAD: "O"}
    for action in actions:
        unit = action.unit and f"{action.unit.batch}{action.unit.part[0]}{action.unit.chunk}"
        if action.op == SEND:
            if stage == action.stage:
                yield f"{action.kind}:{unit}>{action.peer}"
        elif stage == action.stage:
            yield signs[action.op] + (unit or "")
