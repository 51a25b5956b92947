"""Updating only the rows of a matrix that have a gradient.

With a sampled softmax a few thousand of many thousand rows of the embeddings get a gradient. It is
kept as torch's sparse tensor, scaled and clipped at the cost of these rows (optimizer.py), and
applied by the step rule that is here. Every row has the optimizer's state to itself: what
Adam does to a row at its n-th gradient is what it would do to a parameter at its n-th step, and
rows without a gradient stay as they are ("lazy"). If every row gets a gradient in every update
nothing differs from the plain optimizer, whose state has the same names in checkpoints.

Weight decay, where it is on, is applied to a row when it is updated.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_hybrid.errors import UserError
from fairseq_hybrid.options import LOW_PRECISION, refuse_together

NAMES = ("adam", "sgd", "adagrad", "ng_sgd")


def gather(weight: Tensor, rows: Tensor, by_rows: bool) -> Tensor:
    """`weight[rows]`; its gradient has those rows only, if `by_rows` and the weight is a matrix."""
    if weight.dim() == 1:
        return weight[rows]
    return F.embedding(rows, weight, sparse=by_rows)


def sparse_rows(rows: Tensor, values: Tensor, like: Tensor) -> Tensor:
    """A gradient of distinct, ascending `rows` of `like`."""
    return torch.sparse_coo_tensor(
        rows.unsqueeze(0), values, like.shape, is_coalesced=True, check_invariants=False
    )


LateProduct = Callable[[Tensor, Tensor], None]
"""is given the two factors of a gradient, to multiply them later"""


class RowSharing:
    """What ``--criterion sampled_softmax`` asks about the workers, answered for one of them."""

    takes_row_gradients = True
    """whether gradients may be sparse"""

    def union_of_words(self, words: Tensor) -> Tensor:
        """The words that any worker has, ascending, given this one's."""
        return words

    def note_sample(self, words_S: Tensor) -> None:
        """The words, the same on all workers, whose output weights get a gradient."""

    def output_rows(self, weight: Tensor, words_S: Tensor) -> tuple[Tensor, LateProduct | None]:
        """Output weights_SD of these words, and who takes the factors of their gradient, if that
        is not autograd."""
        return gather(weight, words_S, self.takes_row_gradients), None


def parts(grad: Tensor) -> Tensor:
    """The numbers a gradient consists of (a view of them)."""
    return grad._values() if grad.is_sparse else grad


def refuse_whole_matrices(cfg: Any) -> None:
    """Refuse optimizers and precisions that know whole matrices only."""
    name = getattr(cfg.optimizer, "_name", None)
    if name not in NAMES:
        raise UserError(
            f"--optimizer {name} cannot update single rows, which --criterion sampled_softmax is "
            f"about: use one of {', '.join(NAMES)}"
        )
    refuse_together(cfg, "--criterion sampled_softmax", *LOW_PRECISION)


@torch.no_grad()
def step(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    """Update the rows of sparse gradients; returns the parameters that have one."""
    done = []
    for group in optimizer.param_groups:
        for p in group["params"]:
            if p.grad is None or not p.grad.is_sparse:
                continue
            grad = p.grad.coalesce()
            rows, values = grad.indices()[0], grad.values()
            if group.get("weight_decay"):
                decay(p, rows, values, group, optimizer)
            rule(optimizer)(p, rows, values, optimizer.state[p], group)
            done.append(p)
    return done


Values = dict[str, Any]
"""the state of a parameter, or the options of its group"""
Rule = Callable[[Tensor, Tensor, Tensor, Values, Values], None]


def rule(optimizer: torch.optim.Optimizer) -> Rule:
    kinds = [kind.__name__.lower() for kind in type(optimizer).__mro__]
    for name, update in (("adagrad", adagrad), ("sgd", sgd)):
        if name in kinds:
            return update
    if any("adam" in kind for kind in kinds):
        return adam
    raise UserError(f"--optimizer {kinds[0]} cannot update single rows: use {', '.join(NAMES)}")


def decay(p: Tensor, rows: Tensor, values: Tensor, group: Values, optimizer: Any) -> None:
    """As the optimizer would: fairseq's Adam shrinks the weights, torch's others the gradient."""
    old = p.index_select(0, rows)
    if rule(optimizer) is adam:
        p.index_add_(0, rows, old, alpha=-group["weight_decay"] * group["lr"])
    else:
        values.add_(old, alpha=group["weight_decay"])


def adam(p: Tensor, rows: Tensor, values: Tensor, state: Values, group: Values) -> None:
    """fairseq's Adam, with the number of steps that each row has made."""
    beta1, beta2 = group["betas"]
    if "exp_avg" not in state:
        state["step"] = 0
        state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(p), torch.zeros_like(p)
    if "row_steps" not in state:  # as many as a plain Adam has made with the matrix
        state["row_steps"] = p.new_full((p.size(0), 1), float(state["step"]))
    state["step"] += 1
    steps = state["row_steps"].index_select(0, rows).add_(1)
    state["row_steps"].index_copy_(0, rows, steps)
    mean = state["exp_avg"].index_select(0, rows).lerp_(values, 1 - beta1)
    state["exp_avg"].index_copy_(0, rows, mean)
    square = state["exp_avg_sq"].index_select(0, rows).mul_(beta2)
    square.addcmul_(values, values, value=1 - beta2)
    state["exp_avg_sq"].index_copy_(0, rows, square)
    wide = steps.double()
    size = ((1 - beta2**wide).sqrt_() / (1 - beta1**wide)).to(p.dtype)
    change = mean.mul_(size).div_(square.sqrt_().add_(group["eps"]))
    p.index_add_(0, rows, change, alpha=-group["lr"])


def sgd(p: Tensor, rows: Tensor, values: Tensor, state: Values, group: Values) -> None:
    """torch's SGD; each row has its own momentum."""
    momentum = group.get("momentum", 0.0)
    if momentum:
        if state.get("momentum_buffer") is None:
            state["momentum_buffer"] = torch.zeros_like(p)
        values = state["momentum_buffer"].index_select(0, rows).mul_(momentum).add_(values)
        state["momentum_buffer"].index_copy_(0, rows, values)
    p.index_add_(0, rows, values, alpha=-group["lr"])


def adagrad(p: Tensor, rows: Tensor, values: Tensor, state: Values, group: Values) -> None:
    """torch's Adagrad, whose state is there from the start."""
    state["step"] += 1
    total = state["sum"].index_select(0, rows).addcmul_(values, values)
    state["sum"].index_copy_(0, rows, total)
    p.index_add_(0, rows, values / total.sqrt_().add_(group["eps"]), alpha=-group["lr"])
