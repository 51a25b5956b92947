"""``--ddp-backend model_averaging``: workers whose models are averaged every few updates.

Su & Chen (2015): every worker updates its own copy of the model with its own batches, and every
``--averaging-interval`` updates all copies are replaced by their mean. In between nothing travels.
The optimizer's state stays each worker's own, is averaged too, or starts anew
(``--averaging-state``). For the first ``--averaging-warmup`` updates the gradients are averaged
instead, as under ``legacy_ddp``: models that differ much have no good mean.

With ``--averaging-outer nesterov`` (DiLoCo) the mean is not used as it is: what the workers' mean
has moved since the last averaging is the gradient of an outer SGD with Nesterov momentum, applied
to the parameters that all had then (`Nesterov`). With ``--averaging-overlap`` the workers go on
while their mean is on its way, and it is applied at the end of the next interval, beneath what
each worker has moved since.

Before validation and a save parameters and the optimizer's state become their means as well, so
what is measured and saved is the mean, and a resume continues exactly. The outer optimizer makes no
step then: checkpoints have its momentum and what the mean has moved since its last step. In between
the log shows worker 0's statistics, at an averaging those of all.

    fairseq-train ... --ddp-backend model_averaging --averaging-interval 10 \\
        --distributed-world-size 2
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from fairseq_hybrid.backends.base import Backend
from fairseq_hybrid.backends.registry import register_backend
from fairseq_hybrid.comm.sums import ring_bytes
from fairseq_hybrid.comm.transport import flatten
from fairseq_hybrid.config import AVERAGE, KEEP, NESTEROV
from fairseq_hybrid.optim.optimizer import HybridOptimizer
from fairseq_hybrid.options import LOW_PRECISION

MOMENTUM, CHANGE = "outer_momentum", "outer_change"
"""In a parameter's state in checkpoints. The change, not the anchor: who trains the model on
without averaging moves its anchor along."""
WITHOUT = (*LOW_PRECISION, "use_bmuf", "store_ema")
"""options of fairseq's that have copies of the parameters, which would not be averaged"""


@register_backend(
    "model_averaging",
    help="workers that train on their own and average their parameters every few updates",
    without=WITHOUT,
)
def build(cfg, model, process_group, device):
    return AveragingParallel(
        model.to(device),
        process_group,
        interval=cfg.averaging_interval,
        warmup=cfg.averaging_warmup,
        state=cfg.averaging_state,
        outer=(
            Nesterov(cfg.averaging_outer_rate, cfg.averaging_outer_momentum)
            if cfg.averaging_outer == NESTEROV
            else None
        ),
        overlap=cfg.averaging_overlap,
    )


class Nesterov:
    """SGD with Nesterov momentum on what the mean of the workers has moved."""

    def __init__(self, rate: float, momentum: float):
        self.rate, self.momentum = rate, momentum
        self.velocity: dict[nn.Parameter, Tensor] = {}

    def step(self, params: list[nn.Parameter], anchors: list[Tensor], means: list[Tensor]) -> None:
        """Move the anchors, which all workers began from, towards the means and on."""
        velocity = [self.velocity.setdefault(p, torch.zeros_like(p)) for p in params]
        gradients = torch._foreach_sub(anchors, means)
        torch._foreach_mul_(velocity, self.momentum)
        torch._foreach_add_(velocity, gradients)
        torch._foreach_add_(gradients, velocity, alpha=self.momentum)
        torch._foreach_add_(anchors, gradients, alpha=-self.rate)


class Underway(NamedTuple):
    """A mean on its way."""

    work: Any
    flat: Tensor
    """the workers' changes, added up when `work` is done"""
    snapshot: list[Tensor]
    """this worker's parameters when it was sent"""


class AveragingParallel(Backend):
    """The model, one of several that drift apart and are brought together."""

    synchronous = False
    takes_row_gradients = True

    def __init__(
        self,
        module: nn.Module,
        process_group: Any,
        *,
        interval: int,
        warmup: int,
        state: str,
        outer: Nesterov | None = None,
        overlap: bool = False,
    ):
        super().__init__(module, process_group)
        self.interval, self.warmup, self.state = interval, warmup, state
        self.outer, self.overlap = outer, overlap
        self.anchors: list[Tensor] | None = None
        """what all workers began the interval from; None: their parameters, which are the same"""
        self.underway: Underway | None = None
        self.update = 1
        """number of the update that is being made"""
        self.diverged = False
        """whether the workers' parameters differ"""
        self.states_differ = False
        """whether the optimizers' states differ: an averaging may keep them"""

    def begin_update(self, number: int) -> None:
        super().begin_update(number)
        self.update = number
        if self.anchors is None and number > self.warmup and (self.outer or self.overlap):
            self.anchors = [p.detach().clone() for p in self.trained()]

    def trained(self) -> list[nn.Parameter]:
        return [p for p in self.module.parameters() if p.requires_grad]

    @property
    def together(self) -> bool:
        """Whether this update averages gradients, or ends with an averaging."""
        since = self.update - self.warmup
        return since <= 0 or since % self.interval == 0

    @property
    def sums_statistics(self) -> bool:
        return self.together

    @property
    def mean_gradients(self) -> bool:
        """Where fairseq has added up the sizes of all batches it divides by those; otherwise by
        this worker's own."""
        return self.together

    def all_reduce_grads(self) -> None:
        """Only while warming up."""
        if self.update <= self.warmup:
            super().all_reduce_grads()

    def after_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Average, if it is time."""
        self.diverged = self.states_differ = self.update > self.warmup
        if not self.together:
            return
        if self.overlap and self.diverged:
            self._finish()
            self._start()
            self._share_state(optimizer, self.state)
        else:
            self.sync(optimizer, self.state)

    def full_parameters(self, optimizer: HybridOptimizer, *averages: Any) -> None:
        self._finish()
        self._average_weights()
        self._share_state(optimizer.optimizer, AVERAGE)

    @torch.no_grad()
    def sync(self, optimizer: torch.optim.Optimizer, state: str) -> None:
        """Replace all copies by their mean, or by what the outer optimizer makes of it."""
        self._average_weights()
        if self.outer and self.anchors is not None:
            params = self.trained()
            self.outer.step(params, self.anchors, [p.detach() for p in params])
            torch._foreach_copy_(params, self.anchors)
        self._share_state(optimizer, state)

    def _average_weights(self) -> None:
        if self.diverged:
            self.average([p.detach() for p in self.trained()])
            self.diverged = False

    def _share_state(self, optimizer: torch.optim.Optimizer, state: str) -> None:
        if self.states_differ and state != KEEP:
            if state == AVERAGE:
                self.average(list(state_tensors(optimizer)))
            else:
                reset(optimizer)
            self.states_differ = False

    @torch.no_grad()
    def _start(self) -> None:
        """Send what this worker has changed since the last mean; go on meanwhile."""
        assert self.anchors is not None
        snapshot = [p.detach().clone() for p in self.trained()]
        flat = flatten(torch._foreach_sub(snapshot, self.anchors))
        self.bytes_sent += ring_bytes(flat, self.world)
        work = dist.all_reduce(flat, group=self.process_group, async_op=True)
        self.underway = Underway(work, flat, snapshot)

    @torch.no_grad()
    def _finish(self) -> None:
        """Put the mean that was on its way beneath what this worker has changed since."""
        underway, self.underway = self.underway, None
        if underway is None:
            return
        assert self.anchors is not None
        underway.work.wait()
        params = self.trained()
        changes = (underway.flat / self.world).split([p.numel() for p in params])
        means = [a + c.view_as(a) for a, c in zip(self.anchors, changes)]
        if self.outer:
            self.outer.step(params, self.anchors, means)
        else:
            torch._foreach_copy_(self.anchors, means)
        since = torch._foreach_sub([p.detach() for p in params], underway.snapshot)
        torch._foreach_copy_(params, torch._foreach_add(self.anchors, since))

    # Momentum and change lie beside the optimizer's own state in checkpoints.

    @torch.no_grad()
    def optimizer_state(self, optimizer: HybridOptimizer) -> dict[str, Any] | None:
        if self.outer is None or self.anchors is None:
            return None
        params = self.trained()
        changes = torch._foreach_sub(params, self.anchors)
        self.anchors = torch._foreach_sub(params, changes)  # rounded as in a resume
        state = optimizer.state_dict()
        state["state"] = {key: dict(value) for key, value in state["state"].items()}
        places = {id(p): place for place, p in enumerate(optimizer.params)}
        for p, change in zip(params, changes):
            mine = state["state"].setdefault(places[id(p)], {})
            mine |= {CHANGE: change, MOMENTUM: self.outer.velocity.get(p, torch.zeros_like(p))}
        return state

    @torch.no_grad()
    def load_optimizer_state(self, optimizer: HybridOptimizer) -> None:
        self.anchors = self.underway = None
        params, states = self.trained(), optimizer.optimizer.state
        kept = [states.get(p, {}) for p in params]
        velocity = {p: mine.pop(MOMENTUM) for p, mine in zip(params, kept) if MOMENTUM in mine}
        changes = [mine.pop(CHANGE) for mine in kept if CHANGE in mine]
        if self.outer is not None:
            self.outer.velocity = velocity
            if len(changes) == len(params):
                self.anchors = torch._foreach_sub(params, changes)


def reset(optimizer: torch.optim.Optimizer) -> None:
    """As if no update had been made."""
    for values in optimizer.state.values():
        for value in values.values():
            if torch.is_tensor(value):
                value.zero_()
        if "step" in values and not torch.is_tensor(values["step"]):
            values["step"] = 0


def state_tensors(optimizer: torch.optim.Optimizer) -> Iterable[Tensor]:
    """In an order that is the same on all workers."""
    for group in optimizer.param_groups:
        for p in group["params"]:
            for name, value in sorted(optimizer.state.get(p, {}).items()):
                if torch.is_tensor(value) and value.is_floating_point() and name != "step":
                    yield value
