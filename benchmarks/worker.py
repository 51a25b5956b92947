"""What a process of a system does: it builds a trainer, takes its batches, and measures updates."""

from __future__ import annotations

import os
import statistics
import time
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from common import sgemm_rate


@dataclass(frozen=True)
class System:
    title: str
    backend: str | None = None
    """--ddp-backend; None: one worker"""
    flags: tuple[str, ...] = ()
    """of fairseq-train"""
    threaded: bool = False

    def workers(self, options) -> int:
        return options.workers if self.backend else 1

    def threads(self, options) -> int:
        return options.workers if self.threaded else 1


def import_all() -> None:
    """What `build_trainer` imports, and what fairseq imports when it is first used."""
    import fairseq.options
    import fairseq.tasks  # noqa: F401
    import torch._dynamo  # noqa: F401

    import fairseq_hybrid.trainer  # noqa: F401


def build_trainer(words: list[str], rank: int):
    """As fairseq-train does it."""
    import numpy
    from fairseq import options, tasks, utils
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf
    from fairseq.distributed import utils as distributed_utils

    from fairseq_hybrid import config
    from fairseq_hybrid.trainer import HybridTrainer

    parser = options.get_training_parser()
    cfg = convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, words))
    config.settle(cfg)
    dt = cfg.distributed_training
    if dt.distributed_world_size > 1:
        dt.distributed_backend, dt.distributed_init_method = "gloo", "env://"
        dt.distributed_rank = rank
        distributed_utils.distributed_init(cfg)
    numpy.random.seed(cfg.common.seed)
    utils.set_torch_seed(cfg.common.seed)
    task = tasks.setup_task(cfg.task)
    model, criterion = task.build_model(cfg.model), task.build_criterion(cfg.criterion)
    return HybridTrainer(cfg, task, model, criterion)


def batches_of(trainer, count: int, workers: int) -> list[dict]:
    """This worker's first `count` batches; an epoch that is too short begins again.

    A single worker gets all batches, those of several workers in turn.
    """
    epoch = trainer.get_train_iterator(epoch=1)
    trainer.begin_epoch(1)
    shards = trainer.data_parallel_world_size
    common = len(epoch.frozen_batches) // workers * workers // shards
    some = list(islice(epoch.next_epoch_itr(shuffle=True), min(count, common)))
    if not some:
        raise ValueError(f"the data make fewer than {workers} batches: make them smaller")
    return [some[i % len(some)] for i in range(count)]


class Worker:
    """One process of a system, with the batches of all rounds.

    A subclass is called with the system's name, the rank, the options and what the benchmark adds.
    """

    def __init__(self, system: System, words: list[str], rank: int, options):
        self.options, self.settling = options, options.settle
        torch.set_num_threads(system.threads(options))
        self.trainer = build_trainer(words, rank)
        self.world = system.workers(options)
        share = options.workers // self.world  # of the batches of an update of several workers
        batches = batches_of(
            self.trainer, options.rounds * options.updates * share, options.workers
        )
        together = share if options.accumulate else 1
        self.per_round = options.updates * share // together
        starts = range(0, len(batches), together)
        self.updates = [batches[i : i + together] for i in starts]
        self.trainer.train_step(self.updates[0])  # makes buffers and optimizer state

    def facts(self) -> dict:
        """About the model and the batches of all rounds."""
        raise NotImplementedError

    def note(self, log: dict) -> dict[str, float]:
        """What is worth keeping of an update; the result has the means of a turn."""
        return {"loss": float(log["loss"])}

    def turn(self, number: int, warm: bool = False) -> list[list[dict]]:
        """The updates of a round, after some of them as warm-up, which the worker that comes back
        every few seconds does not need."""
        mine = self.updates[number * self.per_round : (number + 1) * self.per_round]
        before = 0 if warm else self.options.warmup
        before, self.settling = before + self.settling, 0
        for i in range(before):
            self.trainer.train_step(mine[i % len(mine)])
        return mine

    def measure(self, updates: list[list[dict]]) -> dict:
        notes = []
        before = interface_bytes()
        sent, cpu, begin = self.bytes_sent(0), time.process_time(), time.perf_counter()
        for update in updates:
            notes.append(self.note(self.trainer.train_step(update)))
        end, cpu = time.perf_counter(), time.process_time() - cpu
        return {
            "begin": begin,
            "end": end,
            "cpu_seconds": cpu,
            "updates": len(updates),
            "tokens": sum(sample["ntokens"] for update in updates for sample in update),
            "bytes_counted": self.bytes_sent(len(updates)) - sent,
            "interface": (before, interface_bytes()),
            "notes": {key: statistics.mean(note[key] for note in notes) for key in notes[0]},
            "peak_bytes": peak_memory(),
            # Right after the updates, so all workers of the system do it at the same time.
            "sgemm": sgemm_rate(),
        }

    def bytes_sent(self, updates: int) -> int:
        """By this worker; where the backend does not count, in so many updates."""
        from fairseq_hybrid.comm.sums import ring_bytes

        if self.world == 1:
            return 0
        wrapper = self.trainer.model.module
        if hasattr(wrapper, "bytes_sent"):
            return wrapper.bytes_sent
        if hasattr(wrapper, "buffer"):  # legacy_ddp
            return updates * ring_bytes(wrapper.buffer, self.world)
        grads = (p for p in wrapper.parameters() if p.requires_grad)  # pytorch_ddp
        return updates * sum(ring_bytes(p, self.world) for p in grads)


def peak_memory() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def interface_bytes() -> int:
    """What has been sent so far through the interface that the workers use."""
    device = os.environ["GLOO_SOCKET_IFNAME"]
    for line in Path("/proc/self/net/dev").read_text().splitlines():
        name, _, counters = line.partition(":")
        if name.strip() == device:
            return int(counters.split()[8])
    raise SystemExit(f"error: no {device} in /proc/net/dev")


def serve(pipe, kind: type[Worker], *args) -> None:
    """A worker's life: get ready; for each round warm up, wait for the start, measure."""
    worker = kind(*args)
    pipe.send(("ready", worker.facts()))
    while True:
        updates = worker.turn(*pipe.recv())
        pipe.send(("warm", None))
        pipe.recv()
        pipe.send(("done", worker.measure(updates)))
