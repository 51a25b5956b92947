"""``--hybrid-schedule decoupled``: forward of an update together with backward of the one before.

In update t every stage runs the forward units of its batches and, mixed with them, the backward
units of update t-1 (builders.py). Then attention, softmax and loss of t, whose backward pass
gives the gradients of the head and of the top states; the latter wait for update t+1. So the
optimizer's step t has the head's gradients of update t, and those of LSTM layers and embeddings of
update t-1: one update late, but exactly those of its loss at its weights (`Stash`), and divided by
its sample size. With ``--update-freq`` only the last of an update's batches is late.

`drain` runs what is outstanding by itself, and the trainer applies it, in a step of its own, before
weights are looked at: for validation and for a checkpoint. The update after that finds nothing
outstanding, makes a step of the head alone, and so every parameter has one step per update in the
end. docs/decoupled.md has the schedule as a picture and says when this pays.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from fairseq_hybrid.backends.base import with_gradient
from fairseq_hybrid.backends.wavefront.backend import WavefrontParallel
from fairseq_hybrid.backends.wavefront.builders import decoupled, outstanding
from fairseq_hybrid.backends.wavefront.costs import UpdateCosts
from fairseq_hybrid.backends.wavefront.executor import Executor
from fairseq_hybrid.backends.wavefront.flow import Batch, Flow, Stage
from fairseq_hybrid.backends.wavefront.schedule import DECODER, ENCODER, Action, Shape
from fairseq_hybrid.backends.wavefront.simulate import Timeline, simulate
from fairseq_hybrid.comm.stopwatch import WAIT
from fairseq_hybrid.comm.sums import ring_bytes
from fairseq_hybrid.comm.transport import flatten
from fairseq_hybrid.errors import UserError
from fairseq_hybrid.models.lstm_layer import LSTMLayer
from fairseq_hybrid.optim.optimizer import GradientGroup, HybridOptimizer


class Stash:
    """A stage's LSTM layers with the weights of one update, while batches of it are under way.

    The optimizer changes the weights before backward comes, so forward runs on these copies; they
    gather the gradients, too. Embeddings need no copy, as their gradient does not depend on them.
    """

    def __init__(self, layers: Mapping[str, Sequence[LSTMLayer]]):
        self.layers = copy.deepcopy(dict(layers))
        for layer in (layer for part in self.layers.values() for layer in part):
            layer.lstm.flatten_parameters()  # copied one by one: cuDNN would join them every time
        pairs = [
            pair
            for part in layers
            for mine, copied in zip(layers[part], self.layers[part])
            for pair in zip(mine.parameters(), copied.parameters())
        ]
        self.originals, self.copies = [p for p, _ in pairs], [twin for _, twin in pairs]
        self.others: dict[nn.Parameter, Tensor] = {}
        """gradients of embeddings"""
        for layer in (layer for part in self.layers.values() for layer in part):
            layer.train()

    @torch.no_grad()
    def load(self) -> None:
        torch._foreach_copy_(self.copies, self.originals)

    def add(self, p: nn.Parameter, grad: Tensor) -> None:
        self.others[p] = self.others[p] + grad if p in self.others else grad

    def take(self) -> dict[nn.Parameter, Tensor]:
        """The gradients that have come together, by the parameter they belong to."""
        grads, self.others = self.others, {}
        for p, twin in zip(self.originals, self.copies):
            if twin.grad is not None:
                grads[p], twin.grad = twin.grad, None
        return grads


class LateFlow(Flow):
    """Gradients go to a stash, not to the parameters, which have those of another update."""

    def __init__(
        self,
        stage: Stage,
        batches: Sequence[Batch],
        stash: Stash,
        weights: Mapping[str, nn.Parameter],
    ):
        super().__init__(replace(stage, layers=stash.layers), batches)
        self.stash, self.weights = stash, weights

    def _embedding_gradient(self, part: str, x: Tensor) -> None:
        weight = self.weights[part]
        (grad,) = torch.autograd.grad(x, weight, self.dembedded[part])
        self.stash.add(weight, grad)


@dataclass
class Outstanding:
    """Batches that have been forward; their flow has the gradients of their top states."""

    flow: LateFlow
    shape: Shape
    costs: UpdateCosts


class DecoupledParallel(WavefrontParallel):
    """The model, its layers spread over the workers, their gradients one update late."""

    def __init__(self, *args: Any, shrink: float = 1.0, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.shrink = shrink
        self.mean_gradients = False
        self.factor_before: Any = 0.0
        """what the gradients of the update before are multiplied by"""
        self.outstanding: Outstanding | None = None
        self.stashes = [Stash(self.stage.layers), Stash(self.stage.layers)]
        """of this update and of the one before"""
        self.new_weights = True
        """whether there are others than in the first of the stashes"""
        self.late: dict[nn.Parameter, Tensor] = {}
        """complete gradients of the update before, to be applied in this one"""
        parts = self.parts
        weights = (parts.source_embedding.weight, parts.target_embedding.weight)
        self.embeddings = dict(zip((ENCODER, DECODER), weights))

    def _simulated(self, batches: Sequence[Any], late: Sequence[int]) -> Timeline:
        shape, costs = self._shape(batches), self._update_costs(batches)
        plan = decoupled(shape, shape, costs.seconds)
        return simulate(plan.actions, costs, self.measured.link, self.stage.count)

    # Passes

    def _executor(self, batches: list[Batch]) -> Executor:
        if self.new_weights:
            self.stashes.reverse()
            self.stashes[0].load()
            self.new_weights = False
        flow = LateFlow(self.stage, batches, self.stashes[0], self.embeddings)
        shape, costs = self._shape(batches), self._update_costs(batches)
        before, self.outstanding = self.outstanding, Outstanding(flow, shape, costs)
        if before is None:
            return self._execute(decoupled(shape, None, costs.seconds), {0: flow})

        def cost(action: Action) -> float:
            return (before.costs if action.update else costs).seconds(action)

        return self._execute(decoupled(shape, before.shape, cost), {0: flow, -1: before.flow})

    def drain(self) -> bool:
        """Run what is outstanding. True: there are gradients now, to be applied in a step."""
        if self.outstanding is None:
            return False
        last, self.outstanding = self.outstanding, None
        self._execute(outstanding(last.shape), {-1: last.flow}).finish()
        self.late = self.stashes[0].take()
        self._sum_over_replicas([])
        self._changing()
        return True

    # Gradients

    def all_reduce_grads(self) -> None:
        """Complete the gradients: sums over all workers, those of two updates apart."""
        if self.accumulating:
            return
        self.shared.finish_reduce()
        this, before = self.stashes
        for p, grad in this.take().items():  # of all of the update's batches but the last
            p.grad = grad if p.grad is None else p.grad + grad
        self.late = before.take()
        self._sum_over_replicas([p for p in self.ownership.owned if p.grad is not None])
        self._changing()

    def _changing(self) -> None:
        """The optimizer will make a step."""
        self.new_weights = self.ownership.dirty = True

    def _sum_over_replicas(self, owned: list[nn.Parameter]) -> None:
        grads = [p.grad for p in owned] + list(self.late.values())
        if self.column is None or not grads:
            return
        flat = flatten(grads)
        with self.watch.span(WAIT, "sum over replicas"):
            dist.all_reduce(flat, group=self.column)
        self.replica_bytes += ring_bytes(flat, self.replicas)
        sums = [t.view_as(g) for g, t in zip(grads, flat.split([g.numel() for g in grads]))]
        for p in owned:
            p.grad = sums.pop(0)
        self.late = dict(zip(self.late, sums))

    def attach(self, optimizer: HybridOptimizer, criterion: nn.Module) -> None:
        super().attach(optimizer, criterion)
        if self.mean_gradients:
            raise UserError(
                f"--optimizer {type(optimizer.inner).__name__} scales gradients in its own way, "
                "which does not go with --hybrid-schedule decoupled: use adam, or "
                "--hybrid-schedule synchronous"
            )

    def gradient_groups(self, params: Sequence[nn.Parameter], factor: Any) -> list[GradientGroup]:
        """Late gradients have the factor of the update they come from, times `shrink`. What has
        some of both gets them together."""
        factor_now, late = factor / self.world, self.factor_before * self.shrink
        self.factor_before = factor_now
        alone = self._join(late / factor_now)
        known = {id(p) for p in alone}
        timely = [p for p in with_gradient(self.ownership.owned) if id(p) not in known]
        return [(timely, factor_now), (alone, late), (with_gradient(self.criterion_params), factor)]

    def _join(self, ratio: Any) -> list[nn.Parameter]:
        """Give late gradients to their parameters; those without any other are returned."""
        late, self.late = self.late, {}
        alone = []
        for p, grad in late.items():
            if p.grad is None:
                p.grad = grad
                alone.append(p)
            else:  # weights of embedding and output at once, or several batches per update
                p.grad += grad * ratio
        return alone
