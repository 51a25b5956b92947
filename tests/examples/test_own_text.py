"""own-text.sh of translation and of language models: what is said, noticed and skipped.

fairseq's commands are stand-ins here, which leave what the next step looks for; sentence pieces are
real. `test_recipes.py` has the checks of text.
"""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import pytest
from jobs import BIN, ROOT, run

TRANSLATION = ROOT / "examples/translation/own-text.sh"
LANGUAGE_MODEL = ROOT / "examples/language_model/own-text.sh"
LINE = (
    "2026-01-01 10:00:00 | INFO | valid | epoch 001 | valid on 'valid' subset | loss 2.5 | ppl 5.66"
)
STAND_INS = {
    "fairseq-preprocess": 'until [ "$1" = --destdir ]; do shift; done; mkdir -p "$2"; echo sents,',
    "fairseq-train": f'echo "$OMP_NUM_THREADS $*" >> {{calls}}; echo "{LINE}"',
    "fairseq-eval-lm": "echo Perplexity: 12.34",
    "fairseq-generate": 'until [ "$1" = --results-path ]; do shift; done; mkdir -p "$2"; '
    'echo Translated; printf "H-%d\\t-1\\ta b c\\n" 0 1 2 3 > "$2/generate-test.txt"',
}


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    """Runs a recipe on a text of its own; `.calls` are the trainings, with their threads."""
    for name in ("OUT", "WORKERS", "BACKEND", "SUBWORDS", "STREAMS", "EXTRA", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    tools, calls = tmp_path / "venv/bin", tmp_path / "calls"
    tools.mkdir(parents=True)
    for name, does in STAND_INS.items():
        (tools / name).write_text("#!/bin/bash\n" + does.replace("{calls}", str(calls)) + "\n")
        (tools / name).chmod(0o755)
    text = tmp_path / "text"
    text.mkdir()
    for split in ("train", "valid", "test"):
        for side in ("de", "en", "txt"):
            (text / f"{split}.{side}").write_text("a man sees a dog\nthe dog sees it\n" * 2)
    paths = os.pathsep.join([str(tools), str(BIN), os.environ["PATH"]])
    common = {"TEXT": "text", "OUT": "out", "SUBWORDS": "16", "PATH": paths}
    common |= {"VIRTUAL_ENV": str(tools.parent), "OMP_NUM_THREADS": ""}

    def call(script: Path, *words: str, **settings: str):
        if script == TRANSLATION:
            settings = {"SOURCE": "de", "TARGET": "en", **settings}
        return run("bash", script, *words, cwd=tmp_path, **{**common, **settings})

    call.folder = tmp_path
    call.trainings = lambda: calls.read_text().splitlines() if calls.exists() else []
    return call


BOTH = pytest.mark.parametrize("script", [TRANSLATION, LANGUAGE_MODEL], ids=["pairs", "running"])


@BOTH
def test_from_text_to_the_next_commands_and_again(recipe, script):
    """Once trained it says so; a changed text or setting is noticed; --train-on trains again."""
    first = recipe(script).ok().out
    assert "epoch 1: validation loss 2.50, perplexity 5.66" in first
    assert "out/model" in first.split("== go on")[1]
    for what in ("-translate" if script == TRANSLATION else "-score", "-report", "-export"):
        assert f"fairseq-hybrid{what} out/model" in first.split("== go on")[1]
    assert len(recipe.trainings()) == 1

    assert "already trained: out/model" in recipe(script).ok().out
    assert len(recipe.trainings()) == 1
    for settings, said in (
        (
            {"MODEL": "--arch lstm"},
            r"own-text.sh: out/model was made with MODEL=.*, not --arch lst",
        ),
        ({"EXTRA": "--lr 1"}, r'out/model was trained with EXTRA="", not "--lr 1": remove'),
    ):
        other = recipe(script, **settings)
        assert other.code == 2
        assert re.match(rf"(own-text.sh: )?{said}", other.err), other.err
        assert other.err.count("\n") == 1

    train_on = shlex.split(first.strip().splitlines()[-1])
    assert train_on[-1] == "--train-on"
    settings = dict(word.split("=", 1) for word in train_on if "=" in word)
    assert settings.items() >= {"TEXT": "text", "OUT": "out", "SUBWORDS": "16"}.items()
    assert "already" not in recipe(script, "--train-on", **settings).ok().out
    assert len(recipe.trainings()) == 2

    for name in ("train.de", "train.txt"):
        (recipe.folder / "text" / name).write_text("the dog sees a man\n" * 4)
    other = recipe(script)
    assert other.code == 2
    assert re.match(r"own-text.sh: out/data-16 was made with CHECKSUM_OF_TEXT=\d", other.err)


@BOTH
def test_by_default_all_cores_work_as_the_readme_says(recipe, script):
    recipe(script).ok()
    (call,) = recipe.trainings()
    cores = len(os.sched_getaffinity(0))
    threads, *words = call.split()
    flags = dict(zip(words, words[1:]))
    workers = int(flags["--distributed-world-size"])
    backend = "legacy_ddp" if script == TRANSLATION else "sampled"
    assert flags["--ddp-backend"] == backend
    assert (workers, int(threads)) == ((1, cores) if script == TRANSLATION else (min(cores, 4), 1))
    if script == LANGUAGE_MODEL:
        assert int(flags["--batch-size"]) == 32 // workers


@pytest.mark.parametrize(
    ("words", "settings", "said"),
    [
        ([], {"TEXT": ""}, "TEXT is not set: TEXT=folder bash"),
        ([], {"TEXT": "nowhere"}, "TEXT=nowhere has no train.txt: give a folder with train.txt"),
        (["--fast"], {}, "unknown argument --fast: use --prepare, --train-on or --dry-run"),
        ([], {"WORKERS": "no"}, "WORKERS=no is not a whole number above 0"),
        ([], {"STREAMS": "2", "WORKERS": "3"}, "STREAMS=2 are fewer than WORKERS=3: give more"),
        ([], {"SUBWORDS": "9000"}, "SUBWORDS=9000 pieces cannot be made of"),
    ],
    ids=lambda value: str(value)[:25],
)
def test_a_language_model_refuses(recipe, words, settings, said):
    result = recipe(LANGUAGE_MODEL, *words, **settings)
    assert result.code == 2
    assert said in result.err
    assert result.err.count("\n") == 1
    assert recipe.trainings() == []


def test_text_of_a_language_model_is_checked_first(recipe):
    (recipe.folder / "text/test.txt").write_bytes("für\n".encode("latin-1"))
    result = recipe(LANGUAGE_MODEL)
    assert "text/test.txt, line 1, is not UTF-8: convert the file" in result.err
    assert not (recipe.folder / "out").exists()


def test_a_criterion_of_all_words_takes_another_backend(recipe):
    recipe(LANGUAGE_MODEL, CRITERION="cross_entropy").ok()
    assert "--ddp-backend legacy_ddp" in recipe.trainings()[0]


@pytest.mark.long
def test_a_language_model_of_own_text_for_real(text, tmp_path):
    """To the last of the commands that it ends with."""
    for split in ("train", "valid", "test"):
        (tmp_path / f"{split}.txt").write_text((text / f"{split}.en").read_text())
    model = "--arch hybrid_lstm_lm --decoder-embed-dim 24 --decoder-hidden-size 24"
    settings = dict(TEXT=str(tmp_path), OUT=str(tmp_path / "out"), SUBWORDS="200", MODEL=model)
    result = run("bash", LANGUAGE_MODEL, EXTRA="--max-update 8", STREAMS="8", **settings).ok()
    assert result.out.count("Perplexity: ") == 2
    checkpoint = tmp_path / "out/model/checkpoint_best.pt"
    scored = run("fairseq-hybrid-score", checkpoint, tmp_path / "test.txt", "--running", "--total")
    said = re.search(r"all: perplexity ([\d.]+)", scored.ok().out)
    assert float(said[1]) == pytest.approx(
        float(re.findall(r"Perplexity: ([\d.]+)", result.out)[1]), abs=0.02
    )
