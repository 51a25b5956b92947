"""How good is a model whose workers were averaged every few updates? One file for each training.

    python benchmarks/averaging_outer.py tune --data FOLDER --task lm
    python benchmarks/averaging_outer.py compare --data FOLDER --task lm --workers 2 --seeds 1 2 3
    python benchmarks/averaging_outer.py intervals --data FOLDER --task lm --systems mean outer

Two tasks: `lm`, a recurrent language model on the first 1.0 M words of WikiText-2 with its 2,000
most frequent words; `mt`, a `hybrid_lstm` on Multi30k. All systems of a task see the same number of
words: an update takes the same batch, cut into as many parts as there are workers. The rate falls
in a straight line to zero, after a warm-up.

    ddp         legacy_ddp with Adam: gradients are averaged in every update
    bmuf        fairseq's --use-bmuf with Adam: block momentum
    mean_sgd    model_averaging with SGD, taken as it is (--averaging-outer none)
    mean_ng     the same with natural-gradient SGD
    mean        the same with Adam
    outer       the same with --averaging-outer nesterov
    overlap     the same with --averaging-overlap, too
    mean_warm   mean, but the first tenth of the updates is as under ddp (--averaging-warmup)
    outer_warm  outer, likewise

`tune` trains each system on two workers: for `lm` with half of the updates at three rates, and
beyond them while the best is the lowest or highest; one with an outer rate and momentum with more
pairs of those, too; for `mt` in full length at two rates with the pair that was best for `lm`.
overlap and those with a warm-up take the settings of the systems they are like. `compare` takes
each system's best. A training that has its file in benchmarks/results/averaging_outer is not
repeated, so any command goes on where it was stopped.
Workers are processes over gloo, which on one machine emulate nothing but the parallelism: what is
reported is words, updates, bytes and quality. Bytes are those of the updates; what validation at
the end sends is counted apart.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import resource
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path

import common
from common import preprocess
from worker import build_trainer, import_all

FOLDER = common.ROOT / "benchmarks" / "results" / "averaging_outer"
INTERVAL = 50


@dataclass(frozen=True)
class Task:
    updates: int
    tuned: int
    """updates of a training that tunes"""
    batch: int
    """sequences of an update, of all workers together"""
    flags: tuple[str, ...]


TASKS = {
    "lm": Task(
        updates=1400,
        tuned=700,
        batch=16,
        flags=(
            *("--task", "language_modeling", "--tokens-per-sample", "32", "--dropout", "0"),
            *("--sample-break-mode", "none", "--arch", "hybrid_lstm_lm", "--decoder-layers", "1"),
            *("--decoder-embed-dim", "96", "--decoder-hidden-size", "96"),
        ),
    ),
    "mt": Task(
        updates=1400,
        tuned=1400,
        batch=64,
        flags=(
            *("--task", "translation", "--source-lang", "de", "--target-lang", "en"),
            *("--arch", "hybrid_lstm", "--encoder-layers", "1", "--decoder-layers", "1"),
            *("--share-all-embeddings", "--dropout", "0.1"),
            *("--encoder-embed-dim", "96", "--encoder-hidden-size", "96"),
            *("--decoder-embed-dim", "96", "--decoder-hidden-size", "96"),
            *("--decoder-out-embed-dim", "96"),
        ),
    ),
}


@dataclass(frozen=True)
class System:
    rates: tuple[float, ...]
    """of the optimizer, upwards"""
    optimizer: str = "adam"
    backend: str = "model_averaging"
    pairs: tuple[tuple[float, float, float], ...] = ((1.0, 0.0, 1.0),)
    """outer rate and momentum, or block rate and momentum: the first goes with all rates, another
    with the best of them times its third number"""
    flags: tuple[str, ...] = ()
    warm: bool = False
    tuned_as: str = ""
    """the system whose settings it takes"""


ADAM, SGD = (0.004, 0.008, 0.016), (1.0, 2.0, 4.0)
NESTEROV = ((0.7, 0.5, 1.0), (1.0, 0.3, 1.0), (0.7, 0.9, 1.0), (0.7, 0.9, 0.5))
BLOCKS = ((1.0, 0.5, 1.0), (1.0, 0.25, 1.0), (1.0, 0.875, 1.0), (1.0, 0.875, 0.5))
SYSTEMS = {
    "ddp": System(ADAM, backend="legacy_ddp"),
    "outer": System(ADAM, pairs=NESTEROV, flags=("--averaging-outer", "nesterov")),
    "mean": System(ADAM),
    "overlap": System(
        ADAM, flags=("--averaging-outer", "nesterov", "--averaging-overlap"), tuned_as="outer"
    ),
    "bmuf": System(
        ADAM, backend="legacy_ddp", pairs=BLOCKS, flags=("--use-bmuf", "--warmup-iterations", "0"),
    ),
    "mean_warm": System(ADAM, warm=True, tuned_as="mean"),
    "outer_warm": System(
        ADAM, flags=("--averaging-outer", "nesterov"), warm=True, tuned_as="outer"
    ),
    "mean_sgd": System(SGD, "sgd"),
    "mean_ng": System(SGD, "ng_sgd"),
}  # fmt: skip
RECURRENT = ("ddp", "outer", "mean", "overlap", "bmuf")
"""systems with Adam, without which `mt` learns little"""


@dataclass(frozen=True)
class Run:
    task: str
    system: str
    workers: int
    interval: int
    lr: float
    outer_rate: float
    outer_momentum: float
    seed: int
    updates: int

    @property
    def path(self) -> Path:
        words = [str(v).replace("_", "") for v in asdict(self).values()]
        return FOLDER / f"{'_'.join(words)}.json"

    def command(self, data: Path) -> list[str]:
        """Of fairseq-train."""
        system, task = SYSTEMS[self.system], TASKS[self.task]
        values = {
            "--distributed-world-size": self.workers,
            "--ddp-backend": system.backend,
            "--batch-size": task.batch // self.workers,
            "--optimizer": system.optimizer,
            "--clip-norm": 1 if system.optimizer == "adam" else 0,
            "--lr": self.lr,
            "--lr-scheduler": "polynomial_decay",
            "--total-num-update": self.updates,
            "--warmup-updates": self.updates // 20,
            "--max-update": self.updates,
            "--seed": self.seed,
            "--criterion": "cross_entropy",
            "--num-workers": 0,
            "--save-dir": data / "checkpoints",  # fairseq saves there if an update fails
        }
        if self.system == "bmuf":
            values["--global-sync-iter"] = self.interval
            values |= {"--block-lr": self.outer_rate, "--block-momentum": self.outer_momentum}
        elif system.backend == "model_averaging":
            values["--averaging-interval"] = self.interval
        if system.warm:
            values["--averaging-warmup"] = self.updates // 10 // self.interval * self.interval
        if "--averaging-outer" in system.flags:
            values["--averaging-outer-rate"] = self.outer_rate
            values["--averaging-outer-momentum"] = self.outer_momentum
        pairs = (str(word) for pair in values.items() for word in pair)
        return [str(data), "--cpu", *task.flags, *system.flags, *pairs]


# A worker


def work(rank: int, run: Run, data: Path, text: Path, port: int, pipe) -> None:
    """Train; the first worker sends what came out."""
    os.environ.update(
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), WORLD_SIZE=str(run.workers),
        RANK=str(rank), GLOO_SOCKET_IFNAME="lo",
    )  # fmt: skip
    trainer = build_trainer(run.command(data), rank)
    batches, words, losses = updates(trainer), 0, []
    for batch in islice(batches, run.updates):
        log = trainer.train_step([batch])
        words += batch["ntokens"]
        losses.append(float(log["loss"]) if log else math.nan)
    sent = sent_bytes(trainer, run)
    trainer.begin_valid_epoch(1)
    found = {
        "words": words,
        "mb_per_update": sent * run.workers / run.updates / 1e6,
        "mb_at_the_end": (sent_bytes(trainer, run) - sent) * run.workers / 1e6,
        "parameters": sum(p.numel() for p in trainer.get_model().parameters()),
        "last_losses": sum(losses[-INTERVAL:]) / INTERVAL,
    }
    if rank == 0:
        found["valid_ppl"] = perplexity(trainer)
        if run.task == "mt" and run.updates == TASKS[run.task].updates:
            found["bleu"] = bleu(trainer, text)
    pipe.send((found, resource.getrusage(resource.RUSAGE_SELF)))


def updates(trainer) -> Iterator[dict]:
    """This worker's batches, epoch after epoch."""
    for epoch in range(1, 1000):
        batches = trainer.get_train_iterator(epoch=epoch)
        trainer.begin_epoch(epoch)
        full = len(batches.frozen_batches) // trainer.data_parallel_world_size
        yield from islice(batches.next_epoch_itr(shuffle=True), full)


def sent_bytes(trainer, run: Run) -> float:
    """By this worker; BMUF and legacy_ddp do not count: all parameters at every exchange."""
    if run.system not in ("bmuf", "ddp"):
        return trainer.model.bytes_sent
    from fairseq_hybrid.comm.sums import ring_bytes

    params = [p for p in trainer.get_model().parameters() if p.requires_grad]
    exchanges = run.updates // (run.interval if run.system == "bmuf" else 1)
    return exchanges * sum(ring_bytes(p, run.workers) for p in params)


def perplexity(trainer) -> float:
    import torch

    model, criterion, task = trainer.get_model(), trainer.get_criterion(), trainer.task
    model.eval()
    task.load_dataset("valid")
    batches = task.get_batch_iterator(task.dataset("valid"), max_sentences=64).next_epoch_itr(False)
    loss = words = 0.0
    with torch.no_grad():
        for sample in batches:
            found, _, log = criterion(model, sample)
            loss, words = loss + float(found), words + log["ntokens"]
    return math.exp(min(loss / words, 20))


def bleu(trainer, text: Path) -> float:
    """Of test2016, beam 5."""
    import sacrebleu
    import torch

    task, model = trainer.task, trainer.get_model()
    task.load_dataset("test")
    batches = task.get_batch_iterator(task.dataset("test"), max_sentences=50).next_epoch_itr(False)
    generator = task.build_generator([model], argparse.Namespace(beam=5, max_len_b=60))
    found: dict[int, str] = {}
    with torch.no_grad():
        for sample in batches:
            hypotheses = task.inference_step(generator, [model], sample)
            for number, best in zip(sample["id"].tolist(), hypotheses):
                pieces = task.target_dictionary.string(best[0]["tokens"], "sentencepiece")
                found[number] = pieces
    wanted = (text / "test2016.en").read_text(encoding="utf-8").splitlines()
    return sacrebleu.corpus_bleu([found[i] for i in range(len(wanted))], [wanted]).score


# The runs


def train(run: Run, data: Path, text: Path, environment: dict) -> None:
    """On processes of its own; writes the file."""
    begin = time.time()
    context = multiprocessing.get_context("fork")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    pipes, workers = [], []
    for rank in range(run.workers):
        mine, theirs = context.Pipe(duplex=False)
        args = (rank, run, data, text, port, theirs)
        workers.append(context.Process(target=work, args=args, daemon=True))
        workers[-1].start()
        theirs.close()
        pipes.append(mine)
    try:
        answers = [pipe.recv() for pipe in pipes]
    except EOFError:
        sys.exit(f"error: a worker of {run.path.name} has failed")
    for worker in workers:
        worker.join()
    cpu = sum(used.ru_utime + used.ru_stime for _, used in answers)
    found = answers[0][0] | {"cpu_seconds": round(cpu, 1), "seconds": round(time.time() - begin, 1)}
    found["words"] = sum(of_worker["words"] for of_worker, _ in answers)
    result = {"run": asdict(run), "result": found, "environment": environment}
    run.path.parent.mkdir(parents=True, exist_ok=True)
    part = run.path.with_suffix(".part")
    part.write_text(json.dumps(result, indent=1) + "\n")
    part.rename(run.path)


def done(run: Run) -> dict | None:
    return json.loads(run.path.read_text())["result"] if run.path.exists() else None


def tuning(task: str, system: str) -> list[Run]:
    """The trainings that tune a system, as far as they are known: what is next depends on those
    before."""
    made, of = SYSTEMS[system], TASKS[task]
    (rate, momentum, _), *others = made.pairs
    if task != "lm" and others:  # those of the language model
        found = best("lm", system)
        (rate, momentum), others = (found.outer_rate, found.outer_momentum), []
    interval = 1 if system == "ddp" else INTERVAL
    run = Run(task, system, 2, interval, 0, rate, momentum, 1, of.tuned)
    rates = list(made.rates if task == "lm" else made.rates[1:])
    while True:
        runs = [replace(run, lr=lr) for lr in rates]
        if task != "lm" or not all(map(done, runs)):
            return runs
        at = rates.index(min(runs, key=score).lr)
        if 0 < at < len(rates) - 1:
            break
        rates = [rates[0] / 2, *rates] if at == 0 else [*rates, rates[-1] * 2]
    return runs + [
        replace(runs[at], lr=rates[at] * factor, outer_rate=r, outer_momentum=m)
        for r, m, factor in others
    ]


def score(run: Run) -> float:
    found = done(run)
    return found["valid_ppl"] if found and math.isfinite(found["valid_ppl"]) else math.inf


def best(task: str, system: str) -> Run:
    if model := SYSTEMS[system].tuned_as:
        return replace(best(task, model), system=system)
    runs = [run for run in tuning(task, system) if done(run)]
    if not runs:
        sys.exit(f"error: {system} is not tuned: run `averaging_outer.py tune --task {task}` first")
    return replace(min(runs, key=score), updates=TASKS[task].updates)


def wanted(options) -> Iterator[Run]:
    for system in options.systems:
        if options.what == "tune":
            while missing := [r for r in tuning(options.task, system) if not done(r)]:
                yield missing[0]
            continue
        tuned = best(options.task, system)
        for seed in options.seeds:
            for workers in options.workers:
                run = replace(tuned, workers=workers, seed=seed)
                run = replace(run, updates=options.updates or run.updates)
                if options.settings:
                    lr, rate, momentum = options.settings
                    run = replace(run, lr=lr, outer_rate=rate, outer_momentum=momentum)
                if options.what == "compare" or system == "ddp":
                    yield run
                else:
                    yield from (replace(run, interval=n) for n in options.intervals)


def prepare(options) -> tuple[Path, Path]:
    """The data for fairseq, once, and the folder of the text."""
    text = options.data / ("multi30k" if options.task == "mt" else "wikitext-2")
    cache = options.cache / options.task
    if options.task == "mt":
        return common.prepare(text, cache, 3000), text
    if not (cache / "bin" / "valid.idx").exists():
        cache.mkdir(parents=True, exist_ok=True)
        for split, lines in {"train": 18000, "valid": 500}.items():
            some = (text / f"wiki.{split}.tokens").read_text(encoding="utf-8").splitlines()[:lines]
            (cache / split).write_text("\n".join(some) + "\n", encoding="utf-8")
        texts = {split: cache / split for split in ("train", "valid")}
        preprocess(texts, cache / "bin", "--only-source", "--nwordssrc", "2000")
    return cache / "bin", text


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("what", choices=("tune", "compare", "intervals"))
    add("--task", choices=TASKS, required=True)
    add("--systems", nargs="+", choices=SYSTEMS)
    add("--workers", nargs="+", type=int, default=[2])
    add("--seeds", nargs="+", type=int, default=[1])
    add("--updates", type=int, help="instead of those of the task: what fits into less time")
    add("--settings", nargs=3, type=float, metavar=("LR", "RATE", "MOMENTUM"),
        help="in place of the tuned ones")  # fmt: skip
    add("--intervals", nargs="+", type=int, default=[5, 20, 200, 500])
    add("--data", type=Path, required=True, help="with wikitext-2 and multi30k")
    add("--cache", type=Path, default=Path("build/averaging_outer"))
    options = parser.parse_args()
    options.systems = options.systems or list(RECURRENT if options.task == "mt" else SYSTEMS)
    if options.what == "tune":
        options.systems = [name for name in options.systems if not SYSTEMS[name].tuned_as]
    return options


def main() -> None:
    options = parse()
    data, text = prepare(options)
    environment = common.environment()
    import_all()
    for run in wanted(options):
        if not done(run):
            train(run, data, text, environment)
        print(run.path.stem, done(run), flush=True)


if __name__ == "__main__":
    main()
