"""``--lr-scheduler exponential`` and ``newbob``: the learning rates of Kaldi's recipes.

* exponential: from ``--lr`` to ``--final-lr``, by the same factor for the same share of training
  (``--max-update``, or else whole epochs of ``--max-epoch``).
* newbob: ``--lr`` until an epoch improves the validation loss by less than ``--newbob-start`` (of
  the loss), then halved at every epoch, until it improves by less than ``--newbob-end``.

A mean over n workers' models moves by a mean of their steps: ``--lr-scale-workers sqrt`` or
``linear`` multiplies all rates by the root of their number, or by it.
"""

import math
from dataclasses import dataclass
from typing import Any, List, Optional  # noqa: UP035  (as fairseq wants it)

from fairseq.dataclass import FairseqDataclass
from fairseq.optim.lr_scheduler import FairseqLRScheduler, register_lr_scheduler
from omegaconf import II

from fairseq_hybrid import options
from fairseq_hybrid.errors import UserError

# (No `from __future__ import annotations` here: fairseq wants the types themselves.)

EXPONENTIAL, NEWBOB = "exponential", "newbob"
SHARE = {"good": lambda v: v >= 0, "wrong": "is not a share of the loss: give 0 or more"}
SCALES = {"none": lambda n: 1.0, "sqrt": math.sqrt, "linear": float}
FINISHED = -1.0
"""a rate that makes fairseq stop: never above --stop-min-lr, which is -1 by default"""


@dataclass
class ScaledConfig(FairseqDataclass):
    lr_scale_workers: str = options.field(
        "none", "multiply rates by 1 (none), the root (sqrt) or the number (linear) of workers",
        **options.known(SCALES),
    )  # fmt: skip
    lr: List[float] = II("optimization.lr")  # noqa: UP006, RUF009
    distributed_world_size: int = II("distributed_training.distributed_world_size")


class Scaled(FairseqLRScheduler):
    """A schedule that begins with ``--lr`` times what the number of workers makes of it."""

    name: str

    def __init__(self, cfg: Any, optimizer: Any):
        super().__init__(cfg, optimizer)
        validate_rates(self.name, cfg)
        self.scale = SCALES[cfg.lr_scale_workers](cfg.distributed_world_size)
        self.first = cfg.lr[0] * self.scale
        self.optimizer.set_lr(self.first)


def validate_schedule(cfg: Any) -> None:
    """Refuse what cannot work, before any worker starts."""
    name = getattr(cfg.lr_scheduler, "_name", None)
    if name in (EXPONENTIAL, NEWBOB):
        validate_rates(name, cfg.lr_scheduler)


def validate_rates(name: str, cfg: Any) -> None:
    options.validate_values_of(name, cfg)
    if len(cfg.lr) > 1:
        raise UserError(f"--lr {','.join(map(str, cfg.lr))}: --lr-scheduler {name} takes one rate")
    if name != EXPONENTIAL:
        return
    if not (last_rate(cfg) > 0 and cfg.lr[0] > 0):
        raise UserError(
            f"--lr {cfg.lr[0]} to --final-lr {last_rate(cfg)}: --lr-scheduler {name} needs both "
            "above 0"
        )
    if cfg.max_update <= 0 and cfg.max_epoch <= 0:
        raise UserError(
            f"--lr-scheduler {name} must know when training ends: give --max-update or --max-epoch"
        )


def last_rate(cfg: Any) -> float:
    return cfg.lr[0] / 10 if cfg.final_lr is None else cfg.final_lr


@dataclass
class ExponentialConfig(ScaledConfig):
    final_lr: Optional[float] = options.field(
        None, "rate at the end of training (default: a tenth of --lr)"
    )
    max_update: int = II("optimization.max_update")
    max_epoch: int = II("optimization.max_epoch")


@register_lr_scheduler(EXPONENTIAL, dataclass=ExponentialConfig)
class Exponential(Scaled):
    name = EXPONENTIAL

    def __init__(self, cfg: ExponentialConfig, optimizer: Any):
        super().__init__(cfg, optimizer)
        self.ratio = last_rate(cfg) / cfg.lr[0]
        self.epoch = 1

    def step_begin_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def step_update(self, num_updates: int) -> float:
        if self.cfg.max_update > 0:
            progress = num_updates / self.cfg.max_update
        else:
            progress = (self.epoch - 1) / self.cfg.max_epoch
        self.optimizer.set_lr(self.first * self.ratio ** min(progress, 1.0))
        return self.optimizer.get_lr()


@dataclass
class NewbobConfig(ScaledConfig):
    newbob_start: float = options.field(
        0.01, "begin to halve when an epoch improves validation by less than this share", **SHARE
    )
    newbob_end: float = options.field(
        0.001, "while halving, stop when an epoch gains less", **SHARE
    )


options.declare(
    *options.rows_of(ExponentialConfig, "lr_scheduler", EXPONENTIAL),
    *options.rows_of(NewbobConfig, "lr_scheduler", NEWBOB),
)


@register_lr_scheduler(NEWBOB, dataclass=NewbobConfig)
class Newbob(Scaled):
    name = NEWBOB

    def __init__(self, cfg: NewbobConfig, optimizer: Any):
        super().__init__(cfg, optimizer)
        self.rate, self.halving, self.finished = self.first, False, False

    def step(self, epoch: int, val_loss: Optional[float] = None) -> None:
        if val_loss is None:
            return
        gain = math.inf if self.best is None else (self.best - val_loss) / abs(self.best)
        super().step(epoch, val_loss)
        self.finished = self.halving and gain < self.cfg.newbob_end
        self.halving = self.halving or gain < self.cfg.newbob_start
        if self.halving:
            self.rate /= 2
        self.optimizer.set_lr(self.rate)

    def step_update(self, num_updates: int) -> float:
        return FINISHED if self.finished else self.optimizer.get_lr()

    def state_dict(self) -> dict:
        return {"best": self.best, "rate": self.rate, "halving": self.halving}

    def load_state_dict(self, state_dict: dict) -> None:
        super().load_state_dict(state_dict)
        self.rate, self.halving = state_dict["rate"], state_dict["halving"]
        self.optimizer.set_lr(self.rate)
