"""A Boltzmann machine in training: one update after the other, alone or beside other workers.

Updates are plain SGD with momentum and weight decay. With several workers each trains its own copy
on its own examples, and the copies are averaged every few updates (backends/averaging.py).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from fairseq_hybrid.backends.averaging import AVERAGE, AveragingParallel
from fairseq_hybrid.pretraining.options import Settings
from fairseq_hybrid.pretraining.rbm import RestrictedBoltzmannMachine

CALMER = 0.9
"""of the learning rate, after weights had to be pulled back"""


class Machine:
    """`step` by `step`; `update` says how many there were, of `updates`."""

    def __init__(
        self,
        rbm: RestrictedBoltzmannMachine,
        settings: Settings,
        *,
        updates: int,
        parallel: AveragingParallel | None = None,
    ):
        self.rbm, self.parallel = rbm, parallel
        self.update, self.updates = 0, updates
        self.lr = settings.rbm_gaussian_lr if rbm.gaussian else settings.rbm_lr
        self.momenta = settings.rbm_momentum, settings.rbm_final_momentum
        self.calm = torch.ones((), device=rbm.weight_HV.device)
        """what the learning rate has been lowered to"""
        self.optimizer = torch.optim.SGD(
            [
                {"params": [rbm.weight_HV], "weight_decay": settings.rbm_weight_decay},
                {"params": [rbm.hidden_bias_H, rbm.visible_bias_V]},
            ],
            lr=self.lr,
        )
        # From the start, so that all workers have the same to average whatever they skip.
        for p in rbm.parameters():
            self.optimizer.state[p]["momentum_buffer"] = torch.zeros_like(p)

    @property
    def momentum(self) -> float:
        """Rises linearly until half of the updates are made."""
        first, last = self.momenta
        return first + (last - first) * min(1.0, 2 * self.update / self.updates)

    def step(self, data_NV: Tensor, generator: torch.Generator) -> Tensor:
        """One update; returns the mean square error of the reconstruction."""
        visible_NV = self.rbm.units(data_NV)
        again_NV = self.rbm.contrast(visible_NV, generator)
        if self.rbm.shrink_if_exploded(visible_NV, again_NV):
            self._calm_down()
        else:
            momentum = self.momentum
            lr = self.lr * (1 - momentum) * float(self.calm)
            for group in self.optimizer.param_groups:
                group["lr"], group["momentum"] = lr, momentum
            self.optimizer.step()
        self.update += 1
        if self.parallel is not None:
            self.parallel.begin_update(self.update)
            self.parallel.after_step(self.optimizer)
        return (again_NV - visible_NV).square().mean()

    def _calm_down(self) -> None:
        self.calm *= CALMER
        for state in self.optimizer.state.values():
            state["momentum_buffer"].zero_()

    def sync(self) -> None:
        """Make all that `state_dict` holds the same on all workers."""
        if self.parallel is not None:
            self.parallel.diverged = True  # in momentum, even right after an averaging that kept it
            self.parallel.sync(self.optimizer, AVERAGE)
            dist.all_reduce(self.calm, dist.ReduceOp.MIN, group=self.parallel.process_group)

    def state_dict(self) -> dict[str, Any]:
        return {
            "update": self.update,
            "calm": self.calm,
            "rbm": self.rbm.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.update = state["update"]
        self.calm.copy_(state["calm"])
        self.rbm.load_state_dict(state["rbm"])
        self.optimizer.load_state_dict(state["optimizer"])
