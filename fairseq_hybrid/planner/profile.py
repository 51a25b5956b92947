"""A profile of this machine for a job: measured by real workers, kept for the next time.

`measure` starts as many workers as will train, as fairseq-train would, and lets them measure
(measure.py). The result is a plain dictionary, which `costs.MeasuredCosts` reads. It is kept in
``~/.cache/fairseq_hybrid`` (``XDG_CACHE_HOME``), under a name made of everything it depends on: the
model's shapes, the batches', criterion and optimizer, torch, the machine, workers and threads.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import platform
import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf

from fairseq_hybrid.launch import launcher
from fairseq_hybrid.launch.topology import Topology
from fairseq_hybrid.planner import measure as measuring
from fairseq_hybrid.planner.costs import Line, MeasuredCosts, kind_of, layer_costs
from fairseq_hybrid.planner.job import Job
from fairseq_hybrid.planner.plan import DATA_PARALLEL, SINGLE, Plan
from fairseq_hybrid.planner.programs import Update
from fairseq_hybrid.planner.timing import progress

FORMAT = 5
"""of the dictionary; goes up when what it holds changes"""


def measure_job(cfg: Any, job: Job, samples: list[dict], *, again: bool = False) -> dict[str, Any]:
    """The profile of a job on this machine, from the cache if it is there and not `again`."""
    facts = depends_on(cfg, job)
    kept = cache() / f"profile-{name_of(facts)}.json"
    profile = None if again else read_profile(kept)
    if profile is not None:
        progress(f"{kept}, measured before (fairseq-hybrid-plan --remeasure does it again)")
        return profile
    progress(f"measuring {job.workers} workers on this machine")
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "measured.json"
        here = Topology(workers=job.workers, distributed=True, hosts_store=True)
        launcher.launch(here, on_workers(cfg, job.workers), measuring.measure_worker,
                        {"samples": samples, "path": str(result)})  # fmt: skip
        profile = {**facts, "rest": 0.0, "rest_together": 0.0, **json.loads(result.read_text())}
    profile["lines"]["wavefront"] = unit_line(profile, job)
    profile["rest"] = unexplained(profile, job)
    profile["rest_together"] = unexplained_together(profile, job)
    write_profile(profile, kept)
    return profile


def read_profile(kept: Path) -> dict[str, Any] | None:
    """A profile of before, if there is a whole one."""
    try:
        return json.loads(kept.read_text())
    except (OSError, ValueError):
        return None


def write_profile(profile: dict[str, Any], kept: Path) -> None:
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(profile, indent=1))
        progress(f"kept in {kept}")
    except OSError as error:  # a minute's work is not lost for want of a cache
        progress(f"not kept: {error}")


def on_workers(cfg: Any, workers: int) -> Any:
    """The configuration for measuring: the job's, but for how it is started."""
    cfg = copy.deepcopy(cfg)
    dt = cfg.distributed_training
    dt.distributed_world_size, dt.distributed_backend, dt.distributed_port = workers, "gloo", -1
    return cfg


def depends_on(cfg: Any, job: Job) -> dict[str, Any]:
    module, parts = job.model.module, job.model.parts
    return {
        "format": FORMAT,
        "model": {
            "layers": [kind_of(layer) for layer in (*parts.encoder_layers, *parts.decoder_layers)],
            "shapes": [list(p.shape) for p in module.parameters()],
            "feeding": job.model.feeding,
        },
        "batches": [[list(side) for side in batch] for batch in job.batches],
        "criterion": OmegaConf.to_container(cfg.criterion, resolve=True, enum_to_str=True),
        "optimizer": cfg.optimizer._name,
        "clip_norm": cfg.optimization.clip_norm,
        "torch": torch.__version__,
        "machine": [platform.node(), processor()],
        "cores": cores(),
        "workers": job.workers,
        "threads": os.environ.get("OMP_NUM_THREADS"),
    }


def processor() -> str:
    if Path("/proc/cpuinfo").exists():
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def name_of(facts: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def cache() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "fairseq_hybrid"


def unexplained(profile: dict[str, Any], job: Job) -> float:
    """What a whole update of one worker took beyond its parts: fairseq's bookkeeping, mostly."""
    costs = MeasuredCosts(profile)
    plan = Plan(SINGLE, 1, (job.model.layers,), job.longest)
    return max(0.0, statistics.median(
        whole - Update(plan, job.model, [batch], costs).timeline().seconds
        for whole, batch in zip(profile["whole"], job.batches)
    ))  # fmt: skip


def unexplained_together(profile: dict[str, Any], job: Job) -> float:
    """The same of an update of all workers under legacy_ddp, beyond what one worker has of it:
    threads of libraries that take a core away, workers that find each other's core busy."""
    costs = MeasuredCosts(profile)
    plan = Plan(DATA_PARALLEL, job.workers, (job.model.layers,), job.longest)
    return max(0.0, statistics.median(
        seconds - Update(plan, job.model, batches, costs).timeline().seconds
        for seconds, batches in zip(profile["together"], job.updates)
    ))  # fmt: skip


def unit_line(profile: dict[str, Any], job: Job) -> Line:
    """What a wavefront took beside layers, embeddings and head, by the number of its units."""
    profile["lines"]["wavefront"] = Line(0.0, 0.0)
    costs, measured = MeasuredCosts(profile), profile["wavefront"]
    batch, points = job.batches[measured["batch"]], []
    for chunk, seconds in measured["chunks"]:
        work, _ = layer_costs(job.model, [batch], chunk, costs)
        head = sum(costs.head(job.model, batch, backward) for backward in (False, True))
        units = len(job.model.units(0, batch, chunk))
        points.append((units, seconds - sum(work) - head))
    line = Line.through(points)
    return line if line.each > 0 else Line(0.0, 0.0)
