"""``--fp16``, ``--bf16`` and ``--tpu``, where fairseq would end in a traceback."""

from __future__ import annotations

import importlib.util
from typing import Any

from fairseq_hybrid.errors import UserError
from fairseq_hybrid.launch.topology import on_cpu

WHOLE = ("adadelta", "adagrad", "sgd")
"""optimizers of fairseq's that need float32 copies of all parameters"""


def refuse_unusable_precision(cfg: Any) -> None:
    """Refuse what cannot work, before any worker starts."""
    common = cfg.common
    if common.tpu and importlib.util.find_spec("torch_xla") is None:
        flag = next((f for f in ("memory_efficient_bf16", "bf16") if getattr(common, f)), "tpu")
        raise UserError(
            f"--{flag.replace('_', '-')} is for TPUs in fairseq and needs torch_xla, which is not "
            "installed: leave it out, or on GPUs use --fp16 or --amp"
        )
    if not common.fp16:
        return
    optimizer = getattr(cfg.optimizer, "_name", None)
    if common.memory_efficient_fp16 and optimizer in WHOLE:
        raise UserError(
            f"--memory-efficient-fp16 does not go with --optimizer {optimizer}: use --optimizer "
            "adam, or --fp16 --fp16-no-flatten-grads"
        )
    if on_cpu(cfg) and not (common.memory_efficient_fp16 or common.fp16_no_flatten_grads):
        raise UserError(
            "--fp16 on CPU workers needs --fp16-no-flatten-grads or --memory-efficient-fp16: add "
            "one of them, or leave it out (float32 is faster here)"
        )
