"""The runs of averaging_sweep.sh: which there are, training them, and what came out.

    python averaging_sweep.py             trains what is not finished, as the environment says
    python averaging_sweep.py --dry-run   prints the commands
    python averaging_sweep.py --report    OUT/sweep.{csv,json,md} and, with matplotlib, sweep.png

See averaging_sweep.sh for the variables. Every run is a fairseq-train command with its log in
OUT/runs. Importing fairseq takes seconds in every process, longer than a small run of 16 workers
trains on two cores; so it is imported once here, and commands and workers are forked from that.
"""

from __future__ import annotations

import csv
import itertools
import json
import multiprocessing
import os
import re
import resource
import shlex
import sys
import time
from pathlib import Path
from typing import NamedTuple

PLUGIN = str(Path(__file__).resolve().parents[2] / "fairseq_hybrid")
LENGTH = 32
"""words of a sequence: a minibatch is some of them"""
FINAL = 0.1
"""of the learning rate, at the end"""


class Run(NamedTuple):
    backend: str
    optimizer: str
    start: str
    workers: int
    interval: int
    minibatch: int
    schedule: str
    scale: str
    lr: float
    seed: int

    @property
    def folder(self) -> Path:
        return Path(os.environ["OUT"], "runs", "-".join(map(str, self)))

    @property
    def updates(self) -> int:
        """Of every worker: all runs see the same number of words, and end with a meeting."""
        each = int(os.environ["TOKENS"]) / (self.minibatch * self.workers)
        return max(1, round(each / self.interval)) * self.interval

    def command(self) -> list[str]:
        points = max(1, round(self.updates / int(os.environ["POINTS"]) / self.interval))
        newbob = self.schedule == "newbob"
        backend = "model_averaging" if self.backend == "averaging" else "legacy_ddp"
        values = {
            "--tokens-per-sample": LENGTH,
            "--batch-size": self.minibatch // LENGTH,
            "--optimizer": self.optimizer,
            "--lr": self.lr,
            "--lr-scheduler": self.schedule,
            "--lr-scale-workers": self.scale,
            "--distributed-world-size": self.workers,
            "--ddp-backend": backend,
            "--averaging-interval": self.interval,
            "--max-update": self.updates,
            # newbob decides at the end of an epoch; all others are looked at between meetings
            "--validate-interval": 1 if newbob else 10**6,
            "--validate-interval-updates": 0 if newbob else points * self.interval,
            "--seed": self.seed,
            "--save-dir": self.folder,
        }
        more = [] if newbob else ["--final-lr", str(FINAL * self.lr)]
        if self.backend == "bmuf":
            more += ["--use-bmuf", "--warmup-iterations", "0"]
            more += ["--global-sync-iter", str(self.interval)]
        if self.start == "rbm":
            pretrained = Path(os.environ["OUT"], f"rbm-{self.seed}", "pretrained.pt")
            more += ["--finetune-from-model", str(pretrained)]
        return [
            *("fairseq-train", os.path.join(os.environ["OUT"], "data"), "--user-dir", PLUGIN),
            *("--cpu", "--task", "language_modeling", "--arch", "feedforward_lm"),
            *(*shlex.split(os.environ["MODEL"]), *more),
            *(str(word) for pair in values.items() for word in pair),
            *("--no-save", "--num-workers", "0", "--log-format", "json", "--log-interval", "100"),
        ]


def grid() -> list[Run]:
    """All combinations that differ."""

    def values(name: str) -> list[str]:
        return os.environ[name].split()

    rates = {"sgd": values("SGD_RATES"), "ng_sgd": values("NG_RATES")}
    runs = {}
    for combination in itertools.product(
        *map(values, ("BACKENDS", "OPTIMIZERS", "STARTS", "WORKERS", "INTERVALS", "MINIBATCHES")),
        *map(values, ("SCHEDULES", "SCALES", "SEEDS")),
    ):
        backend, optimizer, start, workers, interval, minibatch, schedule, scale, seed = combination
        if backend == "bmuf" and optimizer == "ng_sgd":
            continue  # refused
        if workers == "1":  # who meets with nobody
            backend, interval, scale = "single", values("INTERVALS")[0], "none"
        if backend == "legacy_ddp":
            interval = values("INTERVALS")[0]
        for lr in rates[optimizer]:
            numbers = int(workers), int(interval), int(minibatch)
            run = Run(backend, optimizer, start, *numbers, schedule, scale, float(lr), int(seed))
            runs[run] = None
    return list(runs)


# Training


def train(runs: list[Run]) -> None:
    left = [run for run in runs if not (run.folder / "finished").exists()]
    print(f"{len(runs)} runs, {len(left)} to do", flush=True)
    if not left:
        return
    import fairseq_cli.train  # noqa: F401  (once, for all that are forked from here)

    for number, run in enumerate(left, 1):
        if (run.folder / "finished").exists():
            continue  # by another sweep
        run.folder.mkdir(parents=True, exist_ok=True)
        began, cpu = time.monotonic(), processor_time()
        code = call(run.command(), run.folder / "train.log")
        if code:
            sys.exit(f"exit code {code}: see {run.folder / 'train.log'}")
        seconds = {"wall": time.monotonic() - began, "cpu": processor_time() - cpu}
        (run.folder / "finished").write_text(json.dumps(seconds))
        curve = read(run, run.folder)["curve"]
        print(f"{number}/{len(left)} {run.folder.name}: {curve[-1]['valid_ppl']}", flush=True)


def processor_time() -> float:
    """Of the processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def call(command: list[str], log: Path) -> int:
    """Run a command of fairseq's in a fork of this process; its workers are forks too."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    code = 1
    try:
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(file, 1)
        os.dup2(file, 2)
        context = multiprocessing.get_context
        multiprocessing.get_context = lambda way=None: context("fork" if way == "spawn" else way)
        sys.argv = command
        import fairseq_cli.train

        fairseq_cli.train.cli_main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code or 0)


# What came out


def read(run: Run, folder: Path) -> dict:
    log = (folder / "train.log").read_text()
    found = [json.loads(line) for line in re.findall(r" \| valid \| (\{.*\})", log)]
    words = run.minibatch * run.workers
    curve = [
        {"tokens": int(v["valid_num_updates"]) * words, "valid_ppl": float(v["valid_ppl"])}
        for v in found
    ]
    seconds = json.loads((folder / "finished").read_text() or "{}")
    return {**run._asdict(), **seconds, "curve": curve}


def report(runs: list[Run]) -> None:
    out = Path(os.environ["OUT"])
    rows = [read(run, run.folder) for run in runs if (run.folder / "finished").exists()]
    if not rows:
        sys.exit(f"{out}: no finished run")
    (out / "sweep.json").write_text(json.dumps(rows, indent=1) + "\n")
    for row in rows:
        row["valid_ppl"] = row["curve"][-1]["valid_ppl"]
        row["tokens"] = row.pop("curve")[-1]["tokens"]
        row["cpu_seconds"] = round(row.pop("cpu", 0), 1)
        row.pop("wall", None)
    with open(out / "sweep.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    text = table(rows)
    (out / "sweep.md").write_text(text)
    print(text)
    plot(rows, out / "sweep.png")


def varying(rows: list[dict]) -> list[str]:
    """The settings in which runs differ."""
    return [name for name in Run._fields if len({row[name] for row in rows}) > 1]


def table(rows: list[dict]) -> str:
    names = varying(rows) or ["workers"]
    lines = [" | ".join([*names, "validation perplexity"]), " | ".join(["---"] * (len(names) + 1))]
    for row in sorted(rows, key=lambda row: [row[name] for name in names]):
        lines.append(" | ".join([*(str(row[name]) for name in names), f"{row['valid_ppl']:.1f}"]))
    return "".join(f"| {line} |\n" for line in lines)


def plot(rows: list[dict], path: Path) -> None:
    """Perplexity against interval and against workers, lines for what is otherwise the same."""
    try:
        from matplotlib import pyplot
    except ImportError:
        print(f"no matplotlib: {path.name} not drawn", file=sys.stderr)
        return
    names = varying(rows)
    figure, both = pyplot.subplots(1, 2, figsize=(13, 5), layout="constrained", sharey=True)
    for axes, x in zip(both, ("interval", "workers")):
        lines: dict[str, list[tuple[int, float]]] = {}
        for row in rows:
            label = ", ".join(f"{row[n]}" for n in names if n not in (x, "backend"))
            lines.setdefault(label, []).append((row[x], row["valid_ppl"]))
        for label, points in lines.items():
            if len(points) > 1:
                axes.plot(*zip(*sorted(points)), marker="o", label=label)
        axes.set(xscale="log", xlabel=x, ylabel="validation perplexity")
        axes.set_title(", ".join(n for n in names if n not in (x, "backend")), fontsize=8)
        axes.grid(alpha=0.3)
        if axes.lines:
            axes.legend(fontsize=6)
    figure.savefig(path, dpi=120)


def main(option: str = "") -> None:
    runs = grid()
    if option == "--report":
        report(runs)
    elif option == "--dry-run":
        for run in runs:
            print(shlex.join(run.command()))
    elif option:
        sys.exit(f"unknown argument {option}: --dry-run and --report are known")
    else:
        train(runs)


if __name__ == "__main__":
    main(*sys.argv[1:])
