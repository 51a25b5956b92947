"""All alternatives for a job, predicted, and the fastest of them.

For N workers: data parallelism, and the wavefront for every number of stages that makes equal
replicas, with the layers placed by `partition.py`, in chunks of 2, 4, 8, ... time steps,
synchronous and decoupled. One worker is predicted beside them to compare with, but not chosen; nor
is what is decoupled, which is not the same update.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fairseq_hybrid.backends.wavefront.options import layer_ranges
from fairseq_hybrid.backends.wavefront.schedule import DECODER
from fairseq_hybrid.backends.wavefront.simulate import Timeline
from fairseq_hybrid.config import SCHEDULES, SYNCHRONOUS
from fairseq_hybrid.errors import UserError
from fairseq_hybrid.launch.topology import on_cpu
from fairseq_hybrid.planner import job as jobs
from fairseq_hybrid.planner import memory, profile
from fairseq_hybrid.planner.costs import CostModel, MeasuredCosts, layer_costs
from fairseq_hybrid.planner.job import Job, Model
from fairseq_hybrid.planner.partition import Depths, partition
from fairseq_hybrid.planner.plan import DATA_PARALLEL, HYBRID, MODEL_PARALLEL, SINGLE, Plan
from fairseq_hybrid.planner.programs import Update

SMALLEST_CHUNK = 2


@dataclass(frozen=True)
class Prediction:
    plan: Plan
    model: Model
    seconds: float
    """of an update, on average"""
    words_per_second: float
    idle: float
    """share of the workers' time"""
    sent: tuple[float, ...]
    """bytes in an update, by worker"""
    memory: tuple[float, ...]
    """bytes at most, by worker"""
    timeline: Timeline
    """of the first update that was looked at"""
    projected: bool


def measured(cfg: Any, workers: int, *, again: bool = False) -> list[Prediction]:
    """All alternatives on this machine, the fastest first."""
    if not on_cpu(cfg):
        raise UserError("planning measures CPU workers only: add --cpu, or project with --devices")
    job, samples = jobs.load_job(cfg, workers)
    return ranked(job, MeasuredCosts(profile.measure_job(cfg, job, samples, again=again)))


def ranked(
    job: Job, costs: CostModel, backends: Sequence[str] = (SINGLE, DATA_PARALLEL, HYBRID)
) -> list[Prediction]:
    """All alternatives, the fastest first."""
    predictions = [predict(plan, job, costs) for plan in alternatives(job, costs, backends)]
    return sorted(predictions, key=lambda p: -p.words_per_second)


def best(predictions: Sequence[Prediction]) -> Prediction:
    """The fastest that uses the workers there are and is the update of data parallelism."""
    return next(p for p in predictions if p.plan.backend != SINGLE and p.plan.exact)


def five_systems(feeding: Job, without: Job, costs: CostModel) -> dict[str, Prediction]:
    """The systems that Ono et al. (2019) compare, in our reading, and the same without feeding.

    `feeding` and `without` are the job for the model with and without input feeding.
    """
    if feeding.model.layers < 2:
        raise UserError(
            f"--encoder-layers {feeding.model.layers} cannot be spread over devices: give 2 or more"
        )
    systems = {
        "1 device, input feeding (baseline)": (SINGLE, feeding),
        "data parallel, input feeding": (DATA_PARALLEL, feeding),
        "model parallel, input feeding": (MODEL_PARALLEL, feeding),
        "hybrid, input feeding": (HYBRID, feeding),
        "hybrid": (HYBRID, without),
        "beside them: 1 device": (SINGLE, without),
        "beside them: data parallel": (DATA_PARALLEL, without),
        "beside them: model parallel": (MODEL_PARALLEL, without),
    }
    return {
        title: next(p for p in ranked(job, costs, (backend,)) if p.plan.exact)
        for title, (backend, job) in systems.items()
    }


def predict(plan: Plan, job: Job, costs: CostModel) -> Prediction:
    """What an update by this plan takes, on average over those of the job."""
    updates = [
        batches[i : i + plan.workers]
        for batches in job.updates
        for i in range(0, len(batches), plan.workers)
    ]
    timelines = [Update(plan, job.model, update, costs).timeline() for update in updates]
    total = sum(timeline.seconds for timeline in timelines)
    needed = (memory.of_workers(plan, job.model, update) for update in updates)
    return Prediction(
        plan=plan,
        model=job.model,
        seconds=total / len(updates),
        words_per_second=sum(batch.rows(DECODER) for batch in job.batches) / total,
        idle=statistics.mean(timeline.idle for timeline in timelines),
        sent=tuple(map(statistics.mean, zip(*(timeline.sent for timeline in timelines)))),
        memory=tuple(map(max, zip(*needed))),
        timeline=timelines[0],
        projected=costs.projected,
    )


def alternatives(job: Job, costs: CostModel, backends: Sequence[str]) -> Iterator[Plan]:
    layers = (job.model.layers,)
    workers = {SINGLE: 1, DATA_PARALLEL: job.workers}
    for backend in backends:
        if backend in workers:
            yield Plan(backend, workers[backend], layers, job.longest)
            continue
        late = backend == HYBRID and not job.model.feeding
        for chunk in chunks(job.longest):
            for depths in layer_splits(job, chunk, costs):
                for schedule in SCHEDULES if late else (SYNCHRONOUS,):
                    yield Plan(backend, job.workers, depths, chunk, schedule)


def chunks(longest: int) -> list[int]:
    """2, 4, 8, ... and whole sentences."""
    lengths = [SMALLEST_CHUNK]
    while 2 * lengths[-1] < longest:
        lengths.append(2 * lengths[-1])
    return sorted({min(length, longest) for length in lengths} | {longest})


def layer_splits(job: Job, chunk: int, costs: CostModel) -> list[Depths]:
    """The layers of each stage: equal shares, and what `partition` says where that differs."""
    found: dict[Depths, None] = {}
    for stages in range(2, min(job.workers, job.model.layers) + 1):
        if job.workers % stages == 0:
            replica = job.updates[0][:stages]
            found[tuple(map(len, layer_ranges(job.model.layers, stages)))] = None
            work, cuts = layer_costs(job.model, replica, chunk, costs)
            depths = partition(work, cuts, stages)
            if len(depths) > 1 and job.workers % len(depths) == 0:
                found[depths] = None
    return list(found)
