"""Shared fixtures: a small piece of the toy corpus, preprocessed once per session."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: test processes share the cores

from jobs import TOY_CORPUS, run
from warm import WarmServer, shared_server

LONGEST = (
    *("test_golden.py", "test_hybrid.py", "test_launch.py", "test_recipes.py", "test_docs.py"),
    *("test_gradients.py", "test_decoupled.py", "test_sampled.py", "test_async.py"),
)
"""files of a minute or so: first, so that no test process ends long after the other"""
SIZES = ("--train", "480", "--valid", "40", "--test", "40")


def pytest_collection_modifyitems(items):
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.name, len(places)))


@pytest.fixture(scope="session")
def server() -> WarmServer:
    """Starts fairseq's commands quickly: see warm.py."""
    return shared_server()


@pytest.fixture(scope="session")
def bare_server() -> WarmServer:
    """The same without this package, for FAIRSEQ_HYBRID_WITHOUT."""
    return shared_server(bare=True)


@pytest.fixture(scope="session")
def once(tmp_path_factory):
    """A folder that the first test process to ask for fills, and all of xdist's share."""
    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent

    def folder(name: str, fill) -> Path:
        made = root / f"shared-{name}"
        with (root / f"shared-{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (made / ".complete").exists():
                fill(made)
                (made / ".complete").touch()
        return made

    return folder


@pytest.fixture(scope="session")
def text(once) -> Path:
    """Raw text: train/valid/test .de/.en of the toy corpus."""
    return once("text", lambda folder: run(*TOY_CORPUS, folder, *SIZES).ok())


@pytest.fixture(scope="session")
def data(text, once, server) -> Path:
    """A ``fairseq-preprocess`` folder of it, word by word."""
    prefixes = [f"--{split}pref={text / split}" for split in ("train", "valid", "test")]
    command = ("fairseq-preprocess", "-s", "de", "-t", "en", *prefixes)
    small = ("--nwordssrc", "400", "--nwordstgt", "400")
    return once("data", lambda to: server.run(*command, *small, "--destdir", to).ok())


@pytest.fixture(scope="session")
def words(text, once, server) -> Path:
    """Its English side as running text, for language models."""
    prefixes = [f"--{split}pref={text / split}.en" for split in ("train", "valid")]
    command = ("fairseq-preprocess", "--only-source", *prefixes)
    return once("words", lambda to: server.run(*command, "--destdir", to).ok())
