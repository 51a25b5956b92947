"""Parameters that several real workers use, by messages and through memory that they share."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from jobs import run_workers

sys.path.insert(0, str(Path(__file__).parent))

from shared_workers import ALL, OWNERS, SHAPES, UPDATES, gradient

WORKER = Path(__file__).with_name("shared_workers.py")


@pytest.mark.parametrize("world", [2, pytest.param(3, marks=pytest.mark.long)])
def test_all_workers_see_the_weights_of_every_update(tmp_path, world):
    """At random paces: nobody may write where another one still reads."""
    kinds = {"auto": "Memory", "messages": "Messages"}
    workers = run_workers(WORKER, tmp_path, world, *kinds)
    for way, kind in kinds.items():
        assert [worker[way]["kind"] for worker in workers] == [kind] * world
        weights = {name: torch.zeros(SHAPES[name], dtype=torch.float64) for name in ALL}
        for update in range(UPDATES):
            for name in ALL:
                for worker in workers:
                    got = worker[way]["seen"][update][name]
                    torch.testing.assert_close(got, weights[name], rtol=1e-12, atol=1e-12)
                weights[name] += sum(gradient(name, stage, update) for stage in range(world))
        numbers = {name: torch.Size(SHAPES[name]).numel() for name in ALL}
        for stage, worker in enumerate(workers):
            mine = sum(n for name, n in numbers.items() if OWNERS[name] == stage)
            gradients = UPDATES * (sum(numbers.values()) - mine)
            refreshed = (UPDATES - 1) * (world - 1) * mine
            assert worker[way]["sent"] == 8 * (gradients + refreshed)
