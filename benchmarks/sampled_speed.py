"""How much faster does a translation model train on a sample of the words?

    python benchmarks/sampled_speed.py --multi30k FOLDER --vocab 16000 --json build/speed.json
    python benchmarks/sampled_speed.py --multi30k FOLDER --vocab words      # words, not pieces
    python benchmarks/sampled_speed.py --multi30k FOLDER --vocab 500 --hidden 64 --rounds 1

Multi30k de-en in the batches fairseq makes of it (`--max-tokens` per worker); embedding and hidden
size 512, nothing shared, label smoothing, clipping, Adam; a thread per worker. The vocabulary is a
joint one of sentence pieces, or each language's words. The systems, each a set of processes,
started anew in each round (crew.py says how they take turns):

    full, sampled       1 worker: label_smoothed_cross_entropy (in place), sampled_softmax
    full2, sampled2     2 workers by data parallelism: --ddp-backend legacy_ddp, sampled
    hybrid2, sampled_hybrid2    2 workers, --ddp-backend hybrid

"speed-up" is over `full`, measured beside every other system; "to full" over the full softmax on as
many workers by the same kind of backend.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import crew
from common import medians, prepare, prepare_words
from crew import System

FULL = ("--criterion", "label_smoothed_cross_entropy")
SAMPLED = ("--criterion", "sampled_softmax")
SYSTEMS = {
    "full": System("1 worker, full softmax", flags=FULL),
    "sampled": System("1 worker, sampled softmax", flags=SAMPLED),
    "full2": System("{n} workers, full softmax, legacy_ddp", "legacy_ddp", FULL),
    "sampled2": System("{n} workers, sampled softmax, sampled", "sampled", SAMPLED),
    "hybrid2": System("{n} workers, full softmax, hybrid", "hybrid", FULL),
    "sampled_hybrid2": System("{n} workers, sampled softmax, hybrid", "hybrid", SAMPLED),
}
PAIRS = {"sampled": "full", "sampled2": "full2", "sampled_hybrid2": "hybrid2"}
BASELINE = "full"


def arguments(name: str, data: Path, options) -> list[str]:
    """Of fairseq-train."""
    system = SYSTEMS[name]
    values = {
        "--encoder-layers": options.layers,
        "--encoder-embed-dim": options.hidden,
        "--encoder-hidden-size": options.hidden,
        "--max-tokens": options.max_tokens,
        "--distributed-world-size": system.workers(options),
    }
    return [
        *(str(data), "--task", "translation", "-s", "de", "-t", "en", "--cpu", "--seed", "1"),
        *("--arch", "hybrid_lstm", "--dropout", "0.2", "--label-smoothing", "0.1"),
        *("--ddp-backend", system.backend or "legacy_ddp", *system.flags),
        *("--optimizer", "adam", "--adam-betas", "(0.9, 0.98)", "--lr", "1e-3"),
        *("--clip-norm", "1.0", "--num-workers", "0"),
        *("--save-dir", str(data / "checkpoints")),  # fairseq saves there if an update fails
        *(str(word) for pair in values.items() for word in pair),
    ]


class Worker(crew.Worker):
    """One process of a system."""

    def __init__(self, name: str, rank: int, options, data: Path):
        super().__init__(SYSTEMS[name], arguments(name, data, options), rank, options)

    def note(self, log: dict) -> dict[str, float]:
        words = {"words": float(log["words"])} if "words" in log else {}
        return {**super().note(log), **words}

    def facts(self) -> dict:
        return {"vocabulary": len(self.trainer.task.target_dictionary)}


def measure(workload: str, options) -> dict:
    def job(scratch: Path) -> tuple[Path]:
        made, splits = options.cache or scratch, {"train": "train"}
        if options.vocab == "words":
            return (prepare_words(options.multi30k, made, splits),)
        return (prepare(options.multi30k, made, int(options.vocab), splits),)

    facts, rounds, calibration = crew.take_turns(workload, SYSTEMS, Worker, options, job, BASELINE)
    sampled = {name: turns for name, turns in rounds.items() if "words" in turns[0]}
    columns = {
        **crew.common_columns(rounds, BASELINE),
        "words": medians(crew.every(sampled, lambda r: r["words"]), 0),
        "to_full": {
            name: medians(crew.within_rounds(rounds, full), 2)[name]
            for name, full in PAIRS.items()
            if name in rounds and full in rounds
        },
    }
    systems = crew.by_system(columns, rounds)
    return {**next(iter(facts.values())), "calibration": calibration, "systems": systems,
            "rounds": rounds}  # fmt: skip


COLUMNS = {
    "target tok/s": ("tokens_per_second", "{:,.0f}"),
    "speed-up": ("speed_up", "{:.2f}"),
    "to full": ("to_full", "{:.2f}"),
    "words": ("words", "{:,.0f}"),
    "MB sent": ("mb_counted", "{:,.0f}"),
    "peak MB": ("peak_mb", "{:,.0f}"),
    "sgemm": ("sgemm_ratio", "{:.2f}"),
}


def report(workload: str, result: dict, options) -> None:
    print(f"\n**{workload}**: {result['vocabulary']:,} target words\n")
    titles = {name: system.title.format(n=options.workers) for name, system in SYSTEMS.items()}
    crew.print_table(COLUMNS, result["systems"], titles)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    crew.add_options(parser, SYSTEMS, rounds=3, updates=2)
    add("--layers", type=int, default=2, help="of the encoder, and as many of the decoder")
    add("--hidden", type=int, default=512, help="embedding and hidden size")
    add("--vocab", default="16000", help="how many pieces, or: words")
    add("--max-tokens", type=int, default=1600, help="per batch, see fairseq-train")
    add("--multi30k", type=Path, default=os.environ.get("MULTI30K"), metavar="FOLDER",
        help="with train.de and train.en (default: the variable MULTI30K)")  # fmt: skip
    add("--cache", type=Path, help="keep the prepared text here (default: nowhere)")
    options = parser.parse_args()
    crew.validate_options(parser, options)
    if options.vocab != "words" and not options.vocab.isdecimal():
        parser.error(f"--vocab {options.vocab}: give a number of pieces, or words")
    if options.multi30k is None or not (options.multi30k / "train.de").exists():
        parser.error(f"--multi30k {options.multi30k}: no train.de there; see examples/translation")
    return options


def main() -> None:
    options = parse()
    pieces = "words" if options.vocab == "words" else f"{int(options.vocab):,} pieces"
    workload = f"{options.layers}+{options.layers} layers of {options.hidden}, {pieces}"
    crew.run((workload,), measure, report, options, private=("multi30k", "cache"))


if __name__ == "__main__":
    main()
