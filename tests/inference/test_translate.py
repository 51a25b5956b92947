"""`fairseq-hybrid-translate`: text in, text out."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import termios
import xml.etree.ElementTree as ElementTree

import pytest
import torch
from jobs import USER_DIR, environment

NAME = "fairseq-hybrid-translate"


@pytest.fixture(scope="module")
def source(trained):
    return (trained / "text/test.de").read_text().splitlines()


@pytest.fixture(scope="module")
def translation(trained, server):
    """Of the test text, by the command."""
    result = server.run(NAME, trained, "--input", trained / "text/test.de", "--cpu").ok()
    assert not result.err
    return result.out.splitlines()


def piped(trained, raw: bytes, *words: str):
    """Run from a shell's pipe, through the module."""
    command = [sys.executable, "-m", "fairseq_hybrid.inference.translate", str(trained), *words]
    done = subprocess.run(command, input=raw, capture_output=True, env=environment())
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def test_help_is_enough_to_begin(server):
    result = server.run(NAME, "--help").ok()
    assert "examples:" in result.out
    for flag in ("--input", "--output", "--beam", "--nbest", "--scores", "--attention"):
        assert flag in result.out


def test_hypotheses_are_those_of_fairseq_generate(trained, server, translation):
    generated = server.run(
        "fairseq-generate", trained / "data-300/bin", "--user-dir", USER_DIR, "--cpu",
        "--path", trained / "model/checkpoint_last.pt", "--beam", "5", "--max-len-a", "1.5",
        "--max-len-b", "10", "--max-tokens", "4000", "--remove-bpe", "sentencepiece",
    ).ok()  # fmt: skip
    found = re.findall(r"^H-(\d+)\t\S+\t(.*)$", generated.out, re.MULTILINE)
    expected = [text for _, text in sorted(found, key=lambda pair: int(pair[0]))]
    assert len(expected) == len(translation) == 40
    assert sum(map(str.__eq__, expected, translation)) >= 39


def test_a_sentence_a_folder_and_a_file_are_all_understood(trained, server, source, translation):
    for checkpoint in (trained, trained / "model", trained / "model/checkpoint_last.pt"):
        assert server.run(NAME, checkpoint, source[0], "--cpu").ok().out == translation[0] + "\n"


def test_a_run_that_was_moved_and_one_that_was_collected_are_found(
    trained, server, source, translation, tmp_path
):
    moved, collected = tmp_path / "moved", tmp_path / "collected"
    shutil.copytree(trained / "model", moved / "model")
    shutil.copytree(trained / "data-300", moved / "data-300")
    collected.mkdir()
    for name in ("model/checkpoint_last.pt", "data-300/pieces.model"):
        shutil.copy(trained / name, collected)
    for side in ("de", "en"):
        shutil.copy(trained / f"data-300/bin/dict.{side}.txt", collected)
    trained.rename(trained.with_name("away"))
    try:
        for folder in (moved, collected):
            assert server.run(NAME, folder, source[0], "--cpu").ok().out == translation[0] + "\n"
    finally:
        trained.with_name("away").rename(trained)


def test_any_input_comes_out_line_by_line(trained, source, translation):
    lines = [
        source[0].encode(),
        b"",
        b"\xff\xfe bytes",
        "こんにちは 世界 مرحبا".encode(),
        b"nul\0byte",
        b"Mann " * 5000,
        "  \u2028 ".encode(),
        source[1].encode(),
    ]
    code, out, err = piped(trained, b"\n".join(lines))
    assert code == 0
    found = out.split("\n")
    assert (found[0], found[7]) == (translation[0], translation[1])
    assert len(found) == len(lines) + 1
    assert [found[i] for i in (1, 2, 4, 5, 6)] == [""] * 5
    for said in (
        "line 3 is not UTF-8 (byte 1): convert or mend it",
        "line 4 is mostly unknown to the model: do not trust it",
        "line 5 has a NUL byte, so it is no text: mend it",
        r"line 6 has [\d,]+ pieces, more than the 1,023 that the model takes: split it",
        "3 lines were left empty",
    ):
        assert (
            len(re.findall(f"^translate.py: {said}$".replace("(byte 1)", r"\(byte 1\)"), err, re.M))
            == 1
        )
    assert "Traceback" not in err


def test_results_are_in_order_whatever_the_buffer(trained, server, translation):
    words = (NAME, trained, "--input", trained / "text/test.de", "--cpu", "--buffer", "7")
    assert server.run(*words).ok().out.splitlines() == translation


def test_nbest_and_scores(trained, server, source, translation):
    words = ("--nbest", "3", "--scores", "--cpu", "--max-tokens", "50")
    out = server.run(NAME, trained, "--input", trained / "text/test.de", *words).ok().out
    rows = [line.split("\t") for line in out.splitlines()]
    assert [int(number) for number, _, _ in rows] == [i // 3 + 1 for i in range(3 * 40)]
    assert [text for _, _, text in rows[::3]] == translation
    scores = [float(score) for _, score, _ in rows]
    for i in range(0, len(rows), 3):
        assert 0 > scores[i] >= scores[i + 1] >= scores[i + 2]


def test_attention_is_drawn(trained, server, source, tmp_path):
    """Of each line, whatever is beside it in its batch."""
    (tmp_path / "in").write_text(f"{source[0]} <&>\n{source[0][:9]}\n")
    words = ("--attention", tmp_path / "maps", "--cpu", "--output", tmp_path / "out")
    server.run(NAME, trained, "--input", tmp_path / "in", *words).ok()
    assert (tmp_path / "out").read_text().count("\n") == 2
    widths = []
    for number in (1, 2):
        picture = ElementTree.parse(tmp_path / f"maps/{number}.svg").getroot()
        cells = picture.findall("{*}rect")[1:]
        texts = [each.text for each in picture.findall("{*}text")]
        rows, columns = ({c.get(axis) for c in cells} for axis in "yx")
        assert len(rows) * len(columns) == len(cells)
        assert len(rows) + len(columns) == len(texts)
        assert texts.count("</s>") == 2
        for y in rows:
            weights = [float(c.get("fill-opacity")) for c in cells if c.get("y") == y]
            assert sum(weights) == pytest.approx(1, abs=0.02)
        widths.append(len(columns))
    assert widths[0] > widths[1]


@pytest.fixture
def terminal():
    """Both ends of one with 24 lines of 80."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    os.set_blocking(ours, False)
    yield ours, theirs
    os.close(ours)
    os.close(theirs)


def test_the_prompt_translates_until_the_end(trained, source, translation, terminal):
    ours, theirs = terminal
    told = [(s, t) for s, t in zip(source, translation) if t][:2] or [(source[0], "")]
    typed = "\n\n".join(sentence for sentence, _ in told) + "\n\x04"
    command = [sys.executable, "-m", "fairseq_hybrid.inference.translate", str(trained), "--cpu"]
    with subprocess.Popen(
        command, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
    ) as process:
        os.write(ours, typed.encode())
        out, err = process.communicate(timeout=100)
    said = [line for line in out.decode().split("de> ") if line.strip()]
    assert process.returncode == 0, err.decode()
    assert [line.strip() for line in said] == [text for _, text in told if text]


def test_a_progress_bar_on_a_terminal_only(trained, source, terminal):
    ours, theirs = terminal
    command = [sys.executable, "-m", "fairseq_hybrid.inference.translate", str(trained), source[0]]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=theirs, env=environment())
    assert done.returncode == 0
    assert b"?line/s" in os.read(ours, 100_000)


MISTAKES = [
    (["--beam", "0"], "argument --beam: 0 is not a whole number above 0"),
    (["--lenpen", "nan"], "argument --lenpen: nan is not a number from 0 on"),
    (["--max-len-a", "-1"], "argument --max-len-a: -1 is not a number from 0 on"),
    (["--bogus"], "unrecognized arguments: --bogus"),
    (["--nbest", "7"], "--nbest 7 is more than --beam 5"),
    (["--input", "nowhere"], "nowhere: no such file or directory"),
    (["--input", "/"], "--input / is a folder: give a file"),
    (["--input", __file__, "again"], "and a sentence: give one of them"),
    (["--data", "/"], "--data / has no dict.SOURCE.txt and dict.TARGET.txt"),
    (["--pieces", "/nowhere"], "--pieces /nowhere: there is no such file"),
    (["--pieces", __file__], "is no sentencepiece model: give another with --pieces"),
    ([__file__], "is a file: to translate its lines give --input"),
]


@pytest.mark.parametrize(("words", "said"), MISTAKES, ids=[said for _, said in MISTAKES])
def test_mistakes_are_one_line(trained, server, words, said):
    result = server.run(NAME, trained, *words, "--cpu")
    assert said in result.error()
    assert result.code == 2
    assert result.err.count("\n") == 1


@pytest.mark.parametrize("content", [b"", b"PK\3\4 no zip", b"\x80\x02cos\nsystem\n(S'true'\ntR."])
def test_no_checkpoint_is_one_line(server, content, tmp_path):
    (tmp_path / "checkpoint_best.pt").write_bytes(content)
    line = server.run(NAME, tmp_path, "a").error()
    assert "cannot be read" in line or "contains posix.system" in line or "os.system" in line, line
    assert "has no checkpoint_best.pt" in server.run(NAME, "/proc/self", "a").error()
    assert "not found: give a checkpoint" in server.run(NAME, "/nowhere", "a").error()


@pytest.mark.parametrize("state", [{}, [], {"model": {}, "optimizer_history": []}, {"model": 3}])
def test_a_file_of_something_else_is_one_line(server, state, tmp_path):
    torch.save(state, tmp_path / "checkpoint_best.pt")
    assert "has no model in it: give a checkpoint" in server.run(NAME, tmp_path, "a").error()


def test_pieces_of_another_model_are_noticed(trained, server, tmp_path):
    from jobs import ROOT, run

    other = tmp_path / "text"
    other.write_text(
        "".join(f"{chr(0x4E00 + i % 300)}{chr(0x4E01 + i % 250)}\n" for i in range(900))
    )
    pieces = ROOT / "examples/translation/pieces.py"
    run("python", pieces, "train", tmp_path / "pieces", "400", other).ok()
    result = server.run(NAME, trained, "a", "--pieces", tmp_path / "pieces.model")
    assert "has other pieces than the model was trained on" in result.error()


def test_a_language_model_is_sent_elsewhere(language_model, server):
    assert (
        "is a language model: use fairseq-hybrid-score"
        in server.run(NAME, language_model, "a").error()
    )
