"""The plan file: readable, and refused with one line if it does not fit."""

from __future__ import annotations

import json

import pytest

from fairseq_hybrid.errors import UserError
from fairseq_hybrid.planner import plan as plans
from fairseq_hybrid.planner.plan import Plan

GOOD = {"backend": "hybrid", "workers": 4, "layers": [1, 3], "chunk": 8}


def test_a_plan_is_what_was_written(tmp_path):
    path = tmp_path / "plan.json"
    plan = Plan("hybrid", 4, (1, 3), 8)
    plans.write_plan(plan, path, {"plan": str(plan)})
    content = json.loads(path.read_text())
    assert content.pop("note") == {"plan": "hybrid, 2 groups of 2 stages of 1+3 layers, chunk 8"}
    assert content == GOOD
    assert plans.read_plan(path) == plan


def test_a_decoupled_plan_is_what_was_written(tmp_path):
    path = tmp_path / "plan.json"
    plan = Plan("hybrid", 4, (1, 3), 8, "decoupled")
    plans.write_plan(plan, path, {})
    assert plans.read_plan(path) == plan
    assert str(plan) == "hybrid, 2 groups of 2 stages of 1+3 layers, chunk 8, decoupled"
    assert plan.flags()["hybrid_schedule"] == "decoupled"


def test_a_plan_means_flags():
    assert Plan("hybrid", 4, (1, 3), 8).flags() == {
        "ddp_backend": "hybrid",
        "hybrid_stages": 2,
        "hybrid_layers": "1,3",
        "hybrid_chunk": "8",
    }
    assert Plan("legacy_ddp", 2, (4,), 24).flags() == {"ddp_backend": "legacy_ddp"}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "is not JSON: make the file with fairseq-hybrid-plan --save"),
        ("[]", "a plan has backend, workers, layers, chunk and may have schedule and note"),
        ({**GOOD, "schedule": "late"}, "schedule 'late' is not one of synchronous, decoupled"),
        ({**GOOD, "schedule": 1}, "schedule 1 is not one of synchronous, decoupled"),
        (
            {**GOOD, "backend": "model_parallel", "schedule": "decoupled"},
            "schedule decoupled goes with backend hybrid only",
        ),
        ({**GOOD, "extra": 1}, "a plan has backend, workers, layers, chunk"),
        ({**GOOD, "backend": "c10d"}, "backend 'c10d' is not one of legacy_ddp, hybrid"),
        ({**GOOD, "layers": []}, "must be whole numbers above 0"),
        ({**GOOD, "layers": "1,3"}, "must be whole numbers above 0"),
        ({**GOOD, "layers": [4, 0]}, "must be whole numbers above 0"),
        ({**GOOD, "chunk": True}, "must be whole numbers above 0"),
        ({**GOOD, "layers": [1, 1, 2]}, "4 workers do not make groups of 3 stages"),
        ({**GOOD, "backend": "legacy_ddp"}, "legacy_ddp has one stage, not 2"),
    ],
)
def test_what_is_no_plan_is_one_line(tmp_path, content, said):
    path = tmp_path / "plan.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(UserError) as error:
        plans.read_plan(path)
    assert str(error.value).startswith(f"--hybrid-plan {path}")
    assert said in str(error.value)


def test_a_missing_file_is_one_line():
    with pytest.raises(UserError, match=r"--hybrid-plan missing\.json: no such file or directory"):
        plans.read_plan("missing.json")


def test_a_plan_for_another_job_is_refused():
    plan = Plan("hybrid", 4, (1, 3), 8)
    plans.validate_fit(plan, "p", workers=4, layers=4)
    with pytest.raises(UserError, match="is for 4 workers, not for --distributed-world-size 2"):
        plans.validate_fit(plan, "p", workers=2, layers=4)
    with pytest.raises(UserError, match="places 4 encoder layers, the model has --encoder-layers"):
        plans.validate_fit(plan, "p", workers=4, layers=2)
