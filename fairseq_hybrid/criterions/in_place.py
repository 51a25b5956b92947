"""Cross-entropy over all words whose logits become their own gradient.

Written with autograd, a softmax over V words leaves four to five matrices as wide as the
vocabulary: logits, log-probabilities, and the derivatives of both. Here the logits are the only
one. Each row is scored and overwritten with its gradient, softmax minus target, while it is in the
cache; the backward pass is the three products that no softmax can do without. Where even that
matrix would be larger than `ROOM`, there is one of some rows only, and these products are made
block by block in the forward pass.

    rows of features → logits → gradient ┬→ features' gradient        in backward
                          (one buffer)   └→ output weights' gradient  in backward, or later

The product that gives the weights' gradient can be left to somebody else (`late`), who computes it
when a worker would otherwise wait (models/late_gradients.py).

Shape suffixes: N rows (target words), R some of them, V vocabulary, D features.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from fairseq_hybrid.models.products import linear, weight_gradient

Late = Callable[[Tensor, Tensor], None]
"""takes derivatives_NV and inputs_ND, whose product is the gradient of the weight"""

ROOM = 512 << 20
"""bytes of logits that are kept until backward"""
ROOM_WITHOUT_GRADIENT = 64 << 20
STRIP, STRIP_ON_DEVICE = 1 << 18, 1 << 24
"""numbers that are gone over together: so many stay in a core's cache"""
NARROW = 1024
"""words up to which rounding as fairseq does costs nothing"""
FLOAT16_SCALE = 2.0**10
"""keeps small probabilities above what float16 takes for zero"""


class Loss(NamedTuple):
    loss: Tensor
    """sum over the rows that are not ignored, label-smoothed"""
    nll: Tensor
    """the same without smoothing, and without gradient"""
    correct: Tensor | None
    """how many rows have their target on top, if asked for"""


class How(NamedTuple):
    ignore: int
    """target of the rows that do not count"""
    smoothing: float = 0.0
    accuracy: bool = False
    room: int = ROOM
    vocabulary: int | None = None
    """that smoothing is over, if the rows of the weight are only some of it"""
    others_V: Tensor | None = None
    """what these get of `smoothing` x V / (V - 1), if it is not the same for all"""


def cross_entropy(
    features_ND: Tensor,
    weight_VD: Tensor,
    bias_V: Tensor | None,
    target_N: Tensor,
    how: How,
    late: Late | None = None,
) -> Loss:
    """The loss of `softmax(features @ weight.T + bias)`, as fairseq's criterions define it.

    With `late`, the weight gets no gradient in backward. (Not so under autocast, nor if there is no
    room: then it gets one as ever.)
    """
    if features_ND.size(0) == 0:  # of a worker without rows, which must go backward all the same
        nothing = features_ND.sum()
        correct = torch.zeros_like(target_N).sum() if how.accuracy else None
        return Loss(nothing, nothing.detach(), correct)
    kind = features_ND.device.type
    inputs = [features_ND, weight_VD, bias_V]
    if torch.is_autocast_enabled(kind):
        inputs, late = [_lower(x, torch.get_autocast_dtype(kind)) for x in inputs], None
    trains = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in inputs)
    with torch.autocast(kind, enabled=False):
        if trains:
            return Loss(*_CrossEntropy.apply(*inputs, target_N, how, late))
        return Loss(*Rows(*inputs, target_N, how).score())


def _lower(x: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return x if x is None or x.dtype == torch.float64 else x.to(dtype)


class Rows:
    """One pass over the rows, block by block."""

    def __init__(
        self, x_ND: Tensor, weight_VD: Tensor, bias_V: Tensor | None, target_N: Tensor, how: How
    ):
        self.x_ND, self.weight_VD, self.bias_V, self.how = x_ND, weight_VD, bias_V, how
        self.target_N, self.ignored_N = target_N, target_N.eq(how.ignore)
        # (a device would have to be waited for)
        self.ignores = target_N.device.type != "cpu" or bool(self.ignored_N.any())
        self.half = x_ND.dtype in (torch.float16, torch.bfloat16)
        self.kind = torch.float32 if self.half else x_ND.dtype
        self.scale = FLOAT16_SCALE if x_ND.dtype == torch.float16 else 1.0
        words = how.vocabulary or weight_VD.size(0)
        self.other = how.smoothing / (words - 1)
        """what each word gets of the target's probability"""
        self.at_target = 1 - self.other * words
        """what it keeps, beside that"""

    def block(self, room: int) -> int:
        row = self.weight_VD.size(0) * self.x_ND.element_size()
        return min(len(self.x_ND), max(1, room // row))

    def score(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """Loss, its unsmoothed part and the number of correct rows."""
        return self._go(self.block(min(ROOM_WITHOUT_GRADIENT, self.how.room)), False, None)

    def keep(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """The same; `gradient_NV` times `scale` is what logits were."""
        return self._go(len(self.x_ND), True, None)

    def use(self, weights: bool, bias: bool) -> tuple[Tensor, Tensor, Tensor | None]:
        """The same; the gradients `dx_ND`, `dweight_VD` and `dbias_V` are there afterwards."""
        self.dx_ND = torch.empty_like(self.x_ND)
        self.dweight_VD = torch.zeros_like(self.weight_VD, dtype=self.kind) if weights else None
        self.dbias_V = torch.zeros_like(self.bias_V, dtype=self.kind) if bias else None
        return self._go(self.block(self.how.room), True, self._products)

    def _go(
        self, block: int, gradient: bool, then: Callable[[slice, Tensor], None] | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        x_ND, losses, logits_RV = self.x_ND, [], None
        for start in range(0, len(x_ND), block):
            rows = slice(start, start + block)
            del logits_RV  # before there is another one
            logits_RV = linear(x_ND[rows], self.weight_VD, self.bias_V)
            losses += self._strips(logits_RV, rows, gradient)
            if then is not None:
                then(rows, logits_RV)
        self.gradient_NV = logits_RV
        nll, smooth, correct = (
            None if part[0] is None else torch.cat(part).masked_fill(self.ignored_N, 0).sum()
            for part in zip(*losses)
        )
        if smooth is None:
            return nll.clone(), nll, correct
        return self.at_target * nll + smooth, nll, correct

    def _strips(self, logits_RV: Tensor, rows: slice, gradient: bool) -> list[tuple]:
        some = STRIP if logits_RV.device.type == "cpu" else STRIP_ON_DEVICE
        size = max(1, some // logits_RV.size(1))
        parts = (logits_RV, self.target_N[rows], self.ignored_N[rows])
        return [
            self._strip(*strip, gradient) for strip in zip(*(part.split(size) for part in parts))
        ]

    def _strip(
        self, logits_RV: Tensor, target_R: Tensor, ignored_R: Tensor, gradient: bool
    ) -> tuple:
        """Negative log-likelihood, that of the other words, whether the best one is the target."""
        index_R1 = target_R.unsqueeze(1)
        right_R = logits_RV.argmax(1) == target_R if self.how.accuracy else None
        wide = gradient and not self.half and logits_RV.size(1) > NARROW
        score = self._scored_in_place if wide else self._scored_by_logs
        nll_R, smooth_R, share_RV = score(logits_RV, index_R1, gradient)
        if gradient:
            share_RV.scatter_add_(1, index_R1, share_RV.new_full(index_R1.shape, -self.at_target))
            if self.how.smoothing > 0:
                share_RV.sub_(self.other if self.how.others_V is None else self.how.others_V)
            if self.ignores:
                share_RV.masked_fill_(ignored_R.unsqueeze(1), 0)
            if self.half:
                logits_RV.copy_(share_RV.mul_(self.scale))
        return nll_R, smooth_R, right_R

    def _scored_by_logs(
        self, logits_RV: Tensor, index_R1: Tensor, gradient: bool
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        """Both parts of the loss, and with `gradient` the probabilities, rounded as by fairseq."""
        logs_RV = logits_RV.log_softmax(1, dtype=self.kind)
        nll_R, smooth_R = -logs_RV.gather(1, index_R1).squeeze(1), None
        if self.how.smoothing > 0:
            smooth_R = -self._of_others(logs_RV)
        if gradient:
            logs_RV = logs_RV.exp_() if self.half else torch.exp(logs_RV, out=logits_RV)
        return nll_R, smooth_R, logs_RV

    def _scored_in_place(
        self, logits_RV: Tensor, index_R1: Tensor, gradient: bool
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        """The same in half of the time: no number has its exponential taken twice."""
        top_R, smooth_R = logits_RV.amax(1), None
        nll_R = top_R - logits_RV.gather(1, index_R1).squeeze(1)
        if self.how.smoothing > 0:
            smooth_R = -self._of_others(logits_RV)
        share_RV = torch.softmax(logits_RV, 1, out=logits_RV)
        log_sum_R = -share_RV.amax(1).log()  # of exp(score - top)
        if smooth_R is not None:
            others_V = self.how.others_V
            share = self.other * logits_RV.size(1) if others_V is None else others_V.sum()
            smooth_R += share * (top_R + log_sum_R)
        return nll_R + log_sum_R, smooth_R, share_RV

    def _of_others(self, logs_RV: Tensor) -> Tensor:
        others_V = self.how.others_V
        return self.other * logs_RV.sum(1) if others_V is None else logs_RV @ others_V.to(self.kind)

    def _products(self, rows: slice, gradient_RV: Tensor) -> None:
        self.dx_ND[rows] = linear(gradient_RV, self.weight_VD.t())
        if self.dweight_VD is not None:
            words = max(1, ROOM_WITHOUT_GRADIENT // (4 * self.x_ND.size(1)))
            for some_RV, sum_VD in zip(gradient_RV.split(words, 1), self.dweight_VD.split(words)):
                sum_VD += weight_gradient(some_RV, self.x_ND[rows])
        if self.dbias_V is not None:
            self.dbias_V += gradient_RV.sum(0, dtype=self.kind)


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x_ND, weight_VD, bias_V, target_N, how: How, late: Late | None):
        rows = Rows(x_ND, weight_VD, bias_V, target_N, how)
        # float16 has no place for sums of blocks, nor for gradients without their loss scale.
        ctx.kept = rows.block(how.room) == len(x_ND) or x_ND.dtype == torch.float16
        if ctx.kept:
            loss, nll, correct = rows.keep()
            ctx.save_for_backward(x_ND, weight_VD, rows.gradient_NV)
            ctx.scale, ctx.late = rows.scale, late
        else:
            loss, nll, correct = rows.use(*ctx.needs_input_grad[1:3])
            ctx.save_for_backward(rows.dx_ND, rows.dweight_VD, rows.dbias_V)
        ctx.mark_non_differentiable(nll, *(() if correct is None else (correct,)))
        return loss, nll, correct

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, dloss: Tensor, *_):
        if not ctx.kept:
            return *(_times(made, dloss) for made in ctx.saved_tensors), None, None, None
        x_ND, weight_VD, gradient_NV = ctx.saved_tensors
        scale = dloss / ctx.scale
        dx_ND = linear(gradient_NV, weight_VD.t()).mul_(scale)
        x_ND = (x_ND * scale).to(x_ND.dtype)
        dweight_VD = dbias_V = None
        if ctx.late is not None:
            ctx.late(gradient_NV, x_ND)
        elif ctx.needs_input_grad[1]:
            dweight_VD = weight_gradient(gradient_NV, x_ND)
        if ctx.needs_input_grad[2]:
            dbias_V = gradient_NV.sum(0, dtype=dloss.dtype).mul_(scale)
        return dx_ND, dweight_VD, dbias_V, None, None, None


def _times(made: Tensor | None, factor: Tensor) -> Tensor | None:
    """On CPU a factor of one, which is the usual one, costs nothing."""
    if made is None or (factor.device.type == "cpu" and factor == 1):
        return made
    return made * factor
