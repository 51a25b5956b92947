"""``fairseq-hybrid-plan`` and ``--hybrid-plan`` as a user runs them, on tiny data."""

from __future__ import annotations

import json
import logging
import re
import sys
from pathlib import Path

import pytest
from jobs import TINY_LSTM, TRAIN, curve, train_command
from warm import Warm

from fairseq_hybrid.errors import UserError
from fairseq_hybrid.planner import command

SMALL = (
    *("--arch", "hybrid_lstm", "--encoder-layers", "4", "--dropout", "0"),
    *("--encoder-embed-dim", "16", "--encoder-hidden-size", "16"),
)
JOB = (*TRAIN, *SMALL)
SHORT = ("--max-update", "8", "--no-save", "--disable-validation", "--num-workers", "0")


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> str:
    return str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def planned(server, data, cache, tmp_path_factory):
    """The command, with everything it writes."""
    folder = tmp_path_factory.mktemp("planned")
    outputs = ("--save", folder / "plan.json", "--report", folder / "page.html")
    words = ("fairseq-hybrid-plan", data, *JOB, "--workers", "2", *outputs)
    words += ("--plot", folder / "plan.png")
    return folder, server.run(*words, XDG_CACHE_HOME=cache).ok()


def test_the_command_measures_ranks_and_writes(planned, cache):
    folder, result = planned
    rows = re.findall(r"^\| (1 worker|legacy_ddp.*?|hybrid.*?) \| ([\d.,]+) ", result.out, re.M)
    late = [plan for plan, _ in rows if "decoupled" in plan]
    assert late
    assert all(plan.endswith("(gradients one update late: never chosen)") for plan in late)
    rows = [row for row in rows if row[0] not in late]
    kinds = [plan.split(",")[0] for plan, _ in rows]
    assert {*kinds} == {"1 worker", "legacy_ddp", "hybrid"}
    assert kinds.count("hybrid") >= 3
    chosen = re.search(r"^chosen: (.*)$", result.out, re.M)[1]
    assert chosen == next(plan for plan, _ in rows if plan != "1 worker")
    plan = json.loads((folder / "plan.json").read_text())
    assert plan["workers"] == 2
    assert plan["note"]["plan"] == chosen
    assert "projected" not in result.all
    for step in ("whole updates", "LSTM layer", "attention, softmax", "2 workers at once"):
        assert f"profile: {step}" in re.sub(r"\d+ whole", "whole", result.err)
    assert (folder / "plan.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (folder / "page.html").read_text()
    (kept,) = Path(cache).glob("fairseq_hybrid/profile-*.json")
    profile = json.loads(kept.read_text())
    assert profile["workers"] == 2
    assert profile["slow_down"].keys() == {"forward", "head", "copy"}
    assert all(1 <= value < 20 for value in profile["slow_down"].values())
    assert all(0 < seconds < 10 for seconds in profile["whole"])


@pytest.fixture(scope="module")
def losses(data, server, tmp_path_factory):
    """Train 2 workers for a few updates; returns the result, whose losses are to be the same."""

    def train(*flags: str, **env: str):
        folder = tmp_path_factory.mktemp("train")
        words = train_command(data, folder, *SHORT, "--distributed-world-size", "2", *flags)
        return Warm(server, [*words, *SMALL], folder, **env).finish().ok()

    return train


@pytest.fixture(scope="module")
def expected(losses) -> dict[int, float]:
    return curve(losses("--ddp-backend", "legacy_ddp"))


def test_training_by_a_plan_file_with_unequal_stages(losses, expected, tmp_path):
    path = tmp_path / "plan.json"
    content = {"backend": "hybrid", "workers": 2, "layers": [1, 3], "chunk": 3}
    path.write_text(json.dumps(content))
    result = losses("--hybrid-plan", path)
    assert f"--hybrid-plan {path}: hybrid, 2 stages of 1+3 layers, chunk 3" in result.out
    assert "'ddp_backend': 'hybrid'" in result.out
    assert list(expected) == list(range(1, 9))
    assert curve(result) == pytest.approx(expected, rel=2e-3)  # (the log has 3 decimals)


def test_training_by_auto_takes_the_profile_that_is_there(losses, expected, planned, cache):
    folder, _ = planned
    result = losses("--hybrid-plan", "auto", XDG_CACHE_HOME=cache)
    assert "measured before" in result.err
    chosen = json.loads((folder / "plan.json").read_text())["note"]["plan"]
    assert f"--hybrid-plan auto: {chosen}" in result.out
    assert curve(result) == pytest.approx(expected, rel=2e-3)


@pytest.mark.long
def test_auto_measures_before_the_workers_start(losses, expected, tmp_path):
    result = losses("--hybrid-plan", "auto", XDG_CACHE_HOME=str(tmp_path))
    assert "profile: LSTM layer" in result.err
    assert len(list(tmp_path.glob("fairseq_hybrid/profile-*.json"))) == 1
    assert curve(result) == pytest.approx(expected, rel=2e-3)


def test_a_plan_that_does_not_fit_is_one_line(data, server, tmp_path):
    path = tmp_path / "plan.json"
    path.write_text('{"backend": "hybrid", "workers": 4, "layers": [2, 2], "chunk": 3}')
    words = train_command(data, tmp_path, "--distributed-world-size", "2", "--hybrid-plan", path)
    result = Warm(server, [*words, *SMALL], tmp_path).finish(60)
    assert "is for 4 workers, not for --distributed-world-size 2" in result.error()
    assert "distributed init" not in result.all


def test_bad_input_is_one_line(data, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["plan", str(data), *JOB, "--devices", "4xFOO"])
    monkeypatch.setattr(logging, "disable", lambda level: None)
    with pytest.raises(SystemExit) as ended:
        command.main()
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("plan: error: --devices 4xFOO is neither known nor a file: give")


REFUSED = [
    (("--workers", "1"), "--workers 1 leaves nothing to plan: give 2 or more"),
    ((), "--workers 1 leaves nothing to plan"),
    (("--workers", "2", *TINY_LSTM), "--arch lstm cannot be split"),
    (("--workers", "2", "--criterion", "sampled_softmax"), "sampled_softmax cannot be planned"),
    (("--devices", "missing.json"), "--devices missing.json is neither known nor a file"),
    (("--devices", "1xH100"), "--devices 1xH100: give 2 or more of them"),
    (("--devices", "4xH100", "--workers", "2"), "and leave out --workers"),
    (("--devices", "4xH100", "--encoder-layers", "1"), "--encoder-layers 1 cannot be spread"),
    (("--plot", "missing/plan.png"), "--plot missing/plan.png: there is no such folder"),
    (("--plot", "plan.txt"), "--plot plan.txt: the name must end in .png"),
    (("--trace", "trace.json"), "--trace trace.json is drawn in a picture: add --plot"),
    (("--trace", "trace.json", "--plot", "x.png"), "--trace trace.json: no such file"),
]


@pytest.mark.parametrize(("flags", "said"), REFUSED, ids=[said for _, said in REFUSED])
def test_what_cannot_be_planned_is_refused(data, flags, said):
    with pytest.raises(UserError) as error:
        command.make_plan([str(data), *JOB, *flags])
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_without_matplotlib_the_way_out_is_named(data, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UserError, match=r"--plot needs matplotlib: pip install matplotlib"):
        command.make_plan([str(data), *JOB, "--workers", "2", "--plot", "page.png"])


def test_five_systems_are_projected_for_other_devices(data, capsys, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # which the page does not need
    page = tmp_path / "page.html"
    words = ("--devices", "4xV100-nvlink", "--report", str(page))
    command.make_plan([str(data), *JOB, *words])
    out = capsys.readouterr().out
    assert out.startswith("projected, not measured: 4 x V100-nvlink\n")
    five, alternatives = out.split("\n\n")[1:3]
    rows = [line.split(" | ") for line in five.splitlines()[2:]]
    assert [row[0].strip("| ") for row in rows][:5] == [
        "1 device, input feeding (baseline)",
        "data parallel, input feeding",
        "model parallel, input feeding",
        "hybrid, input feeding",
        "hybrid",
    ]
    rows += [line.split(" | ") for line in alternatives.splitlines()[2:]]
    assert all(cell.strip("| ").endswith(" projected") for row in rows for cell in row[1:])
    assert "(projected)" in out
    assert "projected, not measured: 4 x V100-nvlink" in page.read_text()
