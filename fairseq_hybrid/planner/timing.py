"""Taking times: of one worker, of several at once, of what they send each other."""

from __future__ import annotations

import functools
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from fairseq_hybrid.planner.costs import Line, ring
from fairseq_hybrid.planner.job import FLOAT
from fairseq_hybrid.planner.simulate import Link

REPEATS, BUDGET = 5, 0.6
"""how often something is measured, and the seconds after which it is not repeated"""
ROUNDS = 3
"""of alone and together"""
WARM = 2
"""updates in which memory grows"""
SMALL, LARGE = 1 << 10, 1 << 22
"""bytes of a message"""

Pair = tuple[float, float]
"""seconds forward, seconds backward"""


def say(line: str) -> None:
    """Progress, from worker 0."""
    if dist.get_rank() == 0:
        print(f"profile: {line}", file=sys.stderr, flush=True)


def repeat(job: Callable[[], Any], budget: float = BUDGET) -> list[Any]:
    """Once to warm up, and then until it has been often or long enough."""
    job()
    begin, results = time.perf_counter(), []
    while len(results) < REPEATS and (not results or time.perf_counter() < begin + budget):
        results.append(job())
    return results


def median(job: Callable[[], float]) -> float:
    return statistics.median(repeat(job))


def median_pair(job: Callable[[], Pair]) -> Pair:
    forward, backward = zip(*repeat(job))
    return statistics.median(forward), statistics.median(backward)


def slow_down(job: Callable[[], float]) -> float:
    """Seconds while all workers do it, over those of worker 0 alone; never below 1."""
    ratios = []
    for _ in range(ROUNDS):
        dist.barrier()
        alone = median(job) if dist.get_rank() == 0 else 1.0
        dist.barrier()
        ratios.append(median(job) / alone)
    dist.barrier()
    return max(statistics.median(ratios), 1.0)


def together(job: Callable[[], Any], times: int) -> float:
    """Seconds that it takes all workers, who begin at the same time: the median of so many times,
    after some that do not count."""
    seconds = []
    for _ in range(WARM + times):
        dist.barrier()
        begin = time.perf_counter()
        job()
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds[WARM:])


def messages(model_size: int) -> tuple[Link, float, Line]:
    """Between two workers; processor time of a byte; all-reduces by the bytes each one sends."""
    say("messages")
    busy = processor_seconds_per_byte()
    small, large = (_together(functools.partial(_one_way, size)) for size in (SMALL, LARGE))
    workers, sizes = dist.get_world_size(), (FLOAT, min(model_size, 4 * LARGE))
    points = [(ring(workers, n), _together(functools.partial(_all_reduce, n))) for n in sizes]
    return Link(small, (LARGE - SMALL) / max(large - small, 1e-9)), busy, Line.through(points)


def processor_seconds_per_byte() -> float:
    """Of sending, which takes about as much as receiving, threads of libraries included."""
    begin = time.process_time()
    for _ in range(REPEATS):
        _one_way(LARGE)
    return (time.process_time() - begin) / REPEATS / 2 / LARGE  # each one sends and receives


def _together(job: Callable[[], float]) -> float:
    """The median; everybody does it equally often, however long it takes."""
    return statistics.median(repeat(job, budget=float("inf")))


def _one_way(size: int) -> float:
    """Half of a message's way from worker 0 to worker 1 and back."""
    rank, message = dist.get_rank(), torch.zeros(size, dtype=torch.uint8)
    dist.barrier()
    begin = time.perf_counter()
    if rank < 2:
        for sender in (0, 1):
            way = dist.isend if rank == sender else dist.irecv
            way(message, 1 - rank).wait()
    return (time.perf_counter() - begin) / 2


def _all_reduce(size: int) -> float:
    numbers = torch.zeros(size // FLOAT)
    dist.barrier()
    begin = time.perf_counter()
    dist.all_reduce(numbers)
    return time.perf_counter() - begin
