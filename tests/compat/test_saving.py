"""What is on disk after a save, after a kill at each of its lines, and when the disk is full."""

from __future__ import annotations

import pickle

import pytest

import fairseq_hybrid  # noqa: F401
from fairseq_hybrid.compat import UserError, checkpoints, saving


def test_a_copy_that_breaks_off_leaves_the_old_file(tmp_path, monkeypatch):
    (tmp_path / "new").write_bytes(b"n" * 1000)
    (tmp_path / "last.pt").write_bytes(b"old")

    def broken(source, target, size):
        target.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(saving.shutil, "copyfileobj", broken)
    with pytest.raises(UserError, match=r"last\.pt could not be written: No space left on device"):
        checkpoints.copy(str(tmp_path / "new"), str(tmp_path / "last.pt"))
    assert (tmp_path / "last.pt").read_bytes() == b"old"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["last.pt", "new"]


def test_a_save_that_breaks_off_leaves_the_old_file(tmp_path):
    path = tmp_path / "x.pt"
    checkpoints.save({"a": 1}, str(path))
    with pytest.raises((pickle.PicklingError, AttributeError, TypeError)):
        checkpoints.save({"a": lambda: 1}, str(path))
    assert checkpoints.load(str(path)) == {"a": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["x.pt"]
