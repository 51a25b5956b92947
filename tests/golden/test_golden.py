"""Today's losses are those that the golden files hold (see golden_runs.py).

They were written by the code before its joints were rebuilt; what a change of them means has to be
explained by the commit that writes them anew (write.py).
"""

from __future__ import annotations

import json

import golden_runs
import pytest
from golden_runs import CLOSE, FILES, GROWN, RUNS, SETTLED
from warm import Warm


@pytest.fixture
def train(server):
    return lambda folder, words: Warm(server, words, folder, cwd=folder).finish().ok()


def golden(name: str) -> dict:
    return json.loads((FILES / f"{name}.json").read_text())


def assert_same(name: str, found: dict, expected: dict) -> None:
    closely = SETTLED if name.startswith("ng_sgd") else None
    for key, values in expected.items():
        assert found[key][:closely] == pytest.approx(values[:closely], rel=CLOSE), key
        assert found[key] == pytest.approx(values, rel=GROWN), key


@pytest.mark.parametrize("name", RUNS)
def test_a_training_from_the_start(name, train, tmp_path):
    folder = golden_runs.prepare(tmp_path / "run")
    assert_same(name, golden_runs.start(name, folder, train), golden(name)["start"])


@pytest.mark.parametrize("name", RUNS)
def test_a_training_from_the_checkpoint(name, train, tmp_path):
    folder = golden_runs.prepare(tmp_path / "run")
    checkpoint = FILES / f"{name}.pt"
    assert_same(name, golden_runs.resume(name, folder, train, checkpoint), golden(name)["resume"])


def test_the_files_are_small_and_complete():
    assert {file.stem for file in FILES.glob("*.json")} == set(RUNS)
    everything = [file for file in golden_runs.HERE.rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in everything) < 3e6
