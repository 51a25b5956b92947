"""One training at a time per save folder.

A lock of the operating system on a file in the folder: it ends with the process that holds it,
however that ends, so nothing has to be cleaned up after a kill.  It belongs to that process alone
(``lockf``, not ``flock``): data loaders forked from it don't keep it.  On NFS it holds between
machines where the server keeps locks; where it keeps none training goes on without, and says so.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import socket
from collections.abc import Iterator

from fairseq_hybrid.config import CheckpointConfig
from fairseq_hybrid.errors import UserError

logger = logging.getLogger(__name__)

LOCK_FILE = "training.lock"
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


@contextlib.contextmanager
def held(checkpoint: CheckpointConfig) -> Iterator[None]:
    """Hold the lock of ``--save-dir``; refuse a folder in which another training holds it."""
    folder = checkpoint.save_dir
    if checkpoint.no_save or "://" in folder:
        yield
        return
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, LOCK_FILE)
    handle = acquire(path)
    try:
        yield
    finally:
        if handle is not None:
            with contextlib.suppress(OSError):
                os.remove(path)  # while it is held: who opened it meanwhile sees that it is gone
            os.close(handle)


def acquire(path: str) -> int | None:
    """The open file that holds the lock; None where the file system has no locks."""
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = os.read(handle, 200).decode(errors="replace").strip()
            os.close(handle)
            if error.errno in NO_LOCKS:
                logger.warning(f"{path} cannot be locked ({error.strerror}): start one training")
                return None
            raise UserError(in_use(os.path.dirname(path), owner)) from None
        if same_file(handle, path):
            break
        os.close(handle)  # its owner removed it between our open and our lock
    os.truncate(handle, 0)
    os.write(handle, f"process {os.getpid()} on {socket.gethostname()}\n".encode())
    return handle


def same_file(handle: int, path: str) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(handle), os.stat(path))
    return False


def in_use(folder: str, owner: str) -> str:
    return (
        f"--save-dir {folder} is in use by another training ({owner or 'unknown process'}): wait "
        "for it, end it, or give another --save-dir"
    )
