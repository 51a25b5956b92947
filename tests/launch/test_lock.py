"""One training per save folder, whoever ended the one before, and however."""

from __future__ import annotations

import os
import signal
from types import SimpleNamespace

import pytest

import fairseq_hybrid  # noqa: F401
from fairseq_hybrid.errors import UserError
from fairseq_hybrid.launch import lock


def options(folder, no_save=False):
    return SimpleNamespace(save_dir=str(folder), no_save=no_save)


@pytest.fixture
def holder(tmp_path):
    """A process that holds the lock of tmp_path, with a child of its own, until it is killed."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # not pytest's: these are no tests
        with lock.held(options(tmp_path)):
            signal.alarm(20)
            if os.fork() == 0:
                signal.alarm(20)  # as a data loader: it outlives its parent
                signal.pause()
            os.write(writer, b"1")
            signal.pause()
    os.read(reader, 1)
    yield pid
    os.kill(pid, signal.SIGKILL)
    os.close(reader)
    os.close(writer)


def test_a_folder_in_use_is_refused_by_the_name_of_the_process(tmp_path, holder):
    with (
        pytest.raises(UserError, match=f"--save-dir .* is in use .*process {holder} on"),
        lock.held(options(tmp_path)),
    ):
        pass
    assert (tmp_path / lock.LOCK_FILE).exists(), "a refusal must not take the other's lock away"


def test_a_kill_leaves_no_lock_behind(tmp_path):
    pid = os.fork()
    if pid == 0:
        lock.acquire(str(tmp_path / lock.LOCK_FILE))
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    assert (tmp_path / lock.LOCK_FILE).exists()
    with lock.held(options(tmp_path)):
        pass
    assert not list(tmp_path.iterdir())


def test_what_saves_nothing_needs_no_lock(tmp_path, holder):
    with lock.held(options(tmp_path, no_save=True)):
        pass


def test_a_file_removed_by_its_last_owner_is_not_the_lock(tmp_path):
    path = tmp_path / lock.LOCK_FILE
    handle = lock.acquire(str(path))
    path.unlink()
    assert not lock.same_file(handle, str(path))
    os.close(handle)
