"""``--optimizer ng_sgd``: SGD with gradients preconditioned by Kaldi's online natural gradient.

Povey, Zhang, Khudanpur (2015); Su & Chen (2015) use it under model averaging. Every weight matrix
has two running estimates of a Fisher matrix (natural_gradient.py), one for its inputs, one for its
outputs. Directions in which inputs or derivatives vary much are shortened, the others lengthened;
momentum, weight decay and the step are those of ``--optimizer sgd``.

A layer (`nn.Linear`) has the exact form, a product of preconditioned derivatives and preconditioned
inputs with a 1 for the bias. `NaturalLinear` makes it in the backward pass in place of the plain
gradient, so it adds up over ``--update-freq`` and is summed over workers like any other. All other
matrices (a fused LSTM, convolutions, a layer's weight that is shared or used without the layer)
are preconditioned along their axes as soon as their gradients are complete; embeddings along their
rows only, which are words. Vectors are left alone.

The trainer hands over the model (`watch`), so that layers and embeddings can be told from others.

    fairseq-train ... --user-dir fairseq_hybrid --optimizer ng_sgd --lr 0.5 --momentum 0.9
"""

import contextlib
import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, List, Optional  # noqa: UP035  (as fairseq wants it)

import torch
import torch.distributed as dist
from fairseq.dataclass import FairseqDataclass
from fairseq.distributed import utils as distributed_utils
from fairseq.optim import register_optimizer
from omegaconf import II
from torch import nn

from fairseq_hybrid import options
from fairseq_hybrid.errors import UserError
from fairseq_hybrid.optim.optimizer import WatchesModel
from fairseq_hybrid.optim.rows import sparse_rows
from fairseq_hybrid.papers.natural_gradient import NaturalLinear, TwoSided

# (No `from __future__ import annotations` here: fairseq wants the types themselves.)

logger = logging.getLogger(__name__)

NAME = "ng_sgd"
BACKENDS = ("pytorch_ddp", "c10d", "legacy_ddp", "no_c10d", "model_averaging", "sampled")
"""those in which every worker has all gradients, and in the shape of the weights"""


def limits(good: Callable[[float], bool], wanted: str) -> dict[str, Any]:
    return {"good": good, "wrong": f"does not go with --optimizer {NAME}: give {wanted}"}


ENOUGH = limits(lambda n: n >= 1, "1 or more")


@dataclass
class NaturalGradientSGDConfig(FairseqDataclass):
    momentum: float = options.field(
        0.0, "momentum factor", **limits(lambda m: 0 <= m < 1, "0 <= M < 1")
    )
    weight_decay: float = options.field(
        0.0, "weight decay", argparse_alias="--wd",
        **limits(lambda x: 0 <= x < math.inf, "0 or more"),
    )  # fmt: skip
    ng_rank_in: int = options.field(20, "directions kept of what goes into a weight", **ENOUGH)
    ng_rank_out: int = options.field(
        80, "directions kept of the derivatives by what comes out", **ENOUGH
    )
    ng_update_period: int = options.field(
        4, "batches between two updates of the Fisher matrices", **ENOUGH
    )
    ng_history: float = options.field(
        2000.0, "samples (rows) that the Fisher matrices look back",
        **limits(lambda x: 0 < x < math.inf, "more than 0, such as 2000"),
    )  # fmt: skip
    ng_alpha: float = options.field(
        4.0, "smoothing of the Fisher matrices with their mean diagonal",
        **limits(lambda x: 0 <= x < math.inf, "0 or more, such as 4"),
    )  # fmt: skip
    ng_max_change: float = options.field(
        0.0, "largest norm of a parameter's change in one update (0: any)",
        **limits(lambda x: 0 <= x < math.inf, "0 (any change) or more, such as 0.75"),
    )  # fmt: skip
    lr: List[float] = II("optimization.lr")  # noqa: UP006, RUF009


options.declare(*options.rows_of(NaturalGradientSGDConfig, "optimizer", NAME))


def validate_ng_sgd(cfg: Any) -> None:
    """Refuse what cannot work."""
    if getattr(cfg.optimizer, "_name", None) != NAME:
        return
    options.validate_values_of(NAME, cfg.optimizer)
    without = (*options.LOW_PRECISION, "use_bmuf", "zero_sharding")
    options.refuse_together(cfg, f"--optimizer {NAME}", *without)
    dt = cfg.distributed_training
    if str(dt.ddp_backend) not in BACKENDS:
        raise UserError(
            f"--ddp-backend {dt.ddp_backend} does not go with --optimizer {NAME}: use one of "
            f"{', '.join(BACKENDS)}, or --optimizer sgd"
        )


@contextlib.contextmanager
def capped(params: Iterable[nn.Parameter], max_change: float) -> Iterator[None]:
    """Around a step: no parameter moves further than `max_change`."""
    before = []
    for p in params:
        if p.grad is not None:
            rows = p.grad.coalesce().indices()[0] if p.grad.is_sparse else None
            before.append((p, rows, p.clone() if rows is None else p[rows]))
    yield
    for p, rows, old in before:
        new = p if rows is None else p[rows]
        share = max_change / torch.linalg.vector_norm(new - old)
        moved = torch.where(share < 1, old.lerp(new, share.clamp(max=1)), new)
        p.copy_(moved) if rows is None else p.index_copy_(0, rows, moved)


@register_optimizer(NAME, dataclass=NaturalGradientSGDConfig)
class NaturalGradientSGD(WatchesModel):
    """torch's SGD, and for every matrix what is known of its Fisher matrix."""

    def __init__(self, cfg: NaturalGradientSGDConfig, params: Any):
        super().__init__(cfg)
        self._optimizer = torch.optim.SGD(params, **self.optimizer_config)
        options = {"period": cfg.ng_update_period, "history": cfg.ng_history, "alpha": cfg.ng_alpha}
        self.natural: dict[nn.Parameter, TwoSided] = {
            p: TwoSided(cfg.ng_rank_in, cfg.ng_rank_out, **options)
            for p in self.params
            if p.dim() > 1
        }
        self.layers: dict[nn.Parameter, NaturalLinear] = {}
        """weights whose gradients are born preconditioned"""
        self.embeddings: set[nn.Parameter] = set()
        self.settled = False

    @property
    def optimizer_config(self) -> dict:
        """What a resume takes from its command line, not from the checkpoint."""
        cfg = self.cfg
        return {"lr": cfg.lr[0], "momentum": cfg.momentum, "weight_decay": cfg.weight_decay}

    def watch(self, *roots: nn.Module) -> None:
        """Tell layers and embeddings from other matrices."""
        modules = list(dict.fromkeys(m for root in roots for m in root.modules()))
        users = Counter(p for m in modules for p in m._parameters.values())
        for m in modules:
            weight = m._parameters.get("weight")
            if weight not in self.natural:
                continue
            if isinstance(m, (nn.Embedding, nn.EmbeddingBag)):
                self.embeddings.add(weight)
            elif is_linear(m) and users[weight] == 1:
                self.layers[weight] = NaturalLinear(m, self.natural[weight])

    def around_step(self) -> contextlib.AbstractContextManager:
        if self.cfg.ng_max_change > 0:
            return capped(self.params, self.cfg.ng_max_change)
        return contextlib.nullcontext()

    @torch.no_grad()
    def all_reduce_grads(self, module: nn.Module) -> None:
        """The moment at which gradients are complete, and sums still: neither scaled nor clipped,
        which the Fisher matrices would take for a change of the data."""
        super().all_reduce_grads(module)
        if not self.settled:
            self._settle()
        for p in module.parameters():
            if p.grad is not None and is_matrix(p) and p not in self.layers:
                self._precondition(p)

    def _settle(self) -> None:
        """In the first update: the weights of layers that nobody calls are treated like others.

        All workers decide together, for their sums must be of one kind.
        """
        self.settled = True
        if not self.layers:
            return
        device = next(iter(self.layers)).device
        called = torch.tensor([float(m.called) for m in self.layers.values()], device=device)
        if dist.is_initialized():
            dist.all_reduce(called, op=dist.ReduceOp.MAX)
        for (weight, layer), yes in zip(list(self.layers.items()), called.tolist()):
            if not yes:
                layer.release()
                del self.layers[weight]
        logger.info(
            f"natural gradient: {len(self.layers)} layers by their inputs and output derivatives, "
            "other matrices along their axes"
        )

    def _precondition(self, p: nn.Parameter) -> None:
        natural = self.natural[p]
        if p.grad.is_sparse:
            grad = p.grad.coalesce()
            p.grad = sparse_rows(grad.indices()[0], natural.of_rows(grad.values()), p)
            return
        grad = p.grad.flatten(1)
        new = natural.of_rows(grad) if p in self.embeddings else natural.of_gradient(grad)
        p.grad.copy_(new.reshape(p.shape))

    def follow_first(self, group: Any) -> None:
        """Go on with what worker 0 has seen, which is what a checkpoint holds."""
        device = next(self.params).device
        self._load_seen(distributed_utils.broadcast_object(self._seen(), 0, group, device))

    def state_dict(self) -> dict:
        return {**super().state_dict(), "natural_gradient": self._seen()}

    def load_state_dict(self, state_dict: dict, optimizer_overrides: Optional[dict] = None) -> None:
        super().load_state_dict(state_dict, optimizer_overrides)
        self._load_seen(state_dict["natural_gradient"])

    def _shape(self) -> dict:
        """The options that what has been seen depends on."""
        return {name: getattr(self.cfg, name) for name in ("ng_rank_in", "ng_rank_out", "ng_alpha")}

    def _seen(self) -> dict:
        matrices = [natural.state_dict() for natural in self.natural.values()]
        return {"options": self._shape(), "matrices": matrices}

    def _load_seen(self, seen: dict) -> None:
        if seen["options"] != self._shape():
            logger.info("natural gradient: other options than before, the estimates start anew")
            return
        for (p, natural), state in zip(self.natural.items(), seen["matrices"]):
            natural.load_state_dict(state, p.device)


def is_matrix(p: nn.Parameter) -> bool:
    """Whether it has two axes, and not a vector's numbers in a row or column."""
    return p.dim() > 1 and min(p.size(0), p[0].numel()) > 1


def is_linear(module: nn.Module) -> bool:
    return type(module).forward is nn.Linear.forward
