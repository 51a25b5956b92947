"""Starting workers: several on one CPU machine, under torchrun, with explicit flags, on GPUs.

fairseq counts CUDA devices to decide how many workers to start.  Here the plan is made first, as
plain data (``plan``), so that everything wrong with it is said before a process exists.  On one
machine the parent hosts the rendezvous store on loopback, starts the workers, and watches them: if
one dies the others are stopped and the command ends with a line that says which one and why.  If
the parent dies, the kernel takes the workers with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import multiprocessing
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import connection
from typing import Any

import torch
from fairseq.distributed import utils as distributed_utils

from fairseq_hybrid.compat import checkpoints
from fairseq_hybrid.compat.messages import UserError, fail, user_line

logger = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
TORCHRUN = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK")
TRAINING = ("fairseq_cli.train", "fairseq_cli.hydra_train", "__main__")
GRACE = 3.0  # seconds a worker has to leave after SIGTERM before it gets SIGKILL
SETTLE = 1.0  # seconds to wait for the worker that died first, when its peers fail because of it


@dataclass(frozen=True)
class Plan:
    """How this command takes part in a job."""

    workers: int  # processes to start here; 0: this process is the only worker or one of several
    first_rank: int = 0
    distributed: bool = False
    hosts_store: bool = False  # every worker is started here: the parent keeps the store


def on_cpu(cfg: Any) -> bool:
    return cfg.common.cpu or not torch.cuda.is_available()


def plan(cfg: Any, training: bool) -> Plan:
    """Decide who starts what, writing what fairseq expects into ``cfg.distributed_training``."""
    dt = cfg.distributed_training
    if dt.distributed_world_size < 1:
        raise UserError(
            f"--distributed-world-size {dt.distributed_world_size} is not a number of workers: "
            "give 1 or more"
        )
    if cfg.common.tpu:
        return Plan(workers=0)
    if on_cpu(cfg) and dt.distributed_backend == "nccl":
        dt.distributed_backend = "gloo"
    if dt.distributed_init_method is None and training and all(k in os.environ for k in TORCHRUN):
        return plan_torchrun(cfg)
    if not on_cpu(cfg):
        return plan_gpus(dt)
    return plan_cpus(dt)


def plan_torchrun(cfg: Any) -> Plan:
    dt = cfg.distributed_training
    dt.distributed_world_size = int(os.environ["WORLD_SIZE"])
    if dt.distributed_world_size == 1:
        return Plan(workers=0)
    dt.distributed_init_method = "env://"
    dt.distributed_rank = int(os.environ["RANK"])
    dt.device_id = int(os.environ.get("LOCAL_RANK", 0))
    dt.distributed_no_spawn = True
    return Plan(workers=0, distributed=True)


def plan_gpus(dt: Any) -> Plan:
    """fairseq knows how to count GPUs and to read Slurm; only the start is ours."""
    devices = torch.cuda.device_count()
    alone = dt.distributed_init_method is None and "SLURM_JOB_NODELIST" not in os.environ
    if alone and dt.distributed_world_size > devices:
        raise UserError(
            f"--distributed-world-size {dt.distributed_world_size} is more than the {devices} GPUs "
            "of this machine: lower it, or add --cpu"
        )
    if dt.distributed_init_method is None:
        distributed_utils.infer_init_method(dt)
    if dt.distributed_init_method is None:
        return Plan(workers=0)
    if dt.distributed_no_spawn:
        return Plan(workers=0, distributed=True)
    return Plan(
        workers=min(devices, dt.distributed_world_size),
        first_rank=dt.distributed_rank,
        distributed=True,
    )


def plan_cpus(dt: Any) -> Plan:
    world = dt.distributed_world_size
    in_slurm_step = "SLURM_PROCID" in os.environ and os.environ.get("SLURM_NTASKS") == str(world)
    if dt.distributed_init_method is None and world > 1 and in_slurm_step and dt.distributed_port > 0:
        distributed_utils._infer_slurm_init(dt, None)
    if dt.distributed_init_method is None and world == 1:
        return Plan(workers=0)
    if not 0 <= dt.distributed_rank < world:
        raise UserError(
            f"--distributed-rank {dt.distributed_rank} does not fit --distributed-world-size "
            f"{world}: ranks go from 0 to {world - 1}"
        )
    if dt.distributed_no_spawn:
        if dt.distributed_init_method is None:
            raise UserError(
                f"--distributed-no-spawn with --distributed-world-size {world} needs "
                "--distributed-init-method tcp://HOST:PORT (and --distributed-rank), so that the "
                "workers can find each other"
            )
        return Plan(workers=0, distributed=True)
    # the default of --distributed-num-procs on a machine without GPUs is 1: all that are left
    left = world - dt.distributed_rank
    workers = min(dt.distributed_num_procs, left) if dt.distributed_num_procs > 1 else left
    host, port = address(dt.distributed_init_method)
    hosts_store = workers == world and host in (None, "localhost", LOOPBACK)
    if hosts_store and port is not None:
        dt.distributed_port = port
    return Plan(
        workers=workers, first_rank=dt.distributed_rank, distributed=True, hosts_store=hosts_store
    )


def address(init_method: str | None) -> tuple[str | None, int | None]:
    """Host and port of ``tcp://host:port``."""
    if init_method is None:
        return None, None
    scheme, _, rest = init_method.partition("://")
    host, _, port = rest.partition("?")[0].rpartition(":")
    if scheme != "tcp":
        return scheme, None
    if not host or not port.isdigit():
        raise UserError(f"--distributed-init-method {init_method} is not of the form tcp://HOST:PORT")
    return host, int(port)


def check(cfg: Any, training: bool) -> None:
    """What is wrong with the input and can be seen without starting anything."""
    data = getattr(cfg.task, "data", None)
    for path in str(data).split(os.pathsep) if data else []:
        if "://" not in path and not os.path.isdir(path):
            raise UserError(f"data folder {path} does not exist: make it with fairseq-preprocess --destdir")
    if training:
        check_restore(cfg.checkpoint)
        from fairseq_hybrid.distributed import backends

        backends.check(cfg)


def check_restore(checkpoint: Any) -> None:
    path = checkpoint.restore_file
    if path == "checkpoint_last.pt":
        path = os.path.join(checkpoint.save_dir, path)
    elif "://" not in path and not os.path.exists(path) and not checkpoint.checkpoint_suffix:
        raise UserError(f"--restore-file {path} does not exist: correct the path, or leave it out")
    if os.path.isfile(path) and not checkpoints.looks_complete(path):
        raise UserError(checkpoints.unreadable(path))


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


def port_taken(port: int | None) -> str:
    return f"port {port} is in use: choose another --distributed-port, or leave it out to get a free one"


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
            values["GLOO_SOCKET_IFNAME"] = os.environ.get("GLOO_SOCKET_IFNAME", loopback_interface())
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


def read(report: connection.Connection) -> tuple[str | None, str] | None:
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
            report.send((user_line(error), traceback.format_exc()))
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

    def severity(index: int) -> tuple[bool, bool]:
        killed = workers[index].exitcode < 0
        users = lines[index] is not None and lines[index][0] is not None
        return (not killed, not users)

    index = min(failed, key=severity)
    code, report = workers[index].exitcode, lines[index]
    if code < 0:
        name = signal.Signals(-code).name if -code in list(signal.Signals) else "unknown"
        fail(
            f"worker {first_rank + index} (pid {workers[index].pid}) died: killed by signal {-code} "
            f"({name}); the other {len(workers) - 1} were stopped; what was saved is intact: "
            "the same command resumes from it",
            code=1,
        )
    if report is not None and report[0] is not None:
        fail(report[0])
    if report is not None:
        sys.stderr.write(report[1])
        last = report[1].strip().splitlines()[-1]
        fail(f"worker {first_rank + index} failed: {last}; the others were stopped", code=1)
    fail(f"worker {first_rank + index} ended with exit code {code}; the others were stopped", code=code)


fairseq_call_main = distributed_utils.call_main


def install() -> None:
    distributed_utils.call_main = call_main
