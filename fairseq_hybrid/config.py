"""The core's flags beside ``--ddp-backend``, and what is settled before any worker starts.

``Config`` and its parts name what this package reads of fairseq's configuration.

``add_flags`` gives them to fairseq. Then, for a whole configuration,

* ``resolve``   may choose: a plan sets the backend and its options (``RESOLVERS``)
* ``validate``  may refuse: every value, then what the chosen parts can't do (``VALIDATORS``)

Flags of models, criterions, optimizers and schedules stand in their own dataclasses, those of what
is beside the core with it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any, Optional, Protocol

from fairseq_hybrid import options
from fairseq_hybrid.options import Need, add_option

logger = logging.getLogger(__name__)

SCHEDULES = SYNCHRONOUS, DECOUPLED = "synchronous", "decoupled"
SUMS = AUTO, MESSAGES = "auto", "messages"
AVERAGING_STATES = KEEP, AVERAGE, RESET = "keep", "average", "reset"
HEADS = _, SLICED, WHOLE = AUTO, "sliced", "whole"
MESSAGE_TYPES = FLOAT32, BF16 = "float32", "bf16"
OUTER = NONE, NESTEROV = "none", "nesterov"


class CommonConfig(Protocol):
    cpu: bool
    tpu: bool


class DistributedConfig(Protocol):
    distributed_world_size: int
    distributed_rank: int
    distributed_num_procs: int
    distributed_backend: str
    distributed_init_method: str | None
    distributed_port: int
    distributed_no_spawn: bool
    device_id: int
    heartbeat_timeout: int
    worker_timeout: int
    save_on_exit: bool


class CheckpointConfig(Protocol):
    save_dir: str
    restore_file: str
    no_save: bool
    checkpoint_suffix: str
    save_interval: int
    save_interval_updates: int


class DatasetConfig(Protocol):
    validate_after_updates: int


class Config(Protocol):
    common: CommonConfig
    distributed_training: DistributedConfig
    checkpoint: CheckpointConfig
    dataset: DatasetConfig
    task: Any
    """the fields depend on which task it is"""


RESOLVERS: list[Callable[[Any], None]] = []
VALIDATORS: list[Callable[[Any], None]] = []


def resolve(cfg: Config) -> None:
    """Let whoever chooses choose."""
    options.validate_values(cfg)  # first: planning can take minutes
    for choose in RESOLVERS:
        choose(cfg)


def validate(cfg: Config) -> None:
    """Refuse what cannot work; changes nothing."""
    options.validate_values(cfg)
    for refuse in VALIDATORS:
        refuse(cfg)


def settle(cfg: Config) -> None:
    """Both, and a line for each option that has no effect."""
    given = options.given(cfg)
    resolve(cfg)
    validate(cfg)
    for line in options.without_effect(cfg, given):
        logger.warning(line)


# The flags


def add_flags() -> None:
    add_worker_flags()
    add_wavefront_flags()
    add_other_flags()


def add_worker_flags() -> None:
    add_option(
        "worker_timeout", int, 900,
        "seconds without a sign of life after which a worker counts as lost and the job ends; also "
        "the time-out of collectives. Longer than any save takes; 0: only torch's own 30 minutes",
        good=lambda n: n == 0 or n >= 5,
        wrong="is not a time-out: give 5 or more seconds, or 0 for torch's own",
    )  # fmt: skip
    add_option(
        "save_on_exit", bool, False,
        "on SIGTERM or Ctrl-C finish the update at hand and save before leaving; a second signal "
        "ends training at once",
    )  # fmt: skip
    add_option(
        "sums_through", str, AUTO,
        "how gradients are summed: auto is shared memory between up to 4 CPU workers of one "
        "machine, messages elsewhere (--ddp-backend sampled and hybrid)",
        **options.known(SUMS), needs=(options.backend("sampled", "hybrid", "model_parallel"),),
    )  # fmt: skip


def add_wavefront_flags() -> None:
    split = (options.backend("hybrid", "model_parallel"),)
    hybrid = options.backend("hybrid")
    late = (hybrid, Need("--hybrid-schedule", (DECOUPLED,), name="hybrid_schedule"))
    add_option(
        "hybrid_plan", Optional[str], None,
        "train as the plan in this file says (fairseq-hybrid-plan makes one), or auto: measure "
        "this machine and plan before the workers start. Stands in for --ddp-backend and the "
        "--hybrid-* flags that say where the layers go",
    )  # fmt: skip
    add_option(
        "hybrid_stages", int, 0,
        "workers that share one copy of the LSTM layers (default: all); several such groups, if "
        "the world size is a multiple, are data-parallel to each other",
        good=lambda n: n >= 0, wrong="is not a number of workers: give 1 or more, or 0 for all",
        needs=split,
    )  # fmt: skip
    add_option(
        "hybrid_layers", str, "",
        "encoder layers of each stage from the bottom up, as 1,3; the decoder's lie with them "
        "(default: as equal as possible)",
        good=good_layers, needs=split,
        wrong="does not spread the layers: give a number above 0 for each stage, as 1,3",
    )  # fmt: skip
    add_option(
        "hybrid_chunk", str, "auto",
        "time steps per unit of work: small ones fill the stages sooner, large ones compute "
        "faster (default: chosen for each batch from its shape)",
        good=good_chunk, wrong="is not a number of time steps: give N > 0 or auto", needs=split,
    )  # fmt: skip
    add_option(
        "hybrid_schedule", str, SYNCHRONOUS,
        "synchronous: the update of data parallelism; decoupled: the LSTM layers' backward pass "
        "runs together with the next update's forward pass, so their gradients are applied one "
        "update late",
        **options.known(SCHEDULES), needs=(hybrid,),
    )  # fmt: skip
    add_option(
        "decoupled_shrink", float, 1.0,
        "--hybrid-schedule decoupled: multiply late gradients by this",
        good=lambda s: 0 < s <= 1, wrong="is not a factor: give a number above 0 and at most 1",
        needs=late,
    )  # fmt: skip
    add_option(
        "hybrid_head", str, AUTO,
        "who keeps gradients and optimizer state of attention and softmax: sliced: each stage some "
        "rows; whole: each matrix has one owner; auto: sliced, where the optimizer treats every "
        "number alike",
        **options.known(HEADS), needs=split,
    )  # fmt: skip
    add_option(
        "hybrid_messages", str, FLOAT32,
        "what travels between stages: float32 is exact; bf16 rounds activations and gradients, "
        "which halves the bytes (weights stay exact, sums are float32)",
        **options.known(MESSAGE_TYPES), needs=split,
    )  # fmt: skip
    add_option(
        "hybrid_trace", Optional[str], None,
        "write a timeline of a few updates of all workers to this file, for chrome://tracing or "
        "ui.perfetto.dev",
        good=good_file, wrong="is not a file that can be written: name one in a folder that exists",
        needs=split,
    )  # fmt: skip


def add_other_flags() -> None:
    averaging = (options.backend("model_averaging"),)
    add_option(
        "averaging_interval", int, 10,
        "updates between two averagings of the parameters (--ddp-backend model_averaging)",
        **options.at_least(1, "updates"), needs=averaging,
    )  # fmt: skip
    add_option(
        "averaging_warmup", int, 0,
        "updates at the beginning that average gradients instead (--ddp-backend model_averaging)",
        **options.at_least(0, "updates"), needs=averaging,
    )  # fmt: skip
    add_option(
        "averaging_state", str, KEEP,
        f"what becomes of the optimizer's state at an averaging: {', '.join(AVERAGING_STATES)}",
        **options.known(AVERAGING_STATES), needs=averaging,
    )  # fmt: skip
    add_option(
        "averaging_outer", str, NONE,
        "what is made of the mean of the workers: none takes it as it is; nesterov: what it has "
        "moved is the gradient of an outer SGD with momentum (DiLoCo)",
        **options.known(OUTER), needs=averaging,
    )  # fmt: skip
    nesterov = (*averaging, Need("--averaging-outer", (NESTEROV,), name="averaging_outer"))
    add_option(
        "averaging_outer_rate", float, 0.7,
        "learning rate of --averaging-outer nesterov; 1 without momentum takes the mean",
        good=lambda r: 0 < r <= 10, wrong="is not a rate: give more than 0, such as 0.7",
        needs=nesterov,
    )  # fmt: skip
    add_option(
        "averaging_outer_momentum", float, 0.5, "momentum of --averaging-outer nesterov",
        good=lambda m: 0 <= m < 1, wrong="is not a momentum: give 0 <= M < 1, such as 0.5",
        needs=nesterov,
    )  # fmt: skip
    add_option(
        "averaging_overlap", bool, False,
        "go on while the mean is on its way: it is applied at the end of the next interval",
        needs=averaging,
    )  # fmt: skip
    add_option(
        "share_hidden_fraction", float, 1.0,
        "share of the rows of hidden layers whose gradients are sent in an update; the others are "
        "kept and sent later (--ddp-backend sampled)",
        good=lambda p: 0 < p <= 1, wrong="is not a share: give 0 < P <= 1",
        needs=(options.backend("sampled"),),
    )  # fmt: skip


def good_layers(given: Any) -> bool:
    return not given or all(n.isdecimal() and int(n) > 0 for n in str(given).split(","))


def good_chunk(given: Any) -> bool:
    return given == "auto" or (str(given).isdecimal() and int(given) > 0)


def good_file(path: Any) -> bool:
    """Whether it can be written."""
    folder = os.path.dirname(os.path.abspath(path or "file"))
    return not os.path.isdir(path or "file") and os.path.isdir(folder)
