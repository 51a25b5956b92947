"""fairseq's Adam in one pass over each parameter.

fairseq's own, without its CUDA extension, goes over parameter, gradient and state ten times. torch
has a kernel that does it at once; what it computes is the same up to rounding (the state has the
same names and numbers, so checkpoints do not tell). 16-bit parameters, the first step, which makes
the state, and all other optimizers are left to fairseq.
"""

from __future__ import annotations

from typing import Any

import torch
from fairseq.optim.adam import Adam
from torch import Tensor

Done = list[tuple[Tensor, Tensor]]
"""parameters that have been updated, with their gradients"""


class OnePass:
    """Mixed into a fairseq optimizer; changes nothing if that is not the plain Adam."""

    @torch.no_grad()
    def step(self, closure: Any = None, **how: Any) -> None:
        done = adam(self.optimizer) if type(self.optimizer) is Adam else []
        super().step(closure, **how)
        restore(done)


def restore(done: Done) -> None:
    """Gradients that another optimizer was not to see."""
    for p, grad in done:
        p.grad = grad


def adam(optimizer: torch.optim.Optimizer) -> Done:
    """Returns what it has updated, with the gradients, which are gone for others; what it cannot do
    is left to them."""
    done: Done = []
    fused = getattr(torch, "_fused_adam_", None)
    for group in optimizer.param_groups if fused else ():
        by_step: dict[int, list[Tensor]] = {}
        for p in group["params"]:
            state = optimizer.state[p] if p.grad is not None else {}
            if state and p.dtype == p.grad.dtype == state["exp_avg"].dtype == torch.float32:
                by_step.setdefault(int(state["step"]) + 1, []).append(p)
        for step, params in () if group.get("amsgrad") else by_step.items():
            states = [optimizer.state[p] for p in params]
            for p, state in zip(params, states):
                state["step"] = step
                if group["weight_decay"]:
                    p.mul_(1 - group["weight_decay"] * group["lr"])
            counts = [torch.full((), float(step), device=p.device) for p in params]
            beta1, beta2 = group["betas"]
            fused(
                params, [p.grad for p in params], [s["exp_avg"] for s in states],
                [s["exp_avg_sq"] for s in states], [], counts,
                lr=group["lr"], beta1=beta1, beta2=beta2, weight_decay=0.0,
                # torch adds it after the correction for the first steps, fairseq before
                eps=group["eps"] / (1 - beta2**step) ** 0.5,
                amsgrad=False, maximize=False, grad_scale=None, found_inf=None,
            )  # fmt: skip
            done += [(p, p.grad) for p in params]
            for p in params:
                p.grad = None
    return done
