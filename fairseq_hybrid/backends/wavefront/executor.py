"""Runs a worker's program of an update: its part of a schedule (schedule.py).

To autograd the program is one node between the words and the top states of the batches that are at
home here. Going forward it runs what comes before the worker's `HEAD`; the head itself is the
model's and the criterion's; and going back it runs the rest.

A transfer is posted, at either end, where it stands in the program: what stands together goes out
together. A computation first waits for what it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import groupby

import torch
from torch import Tensor

from fairseq_hybrid.backends.wavefront.flow import Flow, Stage
from fairseq_hybrid.backends.wavefront.schedule import (
    BACKWARD,
    EMBED,
    EMBED_GRAD,
    FORWARD,
    HEAD,
    OUTPUT_GRAD,
    REDUCE,
    REFRESH,
    SEND,
    STEP,
    WEIGHT_GRAD,
    Action,
    Schedule,
)
from fairseq_hybrid.backends.wavefront.shared import Shared
from fairseq_hybrid.backends.wavefront.simulate import AWAITED_BY, name
from fairseq_hybrid.comm.stopwatch import COMPUTE, WAIT
from fairseq_hybrid.comm.stopwatch import SEND as SENDING
from fairseq_hybrid.comm.transport import Arrival, Transport


class Executor:
    """Of one update. `flows`: by update, 0 is this one, -1 the one before."""

    def __init__(
        self,
        stage: Stage,
        schedule: Schedule,
        flows: Mapping[int, Flow],
        transport: Transport,
        shared: Shared,
        late_gradients: Callable[[], None],
    ):
        self.stage, self.flows, self.watch = stage, flows, stage.watch
        self.transport, self.shared, self.late_gradients = transport, shared, late_gradients
        program = schedule.program(stage.index)
        places = (i for i, a in enumerate(program) if a.op == HEAD and a.stage == stage.index)
        head = next(places, -1)
        self.before_head, self.after_head = program[: max(head, 0)], program[head + 1 :]
        self.arrivals: dict[object, list[Arrival]] = {}

    def run(self) -> list[Tensor]:
        """What the heads need; backward through it runs the rest of the program."""
        anchor = torch.zeros(1, requires_grad=True)
        return list(_Node.apply(anchor, self))

    def until_head(self) -> list[Tensor]:
        self.shared.begin_refresh()
        self._do(self.before_head)
        self._wait(HEAD, 0, None)
        self.shared.finish_refresh()
        return self.flows[0].results()

    def after_heads(self, grads: list[Tensor]) -> None:
        self.flows[0].take_gradients(grads)
        self.shared.begin_reduce()
        self.finish()

    def finish(self) -> None:
        """What comes after the head; all of it, where there is none."""
        self._do(self.after_head)
        with self.watch.span(SENDING, "drain"):
            self.transport.drain()

    def _do(self, program: list[Action]) -> None:
        """Transfers of units and of slices stay in one order as well: where only one communicator
        is served at a time, the two ends of a transfer must not have come to different ones."""
        how = {SEND: self._transfer, REDUCE: self.shared.post, REFRESH: self.shared.post}
        for post, actions in groupby(program, lambda action: how.get(action.op)):
            if post is not None:
                with self.watch.span(SENDING, "post transfers"):
                    post(list(actions))
                continue
            for action in actions:
                self._compute(action)

    def _transfer(self, sends: list[Action]) -> None:
        mine = self.stage.index
        arrivals = self.transport.exchange(
            (self.flows[a.update].message(a), None, a.peer) if a.stage == mine
            else (None, self.flows[a.update].landing(a), a.stage)
            for a in sends
        )  # fmt: skip
        for action, arrival in zip(sends, arrivals):
            if arrival is not None:
                op = AWAITED_BY[action.kind]
                unit = None if op == HEAD else action.unit
                self.arrivals.setdefault((op, action.update, unit), []).append(arrival)

    def _wait(self, op: str, update: int, unit: object) -> None:
        for arrival in self.arrivals.pop((op, update, unit), ()):
            with self.watch.span(WAIT, f"wait for {op}"):
                arrival.wait()

    def _compute(self, action: Action) -> None:
        if action.op == STEP:  # the trainer's
            return
        self._wait(action.op, action.update, action.unit)
        flow = self.flows[action.update]
        with self.watch.span(COMPUTE, f"{action.op} {name(action)}"):
            if action.op in (FORWARD, BACKWARD):
                run = flow.forward if action.op == FORWARD else flow.backward
                run(action.unit)
            else:
                {
                    EMBED: flow.embed,
                    EMBED_GRAD: flow.embedding_gradients,
                    WEIGHT_GRAD: flow.weight_gradients,
                    OUTPUT_GRAD: self.late_gradients,
                }[action.op]()


class _Node(torch.autograd.Function):
    @staticmethod
    def forward(ctx, anchor: Tensor, executor: Executor) -> tuple[Tensor, ...]:
        ctx.executor = executor
        return tuple(executor.until_head())

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, *grads: Tensor):
        executor, ctx.executor = ctx.executor, None
        executor.after_heads(list(grads))
        return None, None
