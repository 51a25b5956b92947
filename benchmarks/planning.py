"""Does the planner choose well, and does it predict the time of an update?

    python benchmarks/planning.py --json build/planning.json              # 12 to 15 min
    python benchmarks/planning.py --shapes short --repeats 1 --updates 1  # a quick look, 1 min

For each of several shapes of `hybrid_lstm` the planner profiles the machine (as
`fairseq-hybrid-plan --remeasure` does) and ranks its alternatives for 2 workers. Then all of them
are measured: one worker, `legacy_ddp`, and `hybrid` with each partition and each chunk, in turns
and on the same batches (crew.py). In each round one set of workers measures all chunks of a
partition, one after the other. `pytorch_ddp`, which the planner does not plan, is measured like
them.

    predicted    ms per update, before anything of it was measured, from the profile alone
    measured     of an alternative: the median over its turns of (its time / that of `legacy_ddp`
                 in the same round, both taken as ratios to one worker beside them), times the
                 median of `legacy_ddp`, so that what the machine does to both cancels out
    error        predicted / measured - 1
    chosen       by the planner, of those that use all workers; "behind": how much longer its update
                 takes than that of the fastest one measured
    decoupled    speed over that of the fastest synchronous `hybrid`
    pytorch_ddp  speed over that of `legacy_ddp`
    drift        one worker, measured here, against what the profile saw of it a minute before: what
                 the machine did in between

The last table says for each shape whether the choice is within 5 % of the fastest, and whether
`hybrid` and decoupled (the alternatives of them that the planner ranks first) and `legacy_ddp` are
predicted within 15 %.
"""

from __future__ import annotations

import argparse
import copy
import os
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import crew
import torch
import worker
from common import command  # noqa: F401  (makes the package importable, first thing)
from crew import System

CLOSE_CHOICE, CLOSE_PREDICTION = 0.05, 0.15
JUDGED = ("legacy_ddp", "hybrid", "decoupled")


@dataclass(frozen=True)
class Shape:
    layers: int
    hidden: int
    vocab: int
    lengths: tuple[int, int]
    """of the sentences, both sides, from and to"""
    batch: tuple[str, int]
    flags: tuple[str, ...] = ()

    def __str__(self) -> str:
        low, high = self.lengths
        words = f"{high} words" if low == high else f"{low} to {high} words"
        size = f"{self.layers}+{self.layers} layers of {self.hidden}, vocabulary {self.vocab:,}"
        return " ".join([f"{size}, {words}, {' '.join(map(str, self.batch))}", *self.flags])


def sentences(count: int) -> tuple[str, int]:
    return "--batch-size", count


SHAPES = {
    "large": Shape(4, 512, 16000, (24, 24), sentences(8)),
    "deep": Shape(4, 256, 4000, (24, 24), sentences(24)),
    "long": Shape(4, 192, 2000, (56, 56), sentences(12)),
    "short": Shape(2, 192, 1000, (6, 6), sentences(96)),
    "uneven": Shape(3, 256, 4000, (4, 44), ("--max-tokens", 700)),
    "feeding": Shape(2, 256, 4000, (20, 20), sentences(16), ("--input-feeding",)),
    "both ways": Shape(4, 256, 4000, (20, 20), sentences(24), ("--encoder-bidirectional-first",)),
}
SINGLE, DATA_PARALLEL, PYTORCH = "single", "legacy_ddp", "pytorch_ddp"


# Data and command lines


def random_words(shape: Shape, count: int, folder: Path) -> Path:
    """So many sentences, as fairseq-preprocess would store them."""
    from fairseq.data import Dictionary, indexed_dataset

    words = Dictionary()
    for i in range(shape.vocab - len(words)):
        words.add_symbol(f"w{i}")
    draw = torch.Generator().manual_seed(1)
    low, high = shape.lengths
    lengths = torch.randint(low, high + 1, (count,), generator=draw)
    for side in ("de", "en"):
        words.save(str(folder / f"dict.{side}.txt"))
        prefix = str(folder / f"train.de-en.{side}")
        builder = indexed_dataset.make_builder(prefix + ".bin", "mmap", vocab_size=len(words))
        for length in lengths.tolist():
            ids = torch.randint(words.nspecial, len(words), (length,), generator=draw)
            ids[-1] = words.eos()
            builder.add_item(ids.int())
        builder.finalize(prefix + ".idx")
    return folder


def arguments(shape: Shape, data: Path, system: System, options) -> list[str]:
    """Of fairseq-train."""
    sizes = {
        "--encoder-layers": shape.layers,
        "--encoder-embed-dim": shape.hidden,
        "--encoder-hidden-size": shape.hidden,
        "--distributed-world-size": system.workers(options),
        shape.batch[0]: shape.batch[1],
    }
    return [
        *(str(data), "--task", "translation", "-s", "de", "-t", "en", "--cpu", "--seed", "1"),
        *("--arch", "hybrid_lstm", "--dropout", "0.2", *shape.flags, *system.flags),
        *("--ddp-backend", system.backend or DATA_PARALLEL),
        *("--criterion", "label_smoothed_cross_entropy", "--label-smoothing", "0.1"),
        *("--optimizer", "adam", "--adam-betas", "(0.9, 0.98)", "--lr", "1e-3"),
        *("--clip-norm", "1.0", "--num-workers", "0"),
        *("--save-dir", str(data / "checkpoints")),  # fairseq saves there if an update fails
        *(str(word) for pair in sizes.items() for word in pair),
    ]


# Predicting


def predict(shape: Shape, data: Path, options) -> tuple[list[Any], dict]:
    """The planner's ranking on the batches that will be measured, and the profile."""
    from fairseq import options as fairseq_options
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf

    from fairseq_hybrid.planner import choose, job, profile
    from fairseq_hybrid.planner.costs import MeasuredCosts

    words = arguments(shape, data, System("planned"), options)
    parser = fairseq_options.get_training_parser()
    cfg = convert_namespace_to_omegaconf(fairseq_options.parse_args_and_arch(parser, words))
    small, samples = job.load_job(cfg, options.workers)
    os.environ["XDG_CACHE_HOME"] = str(data)  # the user's cache is none of our business
    os.environ["OMP_NUM_THREADS"] = "1"
    measured = profile.measure_job(cfg, small, samples, again=True)
    whole, _ = job.load_job(cfg, options.workers, updates=options.updates * options.repeats)
    return choose.ranked(whole, MeasuredCosts(measured)), measured


# Measuring


class Worker(crew.Worker):
    """One process of a system; a hybrid one takes another chunk in each turn."""

    def __init__(self, name: str, rank: int, options, shape: Shape, data: Path, systems, chunks):
        system = systems[name]
        super().__init__(system, arguments(shape, data, system, options), rank, options)
        self.chunks = chunks
        # (half a second a turn for a column that is not in the table)
        worker.sgemm_rate = lambda: 0.0

    def turn(self, number: int, warm: bool = False) -> list[list[dict]]:
        if hasattr(self.trainer.backend, "chunk"):
            self.trainer.backend.chunk = chunk_of(number, self.chunks)
        return super().turn(number // max(1, len(self.chunks)), warm)

    def facts(self) -> dict:
        return {"parameters": sum(p.numel() for p in self.trainer.get_model().parameters())}


def chunk_of(number: int, chunks: list[int]) -> int:
    """The chunk of a turn."""
    return chunks[number % len(chunks)]


def name_of(plan: Any) -> str:
    """The system that measures a plan."""
    if not plan.splits:
        return plan.backend
    how = "" if plan.exact else f" {plan.schedule}"
    return f"{plan.backend} {'+'.join(map(str, plan.layers))}{how}"


def systems_of(plans: list[Any]) -> dict[str, System]:
    systems = {
        SINGLE: System("1 worker"),
        **{name: System(name, name) for name in (DATA_PARALLEL, PYTORCH)},
    }
    for plan in plans:
        if plan.splits:
            flags = ("--hybrid-layers", ",".join(map(str, plan.layers)))
            flags += ("--hybrid-schedule", plan.schedule)
            systems[name_of(plan)] = System(name_of(plan), plan.backend, flags)
    return systems


def measure(name: str, options) -> dict:
    shape = SHAPES[name]
    with tempfile.TemporaryDirectory() as folder:
        kind, size = shape.batch
        per_batch = size if kind == "--batch-size" else 4 * size // sum(shape.lengths)  # or fewer
        batches = options.workers * options.updates * options.repeats
        data = random_words(shape, per_batch * batches, Path(folder))
        crew.say(f"{name}: {shape}")
        ranked, profile = predict(shape, data, options)
        plans = [prediction.plan for prediction in ranked]
        chunks = sorted({plan.chunk for plan in plans if plan.splits})
        systems = systems_of(plans)
        turns = copy.copy(options)
        turns.systems = list(systems)
        _, rounds, calibration = crew.take_turns(
            name,
            systems,
            Worker,
            turns,
            lambda scratch: (shape, data, systems, chunks),
            SINGLE,
            max(1, len(chunks)),
        )
    rows = [compare(prediction, rounds, chunks) for prediction in ranked]
    found = verdict(rows, profile)
    hybrids = [row["measured"] for row in rows if row["exact"] and row["backend"] == "hybrid"]
    late = [row["measured"] for row in rows if not row["exact"]]
    if hybrids and late:
        found["decoupled"] = round(min(hybrids) / min(late), 3)
    ddp = measured_time(rounds, DATA_PARALLEL)
    found["pytorch_ddp"] = round(ddp / measured_time(rounds, PYTORCH), 3)
    return {
        "shape": str(shape),
        "alternatives": rows,
        "verdict": found,
        "profile": profile,
        "calibration": calibration,
        "rounds": rounds,
    }


# Results


def compare(prediction: Any, rounds: crew.Rounds, chunks: list[int]) -> dict:
    """Predicted and measured."""
    plan = prediction.plan
    chunk = chunks.index(plan.chunk) if plan.splits else None
    measured = measured_time(rounds, name_of(plan), chunk, len(chunks))
    predicted = 1000 * prediction.seconds
    return {
        "plan": str(plan),
        "backend": plan.backend,
        "exact": plan.exact,
        "predicted": round(predicted, 1),
        "measured": round(measured, 1),
        "error": round(predicted / measured - 1, 3),
    }


def measured_time(
    rounds: crew.Rounds, name: str, chunk: int | None = None, chunks: int = 1
) -> float:
    """Milliseconds per update, of all rounds or of those with a chunk."""

    def per_update(turn) -> float:
        return 1000 * turn["seconds"] / turn["updates"]

    ratios = crew.within_rounds(rounds, DATA_PARALLEL, per_update)[name]
    numbers = [n for n in range(len(ratios)) if chunk is None or n % chunks == chunk]
    ddp = statistics.median(per_update(turn) for turn in rounds[DATA_PARALLEL])
    return statistics.median(ratios[n] for n in numbers) * ddp


def verdict(rows: list[dict], profile: dict) -> dict:
    """`rows` are ranked: the first of several workers is the planner's choice."""
    several = [row for row in rows if row["backend"] != SINGLE and row["exact"]]
    late = [row for row in rows if not row["exact"]]
    hybrids = [row for row in several if row["backend"] != DATA_PARALLEL]
    by_time = sorted(several, key=lambda row: row["measured"])
    one, ddp = (next(r for r in rows if r["backend"] == name) for name in (SINGLE, DATA_PARALLEL))
    errors = {"legacy_ddp": ddp["error"]}
    if hybrids:
        errors["hybrid"] = hybrids[0]["error"]
        errors["hybrid, worst"] = max((row["error"] for row in hybrids), key=abs)
    if late:
        errors["decoupled"] = late[0]["error"]
    behind = several[0]["measured"] / by_time[0]["measured"] - 1
    return {
        "chosen": several[0]["plan"],
        "fastest": by_time[0]["plan"],
        "behind": round(behind, 3),
        "drift": round(one["measured"] / 1000 / statistics.median(profile["whole"]) - 1, 3),
        "errors": errors,
        "choice_ok": behind <= CLOSE_CHOICE,
        "prediction_ok": all(abs(errors.get(kind, 0.0)) <= CLOSE_PREDICTION for kind in JUDGED),
    }


def report(name: str, result: dict, options) -> None:
    """Markdown tables: all alternatives of a shape."""
    print(f"\n**{name}**: {result['shape']}\n")
    print("| plan | predicted ms | measured ms | error |\n|---|--:|--:|--:|")
    for row in result["alternatives"]:
        numbers = f"{row['predicted']:,.1f} | {row['measured']:,.1f} | {row['error']:+.1%}"
        print(f"| {row['plan']} | {numbers} |", flush=True)


def summary(verdicts: dict[str, dict]) -> None:
    print("\n| shape | chosen | fastest | behind | within 5 % | error, hybrid (worst chunk) "
          "| decoupled | legacy_ddp | within 15 % | decoupled | pytorch_ddp | drift |")  # fmt: skip
    print("|---|---|---|--:|---|--:|--:|--:|---|--:|--:|--:|")
    for name, found in verdicts.items():
        errors = found["errors"]
        hybrid = "–"
        if "hybrid" in errors:
            hybrid = f"{errors['hybrid']:+.1%} ({errors['hybrid, worst']:+.1%})"
        cells = [
            *(name, found["chosen"], found["fastest"], f"{found['behind']:.1%}"),
            "yes" if found["choice_ok"] else "**no**",
            *(hybrid, f"{errors['decoupled']:+.1%}" if "decoupled" in errors else "–"),
            f"{errors['legacy_ddp']:+.1%}",
            "yes" if found["prediction_ok"] else "**no**",
            f"{found['decoupled']:.2f}" if "decoupled" in found else "–",
            f"{found['pytorch_ddp']:.2f}",
            f"{found['drift']:+.1%}",
        ]
        print("| " + " | ".join(cells) + " |")
    judged = {"choice_ok": "choice within 5 %", "prediction_ok": "predicted within 15 %"}
    for key, what in judged.items():
        print(f"\n{what}: {sum(v[key] for v in verdicts.values())} of {len(verdicts)} shapes")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES)[:6], metavar="SHAPE",
        help=", ".join(SHAPES))  # fmt: skip
    add("--repeats", type=int, default=3, help="turns of each alternative")
    add("--updates", type=int, default=2, help="per turn, of several workers")
    add("--warmup", type=int, default=1, help="updates before each turn that do not count")
    crew.add_settle(parser)
    add("--workers", type=int, default=2)
    add("--patience", type=float, default=600, help="seconds to wait for a worker")
    add("--json", type=Path, help="write the result here")
    options = parser.parse_args()
    options.accumulate, options.rounds, options.devices = False, options.repeats, None
    options.systems = []
    crew.validate_options(parser, options)
    return options


PRIVATE = ("accumulate", "rounds", "devices", "systems")


def main() -> None:
    options = parse()
    verdicts: dict[str, dict] = {}

    def measured(name: str, given) -> dict:
        result = measure(name, given)
        verdicts[name] = result["verdict"]
        return result

    crew.run(tuple(options.shapes), measured, report, options, private=PRIVATE)
    summary(verdicts)


if __name__ == "__main__":
    main()
