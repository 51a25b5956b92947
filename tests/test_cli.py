"""The commands with ``--user-dir`` preset, from any folder."""

from __future__ import annotations

import pytest
from jobs import TINY_LSTM, TRAIN, curve, run

from fairseq_hybrid.cli import COMMANDS


@pytest.mark.parametrize("command", COMMANDS)
def test_help(server, command, tmp_path):
    result = server.run(f"fairseq-hybrid-{command}", "--help", cwd=tmp_path).ok()
    assert "--user-dir" in result.out
    assert f"usage: fairseq-hybrid-{command}" in result.out


@pytest.mark.parametrize(
    ("words", "flags"),
    [
        (
            ("train", "--arch", "hybrid_lstm", "--criterion", "sampled_softmax"),
            (
                "--input-feeding",
                "--encoder-bidirectional-first",
                "--sample-frequent",
                "--share-all",
            ),
        ),
        (("train", "--arch=hybrid_lstm_lm"), ("--weight-dropout", "--adaptive-softmax-cutoff")),
        (("train", "--arch", "lstm", "--optimizer", "adam"), ("--adam-betas", "--encoder-bidir")),
        (("train", "--task", "streamed_language_modeling", "--arch", "hybrid_lstm_lm"), ("--tok",)),
        (("generate", "--task", "translation"), ("--left-pad-source", "--beam")),
    ],
    ids=lambda value: " ".join(value[:3]),
)
def test_help_shows_the_options_of_what_is_chosen(server, words, flags):
    out = server.run(f"fairseq-hybrid-{words[0]}", *words[1:], "--help").ok().out
    for flag in flags:
        assert f"\n  {flag}" in out, flag
    assert out.count("usage: ") == 1
    assert "--conv-feature-layers" not in out, "of fairseq-generate's default, a speech model"


def test_help_says_the_defaults_of_the_model_that_is_asked_for(server):
    for arch, width in (("hybrid_lstm", 256), ("hybrid_lstm_wmt", 1024)):
        out = server.run("fairseq-hybrid-train", "--arch", arch, "--help").ok().out
        out = " ".join(out.split())
        assert f"encoder hidden size (default: {width})" in out
        assert "updates between two averagings" in out
        assert "(default: 10)" in out.partition("updates between two averagings")[2][:80]


def test_help_without_a_model_says_how_to_see_its_options(server):
    out = server.run("fairseq-hybrid-train", "-h").ok().out
    assert "With --arch NAME before --help" in out
    assert "--input-feeding" not in out


def test_train_and_generate_from_another_folder(server, data, tmp_path):
    command = ("fairseq-hybrid-train", data, *TINY_LSTM, *TRAIN, "--max-update", "2")
    trained = run(*command, "--distributed-world-size", "2", cwd=tmp_path).ok()
    assert len(curve(trained)) == 2
    assert trained.out.startswith("20"), "the log has fairseq's format, with its date first"
    generated = server.run(
        *("fairseq-hybrid-generate", data, "--path", "checkpoints/checkpoint_last.pt"),
        *("--cpu", "--batch-size", "40", "--max-len-b", "10"),
        cwd=tmp_path,
    ).ok()
    assert "BLEU4 = " in generated.out
