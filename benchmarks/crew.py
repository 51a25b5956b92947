"""Several ways to train, each a set of processes, measured in turns.

A benchmark says what its systems are, and by a subclass of `Worker` what a process of one does. In
each round every system is started anew, has its turn and is ended. A turn is `--warmup` updates
that do not count, then those that do, which all its workers begin together. After its start a
system makes `--settle` updates more, in which its memory grows: new pages cost tens of milliseconds
of an update, and a training run soon has all that it needs.

The baseline, one worker, is started once a round and has a turn of the same batches beside
every system's turn (no warm-up but after its start), so that what the machine does to both cancels
out of their ratio. Who has no turn is stopped (SIGSTOP). So as many processes as `--workers` and
one more are resident, beside the starters that fork them.

    SYSTEMS = {"single": System("1 worker"), "legacy_ddp": System("{n} workers", "legacy_ddp")}

    class Trained(Worker):
        def __init__(self, name, rank, options, data):
            super().__init__(SYSTEMS[name], [str(data), "--cpu", ...], rank, options)

    result = take_turns("label", SYSTEMS, Trained, options, lambda scratch: (data,), "single")

With `--devices SHARE RATE` worker K of each system is on emulated device K: devices.sh says what
that is, devices.py how workers get there. Before the first round the devices are calibrated.

What is timed is `HybridTrainer.train_step`, built from a parsed fairseq-train command line: what a
user gets, but for reading the data, which is in memory. Several workers make `--updates` updates a
round, of a batch each; a single worker makes as many times more as there are workers, or with
`--accumulate` updates of as many batches. So all systems have the same batches.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing import connection
from pathlib import Path
from typing import Any, NamedTuple

import calibration
import devices
from common import command, environment  # (makes the package importable)
from devices import Devices, Process
from measured import (  # noqa: F401  (what benchmarks find here)
    Rounds,
    by_system,
    common_columns,
    every,
    print_table,
    rates,
    within_rounds,
)
from worker import System, Worker, serve

from fairseq_hybrid.launch import rendezvous, topology

__all__ = ["System", "Worker"]

SETTLE = 1.0  # seconds in which the others of a system notice that one has died
BESIDE = ("tokens", "seconds", "updates", "sgemm")
MOST = 8  # workers resident at the same time


@dataclass(frozen=True)
class Member:
    """A worker of a system."""

    name: str
    rank: int
    process: Process


class Result(NamedTuple):
    facts: dict[str, dict]
    """system → what its first worker says about itself"""
    rounds: Rounds
    calibration: dict


class Crew:
    """The workers of some systems. If one fails, so does the benchmark."""

    def __init__(self, systems: Mapping[str, System], kind: type[Worker], options, on: Devices):
        self.systems, self.kind, self.options, self.devices = systems, kind, options, on
        self.members: list[Member] = []
        self.stores: dict[str, Any] = {}
        self.rendezvous_made = 0

    def of(self, name: str) -> list[Member]:
        return [member for member in self.members if member.name == name]

    def start(self, name: str, job: tuple) -> dict:
        """Start a system on a job, and stop it when it is ready; returns its facts."""
        system = self.systems[name]
        variables = self._variables(name, system)
        for rank in range(system.workers(self.options)):
            args = (self.kind, name, rank, self.options, *job)
            process = self.devices.fork(rank, {**variables, "RANK": str(rank)}, serve, *args)
            self.members.append(Member(name, rank, process))
        facts = self.gather(self.of(name))
        self.signal(name, signal.SIGSTOP)
        return facts[0]

    def end(self, name: str) -> None:
        self.devices.end([member.process for member in self.of(name)])
        self.members = [member for member in self.members if member.name != name]
        self.stores.pop(name, None)

    def _variables(self, name: str, system: System) -> dict[str, str]:
        values = {"OMP_NUM_THREADS": str(system.threads(self.options)), "CUDA_VISIBLE_DEVICES": ""}
        if not self.devices.emulated:
            values[devices.INTERFACE] = rendezvous.loopback_interface()
        if system.workers(self.options) == 1:
            return values
        values["WORLD_SIZE"] = str(system.workers(self.options))
        if self.devices.emulated:  # worker 0 has the store; a port that is not waiting to be free
            self.rendezvous_made += 1
            port = 20000 + self.rendezvous_made % 10000
            return {**values, "MASTER_ADDR": devices.FIRST_HOST, "MASTER_PORT": str(port)}
        store = self.stores[name] = rendezvous.loopback_store(0)
        return {**values, **rendezvous.variables_of(store)}

    def calibrate(self) -> dict:
        """What the devices have to give, before anything is measured."""
        world = self.options.workers
        host = devices.FIRST_HOST if self.devices.emulated else topology.LOOPBACK
        port = calibration.PORT if self.devices.emulated else free_port()
        for rank in range(world):
            process = self.devices.fork(rank, {}, calibrated, rank, world, host, port)
            self.members.append(Member("calibration", rank, process))
        result = self.gather(self.of("calibration"))[0]
        self.end("calibration")
        return result

    def measure(self, name: str, *turn: int) -> dict:
        """A turn of a system."""
        members = self.of(name)
        self.signal(name, signal.SIGCONT)
        self.tell(members, turn)
        self.gather(members)
        self.tell(members, "go")
        results = self.gather(members)
        self.signal(name, signal.SIGSTOP)
        total = {
            key: sum(r[key] for r in results)
            for key in ("cpu_seconds", "tokens", "bytes_counted", "sgemm")
        }
        before, after = zip(*(r["interface"] for r in results))
        return {
            # perf_counter is the same clock in all processes of a machine
            "seconds": max(r["end"] for r in results) - min(r["begin"] for r in results),
            **total,
            "updates": results[0]["updates"],
            **results[0]["notes"],
            # each device has an interface of its own
            "bytes_loopback": (
                sum(after) - sum(before) if self.devices.emulated else max(after) - min(before)
            ),
            "bytes_busiest": max(b - a for a, b in zip(before, after)),
            "peak_bytes": [r["peak_bytes"] for r in results],
        }

    def tell(self, members: list[Member], message) -> None:
        for member in members:
            try:
                member.process.pipe.send(message)
            except OSError:
                self.give_up()

    def gather(self, members: list[Member]) -> list:
        """An answer of each; meanwhile nobody else may die either."""
        answers: dict[int, Any] = {}
        everybody = {m.process.pipe: m for m in self.members}
        places = {m.process.pipe: i for i, m in enumerate(members)}
        deadline = time.monotonic() + self.options.patience
        while len(answers) < len(members):
            others = [p for p in everybody if p not in places or places[p] not in answers]
            ready = connection.wait(others, max(0.0, deadline - time.monotonic()))
            if not ready:
                silent = [f"{m.name} {m.rank}" for i, m in enumerate(members) if i not in answers]
                patience = f"{self.options.patience:.0f} s"
                raise SystemExit(f"error: no answer in {patience} from worker {', '.join(silent)}")
            for pipe in ready:
                try:
                    kind, answer = pipe.recv()
                except (EOFError, OSError):
                    kind, answer = "error", None
                if kind == "error":
                    self.give_up(answer, everybody[pipe])
                answers[places[pipe]] = answer
        return [answers[i] for i in range(len(members))]

    def give_up(self, trouble: str | None = None, member: Member | None = None) -> None:
        """Say who failed, one that was killed before those that missed it."""
        time.sleep(SETTLE)
        codes = [self.devices.exitcode(m.process) for m in self.members]
        for m, code in zip(self.members, codes):
            if code is not None and code < 0:
                how = signal.Signals(-code).name
                raise SystemExit(f"error: {m.name}, worker {m.rank} was killed by {how}")
        if trouble is None:
            for member in self.members:
                trouble = last_words(member)
                if trouble is not None:
                    break
            else:
                gone = [f"{m.name} {m.rank}" for m, code in zip(self.members, codes) if code]
                who = f"worker {', '.join(gone)}" if gone else "a device"
                raise SystemExit(f"error: {who} ended without a word")
        sys.stderr.write(trouble)
        raise SystemExit(f"error: {member.name}, worker {member.rank} failed: see above")

    def signal(self, name: str, sign: signal.Signals) -> None:
        """Stop and go: even an idle worker would wake up, as gloo does a hundred times a second for
        every group, and take a few percent of a core from those that are measured."""
        self.devices.signal([member.process for member in self.of(name)], sign)


def calibrated(pipe, *args) -> None:
    """A worker's part of the calibration."""
    pipe.send(("done", calibration.calibrate(*args)))


def free_port() -> int:
    store = rendezvous.loopback_store(0)
    return store.port


def last_words(member: Member) -> str | None:
    with contextlib.suppress(EOFError, OSError):
        while member.process.pipe.poll():
            kind, trouble = member.process.pipe.recv()
            if kind == "error":
                return trouble
    return None


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def take_turns(
    label: str,
    systems: Mapping[str, System],
    kind: type[Worker],
    options,
    job: Callable[[Path], tuple],
    baseline: str,
    turns: int = 1,
) -> Result:
    """All rounds of all systems, each with so many turns between its start and its end.

    `job` gets a folder that lasts as long as the workers, makes the data, and returns what the
    workers are to know beside their name, rank and options.
    """
    rounds: Rounds = {name: [] for name in options.systems}
    facts: dict[str, dict] = {}
    others = [name for name in options.systems if name != baseline]
    with tempfile.TemporaryDirectory() as scratch:
        say(f"{label}: data")
        known = job(Path(scratch))
        say(f"{label}: {len(options.systems)} systems in turns")
        with Devices(options.workers, *(options.devices or ())) as on:
            crew = Crew(systems, kind, options, on)
            found = crew.calibrate()
            say(f"{label}: {calibration.line(found)}")

            def measure(name: str, number: int, warm: bool = False) -> dict:
                turn = crew.measure(name, number, warm)
                rounds[name].append(turn)
                rate, many = turn["tokens"] / turn["seconds"], options.rounds
                say(f"{label}: round {number // turns + 1}/{many} {name} {rate:.0f} tok/s")
                return turn

            for number in range(options.rounds):
                if baseline in options.systems:
                    facts[baseline] = crew.start(baseline, known)
                for name in others:
                    facts[name] = crew.start(name, known)
                    numbers = range(number * turns, (number + 1) * turns)
                    mine = [measure(name, n) for n in numbers]
                    if baseline in options.systems:
                        beside = measure(baseline, numbers[0], warm=True)
                        for turn in mine:
                            turn["beside"] = {key: beside[key] for key in BESIDE}
                    crew.end(name)
                if baseline in options.systems:
                    if not others:
                        measure(baseline, number * turns)
                    crew.end(baseline)
    counts = {tuple(r["tokens"] for r in rounds[name]) for name in others}
    if len(counts) > 1:
        raise SystemExit(f"error: the systems had different batches: {counts} target tokens")
    return Result({name: facts[name] for name in options.systems}, rounds, found)


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
    add_devices(parser)
    add("--json", type=Path, help="write the result here")


def add_settle(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--settle", type=int, default=1,
        help="updates after a system's start, until its memory no longer grows")  # fmt: skip


def add_devices(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--devices", nargs=2, metavar=("SHARE", "RATE"),
        help="put each worker on an emulated device: a share of a core (0.45, 1 or none) and the "
        "rate of its link (250mbit, or none); benchmarks/devices.sh says more")  # fmt: skip


def validate_options(parser: argparse.ArgumentParser, options) -> None:
    for name in ("rounds", "updates"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} {getattr(options, name)}: give 1 or more")
    if not 2 <= options.workers < MOST:
        parser.error(f"--workers {options.workers}: give 2 to {MOST - 1}")
    if options.devices is None:
        return
    share, rate = options.devices
    if not re.fullmatch(r"1|1\.0+|0?\.[0-9]{1,3}|none", share):
        parser.error(f"--devices {share} {rate}: the share is 0.05 to 1 of a core, or none")
    if not re.fullmatch(r"[1-9][0-9]*[kmg]bit|none", rate):
        parser.error(f"--devices {share} {rate}: the rate is as 250mbit or 1gbit, or none")
    if "threads" in options.systems:
        parser.error("--devices: threads of one worker have no use for several devices; leave it "
                     "out of --systems")  # fmt: skip


def run(
    workloads: tuple[str, ...],
    measure: Callable[[str, Any], dict],
    report: Callable[[str, dict, Any], None],
    options,
    *,
    private: tuple[str, ...],
) -> None:
    """Measure, print and save each workload; `private` options say where things are on the disk."""
    devices.serve()  # does not return if this is not the benchmark but a starter of it
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("error: terminated"))
    load = os.getloadavg()[0]
    result = {
        "environment": {**environment(), "cores": os.cpu_count(), "command": command()},
        "options": {k: v for k, v in vars(options).items() if k not in ("json", *private)},
        "workloads": {},
    }
    del result["environment"]["threads"]  # this process's; the workers have theirs
    for workload in workloads:
        found = result["workloads"][workload] = measure(workload, options)
        report(workload, found, options)
        print("\n" + calibration.line(found["calibration"]), flush=True)
        result["environment"]["load"] = [round(load, 2), round(os.getloadavg()[0], 2)]
        if options.json:  # after each workload: an hour's work should not hang on the next one
            options.json.parent.mkdir(parents=True, exist_ok=True)
            options.json.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n")
    print(f"\n{result['environment']['machine']}; load before and after: ", end="")
    print(result["environment"]["load"])
