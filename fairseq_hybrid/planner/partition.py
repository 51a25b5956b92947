"""Which layers lie together on a stage: an exact contiguous partition.

A stage is a run of neighbouring layers. Its time is the work of its layers plus what the cuts at
its two ends cost it: both sides of a cut pay for the messages that cross it. `partition` makes the
slowest stage as fast as it can be with *at most* so many stages. Where a cut costs more than it
gains the neighbours stay together (they are merged), so a cut is never there for its own sake:
among the partitions that are equally good, it is the one with the least communication, and then the
one with the fewest stages.

Two dynamic programs over (stages, layers): the first finds how fast the slowest stage can be, the
second the cheapest cuts under which no stage is slower than that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

Depths = tuple[int, ...]
"""number of layers of each stage"""


def partition(work: Sequence[float], cuts: Sequence[float], most: int) -> Depths:
    """Spread layers that take `work[i]` over at most `most` stages.

    `cuts[i]`: what a cut below layer `i + 1` costs the stage on each of its sides.
    """
    stage = stage_time(work, cuts)
    bound = min(row[-1] for row in _slowest(stage, len(work), most)[1:])
    return _cheapest(stage, cuts, len(work), most, bound)


def stage_time(work: Sequence[float], cuts: Sequence[float]) -> Callable[[int, int], float]:
    """A function (first layer, end) → time of the stage with these layers."""
    total = [0, *accumulate(work)]
    edge = [0, *cuts, 0]
    return lambda first, end: total[end] - total[first] + edge[first] + edge[end]


def _slowest(stage: Callable[[int, int], float], layers: int, most: int) -> list[list[float]]:
    """[stages][layers] → the slowest stage of the lowest so many layers, at its best."""
    infinite = float("inf")
    best = [[infinite] * (layers + 1) for _ in range(most + 1)]
    best[0][0] = 0.0
    for count in range(1, most + 1):
        for end in range(count, layers + 1):
            best[count][end] = min(
                max(best[count - 1][first], stage(first, end)) for first in range(count - 1, end)
            )
    return best


def _cheapest(
    stage: Callable[[int, int], float],
    cuts: Sequence[float],
    layers: int,
    most: int,
    bound: float,
) -> Depths:
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
    sent, _, depths = min((sent, count, depths) for count, (sent, depths) in best[layers].items())
    return depths
