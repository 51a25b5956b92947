"""Parameters that several real workers use, by messages and through memory that they share."""

from __future__ import annotations

import random
import time

import pytest
import torch
import torch.distributed as dist
from torch import nn
from workers import run_workers

from fairseq_hybrid.backends.wavefront.ownership import Group, Ownership
from fairseq_hybrid.backends.wavefront.shared import Shared
from fairseq_hybrid.comm.stopwatch import Stopwatch

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
    """A worker: updates of parameters that all stages use, at its own pace."""
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
    return {"kind": type(shared.way).__name__, "sent": shared.bytes_sent, "seen": seen}


def train_both_ways(ways: list[str]) -> dict[str, dict]:
    return {way: train(way) for way in ways}


@pytest.mark.parametrize("world", [2, pytest.param(3, marks=pytest.mark.long)])
def test_all_workers_see_the_weights_of_every_update(world):
    """At random paces: nobody may write where another one still reads."""
    kinds = {"auto": "Memory", "messages": "Messages"}
    workers = run_workers(train_both_ways, world, [*kinds])
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
