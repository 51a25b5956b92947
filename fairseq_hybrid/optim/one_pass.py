"""A step rule (optimizer.py): fairseq's Adam in one pass over each parameter.

fairseq's own, without its CUDA extension, goes over parameter, gradient and state ten times. torch
has a kernel that does it at once; what it computes is the same up to rounding (the state has the
same names and numbers, so checkpoints do not tell). 16-bit parameters, the first step, which makes
the state, and all other optimizers are left to fairseq.
"""

from __future__ import annotations

from typing import Any

import torch
from fairseq.optim.adam import Adam
from torch import Tensor, nn


def step(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    """Returns what has been updated."""
    fused = getattr(torch, "_fused_adam_", None)
    if type(optimizer) is not Adam or fused is None:
        return []
    done: list[nn.Parameter] = []
    for group in optimizer.param_groups:
        by_step: dict[int, list[Tensor]] = {}
        for p in () if group.get("amsgrad") else group["params"]:
            if can_be_updated(p, optimizer.state):
                by_step.setdefault(int(optimizer.state[p]["step"]) + 1, []).append(p)
        for step, params in by_step.items():
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
            done += params
    return done


def can_be_updated(p: nn.Parameter, states: Any) -> bool:
    if p.grad is None or p.grad.is_sparse or not states[p]:
        return False
    return p.dtype == p.grad.dtype == states[p]["exp_avg"].dtype == torch.float32
