"""Starting workers: several on one CPU machine, under torchrun, with explicit flags, on GPUs.

``plan`` says how many workers this command starts.  On one machine the parent hosts the rendezvous
store on loopback, starts the workers, and watches them: if one dies the others are stopped and the
command ends with a line that says which one and why.  If the parent dies, the kernel takes the
workers with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import logging
import math
import multiprocessing
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from datetime import timedelta
from multiprocessing import connection
from typing import Any, NamedTuple

import torch
from fairseq.distributed import utils as distributed_utils

from fairseq_hybrid.errors import USAGE_EXIT, UserError, fail, user_line
from fairseq_hybrid.launch import lock
from fairseq_hybrid.launch.heartbeat import Ring, is_stopped
from fairseq_hybrid.launch.rendezvous import loopback_sockets, loopback_store, meeting
from fairseq_hybrid.launch.stopping import (
    SIGNALS,
    Notes,
    Stopped,
    Watcher,
    end_children,
    noted_signals,
    say,
    stop_after_last_update,
    stop_line,
)
from fairseq_hybrid.launch.topology import LOOPBACK, Plan, address, on_cpu, plan, port_taken, settle

logger = logging.getLogger(__name__)

TRAINING = ("fairseq_cli.train", "fairseq_cli.hydra_train", "__main__")
GRACE = 3.0  # seconds a worker has to leave after SIGTERM before it gets SIGKILL
BACKSTOP = (
    10.0  # seconds by which collectives wait longer than the heartbeat, which knows who it is
)
NOTICE = 5.0  # seconds between two looks at whether a worker is stopped
SETTLE = 1.0  # seconds to wait for the worker that died first, when its peers fail because of it

LEFT = tuple(code for s in SIGNALS for code in (-s, 128 + s))
"""exit codes of a worker that was asked to stop"""

LOST = re.compile("(closed|reset) by peer|Broken pipe|Timed out waiting|Connection refused")
"""what gloo says of a worker that is gone"""

trainer: type | None = None
"""in place of fairseq's"""

farewells: list[Callable[[], Any]] = []
"""what a backend has to do at the end of training, while the other workers can still be reached"""


def is_training(main: Callable) -> bool:
    return main.__module__ in TRAINING and "Trainer" in main.__globals__


def bind_trainer(main: Callable) -> None:
    """Make fairseq's ``main`` build our trainer, by the name it looks up when it runs."""
    if trainer is not None and "Trainer" in main.__globals__:
        main.__globals__["Trainer"] = trainer


def call_main(cfg: Any, main: Callable, **kwargs: Any) -> None:
    """In place of fairseq's: plan, check, then run ``main`` here or in workers."""
    training = is_training(main)
    try:
        here = plan(cfg, training)
        settle(cfg, training)
        if here.workers:
            launch(here, cfg, main, kwargs)
        else:
            run(here, cfg, main, kwargs)
    except Stopped as stopped:
        if here.workers or cfg.distributed_training.distributed_rank == 0:
            say(stop_line(stopped.signum, cfg.checkpoint if training else None))
        raise
    except SystemExit:
        raise
    except BaseException as error:
        line = user_line(error)
        if line is None:
            raise
        fail(line)


def run(here: Plan, cfg: Any, main: Callable, kwargs: dict[str, Any], report: Any = None) -> None:
    """Be a worker in this process; ``report``: the way to the parent, if that is ours too."""
    bind_trainer(main)
    if cfg.common.tpu:
        return fairseq_call_main(cfg, main, **kwargs)
    training, dt = is_training(main), cfg.distributed_training
    first = not here.distributed or dt.distributed_rank == 0
    with contextlib.ExitStack() as stack:
        if training and report is None and first:
            stack.enter_context(lock.held(cfg.checkpoint))
        speaker = report is None and first
        leave = functools.partial(leave_now, cfg.checkpoint if training else None, speaker)
        watcher = Watcher(stack.enter_context(noted_signals()), leave)
        watcher.start()
        stack.callback(watcher.finish)
        if training and dt.save_on_exit:
            stop_after_last_update(main, watcher)
        if here.distributed:
            run_distributed(cfg, main, kwargs, watcher, report)
        else:
            if training and dt.save_on_exit:
                watcher.save_first()
            main(cfg, **kwargs)
    if watcher.stopped:
        raise Stopped(watcher.asked)


def run_distributed(
    cfg: Any, main: Callable, kwargs: dict[str, Any], watcher: Watcher, report: Any
) -> None:
    """Be one of several workers: meet the others, run ``main``, part."""
    dt = cfg.distributed_training
    if on_cpu(cfg):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""

    def begin(cfg: Any, **kwargs: Any) -> None:
        place = torch.distributed.get_rank(), torch.distributed.get_world_size()
        if is_training(main) and dt.save_on_exit and here.store is not None:
            watcher.save_first(here.store.clone(), *place)
        if dt.worker_timeout > 0 and here.store is not None and place[1] > 1:
            lost = functools.partial(leave_lost, report)
            ring = Ring(here.store.clone(), *place, dt.worker_timeout, lost, here.hosted)
            ring.start()
            farewells.append(ring.done.set)
        main(cfg, **kwargs)

    timeout = timedelta(seconds=dt.worker_timeout + BACKSTOP) if dt.worker_timeout > 0 else None
    try:
        with meeting(dt, timeout) as here:
            distributed_utils.distributed_main(dt.device_id, begin, cfg, kwargs)
    except RuntimeError as error:
        if "address already in use" in str(error).lower():
            raise UserError(port_taken(address(dt.distributed_init_method)[1])) from None
        if report is None and LOST.search(str(error)):
            leave_lost(None, f"another worker has ended or is cut off: {error}".split(". ")[0])
        raise
    while farewells:
        farewells.pop()()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def leave_now(checkpoint: Any, speaker: bool, signum: int) -> None:
    """End this process from any thread: the main one may be waiting for another worker."""
    try:
        end_children()
        if speaker:
            say(stop_line(signum, checkpoint))
    finally:
        os._exit(128 + signum)


def leave_lost(report: Any, line: str) -> None:
    """End this process from any thread because another worker is silent."""
    try:
        end_children()
        if report is None:
            say(f"error: {line}")
        else:
            report.send(Ending(line, "", "", time.time(), code=1))
    finally:
        os._exit(1)


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
        values.update(loopback_sockets())
    return values


def launch(here: Plan, cfg: Any, main: Callable, kwargs: dict[str, Any]) -> None:
    """Start this machine's workers and stay until they are done or one has failed."""
    dt, training = cfg.distributed_training, is_training(main)
    saves = training and dt.save_on_exit
    with contextlib.ExitStack() as stack:
        if training and here.first_rank == 0:
            stack.enter_context(lock.held(cfg.checkpoint))
        notes = stack.enter_context(noted_signals())
        store = loopback_store(dt.distributed_port) if here.hosts_store else None
        if store is not None:
            dt.distributed_init_method = "env://"
        dt.distributed_rank = None
        workers: list = []
        stack.callback(stop, workers, politely=not saves)
        with environment(**worker_environment(here, cfg, store)), interrupts_later():
            reports = start(workers, here, cfg, main, {**kwargs, "start_rank": here.first_rank})
        asked: list[int] = []
        failed = watch(workers, notes, saves, asked)
        lines = [read(report) for report in reports]
    if failed:
        explain(failed, workers, lines, here.first_rank)
    told = [line.stopped for line in lines if line is not None and line.stopped is not None]
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


def start(workers: list, here: Plan, cfg: Any, main: Callable, kwargs: dict[str, Any]) -> list:
    """Add the workers to the list as they start; returns where their last words will come."""
    loader_start = multiprocessing.get_start_method()
    context = multiprocessing.get_context("spawn")
    reports = []
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
    return reports


class Ending(NamedTuple):
    """What a worker says before it leaves."""

    user_line: str | None
    traceback: str
    error: str
    when: float
    stopped: int | None = None  # the signal on which it has saved and stopped
    code: int = USAGE_EXIT


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
        run(Plan(workers=0, distributed=True), cfg, main, kwargs, report)
    except Stopped as stopped:
        report.send(Ending(None, "", "", time.time(), stopped.signum))
        end_children()  # in the middle of an epoch data loaders take seconds to end by themselves
        os._exit(0)
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


def watch(workers: list, notes: Notes, saves: bool, asked: list[int]) -> list[int]:
    """Wait until all workers are done (return nothing) or some have failed (return which).

    A request to stop ends it with ``Stopped``; with ``saves`` it is noted in ``asked`` and passed
    on, and the second one ends it.
    """
    mentioned: set[int] = set()
    while True:
        running = [w for w in workers if w.exitcode is None]
        if has_failed(workers) or not running:
            break
        if not connection.wait([*(w.sentinel for w in running), notes.reader], NOTICE):
            mention_stopped(running, mentioned)
        for signum in notes.read():
            asked.append(signum)
            if len(asked) > 1 or not saves:
                raise Stopped(asked[0])
            for worker in running:
                os.kill(worker.pid, signal.SIGTERM)
    if not has_failed(workers):
        return []
    time.sleep(SETTLE)
    asked += notes.read()
    if asked and all(w.exitcode in (None, 0, *LEFT) for w in workers):
        raise Stopped(asked[0])  # they got the signal too, or had not begun
    return has_failed(workers)


def mention_stopped(workers: list, mentioned: set[int]) -> None:
    """Say once of a worker that somebody has stopped it: from outside the job just seems slow."""
    for worker in workers:
        if not is_stopped(worker.pid):
            mentioned.discard(worker.pid)
        elif worker.pid not in mentioned:
            mentioned.add(worker.pid)
            say(f"worker with pid {worker.pid} is stopped (SIGSTOP): the others wait for it")


def has_failed(workers: list) -> list[int]:
    return [i for i, w in enumerate(workers) if w.exitcode not in (None, 0)]


def stop(workers: list, politely: bool = True) -> None:
    """End every worker and what it started: politely, then not."""
    signs = (signal.SIGTERM, signal.SIGKILL) if politely else (signal.SIGKILL,)
    for sign in signs:
        for worker in workers:
            if worker.exitcode is None or sign == signal.SIGKILL:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(worker.pid, sign)
        deadline = time.monotonic() + GRACE
        for worker in workers:
            worker.join(max(0.0, deadline - time.monotonic()))


def explain(failed: list[int], workers: list, lines: list, first_rank: int) -> None:
    """Name the worker that failed first: a killed one before those that missed it."""

    def severity(index: int) -> tuple[bool, bool, float]:
        code, ending = workers[index].exitcode, lines[index]
        killed = code < 0 or code in LEFT
        users = ending is not None and ending.user_line is not None
        return (not killed, not users, ending.when if ending else math.inf)

    index = min(failed, key=severity)
    code, report = workers[index].exitcode, lines[index]
    code = 128 - code if code > 128 and code in LEFT else code
    who = f"worker {first_rank + index} (pid {workers[index].pid})"
    if code < 0:
        name = signal.Signals(-code).name if -code in list(signal.Signals) else "unknown"
        fail(
            f"{who} died: killed by signal {-code} ({name}); the other {len(workers) - 1} were "
            "stopped; what was saved is intact: the same command resumes from it",
            code=1,
        )
    if report is not None and report.user_line is not None:
        fail(report.user_line, report.code)
    if report is not None:
        sys.stderr.write(report.traceback)
        fail(f"{who} failed: {report.error}; the others were stopped", code=1)
    fail(f"{who} ended with exit code {code}; the others were stopped", code=code)


fairseq_call_main = distributed_utils.call_main


def install() -> None:
    distributed_utils.call_main = call_main
