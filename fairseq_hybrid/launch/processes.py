"""Worker processes, of a training, a test or a benchmark: how they start, are watched and end.

A worker calls one function with a pipe to its parent.  If the function fails, the last that comes
through the pipe is an `Ending`.  A worker has a process group of its own, so that what it starts
can be ended with it, and it ends when its parent does, however that happens.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple

from fairseq_hybrid.errors import USAGE_EXIT, user_line

TERM_SECONDS = 3.0  # that a worker has to leave after SIGTERM before it gets SIGKILL


class Ending(NamedTuple):
    """What a worker tells its parent before it leaves."""

    user_line: str | None
    traceback: str
    error: str
    when: float
    stopped: int | None = None  # the signal on which it has saved and stopped
    code: int = USAGE_EXIT


@dataclass
class WorkerProcess:
    """A worker as its parent sees it."""

    process: BaseProcess
    pipe: Connection

    @property
    def pid(self) -> int:
        assert self.process.pid is not None, "it was started"
        return self.process.pid

    @property
    def exitcode(self) -> int | None:
        return self.process.exitcode

    @property
    def failed(self) -> bool:
        return self.exitcode not in (None, 0)

    def signal(self, signum: int) -> None:
        """To the worker alone."""
        with contextlib.suppress(ProcessLookupError):
            if self.exitcode is None:
                os.kill(self.pid, signum)

    def ending(self) -> Ending | None:
        """What it said last, if anything."""
        said: Any = None
        with contextlib.suppress(OSError, EOFError):
            while self.pipe.poll():
                said = self.pipe.recv()
        return said if isinstance(said, Ending) else None


def start(function: Callable[..., None], *args: Any, how: str = "spawn") -> WorkerProcess:
    """A process that calls ``function(pipe, *args)``; ``how``: spawn or fork."""
    loader_start = multiprocessing.get_start_method()
    context = multiprocessing.get_context(how)
    ours, theirs = context.Pipe()
    args = (function, args, theirs, os.getpid(), loader_start)
    process = context.Process(target=live, args=args)  # type: ignore[attr-defined]
    process.start()
    theirs.close()
    return WorkerProcess(process, ours)


def wait(running: Sequence[WorkerProcess], *readers: Any, seconds: float | None = None) -> None:
    """Until one has ended, something can be read or the time is over."""
    sentinels = [worker.process.sentinel for worker in running]
    connection.wait([*sentinels, *readers], seconds)


def failures(workers: Sequence[WorkerProcess]) -> list[int]:
    return [i for i, w in enumerate(workers) if w.failed]


def stop(workers: Sequence[WorkerProcess], politely: bool = True) -> None:
    """End every worker and what it started: with SIGTERM first, if politely, then with SIGKILL."""
    for signum in (signal.SIGTERM, signal.SIGKILL) if politely else (signal.SIGKILL,):
        for worker in workers:
            if worker.exitcode is None or signum == signal.SIGKILL:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(worker.pid, signum)
        deadline = time.monotonic() + TERM_SECONDS
        for worker in workers:
            worker.process.join(max(0.0, deadline - time.monotonic()))


def live(
    function: Callable[..., None],
    args: tuple[Any, ...],
    pipe: Connection,
    parent: int,
    loader_start: str,
) -> None:
    """A worker's life."""
    os.setpgid(0, 0)
    die_with(parent)
    # data loaders start as they would in the parent, not as workers do: seconds each otherwise
    multiprocessing.set_start_method(loader_start, force=True)
    try:
        function(pipe, *args)
    except SystemExit:
        raise
    except BaseException as error:
        sys.stdout.flush()
        with contextlib.suppress(OSError):
            words = str(error).strip().splitlines() or [""]
            what = f"{type(error).__name__}: {words[0]}"
            pipe.send(Ending(user_line(error), traceback.format_exc(), what, time.time()))
        sys.stderr.flush()
        os._exit(1)  # no clean-up: it could wait for peers that are gone


def die_with(parent: int) -> None:
    """Ask the kernel to end this process when its parent ends, however that happens."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # 1: PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(1)
