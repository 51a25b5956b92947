"""The timeline of a training that ends before there are the usual updates to show."""

from __future__ import annotations

import json
from argparse import Namespace

import pytest

from fairseq_hybrid.backends.wavefront import report
from fairseq_hybrid.comm.stopwatch import Stopwatch
from fairseq_hybrid.launch import worker


@pytest.fixture
def alone(monkeypatch):
    """One worker that has nobody to talk to."""
    monkeypatch.setattr(worker, "teardown_hooks", [])
    monkeypatch.setattr(report.Report, "_gather", lambda *_: {})
    monkeypatch.setattr(report.dist, "get_rank", lambda: 0)
    monkeypatch.setattr(report.dist, "get_world_size", lambda: 1)

    def gather_object(events, everyones, **_):
        everyones[0] = events

    monkeypatch.setattr(report.dist, "gather_object", gather_object)
    watch = Stopwatch()
    return Namespace(watch=watch, bytes_sent=0, everyone_meta=None, group=Namespace(stage=0))


@pytest.mark.parametrize(
    ("updates", "shown"), [(1, [1]), (5, [5]), (7, [6, 7]), (8, [6, 7, 8]), (20, [6, 7, 8])]
)
def test_a_short_training_has_a_timeline_of_its_last_updates(alone, tmp_path, updates, shown):
    path = tmp_path / "trace.json"
    log = report.Report(alone, str(path))
    for number in range(1, updates + 1):
        log.begin(number)
        log.end()
    assert path.exists() == (updates >= 8)
    for hook in worker.teardown_hooks:
        hook()
    events = json.loads(path.read_text())["traceEvents"]
    assert [e["name"] for e in events if e["ph"] == "X"] == [f"update {n}" for n in shown]


def test_nothing_is_written_unasked(alone):
    log = report.Report(alone, None)
    log.begin(1)
    log.end()
    assert worker.teardown_hooks == []
    assert alone.watch.spans == []
