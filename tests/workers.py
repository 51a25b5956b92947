"""Functions on several real workers that talk over gloo."""

from __future__ import annotations

import faulthandler
import os
import pickle
import re
import signal
import sys
import tempfile
import time
from pathlib import Path

from warm import Job, shared_server

GRACE = 0.5
"""seconds in which workers that hang write down where"""


class WorkerError(AssertionError):
    """Workers that failed or `hung`; `errors` has by rank what each of them wrote to stderr."""

    def __init__(self, what: str, errors: dict[int, str]):
        texts = [f"rank {rank}:\n{text[-3000:]}" for rank, text in errors.items()]
        super().__init__("\n".join([what, *texts]))
        self.errors = errors
        self.hung = [int(rank) for rank in re.findall(r"^rank (\d+) took more", what, re.MULTILINE)]


def run_workers(
    function, world: int, *args, timeout: float = 120, kill: bool = True, server=None, **env: str
) -> list:
    """What `function(*args)`, a module's function, returns on each of `world` ranks.

    They are forked from a server of warm.py, with the process group over gloo set up. When the
    first one fails the others are killed, or with `kill=False` left to themselves; when they take
    longer than `timeout` seconds, all are, and say where they were. Either way none is left behind.
    """
    server = server or shared_server()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "call").write_bytes(pickle.dumps((function, args)))
        job = Job(server, folder, "workers:lead", name, world, timeout, kill, **env)
        result = job.finish(timeout + 30)
        if result.code != 0:
            raise failure(folder, world, result.err)
        import torch

        paths = [folder / f"{rank}.pt" for rank in range(world)]
        return [torch.load(path, weights_only=False) for path in paths]


def failure(folder: Path, world: int, said: str) -> WorkerError:
    errors = {}
    for rank in range(world):
        if (folder / f"{rank}.failed").exists():
            errors[rank] = (folder / f"{rank}.err").read_text()
    return WorkerError(said.strip(), errors)


# In a process forked from the server


def lead(name: str, world: int, timeout: float, kill: bool) -> None:
    """Fork the workers and watch them; all have ended when this ends."""
    folder, deadline = Path(name), time.monotonic() + timeout
    function, args = pickle.loads((folder / "call").read_bytes())
    ranks = {}
    for rank in range(world):
        pid = os.fork()
        if pid == 0:
            return work(folder, rank, world, function, args)
        ranks[pid] = rank
    failed = []
    while ranks and not (failed and kill) and time.monotonic() < deadline:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            time.sleep(0.005)
        elif status:
            failed.append(ranks.pop(pid))
            note(folder, failed[-1], f"failed: exit code {os.waitstatus_to_exitcode(status)}")
        else:
            del ranks[pid]
    if ranks and not (failed and kill):
        for pid, rank in ranks.items():
            os.kill(pid, signal.SIGUSR1)
            note(folder, rank, f"took more than {timeout} s")
        time.sleep(GRACE)
    for pid in ranks:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    if failed or ranks:
        sys.exit(1)


def note(folder: Path, rank: int, how: str) -> None:
    (folder / f"{rank}.failed").touch()
    print(f"rank {rank} {how}", file=sys.stderr)


def work(folder: Path, rank: int, world: int, function, args) -> None:
    """One worker; its result goes to a file."""
    for fd, kind in ((1, "out"), (2, "err")):
        os.dup2(os.open(folder / f"{rank}.{kind}", os.O_WRONLY | os.O_CREAT | os.O_APPEND), fd)
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=world)
    result = function(*args)
    torch.save(result, folder / f"{rank}.pt")
    dist.barrier()  # nobody leaves while another one still talks to it
    dist.destroy_process_group()
