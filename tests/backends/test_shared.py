"""Parameters that several real workers use, by messages and through memory that they share."""

from __future__ import annotations

import random
import time

import pytest
import torch
import torch.distributed as dist
from torch import nn
from workers import run_workers

from fairseq_hybrid.backends.wavefront.ownership import Group, Ownership, all_of
from fairseq_hybrid.backends.wavefront.placement import cut
from fairseq_hybrid.backends.wavefront.schedule import REDUCE, REFRESH, Shape
from fairseq_hybrid.backends.wavefront.shared import Shared
from fairseq_hybrid.comm.stopwatch import Stopwatch
from fairseq_hybrid.optim.rows import sparse_rows

UPDATES = 20
SHAPES = {"first": (3, 5), "second": (7,), "third": (64, 33), "tied": (9, 4), "private": (4,)}
ALL = tuple(name for name in SHAPES if name != "private")
WAYS = {
    "memory": {"kind": "Memory"},
    "messages": {"kind": "Messages"},
    "uneven memory": {"kind": "Memory"},
    "uneven messages": {"kind": "Messages"},
    "rounded": {"kind": "Messages"},
    "some rows": {"kind": "Messages"},
    "some rows memory": {"kind": "Memory"},
}


def owned(name: str, world: int, way: str) -> tuple[range, ...]:
    """`tied` lies on one stage as a whole; else slices, in "uneven" ways none for stage 0."""
    uneven = way.startswith("uneven")
    if name in ("tied", "private"):
        owner = world - 1 if uneven and name == "tied" else 0
        return all_of(torch.empty(SHAPES[name]), owner, world)
    shares = [*range(world)] if uneven else [1] * world
    return cut(SHAPES[name][0], shares)


def noted(update: int) -> torch.Tensor:
    """The rows of `third` that get a gradient where not all do."""
    return torch.randperm(64, generator=torch.Generator().manual_seed(update))[:10].sort().values


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
    rows = {p: owned(name, world, way) for name, p in names.items()}
    ownership = Ownership(model, rows, group)
    dtype = torch.bfloat16 if way == "rounded" else None
    shared = Shared(users, ownership, Stopwatch(), share_memory="memory" in way, dtype=dtype)
    shape = Shape(world, (), (), owners=shared.owners, users=shared.users)
    pace, seen, left = random.Random(rank), [], 0
    kept = {id(p) for p in ownership.owned}
    by_rows = way.startswith("some rows")

    def mine(op: str) -> list:
        return [action for action in shape.exchange(op) if action.concerns(rank)]

    def dawdle() -> None:
        time.sleep(pace.random() * 0.003)

    for update in range(UPDATES):
        shared.begin_refresh()
        shared.post(mine(REFRESH))
        dist.barrier()  # as workers do when they exchange their batches
        dawdle()
        shared.finish_refresh()
        seen.append({name: names[name].detach().clone() for name in ALL})
        dawdle()
        for name in ALL:
            names[name].grad = gradient(name, rank, update)
        if by_rows:
            p, some = names["third"], noted(update)
            p.grad = sparse_rows(some, p.grad[some], p)
            shared.note_rows(p, some)
        shared.begin_reduce()
        shared.post(mine(REDUCE))
        dawdle()
        shared.finish_reduce()
        shared.tell_changed()
        dawdle()
        left += sum(p.grad is not None for p in names.values() if id(p) not in kept)
        with torch.no_grad():
            for p, piece in ownership.mine.items():
                if users[p] != {0}:
                    grad = piece.grad.to_dense() if piece.grad.is_sparse else piece.grad
                    assert grad.dtype == torch.float64
                    piece += grad
        for p in (*names.values(), *ownership.owned):
            p.grad = None
        ownership.dirty = True
    return {
        "kind": type(shared.channel).__name__,
        "sent": shared.bytes_sent,
        "seen": seen,
        "left": left,
        "owners": shared.owners,
    }


def train_all_ways(ways: list[str]) -> dict[str, dict]:
    return {way: train(way) for way in ways}


def total(name: str, world: int, update: int, way: str) -> torch.Tensor:
    grads = [gradient(name, stage, update) for stage in range(world)]
    if way == "rounded":  # but for the owner's own
        for stage, grad in enumerate(grads):
            mine = owned(name, world, way)[stage]
            kept = grad[mine.start : mine.stop].clone()
            grad.copy_(grad.bfloat16())
            grad[mine.start : mine.stop] = kept
    found = torch.stack(grads).sum(0)
    if way.startswith("some rows") and name == "third":
        rows = torch.zeros(64, 1, dtype=torch.float64)
        rows[noted(update)] = 1
        found = found * rows
    return found


@pytest.mark.parametrize("world", [2, 3])
def test_all_workers_see_the_weights_of_every_update(world):
    """At random paces: nobody may write where another one still reads. Also with a stage that owns
    nothing, gradients of some rows, and gradients rounded on their way (weights are not)."""
    workers = run_workers(train_all_ways, world, [*WAYS])
    for way, expected in WAYS.items():
        every = [worker[way] for worker in workers]
        assert [worker["kind"] for worker in every] == [expected["kind"]] * world
        assert not any(worker["left"] for worker in every)  # no gradient of what others own
        first = 1 if way.startswith("uneven") else 0
        assert every[0]["owners"] == tuple(range(first, world))
        weights = {name: torch.zeros(SHAPES[name], dtype=torch.float64) for name in ALL}
        for update in range(UPDATES):
            for name in ALL:
                for worker in every:
                    got = worker["seen"][update][name]
                    torch.testing.assert_close(got, weights[name], rtol=1e-12, atol=1e-12)
                weights[name] += total(name, world, update, way)
        if "rows" in way:
            continue
        numbers = {name: torch.Size(SHAPES[name]).numel() for name in ALL}
        for stage, worker in enumerate(every):
            mine = sum(
                len(owned(name, world, way)[stage]) * (n // SHAPES[name][0])
                for name, n in numbers.items()
            )
            gradients = UPDATES * (sum(numbers.values()) - mine)
            refreshed = (UPDATES - 1) * (world - 1) * mine
            assert worker["sent"] == (2 if way == "rounded" else 8) * gradients + 8 * refreshed
