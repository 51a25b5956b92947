"""A worker's life: read signals, join the others, run fairseq's ``main``, and say how it ended."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import time
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from types import FunctionType
from typing import Any

import torch
from fairseq.distributed import utils as distributed_utils

from fairseq_hybrid.config import CheckpointConfig, Config
from fairseq_hybrid.errors import UserError
from fairseq_hybrid.launch import lock
from fairseq_hybrid.launch.heartbeat import Heartbeat
from fairseq_hybrid.launch.processes import Ending
from fairseq_hybrid.launch.rendezvous import rendezvous
from fairseq_hybrid.launch.stopping import (
    Stopped,
    Watcher,
    end_children,
    print_line,
    signals_in_pipe,
    stop_after_last_update,
    stop_line,
)
from fairseq_hybrid.launch.topology import Topology, address, on_cpu, port_taken

TRAINING = ("fairseq_cli.train", "fairseq_cli.hydra_train", "__main__")
HEARTBEAT_LEAD = 10.0  # seconds by which the heartbeat, which knows who is lost, comes first

LOST = re.compile("(closed|reset) by peer|Broken pipe|Timed out waiting|Connection refused")
"""what gloo says of a worker that is gone"""

trainer: type | None = None
"""in place of fairseq's"""

teardown_hooks: list[Callable[[], Any]] = []
"""called at the end of training, while the other workers can still be reached"""

fairseq_call_main = distributed_utils.call_main


FOR_GPUS = {"CUDA_MODULE_LOADING": "EAGER", "CUDA_DEVICE_MAX_CONNECTIONS": "32"}
"""for several communicators at a time: each has a queue, and no kernel is loaded while one waits,
for which the device would have to stop"""


def is_training(main: FunctionType) -> bool:
    return main.__module__ in TRAINING and "Trainer" in main.__globals__


def run_worker(
    here: Topology,
    cfg: Config,
    main: FunctionType,
    kwargs: dict[str, Any],
    report: Connection | None = None,
) -> None:
    """Be a worker in this process; ``report``: the pipe to the parent, if that is ours too."""
    if trainer is not None and "Trainer" in main.__globals__:
        main.__globals__["Trainer"] = trainer  # the name that ``main`` looks up when it runs
    if cfg.common.tpu:
        fairseq_call_main(cfg, main, **kwargs)
        return
    training, dt = is_training(main), cfg.distributed_training
    speaks = report is None and (not here.distributed or dt.distributed_rank == 0)
    with contextlib.ExitStack() as stack:
        if training and speaks:
            stack.enter_context(lock.held(cfg.checkpoint))
        leave = functools.partial(leave_now, cfg.checkpoint if training else None, speaks)
        watcher = Watcher(stack.enter_context(signals_in_pipe()), leave)
        watcher.start()
        stack.callback(watcher.finish)
        saves = training and dt.save_on_exit
        if saves:
            stop_after_last_update(main, watcher)
        if here.distributed:
            run_distributed(cfg, main, kwargs, watcher, report)
        else:
            if saves:
                watcher.save_first()
            main(cfg, **kwargs)
    if watcher.stopped and watcher.asked is not None:
        raise Stopped(watcher.asked)


def run_distributed(
    cfg: Config,
    main: FunctionType,
    kwargs: dict[str, Any],
    watcher: Watcher,
    report: Connection | None,
) -> None:
    """Be one of several workers: join the process group, run ``main``, leave it."""
    dt = cfg.distributed_training
    if on_cpu(cfg):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    else:
        for name, value in FOR_GPUS.items():
            os.environ.setdefault(name, value)

    def begin(cfg: Config, **kwargs: Any) -> None:
        place = torch.distributed.get_rank(), torch.distributed.get_world_size()
        if is_training(main) and dt.save_on_exit and here.store is not None:
            watcher.save_first(here.store.clone(), *place)
        if dt.worker_timeout > 0 and here.store is not None and place[1] > 1:
            lost = functools.partial(leave_lost, report)
            heartbeat = Heartbeat(here.store.clone(), *place, dt.worker_timeout, lost, here.hosted)
            heartbeat.start()
            teardown_hooks.append(heartbeat.done.set)
        main(cfg, **kwargs)

    seconds = dt.worker_timeout + HEARTBEAT_LEAD
    timeout = timedelta(seconds=seconds) if dt.worker_timeout > 0 else None
    try:
        with rendezvous(dt, timeout) as here:
            distributed_utils.distributed_main(dt.device_id, begin, cfg, kwargs)
    except RuntimeError as error:
        if "address already in use" in str(error).lower():
            raise UserError(port_taken(address(dt.distributed_init_method)[1])) from None
        if report is None and LOST.search(str(error)):
            leave_lost(None, f"another worker has ended or is cut off: {error}".split(". ")[0])
        raise
    while teardown_hooks:
        teardown_hooks.pop()()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def leave_now(checkpoint: CheckpointConfig | None, speaks: bool, signum: int) -> None:
    """End this process from any thread: the main one may be waiting for another worker."""
    try:
        end_children()
        if speaks:
            print_line(stop_line(signum, checkpoint))
    finally:
        os._exit(128 + signum)


def leave_lost(report: Connection | None, line: str) -> None:
    """End this process from any thread because another worker is silent."""
    try:
        end_children()
        if report is None:
            print_line(f"error: {line}")
        else:
            report.send(Ending(line, "", "", time.time(), code=1))
    finally:
        os._exit(1)


def worker_main(
    pipe: Connection, index: int, main: FunctionType, cfg: Config, kwargs: dict[str, Any]
) -> None:
    """What a process that the launcher has started does."""
    cfg.distributed_training.device_id = index
    try:
        run_worker(Topology(workers=0, distributed=True), cfg, main, kwargs, pipe)
    except Stopped as stopped:
        pipe.send(Ending(None, "", "", time.time(), stopped.signum))
        end_children()  # in the middle of an epoch data loaders take seconds to end by themselves
        os._exit(0)
