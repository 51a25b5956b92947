"""Shared fixtures: a small piece of the embedded corpus, preprocessed once per session."""

from __future__ import annotations

from pathlib import Path

import pytest
from jobs import run
from warm import WarmServer

SIZES = ("--train", "480", "--valid", "40", "--test", "40")


@pytest.fixture(scope="session")
def text(tmp_path_factory) -> Path:
    """Raw text: train/valid/test .de/.en of the embedded corpus."""
    folder = tmp_path_factory.mktemp("text")
    run("fairseq-hybrid-corpus", folder, *SIZES).ok()
    return folder


@pytest.fixture(scope="session")
def data(text, tmp_path_factory) -> Path:
    """A ``fairseq-preprocess`` folder of it, word by word."""
    folder = tmp_path_factory.mktemp("data")
    prefixes = [f"--{split}pref={text / split}" for split in ("train", "valid", "test")]
    run(
        *("fairseq-preprocess", "-s", "de", "-t", "en", *prefixes, "--destdir", folder),
        *("--nwordssrc", "400", "--nwordstgt", "400"),
    ).ok()
    return folder


@pytest.fixture(scope="session")
def words(text, tmp_path_factory) -> Path:
    """Its English side as running text, for language models."""
    folder = tmp_path_factory.mktemp("words")
    prefixes = [f"--{split}pref={text / split}.en" for split in ("train", "valid")]
    run("fairseq-preprocess", "--only-source", *prefixes, "--destdir", folder).ok()
    return folder


@pytest.fixture(scope="module")
def server():
    """Starts fairseq's commands quickly: see warm.py."""
    server = WarmServer()
    yield server
    server.close()
