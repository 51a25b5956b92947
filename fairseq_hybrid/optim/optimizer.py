"""fairseq's optimizers, their gradients scaled once an update, with faster steps where there are.

`HybridOptimizer` holds the optimizer that fairseq has built, as fairseq's ``FP16Optimizer`` does,
and passes on what it does not do itself:

* scale       factors, norm and clipping, in one multiplication of all gradients (`GradientScale`);
              or in the inner optimizer's own way, where it has one (`InnerScale`: loss scales)
* step rules  each updates the parameters that it can: rows of sparse gradients (rows.py), Adam in
              one kernel (one_pass.py); the inner optimizer has those that are left
* gradients   what a backend knows about them (`Gradients`; backends/base.py)

State and name in checkpoints are the inner optimizer's (trainer.py), so fairseq alone resumes them.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from fairseq.optim import AMPOptimizer, FairseqBMUF, FairseqOptimizer
from fairseq.optim.adam import FairseqAdam
from torch import Tensor, nn

from fairseq_hybrid.optim import one_pass, rows

logger = logging.getLogger(__name__)

GradientGroup = tuple[list[nn.Parameter], Any]
"""parameters, and what their gradients are to be multiplied by"""
StepRule = Callable[[torch.optim.Optimizer], list[nn.Parameter]]
"""updates the parameters that it can, and returns them"""


class Gradients:
    """What an optimizer asks about gradients, answered for one worker or fairseq's own backends."""

    world = 1
    mean_gradients = True
    """whether they are means over the workers, as fairseq takes them to be; otherwise they are sums
    or one worker's own, and fairseq's factor is by the number of workers too large"""
    sharded = False
    """whether every worker has those of its own parameters only"""
    scales_once = False
    """whether they are scaled here even where no step rule applies"""

    def gradient_groups(self, params: Sequence[nn.Parameter], factor: Any) -> list[GradientGroup]:
        """All gradients of an update, which fairseq wants multiplied by `factor`."""
        found = [p for p in params if p.grad is not None]
        for p in found:
            if p.grad is not None and p.grad.is_sparse:
                p.grad = p.grad.coalesce()
        return [(found, factor if self.mean_gradients else factor / self.world)]

    def grad_norm(self, groups: Sequence[GradientGroup]) -> Tensor:
        """Of the whole gradient, multiplied by the factors."""
        norms = []
        for params, factor in groups:
            each = [torch.linalg.vector_norm(values) for values in numbers(params)]
            if each:
                norms.append(torch.linalg.vector_norm(torch.stack(each)) * factor)
        if len(norms) > 1:
            return torch.linalg.vector_norm(torch.stack(norms))
        return norms[0] if norms else torch.zeros(())

    def apply_gradients(self, step: Callable[[], None]) -> None:
        """Use them: by a step of this worker's optimizer."""
        step()


def numbers(params: Iterable[nn.Parameter]) -> list[Tensor]:
    """Those that the gradients consist of."""
    return [rows.parts(p.grad) for p in params if p.grad is not None]


class GradientScale:
    """All factors of an update in one multiplication of the gradients.

    fairseq makes three of them: the mean over the workers, the sample size, clipping.
    """

    def __init__(self, gradients: Gradients):
        self.gradients, self.factor = gradients, 1.0

    def multiply(self, c: Any) -> None:
        """Noted, and done by `clip`."""
        self.factor = self.factor * c

    @torch.no_grad()
    def clip(self, params: Iterable[nn.Parameter], max_norm: float, aggregate: Any) -> Tensor:
        """Multiply by all factors, so that the norm is at most `max_norm` (0: any); returns what it
        was before clipping."""
        groups = self.gradients.gradient_groups(list(params), self.factor)
        self.factor = 1.0
        norm = self.norm(groups)
        # What is not finite on one worker shows in the norm, and becomes not-a-number on all.
        scale = 1 + 0 * norm
        if max_norm > 0:
            scale = scale * (max_norm / (norm + 1e-6)).clamp(max=1)
        for members, factor in groups:
            if members:
                torch._foreach_mul_(numbers(members), scale * factor)
        return norm

    def norm(self, groups: Sequence[GradientGroup]) -> Tensor:
        return self.gradients.grad_norm(groups)


class AmpScale(GradientScale):
    """The same under ``--amp``: all workers make an update, or none of them.

    torch's scaler skips an update by the gradients of its own worker, and workers may have others;
    so it must find not-a-number on all of them if one has it (see above). It looks when it
    unscales, and it does that in `step`. fairseq has it done before clipping as well, for what the
    scaler takes for another optimizer, and so divides by the scale twice.
    """

    def __init__(self, gradients: Gradients, inner: AMPOptimizer):
        super().__init__(gradients)
        self.inner = inner

    def norm(self, groups: Sequence[GradientGroup]) -> Tensor:
        """Without the loss scale. (`get_scale` would make the host wait for the device.)"""
        norm = super().norm(groups)
        return norm / self.inner.scaler.scale(torch.ones((), device=norm.device))

    def clip(self, params: Iterable[nn.Parameter], max_norm: float, aggregate: Any) -> Tensor:
        norm = super().clip(params, max_norm, aggregate)
        if not torch.isfinite(norm):  # a wait for the device that fairseq's trainer makes anyway
            self._overflow()
        return norm

    def _overflow(self) -> None:
        if not self.inner.scaler.is_enabled():  # on CPU: there is no scale to lower
            raise FloatingPointError("gradients are Nan/Inf")
        scale, least = self.inner.next_loss_scale, self.inner.min_loss_scale
        if scale <= least:
            raise FloatingPointError(
                f"--amp: the loss scale would fall to {scale}, with --min-loss-scale {least}: the "
                "loss probably explodes"
            )
        logger.info(f"--amp: gradient overflow, the loss scale falls to {scale}")


class InnerScale:
    """Leaves it to the inner optimizer."""

    def __init__(self, gradients: Gradients, inner: FairseqOptimizer):
        self.gradients, self.inner = gradients, inner

    def multiply(self, c: Any) -> None:
        self.inner.multiply_grads(c if self.gradients.mean_gradients else c / self.gradients.world)

    def clip(self, params: Iterable[nn.Parameter], max_norm: float, aggregate: Any) -> Tensor:
        if self.gradients.sharded:
            groups = self.gradients.gradient_groups(list(params), 1.0)
            return self.inner.clip_grad_norm(max_norm, lambda _: self.gradients.grad_norm(groups))
        return self.inner.clip_grad_norm(max_norm, aggregate)


class WatchesModel(FairseqOptimizer):
    """A fairseq optimizer that looks at the layers its parameters belong to."""

    def watch(self, *roots: nn.Module) -> None:
        """Called when it has been built, with the model and the criterion."""

    def follow_first(self, group: Any) -> None:
        """Called before a save: what a checkpoint holds of this is worker 0's."""

    def around_step(self) -> contextlib.AbstractContextManager[None]:
        """Around each step, whoever makes it."""
        return contextlib.nullcontext()


class HybridOptimizer(FairseqOptimizer):
    """`inner` is fairseq's; see above."""

    def __init__(
        self,
        inner: FairseqOptimizer,
        gradients: Gradients | None = None,
        scale: GradientScale | InnerScale | None = None,
        rules: Sequence[StepRule] = (),
    ):
        FairseqOptimizer.__init__(self, getattr(inner, "cfg", None))
        self.inner, self.rules = inner, tuple(rules)
        self.gradients = gradients or Gradients()
        self.scale = scale or GradientScale(self.gradients)

    @property
    def scales_once(self) -> bool:
        return isinstance(self.scale, GradientScale)

    def like_this(self, params: Iterable[nn.Parameter]) -> HybridOptimizer:
        """Another one, of parameters that only one worker has."""
        options = getattr(self.inner, "cfg", None) or self.inner.args
        return HybridOptimizer(type(self.inner)(options, list(params)), rules=EVERY_RULE)

    # Scaling and stepping

    def multiply_grads(self, c: Any) -> None:
        self.scale.multiply(c)

    def clip_grad_norm(self, max_norm: float, aggregate_norm_fn: Any = None) -> Tensor:
        return self.scale.clip(self.params, max_norm, aggregate_norm_fn)

    def step(self, *args: Any, **kwargs: Any) -> None:
        self.gradients.apply_gradients(functools.partial(self._step, *args, **kwargs))

    @torch.no_grad()
    def _step(self, *args: Any, **kwargs: Any) -> None:
        watches = isinstance(self.inner, WatchesModel)
        with self.inner.around_step() if watches else contextlib.nullcontext():
            done = [p for rule in self.rules for p in rule(self.optimizer)]
            with without(self.optimizer, done):
                self.inner.step(*args, **kwargs)

    def follow_first(self, group: Any) -> None:
        if isinstance(self.inner, WatchesModel):
            self.inner.follow_first(group)

    # What is the inner optimizer's

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        return self.inner.optimizer

    @optimizer.setter
    def optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        self.inner.optimizer = optimizer

    @property
    def optimizer_config(self) -> dict[str, Any]:
        return self.inner.optimizer_config

    @property
    def param_groups(self) -> Any:
        return self.inner.param_groups

    @property
    def scaler(self) -> Any:
        """Of the loss, with --fp16 and --amp."""
        return self.inner.scaler

    @property
    def fp32_params(self) -> Any:
        """The float32 copies that --fp16 trains."""
        return getattr(self.inner, "fp32_params", None)

    @property
    def supports_groups(self) -> bool:
        return self.inner.supports_groups

    def get_lr(self) -> float:
        return self.inner.get_lr()

    def set_lr(self, lr: float) -> None:
        self.inner.set_lr(lr)

    def state_dict(self) -> dict[str, Any]:
        return self.inner.state_dict()

    def load_state_dict(
        self, state_dict: dict[str, Any], optimizer_overrides: dict[str, Any] | None = None
    ) -> None:
        self.inner.load_state_dict(state_dict, optimizer_overrides)

    def backward(self, loss: Tensor) -> None:
        self.inner.backward(loss)

    def all_reduce_grads(self, module: nn.Module) -> None:
        self.inner.all_reduce_grads(module)

    def zero_grad(self) -> None:
        self.inner.zero_grad()

    def average_params(self) -> None:
        self.inner.average_params()


class HybridAmpOptimizer(HybridOptimizer, AMPOptimizer):
    """Around fairseq's for ``--amp``: its tasks use lower precision if the optimizer is of that
    class."""

    inner: AMPOptimizer

    @property
    def fp32_optimizer(self) -> FairseqOptimizer:
        return self.inner.fp32_optimizer


EVERY_RULE = (rows.step, one_pass.step)


def wrap(
    inner: FairseqOptimizer,
    gradients: Gradients | None = None,
    *,
    by_rows: bool = False,
    of: Sequence[nn.Module] = (),
) -> HybridOptimizer:
    """Around what fairseq has built for the parameters `of` a model, and of a criterion.

    `by_rows`: gradients may have some rows only. What fairseq does with models of its own stays as
    it is, to the last digit; those of ours have Adam in one kernel.
    """
    gradients = gradients or Gradients()
    if isinstance(inner, FairseqBMUF):  # it averages what its optimizer makes of the gradients
        inner._optimizer = wrap(inner._optimizer, gradients, by_rows=by_rows)
        return HybridOptimizer(inner, gradients, InnerScale(gradients, inner))
    if isinstance(inner, WatchesModel):
        inner.watch(*of)
    rules: tuple[StepRule, ...] = ()
    if by_rows:
        rules = EVERY_RULE
    elif isinstance(inner, FairseqAdam) and any(map(is_ours, of[:1])):
        rules = (one_pass.step,)
    scale: GradientScale | InnerScale
    if not (rules or gradients.scales_once) or scales_itself(inner):
        scale = InnerScale(gradients, inner)
    elif isinstance(inner, AMPOptimizer):
        scale = AmpScale(gradients, inner)
    else:
        scale = GradientScale(gradients)
    kind = HybridAmpOptimizer if isinstance(inner, AMPOptimizer) else HybridOptimizer
    return kind(inner, gradients, scale, rules)


def is_ours(module: nn.Module) -> bool:
    return type(module).__module__.partition(".")[0] == __name__.partition(".")[0]


def scales_itself(inner: FairseqOptimizer) -> bool:
    """Whether it has its own way, of which only --amp's is known here."""
    if isinstance(inner, AMPOptimizer):
        return False
    names = ("multiply_grads", "clip_grad_norm")
    return any(getattr(type(inner), n) is not getattr(FairseqOptimizer, n) for n in names)


@contextlib.contextmanager
def without(optimizer: torch.optim.Optimizer, done: Sequence[nn.Parameter]) -> Iterator[None]:
    """The optimizer has the other parameters only."""
    if not done:
        yield
        return
    known = {id(p) for p in done}
    groups = [(group, group["params"]) for group in optimizer.param_groups]
    for group, params in groups:
        group["params"] = [p for p in params if id(p) not in known]
    try:
        yield
    finally:
        for group, params in groups:
            group["params"] = params
