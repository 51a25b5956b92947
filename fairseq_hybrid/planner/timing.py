"""Taking times: of one worker, of several at once, of what they send each other."""

from __future__ import annotations

import functools
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from fairseq_hybrid.backends.wavefront.simulate import Link
from fairseq_hybrid.planner.costs import Line, ring
from fairseq_hybrid.planner.job import FLOAT

REPEATS, BUDGET, ALWAYS = 5, 0.6, float("inf")
"""how often something is measured, and the seconds after which it is not repeated"""
ROUNDS = 3
"""of measuring worker 0 alone, then all workers at once"""
WARM = 2
"""updates that do not count: memory still grows in them"""
SMALL, LARGE = 1 << 10, 1 << 22
"""bytes of a message"""

Pair = tuple[float, float]
"""seconds forward, seconds backward"""
Result = TypeVar("Result")


def progress(line: str) -> None:
    """Print a line, on worker 0 where there are several."""
    if not dist.is_initialized() or dist.get_rank() == 0:
        print(f"profile: {line}", file=sys.stderr, flush=True)


def seconds_of(job: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    job()
    return time.perf_counter() - begin


def pair_of(forward: Callable[[], Result], backward: Callable[[Result], Any]) -> Pair:
    """Seconds of both; `backward` gets what `forward` returns."""
    begin = time.perf_counter()
    result = forward()
    middle = time.perf_counter()
    backward(result)
    return middle - begin, time.perf_counter() - middle


def repeat(job: Callable[[], Any], budget: float = BUDGET) -> list[Any]:
    """Once to warm up, and then until it has been often or long enough."""
    job()
    begin, results = time.perf_counter(), []
    while len(results) < REPEATS and (not results or time.perf_counter() < begin + budget):
        results.append(job())
    return results


def median(job: Callable[[], float], budget: float = BUDGET) -> float:
    """With an infinite budget all workers do it equally often, however long it takes."""
    return statistics.median(repeat(job, budget))


def medians(job: Callable[[], Sequence[float]]) -> tuple[float, ...]:
    """Of each of the times that a job returns."""
    return tuple(map(statistics.median, zip(*repeat(job))))


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
        seconds.append(seconds_of(job))
    return statistics.median(seconds[WARM:])


def transport(model_size: int) -> tuple[Link, float, Line]:
    """Between two workers; processor time of a byte; all-reduces by the bytes each one sends."""
    progress("messages")
    busy = processor_seconds_per_byte()
    small, large = (median(functools.partial(_transfer, n), ALWAYS) for n in (SMALL, LARGE))
    workers, sizes = dist.get_world_size(), (FLOAT, min(model_size, 4 * LARGE))
    points = [(ring(workers, n), median(functools.partial(_all_reduce, n), ALWAYS)) for n in sizes]
    return Link(small, (LARGE - SMALL) / max(large - small, 1e-9)), busy, Line.through(points)


def processor_seconds_per_byte() -> float:
    """Of sending, which takes about as much as receiving, threads of libraries included."""
    begin = time.process_time()
    for _ in range(REPEATS):
        _transfer(LARGE)
    return (time.process_time() - begin) / REPEATS / 2 / LARGE  # each one sends and receives


def _transfer(size: int) -> float:
    """Half of the time that a message takes from worker 0 to worker 1 and back."""
    rank, message = dist.get_rank(), torch.zeros(size, dtype=torch.uint8)

    def there_and_back() -> None:
        for sender in (0, 1) if rank < 2 else ():
            transfer = dist.isend if rank == sender else dist.irecv
            transfer(message, 1 - rank).wait()

    dist.barrier()
    return seconds_of(there_and_back) / 2


def _all_reduce(size: int) -> float:
    numbers = torch.zeros(size // FLOAT)
    dist.barrier()
    return seconds_of(lambda: dist.all_reduce(numbers))
