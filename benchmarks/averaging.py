"""How fast do workers train that average their models every few updates?

    python benchmarks/averaging.py --wikitext2 FOLDER --json build/averaging.json
    python benchmarks/averaging.py --wikitext2 FOLDER --rounds 1 --updates 10 \
        --sequences 4                                                       # a quick look, 2 min

`feedforward_lm` on WikiText-2 with its `--words` most frequent words: a 5-gram model of 2 sigmoid
layers, plain SGD unless said otherwise, one thread per worker. The systems, each a set of
processes, started anew in each round (crew.py says how they take turns):

    single        1 worker: the baseline of "speed-up", measured beside every other system
    single_ng     1 worker, --optimizer ng_sgd
    threads       1 worker with as many torch threads as the others have workers
    legacy_ddp    2 workers, fairseq's --ddp-backend legacy_ddp: gradients are averaged
    legacy_ddp_ng the same with --optimizer ng_sgd
    pytorch_ddp   2 workers, fairseq's --ddp-backend pytorch_ddp, buckets of BUCKET_MB
    bmuf          2 workers, fairseq's --use-bmuf --global-sync-iter INTERVAL
    slowmo        2 workers, fairseq's --ddp-backend slowmo (if fairscale can be imported)
    averaging     2 workers, --ddp-backend model_averaging --averaging-interval INTERVAL
    averaging_ng  the same with --optimizer ng_sgd
    apart         the same, but nothing is ever exchanged: what averaging could reach at most
    outer         averaging with --averaging-outer nesterov
    overlap       the same with --averaging-overlap

With --adam all but those with ng_sgd have Adam. Between emulated hosts, 100 Mbit/s:

    python benchmarks/averaging.py --wikitext2 FOLDER --devices 1 100mbit --adam --interval 50 \
        --updates 100 --settle 8 --rounds 3 --words 4000 --hidden 256 --sequences 32 \
        --systems apart averaging outer overlap bmuf --json FILE

(`--settle 8`: the exchanges come after updates 40 and 90 of a turn, so what travels meanwhile
arrives within it.)

What is timed is `HybridTrainer.train_step` (crew.py). In each round every system has its turn,
after `--warmup` updates that do not count: 2 workers make `--updates` updates, a single worker
twice as many, of batches of the same size. `--updates` is a multiple of the interval, so that every
turn has its share of meetings.

    tok/s            words of all workers per second of wall time, median over rounds
    speed-up         over `single`, or of those with ng_sgd over `single_ng`; median of the ratios
                     within a round
    to single        over `single`, whatever the optimizer
    to ddp           over `legacy_ddp`
    MB sent          per update, by all workers together: as the program counts its tensors (an
                     all-reduce as a ring makes it), and as the kernel counts the loopback device
    sgemm            what the machine has to give: large matrix products of all workers at the same
                     time, over those of `single`, right after the updates of each round

Perplexities: averaging_quality.sh, whose model and vocabulary are those of the defaults here.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
from pathlib import Path

import crew
from common import medians, preprocess
from crew import System

SGD = ("--optimizer", "sgd", "--lr", "1.0")
ADAM = ("--optimizer", "adam", "--lr", "0.002")
NATURAL = ("--optimizer", "ng_sgd", "--lr", "1.0")
BUCKET_MB = 1
"""as in translation_parallel.py"""
NESTEROV = ("--averaging-outer", "nesterov")
SYSTEMS = {
    "single": System("1 worker", flags=SGD),
    "single_ng": System("1 worker, ng_sgd", flags=NATURAL),
    "threads": System("1 worker, {n} threads", flags=SGD, threaded=True),
    "legacy_ddp": System("{n} workers, legacy_ddp", "legacy_ddp", SGD),
    "legacy_ddp_ng": System("{n} workers, legacy_ddp, ng_sgd", "legacy_ddp", NATURAL),
    "pytorch_ddp": System(
        "{n} workers, pytorch_ddp", "pytorch_ddp", (*SGD, "--bucket-cap-mb", str(BUCKET_MB))
    ),
    "bmuf": System("{n} workers, BMUF", "legacy_ddp", (*SGD, "--use-bmuf")),
    "slowmo": System("{n} workers, SlowMo", "slowmo", SGD),
    "averaging": System("{n} workers, model_averaging", "model_averaging", SGD),
    "averaging_ng": System("{n} workers, model_averaging, ng_sgd", "model_averaging", NATURAL),
    "apart": System("{n} workers that exchange nothing", "model_averaging", SGD),
    "outer": System("{n} workers, outer Nesterov", "model_averaging", (*SGD, *NESTEROV)),
    "overlap": System(
        "{n} workers, outer Nesterov, overlapped",
        "model_averaging",
        (*SGD, *NESTEROV, "--averaging-overlap"),
    ),
}
BASELINE, BASELINE_NG, SYNCHRONOUS, PYTORCH, BMUF, SLOWMO, APART = (
    *("single", "single_ng", "legacy_ddp", "pytorch_ddp", "bmuf", "slowmo", "apart"),
)
NEVER = 10**9
AVAILABLE = [
    name for name in SYSTEMS if name != SLOWMO or importlib.util.find_spec("fairscale") is not None
]


def arguments(name: str, data: Path, options) -> list[str]:
    """Of fairseq-train."""
    system = SYSTEMS[name]
    values = {
        "--ngram": options.ngram,
        "--decoder-embed-dim": options.embed,
        "--hidden-layers": options.layers,
        "--hidden-size": options.hidden,
        "--dropout": 0,
        "--tokens-per-sample": options.length,
        "--batch-size": options.sequences,
        "--distributed-world-size": system.workers(options),
        "--averaging-interval": NEVER if name == APART else options.interval,
    }
    if name == BMUF:
        values["--global-sync-iter"] = options.interval
        values["--warmup-iterations"] = 0  # until then other workers' updates would be thrown away
    if name == SLOWMO:
        values["--localsgd-frequency"] = options.interval
    return [
        *(str(data), "--task", "language_modeling", "--cpu", "--seed", "1"),
        *("--arch", "feedforward_lm", "--activation", "sigmoid", "--criterion", "cross_entropy"),
        *("--ddp-backend", system.backend or "legacy_ddp", *system.flags, "--num-workers", "0"),
        *("--save-dir", str(data / "checkpoints")),  # fairseq saves there if an update fails
        *(str(word) for pair in values.items() for word in pair),
        *(ADAM if options.adam and system.flags != NATURAL else ()),
    ]


class Worker(crew.Worker):
    """One process of a system."""

    def __init__(self, name: str, rank: int, options, data: Path):
        self.name = name
        super().__init__(SYSTEMS[name], arguments(name, data, options), rank, options)

    def bytes_sent(self, updates: int) -> int:
        """Under BMUF and SlowMo, which do not count: all parameters at every meeting."""
        if self.name not in (BMUF, SLOWMO):
            return super().bytes_sent(updates)
        from fairseq_hybrid.comm.sums import ring_bytes

        params = [p for p in self.trainer.get_model().parameters() if p.requires_grad]
        meetings = self.trainer.get_num_updates() // self.options.interval
        return meetings * sum(ring_bytes(p, self.world) for p in params)

    def facts(self) -> dict:
        """About the model and the batches of all rounds."""
        samples = [sample for update in self.updates for sample in update]
        return {
            "parameters": sum(p.numel() for p in self.trainer.get_model().parameters()),
            "vocabulary": len(self.trainer.task.target_dictionary),
            "tokens_per_batch": sum(sample["ntokens"] for sample in samples) / len(samples),
        }


# Results


def prepare(text: Path, folder: Path, words: int) -> Path:
    """fairseq-preprocess, once; returns the folder for fairseq."""
    done = folder / "bin" / "train.idx"
    if not done.exists():
        texts = {"train": text / "wiki.train.tokens"}
        preprocess(texts, done.parent, "--only-source", "--nwordssrc", str(words))
    return done.parent


def measure(workload: str, options) -> dict:
    def job(scratch: Path) -> tuple[Path]:
        return (prepare(options.wikitext2, options.cache or scratch, options.words),)

    facts, rounds, calibration = crew.take_turns(workload, SYSTEMS, Worker, options, job, BASELINE)
    columns = crew.common_columns(rounds, BASELINE)
    natural = [name for name in rounds if SYSTEMS[name].flags == NATURAL]
    columns["to_single"] = dict(columns["speed_up"])
    over = medians(crew.within_rounds(rounds, BASELINE_NG), 2)
    columns["speed_up"].update({name: over.get(name) for name in natural})
    columns["to_ddp"] = medians(crew.within_rounds(rounds, SYNCHRONOUS), 2)
    columns["to_pytorch_ddp"] = medians(crew.within_rounds(rounds, PYTORCH), 2)
    columns["to_apart"] = medians(crew.within_rounds(rounds, APART), 3)
    return {
        **next(iter(facts.values())),
        "calibration": calibration,
        "systems": crew.by_system(columns, rounds),
        "rounds": rounds,
    }


COLUMNS = {
    "tok/s": ("tokens_per_second", "{:,.0f}"),
    "speed-up": ("speed_up", "{:.2f}"),
    "to single": ("to_single", "{:.2f}"),
    "to ddp": ("to_ddp", "{:.2f}"),
    "to pytorch ddp": ("to_pytorch_ddp", "{:.2f}"),
    "to apart": ("to_apart", "{:.3f}"),
    "ms/update": ("ms_per_update", "{:,.0f}"),
    "MB sent, counted": ("mb_counted", "{:,.2f}"),
    "by the kernel": ("mb_loopback", "{:,.2f}"),
    "peak MB": ("peak_mb", "{:,.0f}"),
    "sgemm": ("sgemm_ratio", "{:.2f}"),
}


def report(workload: str, result: dict, options) -> None:
    """A Markdown table."""
    print(
        f"\n**{workload}**: {options.layers} layers of {options.hidden}, embedding {options.embed},"
        f" vocabulary {result['vocabulary']:,}, {result['parameters'] / 1e6:.2f} M parameters; "
        f"{result['tokens_per_batch']:.0f} words per update and worker, interval "
        f"{options.interval}\n"
    )
    titles = {name: system.title.format(n=options.workers) for name, system in SYSTEMS.items()}
    crew.print_table(COLUMNS, result["systems"], titles)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    crew.add_options(parser, SYSTEMS, rounds=7, updates=20)
    parser.set_defaults(
        systems=[name for name in AVAILABLE if name not in (APART, "outer", "overlap")]
    )
    add("--adam", action="store_true", help="in place of SGD")
    add("--interval", type=int, default=10, help="updates between two meetings")
    add("--words", type=int, default=2000, help="size of the vocabulary")
    add("--ngram", type=int, default=5)
    add("--embed", type=int, default=64)
    add("--layers", type=int, default=2)
    add("--hidden", type=int, default=128)
    add("--length", type=int, default=32, help="words of a sequence")
    add("--sequences", type=int, default=8, help="per worker")
    add("--wikitext2", type=Path, default=os.environ.get("WIKITEXT2"), metavar="FOLDER",
        help="with wiki.train.tokens (default: the variable WIKITEXT2)")  # fmt: skip
    add("--cache", type=Path, help="keep the prepared text here (default: nowhere)")
    options = parser.parse_args()
    crew.validate_options(parser, options)
    options.bucket_cap_mb = BUCKET_MB  # for the result
    if options.interval < 1 or options.updates % options.interval:
        parser.error(
            f"--updates {options.updates}: give a multiple of --interval {options.interval}"
        )
    if options.wikitext2 is None:
        parser.error("--wikitext2 FOLDER (or the variable WIKITEXT2) must say where the text is")
    if not (options.wikitext2 / "wiki.train.tokens").exists():
        parser.error(f"--wikitext2 {options.wikitext2}: no wiki.train.tokens there")
    return options


def main() -> None:
    crew.run(("wikitext-2",), measure, report, parse(), private=("wikitext2", "cache"))


if __name__ == "__main__":
    main()
