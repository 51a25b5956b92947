"""The partition against brute force, on tables whose ties are real ones (whole numbers)."""

from __future__ import annotations

import random
from itertools import combinations

import pytest

from fairseq_hybrid.planner.partition import partition, stage_time


def every_partition(layers: int, most: int):
    """All ways to cut `layers` into at most `most` runs, as numbers of layers."""
    for count in range(1, min(most, layers) + 1):
        for cuts in combinations(range(1, layers), count - 1):
            edges = [0, *cuts, layers]
            yield tuple(b - a for a, b in zip(edges, edges[1:]))


def score(depths, work, cuts) -> tuple[float, float, int]:
    """Slowest stage, communication, stages: what is to be small, in this order."""
    slowest = sent = first = 0
    for depth in depths:
        end = first + depth
        below = cuts[first - 1] if first else 0
        above = cuts[end - 1] if end < len(work) else 0
        slowest = max(slowest, sum(work[first:end]) + below + above)
        sent, first = sent + below, end
    return slowest, sent, len(depths)


def tables(count: int, number):
    draw = random.Random(1)
    for _ in range(count):
        layers = draw.randint(1, 9)
        work = [number(draw) for _ in range(layers)]
        cuts = [number(draw) * draw.choice((0, 1, 1, 3)) for _ in range(layers - 1)]
        yield work, cuts, draw.randint(1, 6)


def test_it_is_the_best_of_all_partitions():
    several = cheaper_than_equal = 0
    for work, cuts, most in tables(4000, lambda draw: draw.randint(0, 12)):
        found = partition(work, cuts, most)
        best = min(score(d, work, cuts) for d in every_partition(len(work), most))
        assert sum(found) == len(work)
        assert score(found, work, cuts) == best, (work, cuts, most)
        several += len(found) > 1
        cheaper_than_equal += len(found) < min(most, len(work))
    assert several > 1000
    assert cheaper_than_equal > 1000, "cases in which neighbours stay together"


def test_with_real_numbers_the_slowest_stage_is_as_fast_as_can_be():
    for work, cuts, most in tables(2000, lambda draw: draw.random()):
        found = score(partition(work, cuts, most), work, cuts)[0]
        best = min(score(d, work, cuts)[0] for d in every_partition(len(work), most))
        assert found == pytest.approx(best, rel=1e-12)


@pytest.mark.parametrize(
    ("work", "cuts", "most", "expected"),
    [
        ([1, 1, 1, 1], [0, 0, 0], 2, (2, 2)),
        ([3, 1, 1, 1], [0, 0, 0], 2, (1, 3)),
        ([1, 1, 1, 1], [0, 0, 0], 4, (1, 1, 1, 1)),
        # a cut costs more than it gains: all in one place, or the dear cut is left out
        ([1, 1, 1, 1], [2, 2, 2], 2, (4,)),
        ([1, 1, 1, 1], [9, 0, 9], 4, (2, 2)),
        # a third stage would not make the slowest one faster: no communication for its own sake
        ([4, 1, 1], [0.5, 0.5], 3, (1, 2)),
        ([4, 1, 1], [0, 0], 3, (1, 2)),
        ([5], [], 3, (1,)),
    ],
)
def test_merging(work, cuts, most, expected):
    assert partition(work, cuts, most) == expected


def test_both_ends_of_a_cut_pay_for_it():
    stage = stage_time([1, 2, 4], [10, 20])
    assert [stage(0, 1), stage(1, 2), stage(2, 3), stage(0, 3)] == [11, 32, 24, 7]
