"""What a profile is kept by, and what is made of its measurements."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf
from tiny_jobs import job

from fairseq_hybrid.planner import measure, profile
from fairseq_hybrid.planner.costs import Line, MeasuredCosts, kind_of


def configuration(**changes):
    content = {
        "criterion": {"_name": "cross_entropy"},
        "optimizer": {"_name": "adam", "lr": [0.1]},
        "optimization": {"clip_norm": 1.0},
    }
    return OmegaConf.merge(content, changes)


def name(cfg=None, **options) -> str:
    workers = options.pop("workers", 2)
    return profile.name_of(profile.depends_on(cfg or configuration(), job(workers, **options)))


def test_a_profile_is_for_one_machine_torch_and_job(monkeypatch):
    kept = name()
    assert name() == kept
    assert name(configuration(optimizer={"lr": [0.5]})) == kept  # takes no other time
    others = {
        name(workers=3),
        name(steps=9),
        name(sentences=4),
        name(encoder_layers=5),
        name(encoder_hidden_size=8),
        name(dropout=0.1),
        name(input_feeding=True),
        name(configuration(criterion={"_name": "label_smoothed_cross_entropy"})),
        name(configuration(optimizer={"_name": "sgd"})),
    }
    monkeypatch.setattr(torch, "__version__", "9.9")
    others.add(name())
    monkeypatch.undo()
    monkeypatch.setattr(profile, "processor", lambda: "another one")
    others.add(name())
    monkeypatch.undo()
    monkeypatch.setattr(profile, "cores", lambda: 64)
    others.add(name())
    monkeypatch.undo()
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    others.add(name())
    assert len(others) == 13
    assert kept not in others


def test_it_is_kept_where_the_user_says(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert profile.cache() == tmp_path / "fairseq_hybrid"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/somebody")
    assert profile.cache() == Path("/somebody/.cache/fairseq_hybrid")


def test_a_file_that_is_not_whole_is_measured_again(tmp_path):
    kept = tmp_path / "fairseq_hybrid" / "profile.json"
    assert profile.read_profile(kept) is None
    profile.write_profile({"workers": 2}, kept)
    assert profile.read_profile(kept) == {"workers": 2}
    kept.write_text(kept.read_text()[:5])
    assert profile.read_profile(kept) is None


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    profile.write_profile({"workers": 2}, tmp_path / "file" / "profile.json")
    assert "profile: not kept" in capsys.readouterr().err


def measurements(work, wavefront: dict, whole: float) -> dict:
    """A second for each row of a layer, 2 back; 10 s for the head, 20 back."""
    table = {"steps": (1, 2), "sentences": (1, 2), "forward": ((1, 2), (2, 4))}
    table["backward"] = ((2, 4), (4, 8))
    kinds = {kind_of(layer) for layer in work.model.parts.encoder_layers}
    nothing = ("embed", "embed back", "copy", "update", "meet")
    return {
        "link": (0.0, 1.0),
        "layers": {kind: {"dense": table, "packed": table} for kind in kinds},
        "lines": {**dict.fromkeys(nothing, (0.0, 0.0)), "head": (10, 0), "head back": (20, 0)},
        "workers": 2,
        "rest": 0.0,
        "rest_together": 0.0,
        "cores": 2,
        "slow_down": {},
        "whole": [whole] * len(work.batches),
        "wavefront": wavefront,
    }


def test_what_is_not_explained_is_the_rest_and_what_a_unit_costs():
    work = job(2, steps=8, sentences=3)
    layers = 4 * 2 * 8 * 3 * (1 + 2)
    # 4 and 16 units: 5 s before them, and a quarter of a second for each
    points = [[4, layers + 30 + 5 + 1], [1, layers + 30 + 5 + 4]]
    measured = measurements(work, {"batch": 0, "chunks": points}, layers + 30 + 7)
    measured["lines"]["wavefront"] = profile.unit_line(measured, work)
    assert measured["lines"]["wavefront"] == pytest.approx(Line(5, 0.25))
    assert profile.unexplained(measured, work) == pytest.approx(7)
    assert json.dumps(measured)


def test_noise_below_nothing_is_nothing():
    work = job(2, steps=8, sentences=3)
    measured = measurements(work, {"batch": 0, "chunks": [[4, 1.0], [1, 1.0]]}, 1.0)
    measured["lines"]["wavefront"] = profile.unit_line(measured, work)
    assert measured["lines"]["wavefront"] == Line(0, 0)
    assert profile.unexplained(measured, work) == 0


def test_the_largest_batch_is_found_among_others():
    """Of other sizes, before it: comparing them by their tensors would be an error."""
    batches = [{"target": torch.zeros(size, 2)} for size in (3, 5, 4)]
    assert [measure.index_of(batches, batch) for batch in batches] == [0, 1, 2]


def test_what_all_workers_take_beyond_one_is_added_to_plans_of_several():
    work = job(2, steps=8, sentences=3)
    layers = 4 * 2 * 8 * 3 * (1 + 2)
    measured = measurements(work, {}, layers + 30)
    measured["lines"]["wavefront"] = Line(0, 0)
    measured["slow_down"] = {"forward": 1.5, "head": 2.0, "copy": 1.0}
    measured["message_cpu"] = 0.0
    together = layers * 1.5 + 30 * 2
    measured["together"] = [together + 4, together + 6, together + 5]
    assert profile.unexplained_together(measured, work) == pytest.approx(5)
    measured["rest"], measured["rest_together"] = 2.0, 5.0
    assert [MeasuredCosts(measured).rest(workers) for workers in (1, 2)] == [2, 7]
    measured["together"] = [1.0]
    assert profile.unexplained_together(measured, work) == 0  # noise
