"""A wheel, installed where there is no source tree: its commands, their help, a training."""

from __future__ import annotations

import shutil
import site
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest
from jobs import ROOT, TINY_LSTM, TRAIN, run


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The bin folder of an environment with the wheel; what it needs is taken from this one."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    shutil.copytree(
        ROOT, source, ignore=shutil.ignore_patterns(".*", "tests", "benchmarks", "build", "*run*")
    )
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    run(*pip, "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", folder, source).ok()
    shutil.rmtree(source)
    run(sys.executable, "-m", "venv", "--without-pip", folder / "venv").ok()
    python = folder / "venv/bin/python"
    (wheel,) = folder.glob("*.whl")
    run(*pip, "--python", python, "install", "-q", "--no-deps", wheel).ok()
    # (a path in a .pth file: its own .pth files, as that of an editable install, do not count)
    (place,) = (folder / "venv/lib").glob("python*/site-packages")
    (place / "others.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    return python.parent


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_wheel_without_the_source_tree(installed, data, tmp_path):
    def call(name: str, *words):
        return run(installed / name, *words, cwd=tmp_path, PYTHONPATH="", timeout=600)

    where = "import fairseq_hybrid; print(fairseq_hybrid.__file__)"
    assert Path(call("python", "-c", where).ok().out.strip()).is_relative_to(installed.parent)
    scripts = distribution("fairseq_hybrid").entry_points.select(group="console_scripts")
    assert len(scripts) >= 12
    for script in scripts:
        assert f"usage: {script.name}" in call(script.name, "--help").ok().out
    arch = ("--arch", "hybrid_lstm", "--encoder-layers", "2", *TINY_LSTM[6:])
    how = ("--max-update", "2", "--distributed-world-size", "2", "--ddp-backend", "hybrid")
    call("fairseq-hybrid-train", data, *arch, *TRAIN, *how).ok()
    said = call("fairseq-hybrid-translate", tmp_path / "checkpoints/checkpoint_best.pt", "a b")
    assert said.ok().out.count("\n") == 1
