"""Flags of `fairseq-hybrid-pretrain`, their defaults, and what is refused before anything starts.

All flags of fairseq-train are understood, so that one list of options serves both commands. Those
of data, model, workers, saving and log are used; optimizer, criterion and batches are not.

The defaults are those of Kaldi's recipes for acoustic models, but for the minibatch.
"""

import math
import os
from argparse import ArgumentParser, Namespace
from dataclasses import asdict, dataclass
from typing import Any, Optional

from fairseq.dataclass import FairseqDataclass
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.models import ARCH_MODEL_REGISTRY

from fairseq_hybrid import options
from fairseq_hybrid.backends import averaging
from fairseq_hybrid.errors import UserError
from fairseq_hybrid.models import feedforward_lm_options
from fairseq_hybrid.models.feedforward_lm import FeedforwardLanguageModel
from fairseq_hybrid.options import field

RESULT = "pretrained.pt"
PROGRESS = "pretraining_last.pt"


ENOUGH = {"good": lambda n: n >= 1, "wrong": "is too small: give 1 or more"}
POSITIVE = {"good": lambda x: 0 < x < math.inf, "wrong": "is too small: give more than 0"}
MOMENTUM = {"good": lambda m: 0 <= m < 1, "wrong": "is not a momentum: give 0 <= M < 1"}
PENALTY = {"good": lambda x: 0 <= x < math.inf, "wrong": "is not a penalty: give 0 or more"}


@dataclass
class Settings(FairseqDataclass):
    """How the machines are trained."""

    # No `from __future__ import annotations` here: fairseq wants the types themselves.

    rbm_gaussian_lr: float = field(
        0.01, "learning rate of the first layer (real visible units)", **POSITIVE
    )
    rbm_gaussian_epochs: int = field(2, "epochs of the first layer (real visible units)", **ENOUGH)
    rbm_lr: float = field(
        0.4, "learning rate of the other layers (binary visible units)", **POSITIVE
    )
    rbm_epochs: int = field(1, "epochs of each of the other layers", **ENOUGH)
    rbm_momentum: float = field(
        0.5, "at the start of a layer; rates are times 1 - momentum", **MOMENTUM
    )
    rbm_final_momentum: float = field(
        0.9, "from the middle of a layer on; rises linearly until then", **MOMENTUM
    )
    rbm_weight_decay: float = field(2e-4, "L2 penalty of the weights", **PENALTY)
    rbm_weight_scale: float = field(
        0.1, "standard deviation of the weights at the start", **POSITIVE
    )
    rbm_minibatch: int = field(128, "words per update and worker", **ENOUGH)
    embeddings_from: Optional[str] = field(
        None,
        "checkpoint of a language model with the same dictionary, whose input embeddings are used "
        "instead of random ones",
    )


def add_args(parser: ArgumentParser) -> None:
    gen_parser_from_dataclass(parser.add_argument_group("Pretraining"), Settings())


def settings_of(args: Namespace) -> Settings:
    names = Settings.__dataclass_fields__
    return Settings(**{name: getattr(args, name) for name in names if hasattr(args, name)})


def validate(cfg: Any, settings: Settings) -> None:
    """Refuse what cannot work: the flag, its value, the way out."""
    arch = getattr(cfg.model, "_name", None) or getattr(cfg.model, "arch", None)
    if ARCH_MODEL_REGISTRY.get(arch) is not FeedforwardLanguageModel:
        able = [a for a, m in ARCH_MODEL_REGISTRY.items() if m is FeedforwardLanguageModel]
        raise UserError(
            f"--arch {arch} has no layers that can be pretrained: use {', '.join(able)}"
        )
    if cfg.model.activation != "sigmoid":
        raise UserError(
            f"--activation {cfg.model.activation} cannot be pretrained, only layers of sigmoid "
            "units are Boltzmann machines: use --activation sigmoid, or train without pretraining"
        )
    options.validate_values(cfg)
    for option in options.rows_of(Settings):
        option.validate(settings)
    if cfg.distributed_training.distributed_world_size > 1:
        options.refuse_together(cfg, "--ddp-backend model_averaging", *averaging.WITHOUT)
    if settings.embeddings_from and not os.path.isfile(settings.embeddings_from):
        raise UserError(
            f"--embeddings-from {settings.embeddings_from} does not exist: correct the path, or "
            "leave it out for random embeddings"
        )
    folder = cfg.checkpoint.save_dir
    result = os.path.join(folder, RESULT)
    if os.path.exists(result):
        raise UserError(
            f"--save-dir {folder} holds a finished pretraining: train from it with "
            f"--finetune-from-model {result}, or give another --save-dir"
        )


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def identity(cfg: Any, settings: Settings) -> dict[str, Any]:
    """What has to be the same when a pretraining goes on."""
    dt, model = cfg.distributed_training, cfg.model
    return {
        **asdict(settings),
        **{name: getattr(model, name) for name in ("ngram", *feedforward_lm_options.SIZES)},
        "seed": cfg.common.seed,
        "distributed_world_size": dt.distributed_world_size,
    }


def refuse_changed_settings(path: str, before: dict[str, Any], now: dict[str, Any]) -> None:
    for name, value in now.items():
        if before.get(name) != value:
            raise UserError(
                f"{path} was begun with {flag(name)} {before.get(name)}, not {value}: give the "
                "same, or another --save-dir"
            )
