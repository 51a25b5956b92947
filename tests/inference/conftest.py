"""Small trained models, with their files where the recipes put them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from jobs import ROOT, USER_DIR, enliven, run

PIECES = ROOT / "examples/translation/pieces.py"
TINY = (
    *("--arch", "hybrid_lstm", "--encoder-layers", "2", "--encoder-embed-dim", "32"),
    *("--encoder-hidden-size", "32", "--dropout", "0", "--encoder-bidirectional-first"),
)
TRAIN = (
    *("--cpu", "--optimizer", "adam", "--lr", "0.01", "--max-tokens", "1200", "--seed", "1"),
    *("--max-update", "1", "--no-epoch-checkpoints", "--num-workers", "0", "--clip-norm", "1"),
    *("--save-interval", "1000", "--disable-validation"),
)


@pytest.fixture(scope="session")
def prepared(text, once, server) -> Path:
    """A folder as own-text.sh makes it, up to its training."""

    def fill(out: Path) -> None:
        data = out / "data-300"
        (data / "encoded").mkdir(parents=True)
        shutil.copytree(text, out / "text")
        sides = [text / f"train.{side}" for side in ("de", "en")]
        run("python", PIECES, "train", data / "pieces", "300", *sides).ok()
        for split in ("train", "valid", "test"):
            for side in ("de", "en"):
                names = (text / f"{split}.{side}", data / "encoded" / f"{split}.{side}")
                run("python", PIECES, "encode", data / "pieces", *names).ok()
        prefixes = [f"--{s}pref={data / 'encoded' / s}" for s in ("train", "valid", "test")]
        command = ("fairseq-preprocess", "-s", "de", "-t", "en", "--joined-dictionary")
        server.run(*command, *prefixes, "--destdir", data / "bin").ok()

    return once("prepared", fill)


@pytest.fixture(scope="session")
def trained(prepared, once, server) -> Path:
    """The same with a model, a random one: its translations differ, and end at different times."""

    def fill(out: Path) -> None:
        shutil.copytree(prepared, out)
        train(server, out / "data-300/bin", out / "model", *TINY)
        enliven(out / "model/checkpoint_last.pt")

    return once("trained", fill)


@pytest.fixture(scope="session")
def language_model(words, once, server) -> Path:
    """A folder as wikitext2.sh makes it."""

    def fill(out: Path) -> None:
        shutil.copytree(words, out / "data")
        how = ("--task", "streamed_language_modeling", "--tokens-per-sample", "20")
        arch = ("--arch", "hybrid_lstm_lm", "--decoder-embed-dim", "24", "--dropout", "0")
        sizes = ("--decoder-hidden-size", "24", "--batch-size", "8", "--share-decoder-input-output")
        train(server, out / "data", out / "model", *how, *arch, *sizes[:-1], sizes[-1] + "-embed")

    return once("language-model", fill)


def train(server, data: Path, to: Path, *more: str) -> None:
    common = [str(data), "--user-dir", USER_DIR, "--save-dir", str(to), *TRAIN]
    if "--batch-size" in more:
        place = common.index("--max-tokens")
        del common[place : place + 2]
    server.run("fairseq-train", *common, *more).ok()
