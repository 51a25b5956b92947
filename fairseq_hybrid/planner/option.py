"""``--hybrid-plan auto|FILE``: training by a plan.

The plan is read, or made, where the command starts, before any worker does; it then stands in for
``--ddp-backend``, ``--hybrid-stages``, ``--hybrid-layers`` and ``--hybrid-chunk``.
"""

from __future__ import annotations

import logging
from typing import Any

from fairseq_hybrid.errors import UserError
from fairseq_hybrid.planner import plan as plans
from fairseq_hybrid.planner.plan import Plan

logger = logging.getLogger(__name__)

PLAN_HERE = "auto"


def apply(cfg: Any) -> None:
    """Let the plan set the backend and its options."""
    dt = cfg.distributed_training
    given = dt.hybrid_plan
    if not given:
        return
    if given == PLAN_HERE and dt.distributed_world_size == 1:
        logger.info("--hybrid-plan auto: one worker, nothing to plan")
        return
    chosen = _plan_here(cfg) if given == PLAN_HERE else _read_plan_for(cfg, given)
    for name, value in chosen.flags().items():
        setattr(dt, name, value)
    dt.hybrid_plan = None  # done: the workers find the flags
    logger.info(f"--hybrid-plan {given}: {chosen}")


def _read_plan_for(cfg: Any, path: str) -> Plan:
    chosen = plans.read_plan(path)
    layers = getattr(cfg.model, "encoder_layers", 0)
    workers = cfg.distributed_training.distributed_world_size
    plans.validate_fit(chosen, path, workers=workers, layers=layers)
    return chosen


def _plan_here(cfg: Any) -> Plan:
    dt = cfg.distributed_training
    if dt.distributed_no_spawn or dt.distributed_init_method is not None:
        raise UserError(
            "--hybrid-plan auto needs one command that starts all workers: make the plan with "
            "fairseq-hybrid-plan --save FILE and give every worker --hybrid-plan FILE"
        )
    from fairseq_hybrid.planner import choose

    for prediction in (ranked := choose.measured(cfg, dt.distributed_world_size)):
        logger.info(f"planned {1000 * prediction.seconds:.0f} ms/update: {prediction.plan}")
    return choose.best(ranked).plan
