"""The processes of a benchmark: a starter on each device, and workers that it forks.

A benchmark's master starts itself again, once for each device: by `devices.sh` if the devices are
emulated, plainly otherwise. These processes, the starters, find the master's address in the
variable `STARTER`; they import what a worker needs and then fork one whenever the master asks, so
that a new worker costs no import, and has the device's network and share of a core like its
starter. Master, starters and workers talk by Unix sockets, which don't care for network namespaces.
If the master dies so do the starters, and with them their workers.

    with Devices(2, "1", "1gbit") as devices:      # or Devices(2): all on this machine
        worker = devices.fork(0, {"RANK": "0"}, function, arguments...)   # function(pipe, ...)
        worker.pipe.recv()
        devices.signal([worker], signal.SIGSTOP)
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

STARTER = "FAIRSEQ_HYBRID_STARTER"
INTERFACE = "GLOO_SOCKET_IFNAME"
FIRST_HOST = "10.86.0.1"
"""the address of emulated device 0"""
PATIENCE = 180.0  # seconds until starters have imported everything


@dataclass
class Process:
    """A worker as the master sees it."""

    device: int
    pid: int
    """where its starter is"""
    pipe: Connection


class Devices:
    """A starter on each of `count` devices; a context manager."""

    def __init__(self, count: int, share: str | None = None, rate: str | None = None):
        self.emulated = share is not None
        self.starters: list[Connection] = []
        self.started: list[subprocess.Popen] = []
        self.processes: list[Process] = []
        self.folder = tempfile.TemporaryDirectory(prefix="starters")
        path = str(Path(self.folder.name) / "master")  # a folder that nobody else can read
        self.server = socket.socket(socket.AF_UNIX)
        self.server.bind(path)
        self.server.listen(64)
        variables = {**os.environ, STARTER: path}
        variables.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # devices have no names to be found
        command = [sys.executable, *sys.argv]
        if self.emulated:
            script = str(Path(__file__).with_suffix(".sh"))
            emulated = ["bash", script, str(count), str(share), str(rate), *command]
            commands = [(emulated, variables)]
        else:
            commands = [(command, {**variables, "NODE_RANK": str(rank)}) for rank in range(count)]
        try:
            for words, env in commands:
                self.started.append(subprocess.Popen(words, env=env, stdin=subprocess.DEVNULL))
            self._accept_starters(count)
        except BaseException:
            self.stop()
            raise

    def _accept_starters(self, count: int) -> None:
        """Wait for all starters; if one ends instead, so does this."""
        found: dict[int, Connection] = {}
        deadline = time.monotonic() + PATIENCE
        while len(found) < count:
            with contextlib.suppress(socket.timeout):
                pipe = self._accept(0.1)
                found[pipe.recv()] = pipe
            codes = [p.returncode for p in self.started if p.poll() is not None]
            if codes:  # it has said why
                raise SystemExit(codes[0] or 1)
            if time.monotonic() > deadline:
                raise SystemExit(f"error: devices were not ready after {PATIENCE:.0f} s")
        self.starters = [found[rank] for rank in range(count)]

    def _accept(self, patience: float) -> Connection:
        self.server.settimeout(patience)
        return Connection(self.server.accept()[0].detach())

    def fork(self, device: int, variables: dict[str, str], target: Callable, *args) -> Process:
        """A process on a device that calls `target(pipe, *args)`."""
        pid = self._ask(device, "fork", (variables, target, args))
        process = Process(device, pid, self._accept(PATIENCE))
        self.processes.append(process)
        return process

    def signal(self, processes: list[Process], sign: signal.Signals) -> None:
        for process in processes:
            self._ask(process.device, "signal", (process.pid, sign))

    def exitcode(self, process: Process) -> int | None:
        """Of one whose pipe has ended; None if it still runs."""
        with contextlib.suppress(SystemExit):
            return self._ask(process.device, "exitcode", process.pid)
        return None

    def end(self, processes: list[Process]) -> None:
        """Kill them: there is nothing to save."""
        self.signal(processes, signal.SIGKILL)
        for process in processes:
            self._ask(process.device, "reap", process.pid)
            process.pipe.close()
            self.processes.remove(process)

    def _ask(self, device: int, what: str, about: Any) -> Any:
        try:
            self.starters[device].send((what, about))
            return self.starters[device].recv()
        except (EOFError, OSError):
            raise SystemExit(f"error: the starter of workers on device {device} died") from None

    def stop(self) -> None:
        for starter in self.starters:
            starter.close()
        for process in self.started:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
        for process in self.started:
            process.wait()
        self.server.close()
        self.folder.cleanup()

    def __enter__(self) -> Devices:
        return self

    def __exit__(self, *_: Any) -> None:
        self.stop()


# A starter


def serve() -> None:
    """If this process is a starter, be one, and do not return."""
    if STARTER not in os.environ:
        return
    path = os.environ.pop(STARTER)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the master gets it too
    import torch
    from worker import import_all

    from fairseq_hybrid.launch import processes

    if "NODES" not in os.environ:  # inside devices.sh all end together
        processes.die_with(os.getppid())
    import_all()
    torch.set_num_threads(1)
    master = connect(path)
    master.send(int(os.environ["NODE_RANK"]))
    workers: dict[int, processes.WorkerProcess] = {}
    while True:
        try:
            what, about = master.recv()
        except (EOFError, OSError):
            break
        answer: Any = None
        if what == "fork":
            worker = processes.start(work, master, path, *about, how="fork")
            workers[worker.pid] = worker
            answer = worker.pid
        elif what == "signal":
            pid, sign = about
            workers[pid].signal(sign)
        elif what == "exitcode":
            answer = workers[about].exitcode
        else:
            workers[about].process.join()
        master.send(answer)
    processes.stop(list(workers.values()), politely=False)
    os._exit(0)


def connect(path: str) -> Connection:
    client = socket.socket(socket.AF_UNIX)
    client.connect(path)
    return Connection(client.detach())


def work(
    _: Connection,
    master: Connection,
    path: str,
    variables: dict[str, str],
    target: Callable,
    args: tuple,
) -> None:
    """A worker's life; it talks to the master, not to the starter."""
    master.close()
    os.environ.update(variables)
    pipe = connect(path)
    try:
        target(pipe, *args)
    except BaseException:
        with contextlib.suppress(OSError):
            pipe.send(("error", traceback.format_exc()))
        os._exit(1)  # no clean-up: it could wait for peers that are gone
    os._exit(0)
