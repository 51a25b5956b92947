"""Which layers lie together on a stage: an exact contiguous partition.

A stage is a run of neighbouring layers. Its time is the work of its layers plus what the cuts at
its two ends cost it: both sides of a cut pay for the messages that cross it. `partition` makes the
slowest stage as fast as it can be with *at most* so many stages. Where a cut costs more than it
gains the neighbours stay together (they are merged), so a cut is never there for its own sake:
among the partitions that are equally good, it is the one with the least communication, and then the
one with the fewest stages.

A dynamic program over (stages, layers) finds the cheapest cuts under which no stage is slower than
a bound; the bounds that a stage can have are tried from the fastest one on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

Depths = tuple[int, ...]
"""number of layers of each stage"""


def partition(work: Sequence[float], cuts: Sequence[float], most: int) -> Depths:
    """Place layers that need `work[i]` on at most `most` stages.

    `cuts[i]`: what a cut below layer `i + 1` costs the stage on each of its sides.
    """
    stage, ends = stage_time(work, cuts), range(1, len(work) + 1)
    for bound in sorted({stage(first, end) for end in ends for first in range(end)}):
        depths = _cheapest(stage, cuts, len(work), most, bound)
        if depths is not None:
            return depths
    raise ValueError("no layers, or no stages")


def stage_time(work: Sequence[float], cuts: Sequence[float]) -> Callable[[int, int], float]:
    """A function (first layer, end) → time of the stage with these layers."""
    total = [0, *accumulate(work)]
    edge = [0, *cuts, 0]
    return lambda first, end: total[end] - total[first] + edge[first] + edge[end]


def _cheapest(
    stage: Callable[[int, int], float],
    cuts: Sequence[float],
    layers: int,
    most: int,
    bound: float,
) -> Depths | None:
    """The least communication, then the fewest stages, with no stage slower than `bound`."""
    # For every number of layers from below: (communication, stages, depths) of the best so far.
    best: list[dict[int, tuple[float, Depths]]] = [{} for _ in range(layers + 1)]
    best[0][0] = (0.0, ())
    for end in range(1, layers + 1):
        for first in range(end):
            if stage(first, end) > bound:
                continue
            below = cuts[first - 1] if first else 0.0
            for count, (sent, depths) in best[first].items():
                found = (sent + below, (*depths, end - first))
                if count < most and found < best[end].get(count + 1, (float("inf"), ())):
                    best[end][count + 1] = found
    whole = [(sent, count, depths) for count, (sent, depths) in best[layers].items()]
    return min(whole)[2] if whole else None
