"""Starting workers: several on one CPU machine, under torchrun, with explicit flags, on GPUs.

``plan`` says how many workers this command starts.  On one machine the parent hosts the rendezvous
store on loopback, starts the workers, and watches them: if one dies the others are stopped and the
command ends with a line that says which one and why.  If the parent dies, the kernel takes the
workers with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import math
import multiprocessing
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from multiprocessing import connection
from typing import Any, NamedTuple

import torch
from fairseq.distributed import utils as distributed_utils

from fairseq_hybrid.compat.messages import UserError, fail, user_line
from fairseq_hybrid.compat.plan import LOOPBACK, Plan, address, check, on_cpu, plan, port_taken

logger = logging.getLogger(__name__)

TRAINING = ("fairseq_cli.train", "fairseq_cli.hydra_train", "__main__")
GRACE = 3.0  # seconds a worker has to leave after SIGTERM before it gets SIGKILL
SETTLE = 1.0  # seconds to wait for the worker that died first, when its peers fail because of it

farewells: list[Callable[[], Any]] = []
"""what a backend has to do at the end of training, while the other workers can still be reached"""


def bind_trainer(main: Callable) -> None:
    """Make fairseq's ``main`` build our trainer, by the name it looks up when it runs."""
    from fairseq_hybrid.distributed.trainer import HybridTrainer

    if "Trainer" in main.__globals__:
        main.__globals__["Trainer"] = HybridTrainer


def call_main(cfg: Any, main: Callable, **kwargs: Any) -> None:
    """In place of fairseq's: plan, check, then run ``main`` here or in workers."""
    training = main.__module__ in TRAINING and "Trainer" in main.__globals__
    try:
        here = plan(cfg, training)
        check(cfg, training)
        if here.workers:
            launch(here, cfg, main, kwargs)
        else:
            run(here, cfg, main, kwargs)
    except SystemExit:
        raise
    except BaseException as error:
        line = user_line(error)
        if line is None:
            raise
        fail(line)


def run(here: Plan, cfg: Any, main: Callable, kwargs: dict[str, Any]) -> None:
    """Be a worker in this process."""
    bind_trainer(main)
    if not here.distributed:
        if cfg.common.tpu:
            return fairseq_call_main(cfg, main, **kwargs)
        return main(cfg, **kwargs)
    dt = cfg.distributed_training
    if on_cpu(cfg):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        host, _ = address(dt.distributed_init_method)
        if (host or "") in ("localhost", LOOPBACK) or local_torchrun(dt):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback_interface())
    try:
        distributed_utils.distributed_main(dt.device_id, main, cfg, kwargs)
    except RuntimeError as error:
        if "address already in use" in str(error).lower():
            raise UserError(port_taken(address(dt.distributed_init_method)[1])) from None
        raise
    while farewells:
        farewells.pop()()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def local_torchrun(dt: Any) -> bool:
    """All workers of this torchrun job are on this machine."""
    return dt.distributed_init_method == "env://" and os.environ.get(
        "LOCAL_WORLD_SIZE"
    ) == os.environ.get("WORLD_SIZE")


def loopback_interface() -> str:
    names = [name for _, name in socket.if_nameindex()]
    return next((n for n in ("lo", "lo0") if n in names), names[0])


def loopback_store(port: int) -> torch.distributed.TCPStore:
    """The workers' meeting place, reachable from this machine only; port <= 0: a free one."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((LOOPBACK, max(port, 0)))
        listener.listen(1024)
    except OSError:
        listener.close()
        raise UserError(port_taken(port)) from None
    except OverflowError:
        raise UserError(f"--distributed-port {port} is not a port: give 1 to 65535") from None
    return torch.distributed.TCPStore(
        LOOPBACK,
        listener.getsockname()[1],
        is_master=True,
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )


@contextlib.contextmanager
def environment(**values: str):
    """Set variables for the processes started inside."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def worker_environment(here: Plan, cfg: Any, store: Any) -> dict[str, str]:
    values: dict[str, str] = {}
    if store is not None:
        values.update(
            MASTER_ADDR=LOOPBACK,
            MASTER_PORT=str(store.port),
            TORCHELASTIC_USE_AGENT_STORE="True",  # every worker is a client of the parent's store
        )
    if on_cpu(cfg):
        values["CUDA_VISIBLE_DEVICES"] = ""
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        threads = max(1, (cores or 1) // here.workers)
        values["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", str(threads))
        if here.hosts_store:
            values["GLOO_SOCKET_IFNAME"] = os.environ.get(
                "GLOO_SOCKET_IFNAME", loopback_interface()
            )
    return values


def launch(here: Plan, cfg: Any, main: Callable, kwargs: dict[str, Any]) -> None:
    """Start this machine's workers and stay until they are done or one has failed."""
    dt = cfg.distributed_training
    store = loopback_store(dt.distributed_port) if here.hosts_store else None
    if store is not None:
        dt.distributed_init_method = "env://"
    dt.distributed_rank = None
    kwargs = {**kwargs, "start_rank": here.first_rank}
    loader_start = multiprocessing.get_start_method()
    context = multiprocessing.get_context("spawn")
    workers, reports = [], []
    try:
        with environment(**worker_environment(here, cfg, store)):
            for index in range(here.workers):
                receiver, sender = context.Pipe(duplex=False)
                worker = context.Process(
                    target=work,
                    args=(index, main, cfg, dict(kwargs), sender, os.getpid(), loader_start),
                )
                worker.start()
                sender.close()
                workers.append(worker)
                reports.append(receiver)
        failed = watch(workers)
        lines = [read(report) for report in reports]
    finally:
        stop(workers)
    if failed:
        explain(failed, workers, lines, here.first_rank)


class Ending(NamedTuple):
    """What a worker says before it leaves."""

    user_line: str | None
    traceback: str
    error: str
    when: float


def read(report: connection.Connection) -> Ending | None:
    """What a worker said before it left, if anything."""
    with contextlib.suppress(OSError, EOFError):
        return report.recv() if report.poll() else None
    return None


def work(
    index: int,
    main: Callable,
    cfg: Any,
    kwargs: dict[str, Any],
    report: connection.Connection,
    parent: int,
    loader_start: str,
) -> None:
    """A worker's life: leave with the parent, run, and report how it ended."""
    os.setpgid(0, 0)  # so that data loaders can be stopped together with their worker
    die_with(parent)
    # data loaders start as they would in the parent, not as workers do: seconds each otherwise
    multiprocessing.set_start_method(loader_start, force=True)
    cfg.distributed_training.device_id = index
    try:
        run(Plan(workers=0, distributed=True), cfg, main, kwargs)
    except SystemExit:
        raise
    except BaseException as error:
        sys.stdout.flush()
        with contextlib.suppress(OSError):
            words = str(error).strip().splitlines() or [""]
            what = f"{type(error).__name__}: {words[0]}"
            report.send(Ending(user_line(error), traceback.format_exc(), what, time.time()))
        sys.stderr.flush()
        os._exit(1)  # no clean-up: it could wait for peers that are gone


def die_with(parent: int) -> None:
    """Ask the kernel to end this process when its parent ends, however that happens."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # 1: PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(1)


def watch(workers: list) -> list[int]:
    """Wait until all workers are done (return nothing) or some have failed (return which)."""
    while True:
        running = [w for w in workers if w.exitcode is None]
        failed = [i for i, w in enumerate(workers) if w.exitcode not in (None, 0)]
        if failed or not running:
            break
        connection.wait([w.sentinel for w in running])
    if failed:
        time.sleep(SETTLE)
        failed = [i for i, w in enumerate(workers) if w.exitcode not in (None, 0)]
    return failed


def stop(workers: list) -> None:
    """End every worker and what it started: politely, then not."""
    for sign, patience in ((signal.SIGTERM, GRACE), (signal.SIGKILL, GRACE)):
        for worker in workers:
            if worker.exitcode is None or sign == signal.SIGKILL:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(worker.pid, sign)
        deadline = time.monotonic() + patience
        for worker in workers:
            worker.join(max(0.0, deadline - time.monotonic()))


def explain(failed: list[int], workers: list, lines: list, first_rank: int) -> None:
    """Name the worker that failed first: a killed one before those that missed it."""

    def severity(index: int) -> tuple[bool, bool, float]:
        killed, ending = workers[index].exitcode < 0, lines[index]
        users = ending is not None and ending.user_line is not None
        return (not killed, not users, ending.when if ending else math.inf)

    index = min(failed, key=severity)
    code, report = workers[index].exitcode, lines[index]
    who = f"worker {first_rank + index} (pid {workers[index].pid})"
    if code < 0:
        name = signal.Signals(-code).name if -code in list(signal.Signals) else "unknown"
        fail(
            f"{who} died: killed by signal {-code} ({name}); the other {len(workers) - 1} were "
            "stopped; what was saved is intact: the same command resumes from it",
            code=1,
        )
    if report is not None and report.user_line is not None:
        fail(report.user_line)
    if report is not None:
        sys.stderr.write(report.traceback)
        fail(f"{who} failed: {report.error}; the others were stopped", code=1)
    fail(f"{who} ended with exit code {code}; the others were stopped", code=code)


fairseq_call_main = distributed_utils.call_main


def install() -> None:
    distributed_utils.call_main = call_main
