"""What is on disk after a save, after a kill at each of its lines, and when the disk is full."""

from __future__ import annotations

import itertools
import os
import pickle
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.dataclass.configs import CheckpointConfig

import fairseq_hybrid  # noqa: F401
from fairseq_hybrid import checkpoints
from fairseq_hybrid.checkpoints import saving
from fairseq_hybrid.errors import UserError
from fairseq_hybrid.trainer import HybridTrainer


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


class Small(HybridTrainer):
    """The trainer's part in saving, without a model."""

    data_parallel_rank = data_parallel_world_size = 1
    should_save_checkpoint_on_current_rank = True
    always_call_state_dict_during_save_checkpoint = False
    checkpoint_suffix = ""
    task = None

    def __init__(self, folder: Path, updates: int, **flags):
        checkpoint = CheckpointConfig(save_dir=str(folder), **flags)
        self._cfg = SimpleNamespace(checkpoint=checkpoint)
        self.updates = updates

    cfg = property(lambda self: self._cfg)

    def consolidate_optimizer(self) -> None:
        pass

    def get_num_updates(self) -> int:
        return self.updates

    def state_dict(self) -> dict:
        return {"model": {"w": torch.ones(3)}, "updates": self.updates, "extra_state": {}}


def save_as_fairseq_does(
    folder: Path, updates: int, end_of_epoch: bool = False, loss: float | None = None, **flags
) -> None:
    epoch = SimpleNamespace(epoch=1, end_of_epoch=lambda: end_of_epoch, state_dict=dict)
    trainer = Small(folder, updates, **flags)
    checkpoint_utils.save_checkpoint(trainer.cfg.checkpoint, trainer, epoch, loss)


CHANGES = ("open", "os.rename", "os.remove", "os.chmod", "os.mkdir", "tempfile.mkstemp")
FILES = (saving.__file__, checkpoint_utils.__file__)


def killed_at(moment: int, every_line: bool, *args, **kwargs) -> bool:
    """Save in a process that is gone before that file operation (line); whether it got as far."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
    moments = itertools.count()

    def step(frame, event, _):
        if event == "line" and next(moments) == moment:
            os._exit(9)
        return step

    def operation(event, _):
        if event in CHANGES and next(moments) == moment:
            os._exit(9)

    if every_line:
        sys.settrace(lambda frame, *_: step if frame.f_code.co_filename in FILES else None)
    else:
        sys.addaudithook(operation)
    code = 1
    try:
        save_as_fairseq_does(*args, **kwargs)
        code = 0
    finally:
        os._exit(code)


def updates(path: Path) -> int:
    return checkpoints.load(str(path))["updates"]


SAVES = {
    "every so many updates": {
        **{"save_interval_updates": 10, "keep_interval_updates": 1},
        **{"loss": 2.0, "no_epoch_checkpoints": True},
    },
    "every epoch": {"end_of_epoch": True, "keep_best_checkpoints": 1, "loss": 2.0},
    "the last one alone": {"end_of_epoch": True, "no_epoch_checkpoints": True},
}


@pytest.mark.parametrize(
    ("kind", "every_line"),
    [
        ("every so many updates", False),
        ("the last one alone", False),
        pytest.param("every epoch", False, marks=pytest.mark.long),
        *(pytest.param(kind, True, marks=pytest.mark.long) for kind in SAVES),
    ],
)
def test_wherever_a_save_ends_the_newest_complete_one_is_resumed(tmp_path, kind, every_line):
    """And no file is spoilt, nothing is left over, and what a user removes stays removed."""
    seen = []
    for moment in itertools.count():
        folder = tmp_path / str(moment)
        folder.mkdir()
        save_as_fairseq_does(folder, 10, **SAVES[kind])
        killed = killed_at(moment, every_line, folder, 20, **SAVES[kind])
        last = folder / "checkpoint_last.pt"
        saving.sweep(str(last))
        left = sorted(folder.iterdir())
        assert all(path.suffix == ".pt" for path in left)
        seen.append(updates(last))
        assert seen[-1] == max(map(updates, left)), f"killed at {moment}"
        last.unlink()
        saving.sweep(str(last))
        assert sorted(folder.iterdir()) == [path for path in left if path != last]
        if not killed:
            break
        shutil.rmtree(folder)
    assert seen == sorted(seen), "once it is saved it stays"
    assert (seen[0], seen[-1]) == (10, 20)
    assert len(seen) > (40 if every_line else 5)
    expected = {
        "every so many updates": ["checkpoint_1_20.pt", "checkpoint_best.pt"],
        "every epoch": ["checkpoint.best_loss_2.0000.pt", "checkpoint1.pt", "checkpoint_best.pt"],
        "the last one alone": [],
    }
    assert [path.name for path in sorted(folder.iterdir())] == expected[kind]
    assert all(updates(path) == 20 for path in folder.iterdir())


def test_a_file_put_in_place_of_the_last_one_is_resumed(tmp_path):
    """Restored from a backup, or written under other flags: nothing on disk says otherwise."""
    save_as_fairseq_does(tmp_path, 10, **SAVES["every epoch"])
    shutil.copy(tmp_path / "checkpoint_last.pt", tmp_path / "backup")
    save_as_fairseq_does(tmp_path, 20, **SAVES["every so many updates"])
    shutil.copy(tmp_path / "backup", tmp_path / "checkpoint_last.pt")
    saving.sweep(str(tmp_path / "checkpoint_last.pt"))
    assert updates(tmp_path / "checkpoint_last.pt") == 10
    assert updates(tmp_path / "checkpoint_best.pt") == 20, "the files do not share their bytes"


def test_the_last_file_is_written_once(tmp_path, monkeypatch):
    targets = []
    write = saving.complete_or_nothing
    monkeypatch.setattr(
        saving, "complete_or_nothing", lambda path: targets.append(Path(path).name) or write(path)
    )
    save_as_fairseq_does(tmp_path, 20, loss=1.0, end_of_epoch=True)
    assert targets == ["checkpoint_last.pt", "checkpoint1.pt", "checkpoint_best.pt"]


def test_sweeping_leaves_alone_what_is_not_ours(tmp_path):
    names = ["checkpoint_1_30.pt.ab3_de7g.tmp", "checkpoint_backup.tmp", "my.pt.abcdefgh.tmp"]
    for name in names:
        (tmp_path / name).write_bytes(b"half a file")
    saving.sweep(str(tmp_path / "checkpoint_last.pt"))
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names[1:])
