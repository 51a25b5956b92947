"""Several ways to train, each a set of processes, measured in turns.

A benchmark says what its systems are, and by a subclass of `Worker` what a process of one does. All
processes are started once and stopped (SIGSTOP) while others are measured. In each round every
system has its turn: `--warmup` updates that do not count, then those that do, which all its workers
begin together. Before its first turn it makes `--settle` updates more, in which its memory grows:
new pages cost tens of milliseconds of an update, and a training run soon has all that it needs.
What is timed is `HybridTrainer.train_step`, built from a parsed fairseq-train command line: what a
user gets, but for reading the data, which is in memory.

    SYSTEMS = {"single": System("1 worker"), "legacy_ddp": System("{n} workers", "legacy_ddp")}

    class Trained(Worker):
        def __init__(self, name, rank, options, data):
            super().__init__(SYSTEMS[name], [str(data), "--cpu", ...], rank, options)

    facts, rounds = take_turns("label", SYSTEMS, Trained, options, lambda scratch: (data,))

Several workers make `--updates` updates a round, of a batch each; a single worker makes as many
times more as there are workers, or with `--accumulate` updates of as many batches. So all systems
have the same number of batches.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import signal
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from multiprocessing import connection
from pathlib import Path
from typing import Any

import torch
from common import command, environment, medians, ratios, sgemm_rate

from fairseq_hybrid.compat import launch

Rounds = dict[str, list[dict]]
"""system → what came out of each of its turns"""

SETTLE = 1.0  # seconds in which the others of a system notice that one has died


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


# A worker's process


def build_trainer(words: list[str], rank: int):
    """As fairseq-train does it."""
    import numpy
    from fairseq import options, tasks, utils
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf
    from fairseq.distributed import utils as distributed_utils

    from fairseq_hybrid.distributed import backends
    from fairseq_hybrid.distributed.trainer import HybridTrainer

    parser = options.get_training_parser()
    cfg = convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, words))
    backends.check(cfg)
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


def take_batches(trainer, count: int, workers: int) -> list[dict]:
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
        batches = take_batches(
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

    def turn(self, number: int) -> list[list[dict]]:
        """The updates of a round, after some of them as warm-up."""
        mine = self.updates[number * self.per_round : (number + 1) * self.per_round]
        settling, self.settling = self.settling, 0
        for i in range(settling + self.options.warmup):
            self.trainer.train_step(mine[i % len(mine)])
        return mine

    def measure(self, updates: list[list[dict]]) -> dict:
        notes = []
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
            "notes": {key: statistics.mean(note[key] for note in notes) for key in notes[0]},
            "peak_bytes": peak_memory(),
            # Right after the updates, so all workers of the system do it at the same time.
            "sgemm": sgemm_rate(),
        }

    def bytes_sent(self, updates: int) -> int:
        """By this worker; under legacy_ddp, which does not count, in so many updates."""
        from fairseq_hybrid.distributed.sums import ring_bytes

        if self.world == 1:
            return 0
        wrapper = self.trainer.model.module
        if hasattr(wrapper, "bytes_sent"):
            return wrapper.bytes_sent
        return updates * ring_bytes(wrapper.buffer, self.world)


def peak_memory() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def serve(pipe, parent: int, kind: type[Worker], *args) -> None:
    """A worker's life: get ready; for each round warm up, wait for the start, measure."""
    os.setpgid(0, 0)  # as launch.stop expects
    launch.die_with(parent)
    try:
        worker = kind(*args)
        pipe.send(("ready", worker.facts()))
        while True:
            updates = worker.turn(pipe.recv())
            pipe.send(("warm", None))
            pipe.recv()
            pipe.send(("done", worker.measure(updates)))
    except BaseException:
        with contextlib.suppress(OSError):
            pipe.send(("error", traceback.format_exc()))
        os._exit(1)  # no clean-up: it could wait for peers that are gone


# The process that directs them


@dataclass(frozen=True)
class Member:
    """A worker as the parent sees it."""

    name: str
    rank: int
    process: Any
    pipe: Any


class Crew:
    """The workers of all systems. If one fails, so does the benchmark."""

    def __init__(self, systems: Mapping[str, System], kind: type[Worker], options):
        self.systems, self.kind, self.options = systems, kind, options
        self.members: list[Member] = []
        self.stores: list[Any] = []

    def start(self, *job: Any) -> dict[str, dict]:
        """Start everybody on a job; returns what each system's first worker says about itself."""
        context = multiprocessing.get_context("spawn")
        options = self.options
        for name in options.systems:
            system = self.systems[name]
            with launch.environment(**self._environment(system)):
                for rank in range(system.workers(options)):
                    ours, theirs = context.Pipe()
                    args = (theirs, os.getpid(), self.kind, name, rank, options, *job)
                    process = context.Process(target=serve, args=args, daemon=True)
                    process.start()
                    theirs.close()
                    self.members.append(Member(name, rank, process, ours))
        facts = self.gather(self.members)
        self.signal(self.members, signal.SIGSTOP)
        return {m.name: f for m, f in zip(self.members, facts) if m.rank == 0}

    def _environment(self, system: System) -> dict[str, str]:
        values = {
            "OMP_NUM_THREADS": str(system.threads(self.options)),
            "CUDA_VISIBLE_DEVICES": "",
            "GLOO_SOCKET_IFNAME": launch.loopback_interface(),
        }
        if system.workers(self.options) > 1:
            store = launch.loopback_store(0)
            self.stores.append(store)
            values.update(
                MASTER_ADDR=launch.LOOPBACK,
                MASTER_PORT=str(store.port),
                TORCHELASTIC_USE_AGENT_STORE="True",
            )
        return values

    def measure(self, name: str, number: int) -> dict:
        """One system's turn in a round."""
        members = [m for m in self.members if m.name == name]
        self.signal(members, signal.SIGCONT)
        self.tell(members, number)
        self.gather(members)
        before = loopback_bytes()
        self.tell(members, "go")
        results = self.gather(members)
        loopback = loopback_bytes() - before
        self.signal(members, signal.SIGSTOP)
        total = {
            key: sum(r[key] for r in results)
            for key in ("cpu_seconds", "tokens", "bytes_counted", "sgemm")
        }
        return {
            # perf_counter is the same clock in all processes of a machine
            "seconds": max(r["end"] for r in results) - min(r["begin"] for r in results),
            **total,
            "updates": results[0]["updates"],
            **results[0]["notes"],
            "bytes_loopback": loopback,
            "peak_bytes": [r["peak_bytes"] for r in results],
        }

    def tell(self, members: list[Member], message) -> None:
        for member in members:
            try:
                member.pipe.send(message)
            except OSError:
                self.give_up()

    def gather(self, members: list[Member]) -> list:
        """An answer of each; meanwhile nobody else may die either."""
        answers: dict[int, Any] = {}
        deadline = time.monotonic() + self.options.patience
        while len(answers) < len(members):
            waiting = {m.pipe: i for i, m in enumerate(members) if i not in answers}
            deaths = [m.process.sentinel for m in self.members]
            left = deadline - time.monotonic()
            ready = connection.wait([*waiting, *deaths], max(0.0, left))
            if not ready:
                silent = ", ".join(f"{members[i].name} {members[i].rank}" for i in waiting.values())
                raise SystemExit(
                    f"error: no answer in {self.options.patience:.0f} s from worker {silent}"
                )
            for pipe in ready:
                if pipe in deaths:
                    self.give_up()
                try:
                    kind, answers[waiting[pipe]] = pipe.recv()
                except (EOFError, OSError):
                    kind = "error"
                if kind == "error":
                    self.give_up(answers.get(waiting[pipe]), members[waiting[pipe]])
        return [answers[i] for i in range(len(members))]

    def give_up(self, trouble: str | None = None, member: Member | None = None) -> None:
        """Say who failed, one that was killed before those that missed it."""
        time.sleep(SETTLE)
        killed = [m for m in self.members if (m.process.exitcode or 0) < 0]
        if killed:
            m = killed[0]
            how = signal.Signals(-m.process.exitcode).name
            raise SystemExit(f"error: {m.name}, worker {m.rank} was killed by {how}")
        if trouble is None:
            for member in self.members:
                trouble = last_words(member)
                if trouble is not None:
                    break
            else:
                gone = [f"{m.name} {m.rank}" for m in self.members if m.process.exitcode]
                raise SystemExit(f"error: worker {', '.join(gone)} ended without a word")
        sys.stderr.write(trouble)
        raise SystemExit(f"error: {member.name}, worker {member.rank} failed: see above")

    @staticmethod
    def signal(members: list[Member], sign: signal.Signals) -> None:
        """Stop and go: even an idle worker would wake up, as gloo does a hundred times a second for
        every group, and take a few percent of a core from those that are measured."""
        for member in members:
            with contextlib.suppress(ProcessLookupError):
                os.kill(member.process.pid, sign)

    def stop(self) -> None:
        self.signal([m for m in self.members if m.process.exitcode is None], signal.SIGCONT)
        launch.stop([m.process for m in self.members])


def last_words(member: Member) -> str | None:
    with contextlib.suppress(EOFError, OSError):
        while member.pipe.poll():
            kind, trouble = member.pipe.recv()
            if kind == "error":
                return trouble
    return None


def loopback_bytes() -> int:
    """What this machine has sent to itself so far."""
    device = launch.loopback_interface()
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, counters = line.partition(":")
        if name.strip() == device:
            return int(counters.split()[8])
    raise SystemExit(f"error: no {device} in /proc/net/dev")


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def take_turns(
    label: str,
    systems: Mapping[str, System],
    kind: type[Worker],
    options,
    job: Callable[[Path], tuple],
) -> tuple[dict[str, dict], Rounds]:
    """All rounds of all systems; returns also what the first worker of each says about itself.

    `job` gets a folder that lasts as long as the workers, makes the data, and returns what the
    workers are to know beside their name, rank and options.
    """
    crew = Crew(systems, kind, options)
    rounds: Rounds = {name: [] for name in options.systems}
    with tempfile.TemporaryDirectory() as scratch:
        try:
            say(f"{label}: data")
            known = job(Path(scratch))
            say(f"{label}: starting {len(options.systems)} systems")
            facts = crew.start(*known)
            for number in range(options.rounds):
                for name in options.systems:
                    result = crew.measure(name, number)
                    rounds[name].append(result)
                    rate = result["tokens"] / result["seconds"]
                    say(f"{label}: round {number + 1}/{options.rounds} {name} {rate:.0f} tok/s")
        finally:
            crew.stop()
    counts = {tuple(r["tokens"] for r in results) for results in rounds.values()}
    if len(counts) > 1:
        raise SystemExit(f"error: the systems had different batches: {counts} target tokens")
    return facts, rounds


# Results


def every(rounds: Rounds, value: Callable[[dict], float]) -> dict[str, list[float]]:
    """A number of each turn of each system."""
    return {name: [value(turn) for turn in turns] for name, turns in rounds.items()}


def rates(rounds: Rounds) -> dict[str, list[float]]:
    return every(rounds, lambda r: r["tokens"] / r["seconds"])


def common_columns(rounds: Rounds, baseline: str) -> dict[str, dict[str, float]]:
    """What can be said of any system: column → system → value."""
    sgemm = every(rounds, lambda r: r["sgemm"])
    per_cpu = every(rounds, lambda r: r["tokens"] / r["cpu_seconds"])

    def megabytes(key):
        return medians(every(rounds, lambda r: r[key] / r["updates"] / 1e6), 2)

    return {
        "tokens_per_second": medians(rates(rounds), 1),
        "speed_up": ratios(rates(rounds), baseline),
        "ms_per_update": medians(every(rounds, lambda r: 1000 * r["seconds"] / r["updates"]), 1),
        "tokens_per_update": medians(every(rounds, lambda r: r["tokens"] / r["updates"]), 1),
        "mb_counted": megabytes("bytes_counted"),
        "mb_loopback": megabytes("bytes_loopback"),
        "peak_mb": {n: round(max(r[-1]["peak_bytes"]) / 1e6) for n, r in rounds.items()},
        "tokens_per_cpu_second": medians(per_cpu, 1),
        "sgemm": medians(sgemm, 1),
        "sgemm_ratio": ratios(sgemm, baseline),
    }


def by_system(columns: Mapping[str, Mapping[str, float]], rounds: Rounds) -> dict[str, dict]:
    """system → column → value, None where there is none."""
    return {name: {key: values.get(name) for key, values in columns.items()} for name in rounds}


def print_table(
    columns: Mapping[str, tuple[str, str]], rows: Mapping[str, dict], titles: Mapping[str, str]
) -> None:
    """Markdown. `columns`: title → (key in a row, format)."""
    print("| system | " + " | ".join(columns) + " |")
    print("|---|" + "--:|" * len(columns))
    for name, row in rows.items():
        cells = [titles[name]]
        for key, form in columns.values():
            cells.append("–" if row[key] is None else form.format(row[key]))
        print("| " + " | ".join(cells) + " |", flush=True)


# The command line


def add_options(
    parser: argparse.ArgumentParser, systems: Mapping[str, System], *, rounds: int, updates: int
) -> None:
    add = parser.add_argument
    several = ", ".join(name for name, system in systems.items() if system.backend)
    add("--systems", nargs="+", choices=systems, default=list(systems), metavar="SYSTEM",
        help=", ".join(systems))  # fmt: skip
    add("--rounds", type=int, default=rounds)
    add("--updates", type=int, default=updates, help="per round, of several workers")
    add("--warmup", type=int, default=1, help="updates before each turn that do not count")
    add_settle(parser)
    add("--workers", type=int, default=2, help=f"of {several}")
    add("--accumulate", action="store_true",
        help="single workers make updates of as many batches as several workers do")  # fmt: skip
    add("--patience", type=float, default=1800, help="seconds to wait for a worker")
    add("--json", type=Path, help="write the result here")


def add_settle(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--settle", type=int, default=6,
        help="updates before a system's first turn, until its memory no longer grows")  # fmt: skip


def check_options(parser: argparse.ArgumentParser, options) -> None:
    for name in ("rounds", "updates"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} {getattr(options, name)}: give 1 or more")
    if options.workers < 2:
        parser.error(f"--workers {options.workers}: give 2 or more")


def run(
    workloads: tuple[str, ...],
    measure: Callable[[str, Any], dict],
    report: Callable[[str, dict, Any], None],
    options,
    *,
    private: tuple[str, ...],
) -> None:
    """Measure, print and save each workload; `private` options say where things are on the disk."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("error: terminated"))
    load = os.getloadavg()[0]
    result = {
        "environment": {**environment(), "cores": os.cpu_count(), "command": command()},
        "options": {k: v for k, v in vars(options).items() if k not in ("json", *private)},
        "workloads": {},
    }
    del result["environment"]["threads"]  # this process's; the workers have theirs
    for workload in workloads:
        result["workloads"][workload] = measure(workload, options)
        report(workload, result["workloads"][workload], options)
        result["environment"]["load"] = [round(load, 2), round(os.getloadavg()[0], 2)]
        if options.json:  # after each workload: an hour's work should not hang on the next one
            options.json.parent.mkdir(parents=True, exist_ok=True)
            options.json.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n")
    print(f"\n{result['environment']['machine']}; load before and after: ", end="")
    print(result["environment"]["load"])
