"""Starting fairseq's commands without importing fairseq each time, and starting them plainly.

Importing fairseq takes some 5 s in every process, most of the time of a small test. A `WarmServer`
is a process that has fairseq and this package imported and has done nothing else: it has one
thread and has computed nothing, so it can be forked. It forks whatever it is asked to run, with
output, folder and environment of its own, and tells the exit code. `Warm` runs a command that way,
and lets its workers be forked too; `Cold` runs it as from a shell. workers.py runs functions.
"""

from __future__ import annotations

import functools
import gc
import importlib
import importlib.metadata
import json
import multiprocessing
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from jobs import TINY_LSTM, Result, environment, finish, start, train_command


class Cold:
    """The command, as from a shell."""

    def __init__(self, command: list[str], folder: Path, **env: str):
        self.process = start(*command, **env)
        self.pid = self.process.pid

    def finish(self, timeout: float = 240) -> Result:
        return finish(self.process, timeout)


class WarmServer:
    """Starts jobs, one at a time, each in a session of its own.

    `prepare`, MODULE:NAME, is what all its jobs would have to do again. Without it only fairseq is
    imported, so that FAIRSEQ_HYBRID_WITHOUT, which is read when this package is, can be set.
    """

    def __init__(self, prepare: str | None = "warm:prepare_package"):
        code = f"import sys; sys.path.append(sys.argv[1]); import warm; warm.serve({prepare!r})"
        self.bare = prepare is None
        self.busy: int | None = None
        """the job that runs"""
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, str(Path(__file__).parent)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment(),
            bufsize=0,
            start_new_session=True,
        )

    def ask(self, function: str, *args, out: Path, err: Path, cwd=None, **env: str) -> int:
        """Begin `function`, MODULE:NAME, in a process of its own; returns its process id."""
        if "FAIRSEQ_HYBRID_WITHOUT" in env and not self.bare:
            raise ValueError("FAIRSEQ_HYBRID_WITHOUT comes too late: use a bare server")
        if self.busy is not None:  # of a test that failed
            self.kill()
        job = {"function": function, "args": args, "cwd": str(cwd or os.getcwd()), "env": env}
        job |= {"out": str(out), "err": str(err), "path": sys.path}
        self.process.stdin.write(json.dumps(job).encode() + b"\n")
        self.busy = self.answer()
        return self.busy

    def answer(self) -> int:
        line = self.process.stdout.readline()
        assert line, "the server of warm commands has ended"
        return int(line)

    def exit_code(self, timeout: float) -> int | None:
        """Of the job that runs; None if it takes longer."""
        ready, _, _ = select.select([self.process.stdout], [], [], timeout)
        if not ready:
            return None
        self.busy = None
        return self.answer()

    def kill(self) -> None:
        """End the job that runs, with all that it has started."""
        os.killpg(self.busy, signal.SIGKILL)
        self.exit_code(10)

    def run(self, *command: str, timeout: float = 240, cwd=None, **env: str) -> Result:
        """The same as `jobs.run` for a command of fairseq's or ours."""
        with tempfile.TemporaryDirectory() as folder:
            return Warm(self, list(command), Path(folder), cwd=cwd, **env).finish(timeout)

    def call(self, function, *args, timeout: float = 240, **env: str) -> Result:
        """What a module's function prints in a process of its own."""
        with tempfile.TemporaryDirectory() as folder:
            name = f"{function.__module__}:{function.__qualname__}"
            return Job(self, Path(folder), name, *args, **env).finish(timeout)

    def train(self, data: Path, save_dir: Path, *more: str, arch=TINY_LSTM, **how) -> Result:
        """The same as `jobs.train`."""
        return self.run(*train_command(data, save_dir, *more, arch=arch), **how)

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait(timeout=10)


@functools.cache
def shared_server(bare: bool = False) -> WarmServer:
    """The one of this process. It ends with the process."""
    return WarmServer(None) if bare else WarmServer()


class Job:
    """A call of `function`, MODULE:NAME, in a process forked from the server."""

    def __init__(self, server: WarmServer, folder: Path, function: str, *args, cwd=None, **env):
        self.server = server
        self.out, self.err = folder / "out.txt", folder / "err.txt"
        self.began = time.monotonic()
        self.pid = server.ask(function, *args, out=self.out, err=self.err, cwd=cwd, **env)

    def finish(self, timeout: float = 240) -> Result:
        code = self.server.exit_code(timeout)
        if code is None:
            self.server.kill()
        out, err = self.out.read_text(), self.err.read_text()
        assert code is not None, f"hung for {timeout} s\n{out[-3000:]}\n{err[-3000:]}"
        return Result(code, out, err, time.monotonic() - self.began)


class Warm(Job):
    """The command, in a process that has fairseq imported already."""

    def __init__(self, server: WarmServer, command: list[str], folder: Path, cwd=None, **env: str):
        words = [str(part) for part in command]
        super().__init__(server, folder, "warm:command", words, cwd=cwd, **env)


# In the server


def serve(preparation: str | None) -> None:
    """Fork for every line: a job as `WarmServer.ask` writes it. Answers its pid, then its end."""
    talk = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    prepare(preparation)
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            talk.close()
            return perform(json.loads(line))
        print(pid, file=talk, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), file=talk, flush=True)


def prepare(preparation: str | None) -> None:
    """What every job would have to do again."""
    import fairseq_cli.train  # noqa: F401  (first: it sets up fairseq's log)
    import pytest  # noqa: F401
    import torch._dynamo  # noqa: F401

    if preparation:
        called(preparation)()
    commands()
    assert len(os.listdir("/proc/self/task")) == 1, "threads do not survive a fork"
    gc.collect()
    gc.freeze()


def prepare_package() -> None:
    from fairseq import options
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf

    import fairseq_hybrid  # noqa: F401

    parser = options.get_training_parser()
    args = options.parse_args_and_arch(parser, ["DATA", "--arch", "hybrid_lstm"])
    convert_namespace_to_omegaconf(args)  # hydra's grammar is slow the first time


def perform(job: dict) -> None:
    os.setsid()
    for fd, name in enumerate((os.devnull, job["out"], job["err"])):
        os.dup2(os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC), fd)
    os.chdir(job["cwd"])
    os.environ.update(job["env"])
    sys.path[:] = job["path"]
    called(job["function"])(*job["args"])


def called(function: str) -> Callable[..., None]:
    """MODULE:NAME"""
    module, _, name = function.partition(":")
    return getattr(importlib.import_module(module), name)


@functools.cache
def commands() -> dict[str, importlib.metadata.EntryPoint]:
    return {e.name: e for d in importlib.metadata.distributions() for e in d.entry_points}


def command(words: list[str]) -> None:
    """A command that pip installed; the workers it starts are forked."""
    sys.argv = words
    context = multiprocessing.get_context
    multiprocessing.get_context = lambda start=None: context("fork" if start == "spawn" else start)
    sys.exit(commands()[os.path.basename(words[0])].load()())
