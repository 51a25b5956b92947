"""`fairseq-hybrid-export`: ONNX and a program that translates without torch."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from jobs import environment, run

NAME = "fairseq-hybrid-export"
WITHOUT = """
import runpy, sys
sys.modules.update(dict.fromkeys(("torch", "fairseq", "fairseq_hybrid")))  # no importing these
sys.argv[:] = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture(scope="module")
def exported(trained, server, tmp_path_factory):
    folder = tmp_path_factory.mktemp("export") / "float"
    said = server.run(NAME, trained, folder).ok()
    assert re.match(rf"{folder}: [\d.]+ MB; try it: python {folder}/translate.py", said.out)
    return folder


def program(path, *words: str, given: bytes = b"", python: str = sys.executable):
    """Run a program of an exported folder where no torch can be imported."""
    command = [python, "-c", WITHOUT, str(path), *map(str, words)]
    env = environment(PYTHONPATH="")
    done = subprocess.run(command, input=given, capture_output=True, env=env, cwd="/")
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode(), done.stderr.decode()


def test_it_translates_as_the_model_does(exported, trained, server):
    test = trained / "text/test.de"
    expected = server.run("fairseq-hybrid-translate", trained, "--input", test, "--scores", "--cpu")
    rows = [line.split("\t") for line in expected.ok().out.splitlines()]
    out, err = program(exported / "translate.py", "--scores", given=test.read_bytes())
    found = [line.split("\t") for line in out.splitlines()]
    assert not err
    assert len(found) == len(rows) == 40
    assert sum(ours[1] == theirs[1] for ours, theirs in zip(found, rows)) >= 39
    for ours, theirs in zip(found, rows):
        assert float(ours[0]) == pytest.approx(float(theirs[0]), abs=3e-4)


def test_any_input_comes_out_line_by_line(exported, trained):
    source = (trained / "text/test.de").read_bytes().splitlines()
    lines = [source[0], b"", b"\xff", b"Mann " * 5000, "世界".encode(), source[1]]
    out, err = program(exported / "translate.py", given=b"\n".join(lines))
    first, _ = program(exported / "translate.py", source[0].decode())
    found = out.split("\n")
    assert len(found) == 7
    assert found[0] + "\n" == first
    assert found[1:4] == [""] * 3
    said = r"line 3 is left empty: 'utf-8' .*\nline 4 is left empty: \d+ pieces are too many\n"
    assert re.fullmatch(said, err)


def test_int8_is_small_and_near(exported, trained, server, tmp_path):
    server.run(NAME, trained, tmp_path / "int8", "--int8").ok()
    sizes = [
        sum(p.stat().st_size for p in folder.glob("*.onnx"))
        for folder in (exported, tmp_path / "int8")
    ]
    assert sizes[1] < 0.7 * sizes[0]
    test = (trained / "text/test.de").read_bytes()
    wanted, found = (
        [float(line.split("\t")[0]) for line in program(p, "--scores", given=test)[0].splitlines()]
        for p in (exported / "translate.py", tmp_path / "int8/translate.py")
    )
    assert sum(found) == pytest.approx(sum(wanted), rel=0.05)


def test_what_is_in_the_folder_is_explained(exported):
    page = (exported / "README.md").read_text()
    names = {path.name for path in exported.iterdir()} - {"README.md"}
    assert names == set(re.findall(r"^\| `(.*?)` \|", page, re.MULTILINE))
    assert "de to en, weights of 32 bits" in page
    assert "`next_words` [B, N]" in page


def test_a_language_model_scores_as_it_does(language_model, text, server, tmp_path):
    server.run(NAME, language_model, tmp_path / "out").ok()
    given = (text / "valid.en").read_bytes() + b"\xff\n" + b"the " * 2500 + b"\n"
    (tmp_path / "text").write_bytes(given)
    for how in ([], ["--running"]):
        expected = server.run("fairseq-hybrid-score", language_model, tmp_path / "text", *how).ok()
        out, err = program(tmp_path / "out/score.py", *how, given=given)
        assert err == "line 41 is not UTF-8: left out\n"
        ours, theirs = out.splitlines(), expected.out.splitlines()
        assert len(ours) == len(theirs) == 42
        for a, b in zip(ours[:-1], theirs):
            assert float(a.split("\t")[0]) == pytest.approx(float(b.split("\t")[0]), rel=1e-4)
            assert a.split("\t")[1:] == b.split("\t")[1:]
        assert ours[-1].split()[:2] == theirs[-1].split()[:2]


def test_mistakes_are_one_line(exported, trained, language_model, server, tmp_path):
    for words, said in (
        ((trained, exported), "is there and not empty: give a new folder"),
        ((trained, "/etc/hostname"), "is there and not empty"),
        ((trained,), "the following arguments are required: FOLDER"),
        ((trained, tmp_path / "x", "--int4"), "unrecognized arguments: --int4"),
        (("/nowhere", tmp_path / "x"), "not found: give a checkpoint"),
    ):
        assert said in server.run(NAME, *words).error()


@pytest.mark.long
def test_a_fresh_environment_without_torch_translates(exported, trained, tmp_path):
    """onnxruntime, sentencepiece and numpy are all that is installed."""
    run(sys.executable, "-m", "venv", tmp_path / "venv").ok()
    python = tmp_path / "venv/bin/python"
    run(python, "-m", "pip", "install", "-q", "onnxruntime", "sentencepiece", "numpy").ok()
    listed = run(python, "-m", "pip", "list", "--format", "freeze").ok().out
    assert "torch" not in listed
    text = (trained / "text/test.de").read_text().splitlines()[0]
    ours, _ = program(exported / "translate.py", text)
    theirs = run(python, exported / "translate.py", text, PYTHONPATH="", cwd=tmp_path).ok()
    assert theirs.out == ours
