"""What the plugin saves fairseq resumes without it: name and state of the optimizer are its own."""

from __future__ import annotations

import pytest
from jobs import BIN, TINY_LSTM, TRAIN, curve

from fairseq_hybrid import checkpoints

MORE = ("--disable-validation", "--no-epoch-checkpoints", "--num-workers", "0")
ALONE = {"TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"}
"""fairseq 0.12 stores objects, which torch has become careful about"""


@pytest.mark.parametrize(
    "backend",
    [
        ("--distributed-world-size", "1"),
        (
            *("--distributed-world-size", "2", "--ddp-backend", "model_averaging"),
            *("--averaging-interval", "2", "--averaging-outer", "nesterov"),
        ),
    ],
    ids=["one worker", "model_averaging"],
)
def test_fairseq_alone_goes_on(server, bare_server, data, tmp_path, backend):
    saved = server.train(data, tmp_path, *MORE, *backend, "--max-update", "3").ok()
    (history,) = checkpoints.load(str(tmp_path / "checkpoint_last.pt"))["optimizer_history"]
    assert history["optimizer_name"] == "FairseqAdam"
    command = ("fairseq-train", data, *TINY_LSTM, *TRAIN, "--save-dir", tmp_path, *MORE)
    plain = bare_server.run(*command, "--max-update", "5", **ALONE).ok()
    assert "fairseq_hybrid" not in plain.all.replace(str(BIN), "")
    assert "Loaded checkpoint" in plain.all
    assert list(curve(plain)) == [4, 5]
    again = server.train(data, tmp_path, *MORE, "--max-update", "7").ok()  # and back
    assert list(curve(again)) == [6, 7]
    assert max(curve(plain)[5], curve(again)[7]) < curve(saved)[1]
