"""The documentation: its example of a backend works, its links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from jobs import ROOT, TINY_LSTM, curve
from warm import Warm

DOCS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LINK = re.compile(r"\]\(([^)\s]+)\)")
PATH = re.compile(
    r"`((?:benchmarks|docs|examples|fairseq_hybrid|tests)/[\w./-]+\.(?:py|sh|md|json))`"
)
COMMAND = re.compile(r"\b(?:bash|python) ((?:benchmarks|examples)/[\w/.-]+)")


@pytest.mark.parametrize("page", DOCS, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    text = page.read_text(encoding="utf-8")
    for link in LINK.findall(text):
        if "://" not in link:
            target, _, anchor = link.partition("#")
            assert (page.parent / target).exists(), f"{page.name}: {link}"
            assert not anchor or anchor in anchors(page.parent / target)
    for path in (*PATH.findall(text), *COMMAND.findall(text)):
        assert (ROOT / path).exists(), f"{page.name} names {path}"


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.fixture(scope="module")
def half(tmp_path_factory):
    """The plugin of docs/adding-a-backend.md."""
    page = (ROOT / "docs/adding-a-backend.md").read_text(encoding="utf-8")
    folder = tmp_path_factory.mktemp("plugins") / "half_plugin"
    folder.mkdir()
    code = re.search(r"```python\n(.*?)```", page, re.DOTALL)[1]
    (folder / "__init__.py").write_text(code)
    return folder


def command(data, save_dir, plugin, *more) -> list[str]:
    return [
        *("fairseq-train", str(data), "--user-dir", str(plugin), *TINY_LSTM, "--cpu"),
        *("--optimizer", "sgd", "--lr", "0.5", "--batch-size", "16", "--max-update", "4"),
        *("--distributed-world-size", "2", "--update-freq", "2", "--num-workers", "0"),
        *("--no-epoch-checkpoints", "--disable-validation", "--save-dir", str(save_dir)),
        *("--log-interval", "1", "--log-format", "json", *more),
    ]


@pytest.fixture(scope="module")
def legacy(data, half, server, tmp_path_factory):
    """Folder and result of a training by fairseq's own backend."""
    folder = tmp_path_factory.mktemp("legacy")
    words = command(data, folder, half, "--ddp-backend", "legacy_ddp")
    return folder, Warm(server, words, folder).finish().ok()


def test_the_example_of_a_backend_trains(data, tmp_path, half, server, legacy):
    words = command(data, tmp_path, half, "--ddp-backend", "half", "--no-save")
    ours, theirs = Warm(server, words, tmp_path).finish().ok(), legacy[1]
    assert len(curve(ours)) == 4
    assert curve(ours) == pytest.approx(curve(theirs), rel=2e-3)
    norms = curve(ours, "gnorm")
    assert norms == pytest.approx(curve(theirs, "gnorm"), rel=1e-2)
    assert all(sent > 0 for sent in curve(ours, "sent_mb").values())


def test_its_check_is_one_line(data, tmp_path, half, server):
    words = command(data, tmp_path, half, "--ddp-backend", "half", "--half-scale", "0")
    result = Warm(server, words, tmp_path).finish()
    assert "--half-scale 0.0 is not a scale: give more than 0" in result.error()


def test_reading_a_checkpoint_by_hand(legacy, monkeypatch, capsys):
    monkeypatch.chdir(legacy[0])
    Path("checkpoint_last.pt").rename("checkpoint_best.pt")  # which needs validation
    page = (ROOT / "docs/checkpoints.md").read_text(encoding="utf-8")
    names: dict = {}
    exec(re.search(r"```python\n(.*?)```", page, re.DOTALL)[1], names)
    updates, weights = map(int, capsys.readouterr().out.split())
    assert updates == 4
    assert weights == sum(w.numel() for w in names["state"]["model"].values()) > 1000
    described = page.split("## What each backend")[0]
    rows = re.findall(r"^\| (`.*?) \|", described, re.MULTILINE)
    keys = {key for row in rows for key in re.findall(r"`(\w+)`", row)}
    assert keys == set(names["state"]), "the page lists all keys"
