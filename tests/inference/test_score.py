"""`fairseq-hybrid-score`: perplexity by line and in all."""

from __future__ import annotations

import math
import re

import pytest
from jobs import USER_DIR

NAME = "fairseq-hybrid-score"


def total(result) -> tuple[float, int]:
    found = re.search(r"^all: perplexity ([\d.]+), ([\d,]+) words", result.out, re.MULTILINE)
    return float(found[1]), int(found[2].replace(",", ""))


def evaluated(server, data, model, *more) -> float:
    result = server.run(
        "fairseq-eval-lm", data, "--user-dir", USER_DIR, "--cpu", "--path", model,
        "--gen-subset", "valid", *more,
    ).ok()  # fmt: skip
    return float(re.search(r"Perplexity: ([\d.]+)", result.all)[1])


def test_running_text_is_what_eval_lm_says(language_model, text, server):
    how = ("--task", "streamed_language_modeling", "--tokens-per-sample", "20", "--batch-size", "1")
    model = language_model / "model/checkpoint_last.pt"
    expected = evaluated(server, language_model / "data", model, *how)
    found = server.run(NAME, language_model, text / "valid.en", "--running", "--total").ok()
    assert found.out.count("\n") == 1
    assert total(found)[0] == pytest.approx(expected, abs=0.02)


def test_lines_for_themselves_are_what_eval_lm_says(language_model, text, server):
    how = ("--task", "language_modeling", "--sample-break-mode", "eos", "--batch-size", "8")
    model = language_model / "model/checkpoint_last.pt"
    expected = evaluated(server, language_model / "data", model, *how)
    found = server.run(NAME, language_model, text / "valid.en").ok()
    perplexity, words = total(found)
    assert perplexity == pytest.approx(expected, abs=0.02)
    rows = [line.split("\t") for line in found.out.splitlines()[:-1]]
    assert [row[2] for row in rows] == (text / "valid.en").read_text().splitlines()
    assert sum(int(row[1]) for row in rows) == words
    nats = sum(math.log(float(row[0])) * int(row[1]) for row in rows)
    assert math.exp(nats / words) == pytest.approx(perplexity, rel=1e-3)


def test_long_lines_are_scored_whole_and_bad_ones_left_out(language_model, server, tmp_path):
    lines = [b"the " * 5000, b"\xff", b"", "мир".encode()]
    (tmp_path / "text").write_bytes(b"\n".join(lines))
    found = server.run(NAME, language_model, tmp_path / "text").ok()
    rows = [line.split("\t") for line in found.out.splitlines()[:-1]]
    assert [int(row[1]) for row in rows] == [5001, 1, 2]
    assert "line 2 is not UTF-8 (byte 1): convert or mend it; it is left out" in found.err
    assert "(1 unknown), 3 lines" in found.out


def test_mistakes_are_one_line(language_model, trained, server, tmp_path):
    (tmp_path / "empty").touch()
    for model, words, said in (
        (trained, ["/etc/hostname"], "is no language model: use fairseq-hybrid-translate"),
        (language_model, [tmp_path / "empty"], "has no line to score"),
        (language_model, ["/nowhere"], "/nowhere: no such file or directory"),
        (language_model, ["--runing"], "unrecognized arguments: --runing"),
        (language_model, ["--data", "/"], "--data / has no dict.txt"),
    ):
        assert said in server.run(NAME, model, *words).error()
    assert "perplexity" in server.run(NAME, "--help").ok().out
