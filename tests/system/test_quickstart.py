"""The quick start as a user runs it, to its BLEU, and the commands it ends with."""

from __future__ import annotations

import re

import pytest
from jobs import ROOT, run

SCRIPT = str(ROOT / "examples/translation/quickstart.sh")
SCORE = r"BLEU\|nrefs:1\|case:mixed\|.*\|version:\S+ = ([0-9.]+)"
COPIED = r"names and numbers copied right in ([0-9.]+)% of the (\d+) test sentences that have any"


def closing_commands(shown: str) -> list[str]:
    _, _, end = shown.partition("== go on")
    return end.partition("\n")[2].strip("\n").split("\n\n")


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_quickstart_reaches_its_score_and_a_second_run_only_reports(tmp_path):
    first = run("bash", SCRIPT, timeout=3000, OUT=str(tmp_path)).ok()
    score = re.search(SCORE, first.out)
    assert score, first.out[-2000:]
    assert float(score[1]) >= 85
    share, sentences = re.search(COPIED, first.out).groups()
    assert float(share) >= 96
    assert int(sentences) > 250
    assert re.search(r"\n +\d+%  loss [0-9.]+  [0-9,]+ words/s  \d+:\d+ left\n", first.out)
    assert "train_inner" not in first.out
    assert re.search(r"\d+ s this time, [0-9.]+ target tokens/s on 2 workers", first.out)
    log = (tmp_path / "train.log").read_bytes()
    assert b"| train_inner |" in log

    second = run("bash", SCRIPT, timeout=600, OUT=str(tmp_path)).ok()
    assert score[0] in second.out
    assert (tmp_path / "train.log").read_bytes() == log, "nothing should have been trained again"

    translate, own_text = closing_commands(second.out)
    pasted = run("bash", "-c", translate, timeout=300, cwd=ROOT).ok()
    assert pasted.out.strip() == "Mr. Richter looked for me."
    own = {"OUT": str(tmp_path / "own"), "EXTRA": "--max-update 20"}
    said = run("bash", "-c", own_text, timeout=900, cwd=ROOT, **own).ok().out
    assert "BLEU|nrefs:1" in said
    sentence, file, export = closing_commands(said)[0].splitlines()
    assert run("bash", "-c", sentence, timeout=300, cwd=ROOT).ok().out.count("\n") == 1
    to = tmp_path / "translated"
    run("bash", "-c", re.sub(r"test\.en$", str(to), file.strip()), timeout=300, cwd=ROOT).ok()
    assert len(to.read_text().splitlines()) == 1000
    command = re.sub(r"exported$", str(tmp_path / "exported"), export.strip())
    run("bash", "-c", command, timeout=300, cwd=ROOT).ok()
