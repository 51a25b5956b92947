"""Sums over real workers, by messages and through the memory that they share."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from jobs import run_workers

sys.path.insert(0, str(Path(__file__).parent))

from sums_workers import ROWS, SIZES, UPDATES, numbers

WORKER = Path(__file__).with_name("sums_workers.py")
SHARED, SENT = "SharedMemory", "Messages"
ALL = (*SIZES, ROWS[0] * ROWS[1])


@pytest.mark.parametrize(
    ("world", "kinds"),
    [
        (2, {"auto": SHARED, "messages": SENT, "elsewhere": SENT, "refused": SENT}),
        pytest.param(3, {"auto": SHARED}, marks=pytest.mark.long),
        pytest.param(5, {"auto": SENT}, id="too many to share", marks=pytest.mark.long),
    ],
)
def test_every_worker_gets_every_sum(tmp_path, world, kinds):
    """At random paces: nobody may write where another one still reads."""
    workers = run_workers(WORKER, tmp_path, world, *kinds)
    for way, kind in kinds.items():
        assert [worker[way]["kind"] for worker in workers] == [kind] * world
        for update in range(UPDATES):
            for number, size in enumerate(ALL):
                expected = sum(numbers(rank, update, size) for rank in range(world))
                got = [worker[way]["results"][update][number] for worker in workers]
                torch.testing.assert_close(got[0], expected, rtol=1e-12, atol=1e-12)
                assert all(torch.equal(got[0], other) for other in got[1:])
        if kind == SHARED:  # every other worker reads all of it
            assert workers[0][way]["sent"] == (world - 1) * 8 * sum(ALL) * UPDATES
