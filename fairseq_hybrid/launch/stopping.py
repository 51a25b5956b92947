"""Stopping on request: what SIGTERM and Ctrl-C do to a worker, and which update is the last.

A worker that waits for a message does not run Python's signal handlers.  So the interpreter writes
each signal into a pipe (``set_wakeup_fd``) and a thread reads it: without ``--save-on-exit`` the
process leaves at once.  With it all workers first agree on the same last update, without a message
in the hot loop.  The thread of a worker that was asked says so in the store; each worker's thread
stops its own main thread from entering another update and publishes the number of the one it is
in; the largest of them is the last update, which no worker can have passed.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any, NamedTuple

from fairseq import checkpoint_utils

from fairseq_hybrid import checkpoints
from fairseq_hybrid.config import CheckpointConfig, Config
from fairseq_hybrid.errors import program

SIGNALS = (signal.SIGTERM, signal.SIGINT)
AGREE_SECONDS = 30.0  # for all workers to publish the update they are in
POLL_SECONDS = 1.0  # between two looks into the store
POLL_SECONDS_AGREEING = 0.05  # the same while the workers agree
REPEAT_SECONDS = 1.0  # in which a launcher and a terminal may both pass on one request
MAX_READ_BYTES = 1 << 28  # of a checkpoint that can be opened while leaving


class Stopped(SystemExit):
    """Training has ended because it was asked to."""

    def __init__(self, signum: int):
        super().__init__(128 + signum)
        self.signum = signum


def stop_line(signum: int, checkpoint: CheckpointConfig | None) -> str:
    """What was saved, and what the same command does next; ``checkpoint``: None if not training."""
    line = f"stopped by {signal.Signals(signum).name}"
    if checkpoint is None:
        return line
    if checkpoint.no_save:
        return f"{line}: nothing was saved (--no-save)"
    path = os.path.join(checkpoint.save_dir, f"checkpoint_last{checkpoint.checkpoint_suffix}.pt")
    if not os.path.isfile(path):
        return f"{line}: nothing was saved yet, the same command begins anew"
    update = ""
    with contextlib.suppress(Exception):  # no reason not to leave
        if os.path.getsize(path) <= MAX_READ_BYTES:
            history = checkpoints.load(path)["optimizer_history"]
            update = f" of update {history[-1]['num_updates']}"
    return f"{line}: the checkpoint{update} is saved in {path}, the same command goes on from it"


def print_line(line: str) -> None:
    """Print on stderr without the locks that another thread may hold."""
    os.write(2, f"{program()}: {line}\n".encode())


class SignalPipe(NamedTuple):
    """A byte for each signal."""

    reader: int
    writer: int

    def read(self) -> list[int]:
        with contextlib.suppress(BlockingIOError):
            return [s for s in os.read(self.reader, 64) if s in SIGNALS]
        return []


def ignore(*_: Any) -> None:
    """The handler; the byte in the pipe is all that is wanted."""


@contextlib.contextmanager
def signals_in_pipe() -> Iterator[SignalPipe]:
    """Signals only make the pipe readable; those that were ignored before (a shell's background
    job) stay so."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    os.set_blocking(reader, False)
    before = {s: signal.getsignal(s) for s in SIGNALS if signal.getsignal(s) != signal.SIG_IGN}
    wakeup = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for signum in before:
        signal.signal(signum, ignore)
    try:
        yield SignalPipe(reader, writer)
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
        signal.set_wakeup_fd(wakeup)
        os.close(reader)
        os.close(writer)


def forget_signals() -> None:
    """In a forked child, a data loader: signals to it are not its parent's, and end it as usual."""
    for signum in SIGNALS:
        if signal.getsignal(signum) is ignore:
            signal.set_wakeup_fd(-1)
            signal.signal(signum, signal.SIG_DFL)


os.register_at_fork(after_in_child=forget_signals)


class LastUpdate:
    """The last update of training; main threads wait only between ``hold`` and ``decide``."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.entered = 0  # the update that this worker is in, or was in last
        self.holding = False
        self.number: int | None = None  # of the last update, once decided

    def enter(self, update: int) -> bool:
        """Called by the main thread before each update; False: training ends here."""
        with self.changed:
            self.changed.wait_for(lambda: not self.holding or self.number is not None)
            if self.number is not None and update > self.number:
                return False
            self.entered = update
            return True

    def hold(self) -> int:
        """No further update until ``decide``; returns the one this worker is in, 0 before any."""
        with self.changed:
            self.holding = True
            return self.entered

    def decide(self, number: int) -> None:
        with self.changed:
            self.number = number
            self.changed.notify_all()


class Watcher(threading.Thread):
    """The thread of a worker that reads signals and agrees with the others on the last update.

    ``leave(signum)`` must end the process.  Signals end it at once until ``save_first``.
    """

    def __init__(self, pipe: SignalPipe, leave: Callable[[int], None]):
        super().__init__(name="signals", daemon=True)
        self.pipe, self.leave = pipe, leave
        self.store: Any = None
        self.rank, self.world = 0, 1
        self.saves = False
        self.last = LastUpdate()
        self.asked: int | None = None  # by which signal
        self.asked_at = 0.0
        self.stopped = False  # the last update is saved
        self.done = threading.Event()

    def save_first(self, store: Any = None, rank: int = 0, world: int = 1) -> None:
        """--save-on-exit, once training can begin; ``store``: a connection of this thread's own."""
        self.store, self.rank, self.world = store, rank, world
        self.saves = True

    def run(self) -> None:
        while not self.done.is_set():
            deciding = self.asked is not None and self.last.number is None
            patience = POLL_SECONDS_AGREEING if deciding else POLL_SECONDS
            select.select([self.pipe.reader], [], [], patience)
            for signum in self.pipe.read():
                self.on_signal(signum)
            if self.saves and not self.done.is_set():
                self.poll_store()

    def finish(self) -> None:
        self.done.set()
        os.write(self.pipe.writer, b"\0")
        self.join()

    def on_signal(self, signum: int) -> None:
        if not self.saves:
            self.leave(signum)
        elif self.asked is None:
            self.ask(signum)
        elif self.store is None or time.monotonic() > self.asked_at + REPEAT_SECONDS:
            self.leave(signum)

    def ask(self, signum: int) -> None:
        """Begin to agree on the last update."""
        self.asked, self.asked_at = signum, time.monotonic()
        mine = self.last.hold()
        if self.store is None:
            return self.decide([mine], signum)
        self.store.set(f"in update/{self.rank}", str(mine))
        self.store.set("asked to stop", str(int(signum)))

    def poll_store(self) -> None:
        """See whether a worker was asked to stop, and which update each is in."""
        if self.store is None or self.last.number is not None:
            return
        if self.asked is None:
            if self.store.check(["asked to stop"]):
                self.ask(int(self.store.get("asked to stop")))
            return
        keys = [f"in update/{rank}" for rank in range(self.world)]
        if self.store.check(keys):
            self.decide([int(number) for number in self.store.multi_get(keys)], self.asked)
        elif time.monotonic() > self.asked_at + AGREE_SECONDS:
            print_line(f"the workers could not agree on a last update in {AGREE_SECONDS:.0f} s")
            self.leave(self.asked)

    def decide(self, updates: list[int], signum: int) -> None:
        """The last update is the latest that a worker is in."""
        if max(updates) == 0:  # none has begun: nothing to finish
            self.leave(signum)
        self.last.decide(max(updates))


def end_children() -> None:
    """Data loaders of this worker."""
    for child in multiprocessing.active_children():
        with contextlib.suppress(OSError):
            child.kill()


def stop_after_last_update(main: FunctionType, watcher: Watcher) -> None:
    """Let fairseq's training ask before each update, and save after the last one.

    ``main`` looks its helpers up by name when it runs.  Which update is the last one may become
    known at any moment of it: so all workers first do what would be done anyway.
    """
    names = main.__globals__
    train, validate_and_save = names["train"], names["validate_and_save"]

    def begin(cfg: Config, trainer: Any, task: Any, epoch_itr: Any) -> Any:
        if not watcher.last.entered:
            watcher.last.enter(trainer.get_num_updates() + 1)
        return train(cfg, trainer, task, epoch_itr)

    def after_update(
        cfg: Any, trainer: Any, task: Any, epoch_itr: Any, valid_subsets: Any, end_of_epoch: bool
    ) -> tuple[Any, bool]:
        update = trainer.get_num_updates()
        losses, should_stop = validate_and_save(
            cfg, trainer, task, epoch_itr, valid_subsets, end_of_epoch
        )
        if should_stop or watcher.last.enter(update + 1):
            return losses, should_stop
        if not is_saved(cfg, epoch_itr.epoch, update, end_of_epoch):
            checkpoint_utils.save_checkpoint(cfg.checkpoint, trainer, epoch_itr, losses[0])
        watcher.stopped = True
        return losses, True

    names.update(train=begin, validate_and_save=after_update)


def is_saved(cfg: Config, epoch: int, update: int, end_of_epoch: bool) -> bool:
    """Whether fairseq has saved after this update, as every worker can tell."""
    every = cfg.checkpoint.save_interval_updates
    due = every > 0 and update % every == 0 and update >= cfg.dataset.validate_after_updates
    return due or (end_of_epoch and epoch % cfg.checkpoint.save_interval == 0)
