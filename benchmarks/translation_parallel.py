"""How fast do several workers train `hybrid_lstm`, and what do they send each other?

    python benchmarks/translation_parallel.py --multi30k FOLDER --json build/parallel.json
    python benchmarks/translation_parallel.py --workload fixed --rounds 1 --updates 1 \
        --layers 4 --hidden 64 --vocab 500                                  # a quick look, 1 min

4+4 layers, embedding and hidden size 512, vocabulary 16,000, nothing shared; label-smoothed loss,
clipping, Adam. Two workloads:

    fixed       random words, every batch 64 sentences of 24 source and 24 target tokens (the end of
                sentence is one of them), no padding
    multi30k    Multi30k de→en in the batches fairseq makes of it (`--max-tokens` per worker)

and the systems, each a set of processes, started once and stopped while others are measured:

    feeding           1 worker, --input-feeding
    single            1 worker: the baseline of "speed-up"
    threads           1 worker with as many torch threads as the others have workers
    legacy_ddp        2 workers, a thread each, --ddp-backend legacy_ddp
    model_parallel    2 workers, a thread each, --ddp-backend model_parallel
    hybrid            2 workers, a thread each, --ddp-backend hybrid

What is timed is `HybridTrainer.train_step`, built from a parsed fairseq-train command line: what a
user gets, but for reading the data, which is in memory. In each round every system goes through the
same batches, one system after the other, after `--warmup` updates that do not count. 2 workers do
`--updates` updates of two batches (one each), a single worker twice as many of one batch, or with
`--accumulate` as many of two (--update-freq 2: the very update of the 2 workers).

    target tok/s   real target tokens of all workers per second of wall time, median over rounds
    speed-up       over `single`; median of the ratios within a round, as in "to ddp"
    of bound       speed-up / (workers x ideal), where ideal is the share of their time that the
                   schedule of the wavefront lets the stages compute (1 under legacy_ddp)
    sgemm          what the machine has to give: large matrix products of all workers at the same
                   time, over those of `single`, right after the updates of each round. Two cores
                   that share something give less than 2
    MB sent        per update, by all workers together: as the program counts its tensors (an
                   all-reduce as a ring makes it), and as the kernel counts the loopback device
                   (what gloo really sends, headers, and whatever else runs on the machine)
    peak MB        of the largest worker, since its start (VmHWM)

Processor time of all workers is in the JSON: where something else runs on the machine, look there.
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
from dataclasses import dataclass
from itertools import islice
from multiprocessing import connection
from pathlib import Path
from typing import Any

import torch
from common import command, environment, medians, prepare, ratios, sgemm_rate

from fairseq_hybrid.compat import launch


@dataclass(frozen=True)
class System:
    title: str
    backend: str | None = None
    """--ddp-backend; None: one worker"""
    flags: tuple[str, ...] = ()
    threaded: bool = False

    def workers(self, options) -> int:
        return options.workers if self.backend else 1

    def threads(self, options) -> int:
        return options.workers if self.threaded else 1


SYSTEMS = {
    "feeding": System("1 worker, input feeding", flags=("--input-feeding",)),
    "single": System("1 worker"),
    "threads": System("1 worker, {n} threads", threaded=True),
    "legacy_ddp": System("{n} workers, legacy_ddp", "legacy_ddp"),
    "model_parallel": System("{n} workers, model_parallel", "model_parallel"),
    "hybrid": System("{n} workers, hybrid", "hybrid"),
}
WAVEFRONT = ("model_parallel", "hybrid")
BASELINE, DATA_PARALLEL = "single", "legacy_ddp"
SETTLE = 1.0  # seconds in which the others of a system notice that one has died


# Data


def random_words(options, folder: Path) -> Path:
    """Sentences of one length, as fairseq-preprocess would store them; every batch is full."""
    from fairseq.data import Dictionary, indexed_dataset

    words = Dictionary()
    for i in range(options.vocab - len(words)):
        words.add_symbol(f"w{i}")
    sentences = options.sentences * options.workers * options.updates * options.rounds
    draw = torch.Generator().manual_seed(1)
    shape = (sentences, options.length)
    for side in ("de", "en"):
        words.save(str(folder / f"dict.{side}.txt"))
        ids = torch.randint(words.nspecial, len(words), shape, generator=draw, dtype=torch.int32)
        ids[:, -1] = words.eos()
        prefix = str(folder / f"train.de-en.{side}")
        builder = indexed_dataset.make_builder(prefix + ".bin", "mmap", vocab_size=len(words))
        for sentence in ids:
            builder.add_item(sentence)
        builder.finalize(prefix + ".idx")
    return folder


def workload_data(workload: str, options, scratch: Path) -> Path:
    if workload == "fixed":
        return random_words(options, scratch)
    return prepare(options.multi30k, options.cache or scratch, options.vocab, {"train": "train"})


# A worker's process


def arguments(workload: str, name: str, data: Path, options) -> list[str]:
    """Of fairseq-train."""
    system = SYSTEMS[name]
    sizes = {
        "--encoder-layers": options.layers,
        "--encoder-embed-dim": options.hidden,
        "--encoder-hidden-size": options.hidden,
        "--dropout": options.dropout,
        "--distributed-world-size": system.workers(options),
        "--batch-size" if workload == "fixed" else "--max-tokens": (
            options.sentences if workload == "fixed" else options.max_tokens
        ),
    }
    return [
        *(str(data), "--task", "translation", "-s", "de", "-t", "en", "--cpu", "--seed", "1"),
        *("--arch", "hybrid_lstm", *system.flags, "--ddp-backend", system.backend or "legacy_ddp"),
        *("--criterion", "label_smoothed_cross_entropy", "--label-smoothing", "0.1"),
        *("--optimizer", "adam", "--adam-betas", "(0.9, 0.98)", "--lr", "1e-3"),
        *("--clip-norm", "1.0", "--num-workers", "0"),
        *("--save-dir", str(data / "checkpoints")),  # fairseq saves there if an update fails
        *(str(word) for pair in sizes.items() for word in pair),
        *(("--hybrid-chunk", options.chunk) if name in WAVEFRONT else ()),
    ]


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
        raise ValueError(f"the data make fewer than {workers} batches: lower --max-tokens")
    return [some[i % len(some)] for i in range(count)]


class Worker:
    """One process of a system."""

    def __init__(self, workload: str, name: str, rank: int, data: Path, options):
        self.options = options
        torch.set_num_threads(SYSTEMS[name].threads(options))
        self.trainer = build_trainer(arguments(workload, name, data, options), rank)
        self.world = SYSTEMS[name].workers(options)
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
        dictionary = self.trainer.task.target_dictionary
        samples = [sample for update in self.updates for sample in update]
        tokens = sum(sample["ntokens"] for sample in samples)
        return {
            "parameters": sum(p.numel() for p in self.trainer.get_model().parameters()),
            "vocabulary": len(dictionary),
            "sentences_per_batch": sum(sample["nsentences"] for sample in samples) / len(samples),
            "target_tokens_per_batch": tokens / len(samples),
            "target_padding": 1 - tokens / sum(sample["target"].numel() for sample in samples),
        }

    def turn(self, number: int) -> list[list[dict]]:
        """The updates of a round, after some of them as warm-up."""
        mine = self.updates[number * self.per_round : (number + 1) * self.per_round]
        for i in range(self.options.warmup):
            self.trainer.train_step(mine[i % len(mine)])
        return mine

    def measure(self, updates: list[list[dict]]) -> dict:
        losses, ideals = [], []
        sent, cpu, begin = self.bytes_sent(0), time.process_time(), time.perf_counter()
        for update in updates:
            losses.append(self.trainer.train_step(update)["loss"])
            ideals.append(self.trainer.spread.ideal if self.trainer.spread else 1.0)
        end, cpu = time.perf_counter(), time.process_time() - cpu
        return {
            "begin": begin,
            "end": end,
            "cpu_seconds": cpu,
            "updates": len(updates),
            "tokens": sum(sample["ntokens"] for update in updates for sample in update),
            "bytes_counted": self.bytes_sent(len(updates)) - sent,
            "ideal": statistics.mean(ideals),
            "loss": statistics.mean(map(float, losses)),
            "peak_bytes": peak_memory(),
            # Right after the updates, so all workers of the system do it at the same time.
            "sgemm": sgemm_rate(),
        }

    def bytes_sent(self, updates: int) -> int:
        """By this worker; under legacy_ddp, in so many updates."""
        from fairseq_hybrid.distributed.hybrid import ring_bytes

        if self.trainer.spread is not None:
            return self.trainer.spread.bytes_sent
        if self.world == 1:
            return 0
        return updates * ring_bytes(self.trainer.model.module.buffer, self.world)


def peak_memory() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def serve(pipe, parent: int, *args) -> None:
    """A worker's life: get ready; for each round warm up, wait for the start, measure."""
    os.setpgid(0, 0)  # as launch.stop expects
    launch.die_with(parent)
    try:
        worker = Worker(*args)
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

    def __init__(self, options):
        self.patience = options.patience
        self.members: list[Member] = []
        self.stores: list[Any] = []

    def start(self, workload: str, data: Path, options) -> dict[str, dict]:
        """Start everybody; returns what each system's first worker says about itself."""
        context = multiprocessing.get_context("spawn")
        for name in options.systems:
            with launch.environment(**self._environment(name, options)):
                for rank in range(SYSTEMS[name].workers(options)):
                    ours, theirs = context.Pipe()
                    args = (theirs, os.getpid(), workload, name, rank, data, options)
                    process = context.Process(target=serve, args=args, daemon=True)
                    process.start()
                    theirs.close()
                    self.members.append(Member(name, rank, process, ours))
        facts = self.gather(self.members)
        self.signal(self.members, signal.SIGSTOP)
        return {m.name: f for m, f in zip(self.members, facts) if m.rank == 0}

    def _environment(self, name: str, options) -> dict[str, str]:
        values = {
            "OMP_NUM_THREADS": str(SYSTEMS[name].threads(options)),
            "CUDA_VISIBLE_DEVICES": "",
            "GLOO_SOCKET_IFNAME": launch.loopback_interface(),
        }
        if SYSTEMS[name].workers(options) > 1:
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
            **{key: results[0][key] for key in ("updates", "ideal", "loss")},
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
        deadline = time.monotonic() + self.patience
        while len(answers) < len(members):
            waiting = {m.pipe: i for i, m in enumerate(members) if i not in answers}
            deaths = [m.process.sentinel for m in self.members]
            left = deadline - time.monotonic()
            ready = connection.wait([*waiting, *deaths], max(0.0, left))
            if not ready:
                silent = ", ".join(f"{members[i].name} {members[i].rank}" for i in waiting.values())
                raise SystemExit(f"error: no answer in {self.patience:.0f} s from worker {silent}")
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


def measure(workload: str, options) -> dict:
    crew = Crew(options)
    with tempfile.TemporaryDirectory() as scratch:
        try:
            say(f"{workload}: data")
            data = workload_data(workload, options, Path(scratch))
            say(f"{workload}: starting {len(options.systems)} systems")
            facts = crew.start(workload, data, options)
            rounds: dict[str, list[dict]] = {name: [] for name in options.systems}
            for number in range(options.rounds):
                for name in options.systems:
                    result = crew.measure(name, number)
                    rounds[name].append(result)
                    rate = result["tokens"] / result["seconds"]
                    say(f"{workload}: round {number + 1}/{options.rounds} {name} {rate:.0f} tok/s")
        finally:
            crew.stop()
    counts = {tuple(r["tokens"] for r in results) for results in rounds.values()}
    if len(counts) > 1:
        raise SystemExit(f"error: the systems had different batches: {counts} target tokens")
    # All systems together have seen the same batches: those of a single worker are all of them.
    whole = next((f for n, f in facts.items() if not SYSTEMS[n].backend), None)
    return {
        **(whole or next(iter(facts.values()))),
        "parameters": {name: f["parameters"] for name, f in facts.items()},
        "systems": summary(rounds, options),
        "rounds": rounds,
    }


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


# Results


def summary(rounds: dict[str, list[dict]], options) -> dict[str, dict]:
    def all_rounds(value) -> dict[str, list[float]]:
        return {name: [value(r) for r in results] for name, results in rounds.items()}

    rate = all_rounds(lambda r: r["tokens"] / r["seconds"])
    per_cpu = all_rounds(lambda r: r["tokens"] / r["cpu_seconds"])
    speed_up, to_ddp = ratios(rate, BASELINE), ratios(rate, DATA_PARALLEL)
    columns = {
        "tokens_per_second": medians(rate, 1),
        "speed_up": speed_up,
        "to_legacy_ddp": to_ddp,
        "ms_per_update": medians(all_rounds(lambda r: 1000 * r["seconds"] / r["updates"]), 1),
        "tokens_per_update": medians(all_rounds(lambda r: r["tokens"] / r["updates"]), 1),
        "ideal": medians(all_rounds(lambda r: r["ideal"]), 3),
        "mb_counted": medians(all_rounds(lambda r: r["bytes_counted"] / r["updates"] / 1e6), 2),
        "mb_loopback": medians(all_rounds(lambda r: r["bytes_loopback"] / r["updates"] / 1e6), 2),
        "peak_mb": {n: round(max(r[-1]["peak_bytes"]) / 1e6) for n, r in rounds.items()},
        "tokens_per_cpu_second": medians(per_cpu, 1),
        "sgemm": medians(all_rounds(lambda r: r["sgemm"]), 1),
        "sgemm_ratio": ratios(all_rounds(lambda r: r["sgemm"]), BASELINE),
    }
    result = {
        name: {column: values.get(name) for column, values in columns.items()} for name in rounds
    }
    for name, row in result.items():
        row["workers"], row["of_bound"] = SYSTEMS[name].workers(options), None
        if row["workers"] > 1 and BASELINE in rate:
            bounds = [r["ideal"] * row["workers"] for r in rounds[name]]
            shares = (a / b / bound for a, b, bound in zip(rate[name], rate[BASELINE], bounds))
            row["of_bound"] = round(statistics.median(shares), 3)
    return result


COLUMNS = {
    "target tok/s": ("tokens_per_second", "{:,.0f}"),
    "speed-up": ("speed_up", "{:.2f}"),
    "to ddp": ("to_legacy_ddp", "{:.2f}"),
    "ms/update": ("ms_per_update", "{:,.0f}"),
    "tokens/update": ("tokens_per_update", "{:,.0f}"),
    "ideal": ("ideal", "{:.1%}"),
    "of bound": ("of_bound", "{:.1%}"),
    "sgemm": ("sgemm_ratio", "{:.2f}"),
    "MB sent, counted": ("mb_counted", "{:,.1f}"),
    "on loopback": ("mb_loopback", "{:,.1f}"),
    "peak MB": ("peak_mb", "{:,.0f}"),
}


def report(workload: str, result: dict, options) -> None:
    """A Markdown table."""
    shape = f"{options.layers}+{options.layers} layers of {options.hidden}"
    print(
        f"\n**{workload}**: {shape}, vocabulary {result['vocabulary']:,}; batches of "
        f"{result['sentences_per_batch']:.0f} sentences, {result['target_tokens_per_batch']:.0f} "
        f"target tokens, {result['target_padding']:.1%} padding beside them\n"
    )
    print("| system | " + " | ".join(COLUMNS) + " |")
    print("|---|" + "--:|" * len(COLUMNS))
    for name, row in result["systems"].items():
        cells = [SYSTEMS[name].title.format(n=options.workers)]
        for key, form in COLUMNS.values():
            means_something = key != "ideal" or name in WAVEFRONT
            cells.append(form.format(row[key]) if means_something and row[key] is not None else "–")
        print("| " + " | ".join(cells) + " |", flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--workload", choices=("fixed", "multi30k", "both"), default="both")
    add("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS), metavar="SYSTEM",
        help=", ".join(SYSTEMS))  # fmt: skip
    add("--rounds", type=int, default=7)
    add("--updates", type=int, default=4, help="per round, of several workers")
    add("--warmup", type=int, default=1, help="updates before each turn that do not count")
    add("--workers", type=int, default=2, help="of legacy_ddp, model_parallel, hybrid")
    add("--accumulate", action="store_true",
        help="single workers make updates of as many batches as several workers do")  # fmt: skip
    add("--chunk", default="auto", help="--hybrid-chunk of hybrid and model_parallel")
    add("--layers", type=int, default=4, help="of the encoder, and as many of the decoder")
    add("--hidden", type=int, default=512, help="embedding and hidden size")
    add("--vocab", type=int, default=16000)
    add("--dropout", type=float, default=0.2)
    add("--sentences", type=int, default=64, help="fixed: per batch")
    add("--length", type=int, default=24, help="fixed: tokens per sentence")
    add("--max-tokens", type=int, default=1600, help="multi30k: per batch, see fairseq-train")
    add("--multi30k", type=Path, default=os.environ.get("MULTI30K"), metavar="FOLDER",
        help="with train.de and train.en (default: the variable MULTI30K)")  # fmt: skip
    add("--cache", type=Path, help="keep the prepared Multi30k here (default: nowhere)")
    add("--patience", type=float, default=1800, help="seconds to wait for a worker")
    add("--json", type=Path, help="write the result here")
    options = parser.parse_args()
    options.workloads = ("fixed", "multi30k") if options.workload == "both" else (options.workload,)
    for name in ("rounds", "updates", "sentences"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} {getattr(options, name)}: give 1 or more")
    if options.workers < 2:
        parser.error(f"--workers {options.workers}: give 2 or more")
    if options.length < 2 or options.vocab < 8:
        parser.error("--length must be at least 2 and --vocab at least 8")
    if "multi30k" in options.workloads:
        if options.multi30k is None:
            parser.error("--multi30k FOLDER (or the variable MULTI30K) must say where the text is")
        if not (options.multi30k / "train.de").exists():
            where = f"--multi30k {options.multi30k}: no train.de there"
            parser.error(f"{where}; see examples/translation/multi30k.sh")
    return options


def main() -> None:
    options = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("error: terminated"))
    load = os.getloadavg()[0]
    result = {
        "environment": {**environment(), "cores": os.cpu_count(), "command": command()},
        "options": {
            k: v
            for k, v in vars(options).items()
            if k not in ("multi30k", "cache", "json", "workloads")
        },
        "workloads": {},
    }
    del result["environment"]["threads"]  # this process's; the workers have theirs
    for workload in options.workloads:
        result["workloads"][workload] = measure(workload, options)
        report(workload, result["workloads"][workload], options)
        result["environment"]["load"] = [round(load, 2), round(os.getloadavg()[0], 2)]
        if options.json:  # after each workload: an hour's work should not hang on the next one
            options.json.parent.mkdir(parents=True, exist_ok=True)
            options.json.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n")
    print(f"\n{result['environment']['machine']}; load before and after: ", end="")
    print(result["environment"]["load"])


if __name__ == "__main__":
    main()
