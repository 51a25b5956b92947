"""Models learn, through the real command line: digits in, the same digits backwards out.

To get this right a model needs attention (or a good memory) and a decoder that knows its position.
"""

from __future__ import annotations

import random
import re

import pytest
from jobs import USER_DIR


@pytest.fixture(scope="module")
def digits(server, tmp_path_factory):
    folder = tmp_path_factory.mktemp("digits")
    chance = random.Random(3)
    seen: set[tuple[str, ...]] = set()
    for split, size in (("train", 4000), ("valid", 100), ("test", 100)):
        rows: list[tuple[str, ...]] = []
        while len(rows) < size:
            row = tuple(chance.choice("0123456789") for _ in range(chance.randint(4, 9)))
            if row not in seen:
                seen.add(row)
                rows.append(row)
        for lang, step in (("in", 1), ("out", -1)):
            lines = "".join(" ".join(row[::step]) + "\n" for row in rows)
            (folder / f"{split}.{lang}").write_text(lines)
    prefixes = [f"--{split}pref={folder / split}" for split in ("train", "valid", "test")]
    command = ("fairseq-preprocess", "-s", "in", "-t", "out", *prefixes)
    server.run(*command, "--destdir", folder / "data").ok()
    return folder / "data"


@pytest.mark.parametrize("variant", [(), ("--input-feeding",)])
def test_hybrid_lstm_learns_to_reverse(server, digits, tmp_path, variant):
    server.run(
        *("fairseq-train", digits, "--user-dir", USER_DIR, "--arch", "hybrid_lstm", *variant),
        *("--encoder-layers", "2", "--encoder-embed-dim", "64", "--encoder-hidden-size", "96"),
        *("--encoder-bidirectional-first", "--dropout", "0", "--cpu", "--optimizer", "adam"),
        *("--lr", "0.005", "--clip-norm", "1.0", "--batch-size", "50", "--max-update", "400"),
        *("--lr-scheduler", "polynomial_decay", "--total-num-update", "400"),
        *("--distributed-world-size", "2", "--ddp-backend", "legacy_ddp", "--num-workers", "0"),
        *("--save-dir", tmp_path, "--no-epoch-checkpoints", "--seed", "1"),
    ).ok()
    result = server.run(
        *("fairseq-generate", digits, "--user-dir", USER_DIR, "--cpu", "--batch-size", "50"),
        *("--path", tmp_path / "checkpoint_best.pt", "--beam", "5", "--scoring", "sacrebleu"),
    ).ok()
    score = float(re.search(r"BLEU = ([0-9.]+)|BLEU\S* = ([0-9.]+)", result.out)[0].split()[-1])
    assert score >= 90, result.out[-500:]
