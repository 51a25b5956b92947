"""Starting workers: several on one CPU machine, under torchrun, with explicit flags, on GPUs.

``topology_of`` says how many workers this command starts.  On one machine the parent hosts the
rendezvous store on loopback, starts the workers (processes.py; what they do: worker.py), and
watches them: if one dies the others are stopped and the command ends with a line that says which
one and why.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from types import FunctionType
from typing import Any

from fairseq.distributed import utils as distributed_utils
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from fairseq_hybrid.config import Config
from fairseq_hybrid.errors import fail, user_line
from fairseq_hybrid.launch import lock, processes
from fairseq_hybrid.launch.inputs import settle_and_validate
from fairseq_hybrid.launch.processes import Ending, WorkerProcess
from fairseq_hybrid.launch.rendezvous import loopback_sockets, loopback_store, variables_of
from fairseq_hybrid.launch.stopping import (
    SIGNALS,
    SignalPipe,
    Stopped,
    print_line,
    signals_in_pipe,
    stop_line,
)
from fairseq_hybrid.launch.topology import Topology, on_cpu, topology_of
from fairseq_hybrid.launch.worker import is_training, run_worker, worker_main

FIRST_SECONDS = 1.0  # to wait for the worker that died first, when others fail because of it

ASKED_CODES = tuple(code for s in SIGNALS for code in (-s, 128 + s))
"""exit codes of a worker that was asked to stop"""


def call_main(cfg: Config, main: FunctionType, **kwargs: Any) -> None:
    """In place of fairseq's: decide, validate, then run ``main`` here or in workers."""
    training = is_training(main)
    try:
        here = topology_of(cfg, training)
        settle_and_validate(cfg, training)
        if here.workers:
            launch(here, cfg, main, kwargs)
        else:
            run_worker(here, cfg, main, kwargs)
    except Stopped as stopped:
        if here.workers or cfg.distributed_training.distributed_rank == 0:
            print_line(stop_line(stopped.signum, cfg.checkpoint if training else None))
        raise
    except SystemExit:
        raise
    except BaseException as error:
        line = user_line(error)
        if line is None:
            raise
        fail(line)


@contextlib.contextmanager
def environment(**values: str) -> Iterator[None]:
    """Set variables for the processes started inside."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def worker_environment(here: Topology, cfg: Config, store: TCPStore | None) -> dict[str, str]:
    values = {} if store is None else {**variables_of(store), **loopback_sockets()}
    if on_cpu(cfg):
        values["CUDA_VISIBLE_DEVICES"] = ""
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        threads = max(1, (cores or 1) // here.workers)
        values["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", str(threads))
    return values


def launch(here: Topology, cfg: Config, main: FunctionType, kwargs: dict[str, Any]) -> None:
    """Start this machine's workers and stay until they are done or one has failed."""
    dt, training = cfg.distributed_training, is_training(main)
    saves = training and dt.save_on_exit
    with contextlib.ExitStack() as stack:
        if training and here.first_rank == 0:
            stack.enter_context(lock.held(cfg.checkpoint))
        pipe = stack.enter_context(signals_in_pipe())
        store = loopback_store(dt.distributed_port) if here.hosts_store else None
        if store is not None:
            dt.distributed_init_method = "env://"
        dt.distributed_rank = None  # type: ignore[assignment]  # fairseq: each worker has its own
        workers: list[WorkerProcess] = []
        stack.callback(processes.stop, workers, politely=not saves)
        with environment(**worker_environment(here, cfg, store)), interrupts_later():
            kwargs = {**kwargs, "start_rank": here.first_rank}
            for index in range(here.workers):
                workers.append(processes.start(worker_main, index, main, cfg, dict(kwargs)))
        asked: list[int] = []
        failed = watch_workers(workers, pipe, saves, asked)
        endings = [worker.ending() for worker in workers]
    if failed:
        fail_for(failed, workers, endings, here.first_rank)
    told = [e.stopped for e in endings if e is not None and e.stopped is not None]
    if told:
        raise Stopped((asked or told)[0])


@contextlib.contextmanager
def interrupts_later() -> Iterator[None]:
    """Ctrl-C reaches the parent only, which tells the workers: they inherit that it is blocked."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def watch_workers(
    workers: Sequence[WorkerProcess], pipe: SignalPipe, saves: bool, asked: list[int]
) -> list[int]:
    """Wait until all workers are done (return nothing) or some have failed (return which).

    A request to stop ends it with ``Stopped``; with ``saves`` it is noted in ``asked`` and passed
    on, and the second one ends it.
    """
    while True:
        running = [w for w in workers if w.exitcode is None]
        if processes.failures(workers) or not running:
            break
        processes.wait(running, pipe.reader)
        for signum in pipe.read():
            asked.append(signum)
            if len(asked) > 1 or not saves:
                raise Stopped(asked[0])
            for worker in running:
                worker.signal(signal.SIGTERM)
    if not processes.failures(workers):
        return []
    time.sleep(FIRST_SECONDS)
    asked += pipe.read()
    if asked and all(w.exitcode in (None, 0, *ASKED_CODES) for w in workers):
        raise Stopped(asked[0])  # they got the signal too, or had not begun
    return processes.failures(workers)


def fail_for(
    failed: Sequence[int],
    workers: Sequence[WorkerProcess],
    endings: Sequence[Ending | None],
    first_rank: int,
) -> None:
    """Name the worker that failed first: a killed one before those that missed it."""

    def severity(index: int) -> tuple[bool, bool, float]:
        code, ending = workers[index].exitcode or 0, endings[index]
        killed = code < 0 or code in ASKED_CODES
        users = ending is not None and ending.user_line is not None
        return (not killed, not users, ending.when if ending else math.inf)

    index = min(failed, key=severity)
    code, ending = workers[index].exitcode or 0, endings[index]
    code = 128 - code if code > 128 and code in ASKED_CODES else code
    who = f"worker {first_rank + index} (pid {workers[index].pid})"
    if code < 0:
        name = signal.Signals(-code).name if -code in list(signal.Signals) else "unknown"
        fail(
            f"{who} died: killed by signal {-code} ({name}); the other {len(workers) - 1} were "
            "stopped; what was saved is intact: the same command resumes from it",
            code=1,
        )
    if ending is None:
        fail(f"{who} ended with exit code {code}; the others were stopped", code=code)
    if ending.user_line is not None:
        fail(ending.user_line, ending.code)
    sys.stderr.write(ending.traceback)
    fail(f"{who} failed: {ending.error}; the others were stopped", code=1)


def install() -> None:
    distributed_utils.call_main = call_main
