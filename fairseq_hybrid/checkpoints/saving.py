"""Writes checkpoints so that no kill can spoil one, and none can lose a complete one.

A file appears under its name only when all of it is on disk: written beside it, synced, renamed.

fairseq writes ``checkpoint_3_500.pt`` first and copies it to ``checkpoint_last.pt`` in the end; a
job killed in between would resume from the older one.  So the file that the next start reads is
written first, the others are copies of it.  Then there is nothing to be finished after a kill, at
whichever line: ``checkpoint_last.pt`` is the state before the save up to its rename, and the new
one from then on.  Nothing else says what to resume from, so nothing can disagree with it: a user
may remove the file, put another in its place, copy the folder, or change the flags of saving.
What a kill does leave are half-written files; the next start sweeps them (`sweep`).
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any, BinaryIO

import torch
from fairseq import checkpoint_utils, file_io

from fairseq_hybrid.errors import UserError

SCRATCH = re.compile(r"checkpoint.*\.pt\.\w{8}\.tmp")  # as mkstemp makes them below

first: str | None = None
"""the file that `save` writes before the one it is asked for (see `last_first`)"""
written: tuple[str, str, os.stat_result, os.stat_result] | None = None
"""the two of the latest save: they are equal as long as both are the same files"""


class Recorder:
    """A file that remembers why it could not be written: torch's writer forgets it."""

    def __init__(self, file: BinaryIO):
        self.file = file
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        try:
            return self.file.write(data)
        except OSError as error:
            self.error = self.error or error
            raise

    def flush(self) -> None:
        """Left to `complete_or_nothing`."""


@contextlib.contextmanager
def complete_or_nothing(path: str) -> Iterator[Recorder]:
    """Open a file for writing that takes ``path``'s place once it is complete and on disk."""
    folder, name = os.path.split(os.path.abspath(path))
    recorder = None
    try:
        handle, scratch = tempfile.mkstemp(prefix=name + ".", suffix=".tmp", dir=folder)
        try:
            with os.fdopen(handle, "wb") as f:
                recorder = Recorder(f)
                yield recorder
                f.flush()
                os.fsync(f.fileno())
            os.chmod(scratch, 0o666 & ~current_umask())
            os.replace(scratch, path)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.remove(scratch)
            raise
    except Exception as error:
        cause = error if isinstance(error, OSError) else recorder and recorder.error
        if not cause:
            raise
        raise UserError(unwritable(path, cause)) from None
    sync_folder(folder)


def unwritable(path: str, error: OSError) -> str:
    return (
        f"checkpoint {path} could not be written: {error.strerror or error}; what was saved before "
        "is intact: when there is room for another, the same command resumes from it"
    )


def current_umask() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return umask


def sync_folder(folder: str) -> None:
    """Make a rename survive a power cut, where the file system can."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextlib.contextmanager
def last_first(last: str) -> Iterator[None]:
    """Saves inside write ``last``, and what they are asked for as a copy of it."""
    global first
    first = os.path.abspath(last)
    try:
        yield
    finally:
        first = None


def save(obj: Any, filename: str, async_write: bool = False) -> None:
    """In place of ``torch_persistent_save``: one attempt, complete or nothing."""
    global written
    if async_write or not file_io.PathManager.supports_rename(filename):
        fairseq_save(obj, filename, async_write=async_write)
        return
    target = os.path.abspath(first or filename)
    with complete_or_nothing(target) as f:
        torch.save(obj, f)  # type: ignore[arg-type]  # it only writes
    path = os.path.abspath(filename)
    if path != target:
        write_copy(target, path)
        written = (path, target, os.stat(path), os.stat(target))


def copy(src_path: str, dst_path: str, overwrite: bool = False) -> bool:
    """In place of ``PathManager.copy``, which truncates ``dst_path`` before it writes."""
    manager = file_io.PathManager
    if manager.path_requires_pathmanager(src_path) or manager.path_requires_pathmanager(dst_path):
        return bool(fairseq_copy(src_path, dst_path, overwrite=overwrite))
    if not just_written(src_path, dst_path):
        write_copy(src_path, dst_path)
    return True


def write_copy(source: str, target: str) -> None:
    with open(source, "rb") as f, complete_or_nothing(target) as out:
        shutil.copyfileobj(f, out, 1 << 24)


def just_written(*paths: str) -> bool:
    """The two files are those of the latest save, which nobody touched since."""
    if written is None or tuple(map(os.path.abspath, paths)) != written[:2]:
        return False
    with contextlib.suppress(OSError):
        now = [file_identity(os.stat(path)) for path in paths]
        return now == [file_identity(stat) for stat in written[2:]]
    return False


def file_identity(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def sweep(last: str) -> None:
    """Remove what a killed writer left beside ``last``, when nobody else can be writing there."""
    for path in glob.glob(os.path.join(glob.escape(os.path.dirname(last)), "checkpoint*.tmp")):
        if SCRATCH.fullmatch(os.path.basename(path)):
            with contextlib.suppress(FileNotFoundError):
                os.remove(path)


fairseq_save = checkpoint_utils.torch_persistent_save
fairseq_copy = file_io.PathManager.copy


def saving_is_ours() -> bool:
    return file_io.PathManager.copy is copy


def install_saving() -> None:
    checkpoint_utils.torch_persistent_save = save
    file_io.PathManager.copy = staticmethod(copy)
