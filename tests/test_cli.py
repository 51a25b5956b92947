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
