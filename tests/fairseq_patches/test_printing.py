"""Bad input: one clear line, a non-zero exit, no hang, through the real command line."""

from __future__ import annotations

import socket

import pytest
from jobs import TINY_LSTM, train

import fairseq_hybrid  # noqa: F401
from fairseq_hybrid.errors import UserError, user_line


def one_line(result, *parts: str) -> None:
    """Exactly one line on stderr, naming what is expected; nothing was trained."""
    assert result.code == 2
    lines = result.err.strip().splitlines()
    assert len(lines) == 1, result.err[-2000:]
    for part in parts:
        assert part in lines[0]
    assert "Traceback" not in result.all


def test_missing_data_folder(tmp_path):
    # (as from a shell; the others without importing fairseq again)
    result = train(tmp_path / "nowhere", tmp_path / "save", "--distributed-world-size", 2)
    one_line(result, str(tmp_path / "nowhere"), "does not exist", "fairseq-preprocess")
    assert not (tmp_path / "save").exists()


def test_data_folder_without_data(server, tmp_path):
    (tmp_path / "empty").mkdir()
    result = server.train(tmp_path / "empty", tmp_path / "save")
    assert "holds no dictionary" in result.error()


def test_unknown_arch_suggests_a_near_one(server, data, tmp_path):
    result = server.train(data, tmp_path, arch=("--arch", "lsmt"))
    one_line(result, "--arch lsmt is not known", "did you mean lstm")


def test_unknown_option(server, data, tmp_path):
    one_line(server.train(data, tmp_path, "--no-such-thing", 3), "--no-such-thing")


def test_unknown_arch_prints_pages_without_the_entry(bare_server, data, tmp_path):
    result = bare_server.train(
        data, tmp_path, arch=("--arch", "lsmt"), FAIRSEQ_HYBRID_WITHOUT="options"
    )
    assert len(result.err.splitlines()) > 50


def test_switching_off_what_does_not_exist(bare_server, data, tmp_path):
    result = bare_server.train(data, tmp_path, FAIRSEQ_HYBRID_WITHOUT="quiet,nonsense")
    one_line(result, "FAIRSEQ_HYBRID_WITHOUT=nonsense", "quiet")


def test_no_batch_size(server, data, tmp_path):
    command = ("fairseq-hybrid-train", data, *TINY_LSTM, "--cpu", "--optimizer", "sgd")
    one_line(server.run(*command, "--save-dir", tmp_path), "--max-tokens", "--batch-size")


def test_no_batch_size_on_two_workers_is_still_one_line(server, data, tmp_path):
    command = ("fairseq-hybrid-train", data, *TINY_LSTM, "--cpu", "--optimizer", "sgd")
    result = server.run(*command, "--save-dir", tmp_path, "--distributed-world-size", "2")
    one_line(result, "--max-tokens", "--batch-size")


@pytest.mark.parametrize("world", [0, -1])
def test_world_size(server, data, tmp_path, world):
    result = server.train(data, tmp_path, f"--distributed-world-size={world}")
    one_line(result, f"--distributed-world-size {world}", "1 or more")


def test_port_in_use(server, data, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        flags = ("--distributed-world-size", 2, "--distributed-port", port)
        one_line(
            server.train(data, tmp_path, *flags), f"port {port} is in use", "--distributed-port"
        )


def test_port_in_use_with_explicit_flags(server, data, tmp_path):
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        flags = ("--distributed-world-size", 2, "--distributed-rank", 0, "--distributed-no-spawn")
        result = server.train(
            data, tmp_path, *flags, f"--distributed-init-method=tcp://127.0.0.1:{port}", timeout=120
        )
        assert f"port {port} is in use" in result.err.splitlines()[-1]


def test_missing_restore_file(server, data, tmp_path):
    result = server.train(data, tmp_path, "--restore-file", tmp_path / "no.pt")
    one_line(result, "--restore-file", "no.pt", "does not exist")


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (UserError("--x 3 is wrong:\n  use 4"), "--x 3 is wrong: use 4"),
        (
            FileNotFoundError(2, "No such file or directory", "a/b"),
            "a/b: no such file or directory",
        ),
        (AssertionError("Must give --max-tokens"), "Must give --max-tokens"),
        (ValueError("shapes differ: 3 -- 4"), None),
        (ConnectionResetError("peer"), None),
        (RuntimeError("--flag"), None),
        (KeyError("x"), None),
    ],
)
def test_whose_error_it_is(error, line):
    assert user_line(error) == line
