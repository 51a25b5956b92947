"""Options of ``--ddp-backend hybrid`` and ``model_parallel``, and what is refused of them.

Everything here runs before any worker starts: a configuration that cannot work ends in one line.
Which layers lie where, as the options say it, is here too (`layer_ranges`, `stacked`).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from fairseq.models import ARCH_MODEL_REGISTRY

from fairseq_hybrid.config import AUTO, SLICED, SYNCHRONOUS, WHOLE
from fairseq_hybrid.errors import UserError


def stages_of(dt: Any) -> int:
    return dt.hybrid_stages or dt.distributed_world_size


def layer_ranges(layers: int, stages: int) -> list[range]:
    """Contiguous and as equal as possible, the larger shares on the upper stages."""
    return [range(s * layers // stages, (s + 1) * layers // stages) for s in range(stages)]


def stacked(depths: Sequence[int]) -> list[range]:
    """The layers of each stage, given how many it has."""
    return [range(end - depth, end) for end, depth in zip(accumulate(depths), depths)]


ELEMENTWISE = ("adam", "sgd", "nag", "adagrad", "adadelta", "adamax")
"""optimizers that treat every number alike, so that they can work on slices of a matrix"""


def choose_head(cfg: Any) -> None:
    """What ``--hybrid-head auto`` means here."""
    dt = cfg.distributed_training
    if str(dt.ddp_backend) in ("hybrid", "model_parallel") and dt.hybrid_head == AUTO:
        dt.hybrid_head = SLICED if head_is_sliced(cfg) else WHOLE


def head_is_sliced(cfg: Any) -> bool:
    given = cfg.distributed_training.hybrid_head
    return given == SLICED or (given == AUTO and _why_whole(cfg) is None)


def _why_whole(cfg: Any) -> str | None:
    """The flag that rules out slices."""
    if cfg.optimizer._name not in ELEMENTWISE:
        return f"--optimizer {cfg.optimizer._name}"
    fp16 = cfg.common.fp16 and not cfg.common.memory_efficient_fp16
    return "--fp16 without --memory-efficient-fp16" if fp16 else None


def check(cfg: Any) -> None:
    """Refuse what cannot work, before any worker starts."""
    dt = cfg.distributed_training
    backend, world, stages = str(dt.ddp_backend), dt.distributed_world_size, stages_of(dt)
    arch = getattr(cfg.model, "_name", None) or getattr(cfg.model, "arch", None)
    if not hasattr(ARCH_MODEL_REGISTRY.get(arch), "parallel_parts"):
        able = [a for a, m in ARCH_MODEL_REGISTRY.items() if hasattr(m, "parallel_parts")]
        raise UserError(
            f"--ddp-backend {backend} cannot split --arch {arch}: use one of {', '.join(able)}, or "
            "--ddp-backend legacy_ddp"
        )
    if world % stages:
        raise UserError(
            f"--distributed-world-size {world} is not a multiple of --hybrid-stages "
            f"{dt.hybrid_stages}: change one of them"
        )
    if cfg.model.encoder_layers < stages:
        raise UserError(
            f"--encoder-layers {cfg.model.encoder_layers} cannot be spread over {stages} stages: "
            "use more layers, fewer workers, or --hybrid-stages N with N at most the layers"
        )
    _check_layers(dt, cfg.model.encoder_layers)
    _check_schedule(cfg, backend)
    _check_precision(cfg, backend)
    why_whole = _why_whole(cfg)
    if dt.hybrid_head == SLICED and why_whole:
        raise UserError(
            f"--hybrid-head {SLICED} does not go with {why_whole}, which wants matrices in one "
            f"piece: use --hybrid-head {WHOLE}, or leave it out"
        )
    if cfg.optimization.use_bmuf or dt.zero_sharding != "none":
        flag = "--use-bmuf" if cfg.optimization.use_bmuf else f"--zero-sharding {dt.zero_sharding}"
        raise UserError(f"{flag} does not go with --ddp-backend {backend}: leave one of them out")
    if backend == "model_parallel" and cfg.criterion._name == "sampled_softmax":
        raise UserError(
            "--criterion sampled_softmax does not go with --ddp-backend model_parallel: use "
            "--ddp-backend hybrid"
        )
    if backend == "model_parallel" and getattr(cfg.criterion, "ignore_prefix_size", 0):
        raise UserError(
            f"--ignore-prefix-size {cfg.criterion.ignore_prefix_size} does not go with "
            "--ddp-backend model_parallel: use --ddp-backend hybrid"
        )


def _check_layers(dt: Any, layers: int) -> None:
    given, stages = str(dt.hybrid_layers), stages_of(dt)
    counts = [int(n) for n in given.split(",") if given]
    if given and (len(counts) != stages or sum(counts) != layers):
        equal = ",".join(str(len(mine)) for mine in layer_ranges(layers, stages))
        raise UserError(
            f"--hybrid-layers {given} does not spread {layers} encoder layers over {stages} "
            f"stages: give {stages} numbers above 0 that add up to {layers}, as {equal}, or leave "
            "it out"
        )


def _check_precision(cfg: Any, backend: str) -> None:
    common = cfg.common
    if common.amp and getattr(cfg.model, "input_feeding", False):
        # autocast does not reach into the decoder's time loop (models/input_feeding.py)
        raise UserError(
            "--amp does not go with --input-feeding: use --fp16 --memory-efficient-fp16, or leave "
            "one of them out"
        )
    if common.bf16:
        raise UserError(
            f"--bf16 is for TPUs in fairseq, on which --ddp-backend {backend} does not run: leave "
            "it out, or on GPUs use --amp"
        )
    if common.fp16 and not (common.memory_efficient_fp16 or common.fp16_no_flatten_grads):
        raise UserError(
            f"--fp16 keeps all parameters in one piece, which --ddp-backend {backend} has to "
            "split: add --fp16-no-flatten-grads or --memory-efficient-fp16"
        )


def _check_schedule(cfg: Any, backend: str) -> None:
    kind, common = str(cfg.distributed_training.hybrid_schedule), cfg.common
    if kind == SYNCHRONOUS:
        return
    precision = next((f for f in ("amp", "fp16", "bf16") if getattr(common, f)), None)
    other = (
        f"--ddp-backend {backend}" if backend != "hybrid"
        else f"--{precision}" if precision
        else "--input-feeding" if getattr(cfg.model, "input_feeding", False)
        else "--criterion sampled_softmax" if cfg.criterion._name == "sampled_softmax"
        else None
    )  # fmt: skip
    if other:
        flag, _, value = other.partition(" ")
        way_out = f"another {flag}" if value else f"leave {flag} out"
        raise UserError(
            f"{other} does not go with --hybrid-schedule {kind}: use --hybrid-schedule "
            f"{SYNCHRONOUS}, or {way_out}"
        )
