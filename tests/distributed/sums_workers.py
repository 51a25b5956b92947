"""A worker of test_sums.py: adds with the others, many times, at its own pace.

python sums_workers.py FOLDER RANK WORLD WAY...
"""

from __future__ import annotations

import contextlib
import random
import sys
import time
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[2]))

from fairseq_hybrid.distributed import sums

UPDATES = 40
SIZES = (7, 1000, 65)
ROWS = (10, 3)


def numbers(rank: int, update: int, size: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * update + 10 * size + rank)
    return torch.randn(size, generator=generator, dtype=torch.float64)


def connect(params: list[torch.Tensor], way: str) -> sums.Messages:
    """`elsewhere`: worker 1 is on another machine; `refused`: worker 0 gets no memory."""
    with contextlib.ExitStack() as changes:
        if way == "elsewhere" and dist.get_rank() == 1:
            changes.enter_context(mock.patch.object(sums, "_open", return_value=None))
        if way == "refused":
            refuse = mock.Mock(side_effect=OSError("refused"))
            changes.enter_context(mock.patch.object(sums.os, "memfd_create", refuse))
        return sums.connect(dist.group.WORLD, params, share=way != "messages")


def add(way: str) -> dict:
    rank = dist.get_rank()
    params = [torch.zeros(size, dtype=torch.float64) for size in (*SIZES, ROWS[0] * ROWS[1])]
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
        block = adding.room(ROWS[0] * ROWS[1], params[-1]).view(ROWS)
        whole = numbers(rank, update, ROWS[0] * ROWS[1]).view(ROWS)

        def some_rows(begin: int, out: torch.Tensor, whole: torch.Tensor = whole) -> None:
            out.copy_(whole[begin : begin + len(out)])

        asked.append(adding.begin_in_parts(block, some_rows))
        adding.all_begun()
        time.sleep(pause.random() * 0.002)
        results.append([result() for result in asked])
        adding.all_taken()
    return {"kind": type(adding).__name__, "sent": adding.bytes_sent, "results": results}


def main(folder: str, rank: str, world: str, *ways: str) -> None:
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", store, rank=int(rank), world_size=int(world))
    torch.save({way: add(way) for way in ways}, f"{folder}/{rank}.pt")


if __name__ == "__main__":
    main(*sys.argv[1:])
