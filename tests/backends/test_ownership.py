"""Optimizer state of slices: joined for a checkpoint, cut again when one is loaded.

Some updates of workers with slices of a few parameters, against one optimizer that has everything.
"""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import nn
from workers import run_workers

from fairseq_hybrid.backends.wavefront.ownership import Group, Ownership, all_of
from fairseq_hybrid.backends.wavefront.placement import cut

SHAPES = {"matrix": (11, 3), "vector": (6,), "short": (1, 4), "whole": (5, 2), "frozen": (4,)}
UPDATES = 3
WORLD = 3
OPTIMIZERS = {
    "adam": lambda params: torch.optim.Adam(params, lr=0.1),
    "momentum": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        for i, (name, shape) in enumerate(SHAPES.items()):
            start = torch.randn(shape, generator=torch.Generator().manual_seed(i))
            self.register_parameter(name, nn.Parameter(start))
        self.frozen.requires_grad_(False)


def gradient(name: str, update: int) -> torch.Tensor:
    return torch.randn(
        SHAPES[name], generator=torch.Generator().manual_seed(7 * update + len(name))
    )


def step(model: Model, optimizer, update: int, mine=None) -> None:
    for name, p in model.named_parameters():
        if name == "frozen":
            continue
        grad, target, rows = gradient(name, update), p, slice(None)
        if mine is not None:
            if p not in mine.mine:
                continue
            share = mine.rows[p][mine.group.stage]
            target, rows = mine.mine[p], slice(share.start, share.stop)
        target.grad = grad[rows].clone()
    optimizer.step()


def plain(kind: str, updates=UPDATES) -> tuple[dict, dict]:
    """Weights and state of one optimizer."""
    model = Model()
    optimizer = OPTIMIZERS[kind](model.parameters())
    for update in range(updates):
        step(model, optimizer, update)
    return copy.deepcopy(model.state_dict()), optimizer.state_dict()


def worker(kind: str, shares: list[float]) -> dict:
    """Updates from the start; then more from a plain optimizer's state; what a checkpoint has."""
    rank, everyone, found = dist.get_rank(), dist.group.WORLD, {}
    for name in ("from the start", "loaded"):
        model = Model()
        optimizer = OPTIMIZERS[kind](model.parameters())
        fairseqs = SimpleNamespace(optimizer=optimizer, state_dict=optimizer.state_dict)
        rows = {p: cut(p.size(0), shares) for p in model.parameters()}
        rows[model.whole] = all_of(model.whole, 1, WORLD)
        group = Group(rank, [*range(WORLD)], everyone, everyone)
        mine = Ownership(model, rows, group)
        mine.adopt(optimizer)
        assert mine.gather_state(fairseqs) is None or rank == 0  # there is none yet
        first = 0
        if name == "loaded":
            weights, state = plain(kind, 2)
            model.load_state_dict(weights)
            optimizer.load_state_dict(state)
            mine.keep_share(fairseqs)
            sizes = {p: mine.mine[p].shape for p in mine.mine}
            for p, piece in mine.mine.items():
                kept = [
                    v for v in optimizer.state[piece].values() if torch.is_tensor(v) and v.dim()
                ]
                assert kept
                assert all(value.shape == sizes[p] for value in kept)
            assert len(optimizer.state) == len(mine.owned)
            first = 2
        for update in range(first, UPDATES):
            step(model, optimizer, update, mine)
        mine.dirty = True
        state = mine.gather_state(fairseqs)
        mine.refresh()
        found[name] = {"weights": model.state_dict(), "state": state}
    return found


def check_state(got: dict, want: dict) -> None:
    assert got["state"].keys() == want["state"].keys()
    for n, values in want["state"].items():
        assert got["state"][n].keys() == values.keys()
        for key, value in values.items():
            torch.testing.assert_close(got["state"][n][key], value, msg=f"{n} {key}")
    groups = ([{k: v for k, v in g.items() if k != "params"} for g in s["param_groups"]]
              for s in (got, want))  # fmt: skip
    assert next(groups) == next(groups)
    assert [g["params"] for g in got["param_groups"]] == [g["params"] for g in want["param_groups"]]


@pytest.mark.parametrize(
    ("kind", "shares"), [("adam", [1, 1, 1]), ("adam", [0, 1, 2]), ("momentum", [1, 0, 3])]
)
def test_the_state_of_slices_is_that_of_one_optimizer(kind, shares):
    """Of slices of any size, of stages that own nothing of a parameter, from the start and after
    the checkpoint of an ordinary optimizer was loaded."""
    workers = run_workers(worker, WORLD, kind, shares)
    weights, state = plain(kind)
    for name in ("from the start", "loaded"):
        for rank, found in enumerate(workers):
            for key, value in weights.items():
                torch.testing.assert_close(found[name]["weights"][key], value, msg=key)
            assert (found[name]["state"] is not None) == (rank == 0)
        check_state(workers[0][name]["state"], state)


def some_without_state() -> dict | None:
    """The slice of worker 1 has never had a gradient."""
    rank, everyone = dist.get_rank(), dist.group.WORLD
    model = Model()
    optimizer = OPTIMIZERS["adam"](model.parameters())
    rows = {p: cut(p.size(0), [1, 1]) for p in model.parameters()}
    mine = Ownership(model, rows, Group(rank, [0, 1], everyone, everyone))
    mine.adopt(optimizer)
    if rank == 0:
        step(model, optimizer, 0, mine)
    fairseqs = SimpleNamespace(optimizer=optimizer, state_dict=optimizer.state_dict)
    return mine.gather_state(fairseqs)


def test_a_slice_without_state_counts_as_zero():
    state, _ = run_workers(some_without_state, 2)
    _, want = plain("adam", 1)
    matrix = state["state"][0]["exp_avg"]
    assert matrix.shape == SHAPES["matrix"]
    half = cut(11, [1, 1])[0].stop
    torch.testing.assert_close(matrix[:half], want["state"][0]["exp_avg"][:half])
    assert not matrix[half:].any()
