"""``--ddp-backend model_averaging``: workers that meet every few updates.

Su & Chen (2015): every worker updates its own copy of the model with its own batches, and every
``--averaging-interval`` updates all copies are replaced by their mean. Between two meetings nothing
travels. The optimizer's state stays each worker's own, is averaged too, or starts anew
(``--averaging-state``). For the first ``--averaging-warmup`` updates the gradients are averaged
instead, as under ``legacy_ddp``: models that differ much have no good mean.

Validation and checkpoints are meetings as well, of the parameters and of the optimizer's state, so
they always see the averaged model, and a resume continues exactly. Between meetings the log shows
worker 0's statistics, at a meeting those of all.

    fairseq-train ... --ddp-backend model_averaging --averaging-interval 10 \\
        --distributed-world-size 2
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_hybrid.backends.base import Backend
from fairseq_hybrid.backends.registry import register_backend
from fairseq_hybrid.config import AVERAGE, KEEP
from fairseq_hybrid.errors import UserError
from fairseq_hybrid.optim.optimizer import HybridOptimizer


def check(cfg: Any) -> None:
    """Refuse what cannot work, before any worker starts."""
    for flag in ("fp16", "bf16", "amp"):
        if getattr(cfg.common, flag):
            raise UserError(
                f"--{flag} does not go with --ddp-backend model_averaging: leave it out"
            )
    if cfg.optimization.use_bmuf or cfg.ema.store_ema:
        flag = "--use-bmuf" if cfg.optimization.use_bmuf else "--store-ema"
        raise UserError(
            f"{flag} does not go with --ddp-backend model_averaging: leave one of them out"
        )


@register_backend(
    "model_averaging",
    help="workers that train apart and average their parameters every few updates",
    check=check,
)
def build(cfg, model, process_group, device):
    return AveragingParallel(
        model.to(device),
        process_group,
        interval=cfg.averaging_interval,
        warmup=cfg.averaging_warmup,
        state=cfg.averaging_state,
    )


class AveragingParallel(Backend):
    """The model, one of several that drift apart and are brought together."""

    synchronous = False
    takes_row_gradients = True

    def __init__(
        self, module: nn.Module, process_group: Any, *, interval: int, warmup: int, state: str
    ):
        super().__init__(module, process_group)
        self.interval, self.warmup, self.state = interval, warmup, state
        self.update = 1
        """number of the update that is being made"""
        self.apart = False
        """whether updates have been made since the last meeting"""
        self.states_apart = False
        """whether the optimizers' states differ: a meeting may keep them"""

    def begin_update(self, number: int) -> None:
        super().begin_update(number)
        self.update = number

    @property
    def together(self) -> bool:
        """Whether this update averages gradients, or ends with a meeting."""
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
        """Meet, if it is time."""
        self.apart = self.states_apart = self.update > self.warmup
        if self.together:
            self.meet(optimizer, self.state)

    def full_parameters(self, optimizer: HybridOptimizer, *averages: Any) -> None:
        self.meet(optimizer.optimizer, AVERAGE)

    def meet(self, optimizer: torch.optim.Optimizer, state: str) -> None:
        """Replace all copies by their mean."""
        if self.apart:
            self.average([p.detach() for p in self.module.parameters() if p.requires_grad])
            self.apart = False
        if self.states_apart and state != KEEP:
            if state == AVERAGE:
                self.average(list(state_tensors(optimizer)))
            else:
                reset(optimizer)
            self.states_apart = False


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
