"""Dropout under the wavefront: each worker draws its own; elsewhere all draw alike."""

from __future__ import annotations

from argparse import Namespace

import pytest
import torch
import torch.distributed as dist

from fairseq_hybrid.backends.base import Backend
from fairseq_hybrid.backends.wavefront.backend import WavefrontParallel
from fairseq_hybrid.trainer import HybridTrainer


def draw(monkeypatch, rank: int, *, sharded: bool, update: int = 7) -> torch.Tensor:
    monkeypatch.setattr(dist, "get_rank", lambda: rank)
    trainer = object.__new__(HybridTrainer)
    trainer._backend = object.__new__(WavefrontParallel if sharded else Backend)
    trainer.cfg = Namespace(common=Namespace(seed=1))
    trainer.get_num_updates = lambda: update
    trainer._set_seed()
    return torch.rand(8)


@pytest.mark.parametrize("sharded", [True, False])
def test_workers_draw_differently_where_they_hold_layers_of_one_model(monkeypatch, sharded):
    first, second = (draw(monkeypatch, rank, sharded=sharded) for rank in (0, 1))
    assert torch.equal(first, second) != sharded


def test_an_update_draws_the_same_again(monkeypatch):
    """So that a resumed run goes on as it would have."""
    first, again = (draw(monkeypatch, 1, sharded=True) for _ in range(2))
    assert torch.equal(first, again)
    assert not torch.equal(first, draw(monkeypatch, 1, sharded=True, update=8))
