"""A real run: two workers under `hybrid`, stopped and resumed, with a timeline."""

from __future__ import annotations

from pathlib import Path

import pytest
from jobs import train_command

SMALL = (
    *("--arch", "hybrid_lstm", "--encoder-layers", "2", "--dropout", "0"),
    *("--encoder-embed-dim", "16", "--encoder-hidden-size", "16"),
    *("--criterion", "label_smoothed_cross_entropy", "--label-smoothing", "0.1"),
)


@pytest.fixture(scope="session")
def finished(data, server, once) -> Path:
    """The folder: a log of two sessions, checkpoints, a timeline."""

    def fill(out: Path) -> None:
        out.mkdir()
        workers = ("--distributed-world-size", "2", "--ddp-backend", "hybrid")
        how = ("--num-workers", "0", "--no-epoch-checkpoints", "--validate-interval-updates", "6")
        words = train_command(data, out / "model", *workers, *how, arch=SMALL)
        words += ["--log-format", "simple", "--max-update"]
        trace = ("--hybrid-trace", str(out / "trace.json"))
        first = server.run(*words, "10", *trace).ok().out
        (out / "train.log").write_text(first + server.run(*words, "14").ok().out)

    return once("finished-run", fill)
