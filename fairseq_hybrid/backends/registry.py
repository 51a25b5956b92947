"""``--ddp-backend`` names of this plugin, in one place.

A new backend is a `Backend` (base.py) and one decorated function::

    @register_backend("mine", help="what travels, what a user gets")
    def mine(cfg, model, process_group, device):
        return MyBackend(model.to(device), process_group)

It is called with fairseq's ``cfg.distributed_training``. A module that is no `Backend` will do, if
it offers what fairseq asks its own wrappers for: ``all_reduce_grads``, ``no_sync``. Attributes that
it does not have are looked up in the model. ``without`` names options of fairseq's that don't go
with it (options.py). ``validate`` sees the whole configuration before any worker starts, changes
nothing, and raises ``UserError`` where that can't work.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from fairseq import models
from fairseq.criterions import FairseqCriterion, adaptive_loss
from fairseq.dataclass import configs, constants
from fairseq.dataclass.initialize import hydra_init
from fairseq.distributed import LegacyDistributedDataParallel, ModuleProxyWrapper
from torch import nn

from fairseq_hybrid import options
from fairseq_hybrid.backends.base import Backend, FairseqBackend

Build = Callable[[Any, nn.Module, Any, Any], nn.Module]


@dataclasses.dataclass(frozen=True)
class Entry:
    """A row of the registry."""

    name: str
    build: Build
    help: str
    validate: Callable[[Any], None] | None = None
    without: tuple[str, ...] = ()


BACKENDS: dict[str, Entry] = {}
FAIRSEQ_BACKENDS = tuple(choice.value for choice in constants.DDP_BACKEND_CHOICES)


def register_backend(
    name: str,
    *,
    help: str,
    validate: Callable[[Any], None] | None = None,
    without: tuple[str, ...] = (),
) -> Callable[[Build], Build]:
    """Make ``--ddp-backend name`` known to fairseq's options, configuration and trainer."""

    def register(build: Build) -> Build:
        if name in BACKENDS or name in FAIRSEQ_BACKENDS:
            raise ValueError(f"--ddp-backend {name} is registered already: choose another name")
        BACKENDS[name] = Entry(name, build, help, validate, without)
        publish()
        return build

    return register


def ddp_backend_field() -> Any:
    return configs.DistributedTrainingConfig.__dataclass_fields__["ddp_backend"]


fairseq_help = ddp_backend_field().metadata["help"]


def publish() -> None:
    """Give fairseq the list of choices: the dataclass field and hydra's copy of it.

    The list is an enum made at run time; it takes the name under which other processes find it,
    so that a configuration that holds it can be sent to a spawned worker.
    """
    choices = constants.ChoiceEnum([*FAIRSEQ_BACKENDS, *BACKENDS])
    choices.__module__, choices.__qualname__ = constants.__name__, "DDP_BACKEND_CHOICES"
    choices.__name__ = choices.__qualname__
    for module in (constants, configs, adaptive_loss):
        module.DDP_BACKEND_CHOICES = choices
    for config in (configs.DistributedTrainingConfig, adaptive_loss.AdaptiveLossConfig):
        config.__annotations__["ddp_backend"] = choices
        config.__dataclass_fields__["ddp_backend"].type = choices
    ours = "; ".join(f"{b.name}: {b.help}" for b in BACKENDS.values())
    field = ddp_backend_field()
    field.metadata = {"help": f"DistributedDataParallel backend ({ours})" if ours else fairseq_help}
    hydra_init()


fairseq_wrap = models.DistributedFairseqModel


def wrap(cfg: Any, model: nn.Module, process_group: Any, device: Any) -> nn.Module:
    """In place of ``DistributedFairseqModel``: our backends by name, fairseq's for the rest."""
    entry = BACKENDS.get(str(cfg.ddp_backend))
    if entry is None:
        return fairseq_wrap(cfg, model, process_group, device)
    if isinstance(model, FairseqCriterion):  # one with parameters of its own
        wrapped = LegacyDistributedDataParallel(model.to(device), process_group)
    else:
        wrapped = entry.build(cfg, model, process_group, device)
    return ModuleProxyWrapper(wrapped)


def backend_of(model: nn.Module) -> Backend:
    """Of a model that a trainer has, in a wrapper or not."""
    wrapped = getattr(model, "module", None)
    return wrapped if isinstance(wrapped, Backend) else FairseqBackend(model)


def validate(cfg: Any) -> None:
    """Let the backend refuse what cannot work; changes nothing."""
    entry = BACKENDS.get(str(cfg.distributed_training.ddp_backend))
    if entry is None:
        return
    options.refuse_together(cfg, f"--ddp-backend {entry.name}", *entry.without)
    if entry.validate is not None:
        entry.validate(cfg)


def install() -> None:
    models.DistributedFairseqModel = wrap
