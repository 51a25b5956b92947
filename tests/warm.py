"""Starting fairseq's commands without importing fairseq each time, and starting them plainly.

Importing fairseq takes some 5 s in every process, most of the time of a small test. `Warm` forks a
command, and lets its workers be forked, from a process that has fairseq (not this package)
imported; `Cold` runs it as from a shell. Both have `pid` and `finish`.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

from jobs import Result, environment, finish, start

SERVER = """
import gc, importlib, json, multiprocessing, os, sys

talk = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
import fairseq_cli.train, torch._dynamo

gc.freeze()
context = multiprocessing.get_context
for line in sys.stdin:
    job = json.loads(line)
    pid = os.fork()
    if pid == 0:
        break
    print(pid, file=talk, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), file=talk, flush=True)
else:
    sys.exit()
talk.close()
os.setsid()
for fd, name in enumerate((os.devnull, job["out"], job["err"])):
    os.dup2(os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC), fd)
os.environ.update(job["env"])
os.chdir(job["cwd"])
sys.argv = job["command"]
multiprocessing.get_context = lambda way=None: context("fork" if way == "spawn" else way)
importlib.import_module(sys.argv[0].replace("fairseq-", "fairseq_cli.")).cli_main()
"""


class Cold:
    """The command, as from a shell."""

    def __init__(self, command: list[str], folder: Path, **env: str):
        self.process = start(*command, **env)
        self.pid = self.process.pid

    def finish(self, timeout: float = 240) -> Result:
        return finish(self.process, timeout)


class WarmServer:
    """Starts commands, one at a time, without importing fairseq for each."""

    def __init__(self):
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment(),
            bufsize=0,
            start_new_session=True,
        )

    def ask(self, **job) -> int:
        self.process.stdin.write(json.dumps(job).encode() + b"\n")
        return int(self.process.stdout.readline())

    def exit_code(self, timeout: float) -> int | None:
        ready, _, _ = select.select([self.process.stdout], [], [], timeout)
        return int(self.process.stdout.readline()) if ready else None

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait(timeout=10)


class Warm:
    """The command, in a process that has fairseq imported already."""

    def __init__(self, server: WarmServer, command: list, folder: Path, cwd=".", **env: str):
        self.server = server
        self.out, self.err = folder / "out.txt", folder / "err.txt"
        self.began = time.monotonic()
        command = [str(part) for part in command]
        self.pid = server.ask(
            command=command,
            out=str(self.out),
            err=str(self.err),
            env=env,
            cwd=str(Path(cwd).resolve()),
        )

    def finish(self, timeout: float = 240) -> Result:
        code = self.server.exit_code(timeout)
        if code is None:
            os.killpg(self.pid, signal.SIGKILL)
            self.server.exit_code(10)
        out, err = self.out.read_text(), self.err.read_text()
        assert code is not None, f"hung for {timeout} s\n{out[-3000:]}\n{err[-3000:]}"
        return Result(code, out, err, time.monotonic() - self.began)
