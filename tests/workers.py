"""Functions on several real workers that talk over gloo."""

from __future__ import annotations

import faulthandler
import importlib
import os
import pickle
import re
import signal
import sys
import tempfile
import time
import traceback
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

    They are forked from a server of warm.py, with the process group over gloo set up, or another
    one with `PROCESS_GROUP=pretend_nccl`. When the
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
    from fairseq_hybrid.launch import processes

    folder, deadline = Path(name), time.monotonic() + timeout
    function, args = pickle.loads((folder / "call").read_bytes())
    workers = [
        processes.start(work, folder, rank, world, function, args, how="fork")
        for rank in range(world)
    ]
    failed: list[int] = []

    def note_failures() -> None:
        for rank in processes.failures(workers):
            if rank not in failed:
                failed.append(rank)
                note(folder, rank, f"failed: exit code {workers[rank].exitcode}")

    while running := [worker for worker in workers if worker.exitcode is None]:
        if (failed and kill) or time.monotonic() > deadline:
            break
        processes.wait(running, seconds=max(0, deadline - time.monotonic()))
        note_failures()
    note_failures()  # who ended since
    if running and not (failed and kill):
        for worker in running:
            worker.signal(signal.SIGUSR1)
            note(folder, workers.index(worker), f"took more than {timeout} s")
        time.sleep(GRACE)
    processes.stop(workers, politely=False)
    if failed or running:
        sys.exit(1)


def note(folder: Path, rank: int, how: str) -> None:
    (folder / f"{rank}.failed").touch()
    print(f"rank {rank} {how}", file=sys.stderr)


def work(_, folder: Path, rank: int, world: int, function, args) -> None:
    """One worker; its result goes to a file."""
    for fd, kind in ((1, "out"), (2, "err")):
        os.dup2(os.open(folder / f"{rank}.{kind}", os.O_WRONLY | os.O_CREAT | os.O_APPEND), fd)
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    backend = os.environ.get("PROCESS_GROUP", "gloo")
    if backend != "gloo":
        importlib.import_module(backend)
    try:
        dist.init_process_group(backend, f"file://{folder}/store", rank=rank, world_size=world)
        torch.save(function(*args), folder / f"{rank}.pt")
        dist.barrier()  # nobody leaves while another one still talks to it
        dist.destroy_process_group()
    except Exception:
        traceback.print_exc()
        sys.exit(1)  # as a worker that nobody watches: first it does what is to be done at its end
