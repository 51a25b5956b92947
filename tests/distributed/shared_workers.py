"""A worker of test_shared.py: updates of parameters that all stages use, each at its own pace.

python shared_workers.py FOLDER RANK WORLD WAY...
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[2]))

from fairseq_hybrid.distributed.ownership import Group, Ownership
from fairseq_hybrid.distributed.shared import Shared
from fairseq_hybrid.distributed.stopwatch import Stopwatch

UPDATES = 40
SHAPES = {"first": (3, 5), "second": (7,), "third": (64, 33), "private": (4,)}
OWNERS = {"first": 0, "second": 1, "third": 1, "private": 0}
ALL = tuple(name for name in SHAPES if name != "private")


def gradient(name: str, stage: int, update: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * update + 10 * len(name) + stage)
    return torch.randn(SHAPES[name], generator=generator, dtype=torch.float64)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        for name, shape in SHAPES.items():
            self.register_parameter(name, nn.Parameter(torch.zeros(shape, dtype=torch.float64)))


def train(way: str) -> dict:
    rank, world = dist.get_rank(), dist.get_world_size()
    model, everyone = Model(), dist.group.WORLD
    names = dict(model.named_parameters())
    users = {p: set(range(world)) if name in ALL else {0} for name, p in names.items()}
    group = Group(rank, list(range(world)), everyone, everyone)
    ownership = Ownership(model, {names[name]: stage for name, stage in OWNERS.items()}, group)
    shared = Shared(users, ownership, Stopwatch(), share_memory=way == "auto")
    mine = [name for name in ALL if OWNERS[name] == rank]
    pace = random.Random(rank)
    seen = []

    def dawdle() -> None:
        time.sleep(pace.random() * 0.003)

    for update in range(UPDATES):
        shared.start_refresh()
        dist.barrier()  # as workers do when they exchange their batches
        dawdle()
        shared.finish_refresh()
        seen.append({name: names[name].detach().clone() for name in ALL})
        dawdle()
        for name in ALL:
            names[name].grad = gradient(name, rank, update)
        if not update % 2 and mine:  # what an owner has can be complete later than what it gets
            late = names[mine[0]].grad
            names[mine[0]].grad = None
        shared.start_reduce({})
        dawdle()
        if not update % 2 and mine:
            names[mine[0]].grad = late
        shared.finish_reduce()
        dawdle()
        with torch.no_grad():
            for name in mine:
                names[name] += names[name].grad
        for p in names.values():
            p.grad = None
        ownership.dirty = True
    kind = type(shared.way).__name__
    return {"kind": kind, "sent": shared.bytes_sent, "seen": seen}


def main(folder: str, rank: str, world: str, *ways: str) -> None:
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", store, rank=int(rank), world_size=int(world))
    torch.save({way: train(way) for way in ways}, f"{folder}/{rank}.pt")


if __name__ == "__main__":
    main(*sys.argv[1:])
