"""Fault injection, a ``--user-dir`` for tests only: fairseq_hybrid with one fault in one worker.

    FAULT=freeze:1:7:backward fairseq-train DATA --user-dir tests/faults ...

KIND:RANK:UPDATE:PLACE. Kinds: end (signal 9), freeze (SIGSTOP), delay (a second), full (no space
left on device; place save). Places: forward, backward, collective, step, save, resume; save and
resume happen once, at the first one from that update on.  ``FAULT_MARK`` names a file that is
written when it happens: a fault happens once.
"""

from __future__ import annotations

import errno
import functools
import os
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

import torch
import torch.distributed as dist
from fairseq.criterions import FairseqCriterion
from fairseq.optim import FairseqOptimizer

import fairseq_hybrid  # noqa: F401
from fairseq_hybrid.optim.optimizer import HybridOptimizer
from fairseq_hybrid.trainer import HybridTrainer

KINDS = ("end", "freeze", "delay", "full")
PLACES = ("forward", "backward", "collective", "step", "save", "resume")
COLLECTIVES = ("all_reduce", "isend", "recv", "broadcast", "barrier", "all_gather_into_tensor")
DELAY = 1.0
ROOM = 1000
"""bytes before the disk is full"""


class Fault:
    """The one fault of this process; it happens where all of ``at`` is met."""

    def __init__(self, text: str):
        self.kind, rank, update, self.place = text.split(":")
        assert self.kind in KINDS, text
        assert self.place in PLACES, text
        self.rank, self.update = int(rank), int(update)
        self.now = 0  # the update that this worker is in

    def mine(self) -> bool:
        return self.rank == (dist.get_rank() if dist.is_initialized() else 0)

    def at(self, place: str) -> bool:
        due = self.now == self.update or (place in ("save", "resume") and self.now >= self.update)
        return place == self.place and due and self.mine() and not mark().exists()

    def happen(self) -> None:
        mark().write_text(str(time.time()))
        if self.kind == "end":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.kind == "freeze":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif self.kind == "delay":
            time.sleep(DELAY)

    def before(self, owner: object, name: str, place: str) -> None:
        """Let it happen when ``owner.name`` is called, which is at ``place``."""
        theirs = getattr(owner, name)

        @functools.wraps(theirs)
        def ours(*args, **kwargs):
            if self.at(place):
                self.happen()
            return theirs(*args, **kwargs)

        setattr(owner, name, ours)


def mark() -> Path:
    return Path(os.environ["FAULT_MARK"])


class FullDisk:
    """A file on a disk without room."""

    def __init__(self, file):
        self.file, self.written = file, 0

    def __getattr__(self, name):
        return getattr(self.file, name)

    def write(self, data):
        self.written += len(data)
        if self.written > ROOM:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self.file.write(data)


def install(fault: Fault) -> None:
    train_step, backward = HybridTrainer.train_step, FairseqOptimizer.backward
    fsync, torch_save = os.fsync, torch.save

    def counted(self, *args, **kwargs):
        fault.now = self.get_num_updates() + 1
        return train_step(self, *args, **kwargs)

    def hooked(self, loss):
        if fault.at("backward"):
            loss.register_hook(lambda _: fault.happen() if fault.at("backward") else None)
        return backward(self, loss)

    def sync(handle):
        if fault.at("save") and fault.kind != "full":
            fault.happen()
        return fsync(handle)

    def to_disk(obj, f, *args, **kwargs):
        if fault.kind == "full" and hasattr(f, "file") and fault.at("save"):
            fault.happen()
            f.file = FullDisk(f.file)
        return torch_save(obj, f, *args, **kwargs)

    HybridTrainer.train_step, FairseqOptimizer.backward = counted, hooked
    torch.save = to_disk
    if fault.rank:  # worker 0 writes; the others take part in gathering what is written
        fault.before(HybridTrainer, "consolidate_optimizer", "save")
    else:
        os.fsync = sync
    fault.before(FairseqCriterion, "__call__", "forward")
    fault.before(HybridOptimizer, "step", "step")
    fault.before(HybridTrainer, "load_checkpoint", "resume")
    for name in COLLECTIVES:
        fault.before(dist, name, "collective")


if os.environ.get("FAULT"):
    install(Fault(os.environ["FAULT"]))
