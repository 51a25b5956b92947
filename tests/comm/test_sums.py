"""Sums over real workers, by messages and through the memory that they share."""

from __future__ import annotations

import contextlib
import random
import time
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from workers import run_workers

from fairseq_hybrid.comm import sums

UPDATES = 40
SIZES = (7, 1000, 65)
ROWS = (10, 3)
ALL = (*SIZES, ROWS[0] * ROWS[1])
SHARED, SENT = "SharedMemoryAllReduce", "AllReduce"


def numbers(rank: int, update: int, size: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * update + 10 * size + rank)
    return torch.randn(size, generator=generator, dtype=torch.float64)


def connect(params: list[torch.Tensor], way: str) -> sums.AllReduce:
    """`elsewhere`: worker 1 is on another machine; `refused`: worker 0 gets no memory."""
    with contextlib.ExitStack() as changes:
        if way == "elsewhere" and dist.get_rank() == 1:
            changes.enter_context(mock.patch.object(sums, "_open", return_value=None))
        if way == "refused":
            refuse = mock.Mock(side_effect=OSError("refused"))
            changes.enter_context(mock.patch.object(sums.os, "memfd_create", refuse))
        return sums.make_all_reduce(dist.group.WORLD, params, share=way != "messages")


def add(way: str) -> dict:
    """A worker: adds with the others, many times, at its own pace."""
    rank = dist.get_rank()
    params = [torch.zeros(size, dtype=torch.float64) for size in ALL]
    adding = connect(params, way)
    pause = random.Random(rank)
    results = []
    for update in range(UPDATES):
        asked = []
        for param, size in zip(params, SIZES):
            room = adding.room(size, param)
            room.copy_(numbers(rank, update, size))
            asked.append(adding.begin(room))
            time.sleep(pause.random() * 0.002)
        block = adding.room(ALL[-1], params[-1]).view(ROWS)
        whole = numbers(rank, update, ALL[-1]).view(ROWS)

        def some_rows(begin: int, out: torch.Tensor, whole: torch.Tensor = whole) -> None:
            out.copy_(whole[begin : begin + len(out)])

        asked.append(adding.begin_in_parts(block, some_rows))
        adding.all_begun()
        time.sleep(pause.random() * 0.002)
        results.append([result() for result in asked])
        adding.all_taken()
    return {"kind": type(adding).__name__, "sent": adding.bytes_sent, "results": results}


def add_every_way(ways: list[str]) -> dict[str, dict]:
    return {way: add(way) for way in ways}


@pytest.mark.parametrize(
    ("world", "kinds"),
    [
        (2, {"auto": SHARED, "messages": SENT, "elsewhere": SENT, "refused": SENT}),
        pytest.param(3, {"auto": SHARED}, marks=pytest.mark.long),
        pytest.param(5, {"auto": SENT}, id="too many to share", marks=pytest.mark.long),
    ],
)
def test_every_worker_gets_every_sum(world, kinds):
    """At random paces: nobody may write where another one still reads."""
    workers = run_workers(add_every_way, world, [*kinds])
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
