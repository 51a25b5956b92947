"""Seeds made of several numbers: what they were, whatever Python makes of `hash`."""

from __future__ import annotations

import random

import pytest

from fairseq_hybrid.criterions.sampled_softmax import SampledSoftmaxCriterion
from fairseq_hybrid.seeds import mix


def test_they_are_the_ones_of_runs_before():
    """Written down, not computed: of hash((1, 2, 0)) % 2**63 and so on under CPython 3.11."""
    assert mix(1, 2, 0) == 6028866003903340903
    assert mix(7, 0, 0) == 1625470946073463181
    assert mix() == 5740354900026072187


def test_they_are_those_of_cpython_for_many_numbers():
    draw = random.Random(1)
    for _ in range(1000):
        numbers = [draw.randrange(2 ** draw.randrange(1, 61)) for _ in range(draw.randrange(5))]
        assert mix(*numbers) == hash(tuple(numbers)) % 2**63


def test_a_number_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="-1 is no part of a seed"):
        mix(1, -1)


def test_the_criterion_draws_by_update_and_batch():
    criterion = object.__new__(SampledSoftmaxCriterion)
    criterion.__dict__.update(seed=1, drawn=(-1, 0))
    seeds = [criterion._next_seed(update) for update in (2, 2, 3)]
    assert seeds == [mix(1, 2, 0), mix(1, 2, 1), mix(1, 3, 0)]
