"""The quick start as a user runs it, to its BLEU."""

from __future__ import annotations

import re

import pytest
from jobs import ROOT, run


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_quickstart_reaches_its_score_and_a_second_run_only_reports(tmp_path):
    script = str(ROOT / "examples/translation/quickstart.sh")
    first = run("bash", script, timeout=1700, OUT=str(tmp_path)).ok()
    score = re.search(r"BLEU\|nrefs:1\|case:mixed\|.*\|version:\S+ = ([0-9.]+)", first.out)
    assert score, first.out[-2000:]
    assert float(score[1]) >= 50
    assert re.search(r"\d+ s this time, [0-9.]+ target tokens/s on 2 workers", first.out)
    second = run("bash", script, timeout=600, OUT=str(tmp_path)).ok()
    assert score[0] in second.out
    assert "train_inner" not in second.out, "nothing should have been trained again"
