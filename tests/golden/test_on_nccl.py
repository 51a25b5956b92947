"""Every backend on the pretend nccl (pretend_nccl.py): losses as on gloo.

The runs are those of the golden files, on two workers compared with them, on four with gloo's, for
so many communicators that run at a time. Not here: `async`, whose messages go through host memory,
over a gloo group of its own, and whose losses depend on the order in which they arrive.
"""

from __future__ import annotations

import functools
import json
import tempfile
from pathlib import Path

import golden_runs
import pytest
from golden_runs import CLOSE, FILES, RUNS
from nccl_rules import SLOTS
from warm import Warm, shared_server

from fairseq_hybrid.config import MESSAGES

BY_MESSAGES = ("--sums-through", MESSAGES)
"""gloo's workers on one machine would share memory, which GPUs do not"""
OVERLAP = ("--averaging-outer", "nesterov", "--averaging-overlap")
ON_TWO = {
    "legacy_ddp-2": (),
    "pytorch_ddp-2": (),
    "hybrid-2": (),
    "hybrid-2-input-feeding": (),
    "hybrid-2-tied": (),
    "hybrid-2-bidirectional": (),
    "hybrid-2-sampled": (),
    "hybrid-2-by-2": (),
    "model_parallel-2": (),
    "decoupled-2": (),
    "sampled-2-text": BY_MESSAGES,
    "sampled-2-translation": BY_MESSAGES,
    "model_averaging-2": (),
}
"""golden run → further flags"""
ON_FOUR = {name: (*more, "--distributed-world-size", "4") for name, more in ON_TWO.items()}
ON_FOUR |= {"hybrid-4-stages-2": (), "model_averaging-2": (*ON_FOUR["model_averaging-2"], *OVERLAP)}
ALL_SLOTS = (1, 2, 8)


def train(name: str, *more: str, updates: int = golden_runs.START, slots: int = 0) -> dict:
    """Losses and norms of a golden run with further flags; on gloo without `slots`."""
    with tempfile.TemporaryDirectory() as empty:
        folder = golden_runs.prepare(Path(empty) / "run")
        with (folder / "golden_plugin/__init__.py").open("a") as plugin:
            plugin.write("\nimport pretend_nccl\n")
        if slots:
            more = (*more, "--distributed-backend", "pretend_nccl")
        words = golden_runs.command(name, updates, "--no-save", *more)
        run = Warm(shared_server(), words, folder, cwd=folder, **{SLOTS: str(slots)})
        return golden_runs.points(run.finish().ok(), 1, updates)


def assert_losses(name: str, more: tuple[str, ...], expected: dict, slots: int, last: int) -> None:
    found = train(name, *more, updates=last, slots=slots)
    for key, values in expected.items():
        assert found[key] == pytest.approx(values[:last], rel=CLOSE), key


def golden(name: str) -> dict:
    return json.loads((FILES / f"{name}.json").read_text())["start"]


@functools.cache
def on_gloo(name: str, more: tuple[str, ...]) -> dict:
    return train(name, *more)


@pytest.mark.parametrize("name", ON_TWO)
def test_two_workers_with_one_slot(name):
    assert_losses(name, ON_TWO[name], golden(name), slots=1, last=6)


@pytest.mark.long
@pytest.mark.parametrize("slots", ALL_SLOTS)
@pytest.mark.parametrize("name", ON_TWO)
def test_two_workers(name, slots):
    assert_losses(name, ON_TWO[name], golden(name), slots, golden_runs.START)


@pytest.mark.long
@pytest.mark.parametrize("slots", ALL_SLOTS)
@pytest.mark.parametrize("name", ON_FOUR)
def test_four_workers(name, slots):
    assert "--distributed-world-size" in RUNS[name]
    more = ON_FOUR[name]
    assert_losses(name, more, on_gloo(name, more), slots, golden_runs.START)
