"""How fast do several workers train `hybrid_lstm`, and what do they send each other?

    python benchmarks/translation_parallel.py --multi30k FOLDER --json build/parallel.json
    python benchmarks/translation_parallel.py --workload fixed --rounds 1 --updates 1 \
        --layers 4 --hidden 64 --vocab 500                                  # a quick look, 1 min

4+4 layers, embedding and hidden size 512, vocabulary 16,000, nothing shared; label-smoothed loss,
clipping, Adam. Two workloads:

    fixed       random words, every batch 64 sentences of 24 source and 24 target tokens (the end of
                sentence is one of them), no padding
    multi30k    Multi30k de→en in the batches fairseq makes of it (`--max-tokens` per worker)

and the systems, each a set of processes, started anew in each round (crew.py says how they take
turns):

    feeding           1 worker, --input-feeding; only where --systems asks for it
    single            1 worker: the baseline of "speed-up", measured beside every other system
    threads           1 worker with as many torch threads as the others have workers
    legacy_ddp        2 workers, a thread each, --ddp-backend legacy_ddp
    pytorch_ddp       2 workers, a thread each, --ddp-backend pytorch_ddp, buckets of BUCKET_MB
    model_parallel    2 workers, a thread each, --ddp-backend model_parallel
    hybrid            2 workers, a thread each, --ddp-backend hybrid
    decoupled         the same with --hybrid-schedule decoupled: not the same update as the others
    fp16_hook         pytorch_ddp whose gradients travel as fp16
    whole_head        hybrid with one owner for each matrix of the head (--hybrid-head whole)
    bf16              hybrid with --hybrid-messages bf16
    hybrid_feeding    hybrid with --input-feeding
    replicas          hybrid with --hybrid-stages 2: on four workers, two replicas
                      (these only where --systems asks for them, as are)
    buckets_1, _5, _25, _100    pytorch_ddp with other buckets, to choose BUCKET_MB by; only where
                      --systems asks for them

What is timed is `HybridTrainer.train_step`, built from a parsed fairseq-train command line: what a
user gets, but for reading the data, which is in memory. In each round every system goes through the
same batches, one system after the other, after `--warmup` updates that do not count. 2 workers do
`--updates` updates of two batches (one each), a single worker twice as many of one batch, or with
`--accumulate` as many of two (--update-freq 2: the very update of the 2 workers); `single` all of
them beside each system. `--devices SHARE RATE` puts each worker on an emulated device.

    target tok/s   real target tokens of all workers per second of wall time, median over rounds
    speed-up       over `single` beside it; median over rounds. "to ddp" and "to pytorch ddp" are
                   ratios of these, within a round
    idle           share of an update, mean of the stages, in which a worker waits for messages
    of bound       speed-up / (workers x ideal), where ideal is the share of their time that the
                   schedule of the wavefront lets the stages compute (1 under legacy_ddp)
    sgemm          what the machine has to give: large matrix products of all workers at the same
                   time, over those of `single`, right after the updates of each round. Two cores
                   that share something give less than 2
    MB sent        per update, by all workers together: as the program counts its tensors (an
                   all-reduce as a ring makes it), and as the kernel counts the loopback device or
                   those of the emulated devices (what gloo really sends, with headers);
                   "busiest link": the most that one device sends
    peak MB        of the largest worker, since its start (VmHWM)

Processor time of all workers is in the JSON: where something else runs on the machine, look there.
"""

from __future__ import annotations

import argparse
import os
import statistics
from pathlib import Path

import crew
import torch
from common import medians, prepare
from crew import System

BUCKET_MB = 1
"""the fastest of 1, 5 and 25 (fairseq's own) at 1 Gbit/s, by 4 %; `run.sh bucket_size` compares"""

SYSTEMS = {
    "feeding": System("1 worker, input feeding", flags=("--input-feeding",)),
    "single": System("1 worker"),
    "threads": System("1 worker, {n} threads", threaded=True),
    "legacy_ddp": System("{n} workers, legacy_ddp", "legacy_ddp"),
    "pytorch_ddp": System(
        "{n} workers, pytorch_ddp", "pytorch_ddp", ("--bucket-cap-mb", str(BUCKET_MB))
    ),
    "model_parallel": System("{n} workers, model_parallel", "model_parallel"),
    "hybrid": System("{n} workers, hybrid", "hybrid"),
    "decoupled": System(
        "{n} workers, hybrid, decoupled", "hybrid", ("--hybrid-schedule", "decoupled")
    ),
}
MORE = {
    "fp16_hook": System(
        "{n} workers, pytorch_ddp, fp16 hook",
        "pytorch_ddp",
        ("--bucket-cap-mb", str(BUCKET_MB), "--ddp-comm-hook", "fp16"),
    ),
    "whole_head": System("{n} workers, hybrid, whole head", "hybrid", ("--hybrid-head", "whole")),
    "bf16": System("{n} workers, hybrid, bf16 messages", "hybrid", ("--hybrid-messages", "bf16")),
    "hybrid_feeding": System("{n} workers, hybrid, input feeding", "hybrid", ("--input-feeding",)),
    "replicas": System("{n} workers, hybrid, replicas of 2", "hybrid", ("--hybrid-stages", "2")),
}
BUCKETS = {
    f"buckets_{size}": System(
        f"{{n}} workers, pytorch_ddp, {size} MB", "pytorch_ddp", ("--bucket-cap-mb", str(size))
    )
    for size in (1, 5, 25, 100)
}
USUAL = [name for name in SYSTEMS if name != "feeding"]
SYSTEMS |= MORE | BUCKETS
WAVEFRONT = ("model_parallel", "hybrid", "decoupled", "whole_head", "bf16", "hybrid_feeding")
WAVEFRONT += ("replicas",)
BASELINE, DATA_PARALLEL, PYTORCH = "single", "legacy_ddp", "pytorch_ddp"


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
        *("--sums-through", options.sums_through),
    ]


class Worker(crew.Worker):
    """One process of a system."""

    def __init__(self, name: str, rank: int, options, workload: str, data: Path):
        words = arguments(workload, name, data, options)
        super().__init__(SYSTEMS[name], words, rank, options)

    def note(self, log: dict) -> dict[str, float]:
        backend = self.trainer.backend
        report = getattr(backend, "report", None)
        idle = statistics.mean(report.waits) / 100 if report and report.waits else 0.0
        return {"ideal": getattr(backend, "ideal", 1.0), "idle": idle, **super().note(log)}

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


# Results


def measure(workload: str, options) -> dict:
    facts, rounds, calibration = crew.take_turns(
        workload,
        SYSTEMS,
        Worker,
        options,
        lambda scratch: (workload, workload_data(workload, options, scratch)),
        BASELINE,
    )
    # All systems together have seen the same batches: those of a single worker are all of them.
    whole = next((f for n, f in facts.items() if not SYSTEMS[n].backend), None)
    return {
        **(whole or next(iter(facts.values()))),
        "calibration": calibration,
        "parameters": {name: f["parameters"] for name, f in facts.items()},
        "systems": summary(rounds, options),
        "rounds": rounds,
    }


def summary(rounds: crew.Rounds, options) -> dict[str, dict]:
    over_one = crew.within_rounds(rounds, BASELINE)
    columns = {
        **crew.common_columns(rounds, BASELINE),
        "to_legacy_ddp": medians(crew.within_rounds(rounds, DATA_PARALLEL), 2),
        "to_pytorch_ddp": medians(crew.within_rounds(rounds, PYTORCH), 2),
        "ideal": medians(crew.every(rounds, lambda r: r["ideal"]), 3),
        "idle": medians(crew.every(rounds, lambda r: r["idle"]), 3),
    }
    result = crew.by_system(columns, rounds)
    for name, row in result.items():
        row["workers"], row["of_bound"] = SYSTEMS[name].workers(options), None
        if row["workers"] > 1 and BASELINE in rounds:
            bounds = [r["ideal"] * row["workers"] for r in rounds[name]]
            shares = (ratio / bound for ratio, bound in zip(over_one[name], bounds))
            row["of_bound"] = round(statistics.median(shares), 3)
    return result


COLUMNS = {
    "target tok/s": ("tokens_per_second", "{:,.0f}"),
    "speed-up": ("speed_up", "{:.2f}"),
    "to ddp": ("to_legacy_ddp", "{:.2f}"),
    "to pytorch ddp": ("to_pytorch_ddp", "{:.2f}"),
    "ms/update": ("ms_per_update", "{:,.0f}"),
    "tokens/update": ("tokens_per_update", "{:,.0f}"),
    "ideal": ("ideal", "{:.1%}"),
    "of bound": ("of_bound", "{:.1%}"),
    "idle": ("idle", "{:.1%}"),
    "sgemm": ("sgemm_ratio", "{:.2f}"),
    "MB sent, counted": ("mb_counted", "{:,.1f}"),
    "by the kernel": ("mb_loopback", "{:,.1f}"),
    "busiest link": ("mb_busiest", "{:,.1f}"),
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
    rows = {
        name: row if name in WAVEFRONT else {**row, "ideal": None}
        for name, row in result["systems"].items()
    }
    titles = {name: system.title.format(n=options.workers) for name, system in SYSTEMS.items()}
    crew.print_table(COLUMNS, rows, titles)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--workload", choices=("fixed", "multi30k", "both"), default="both")
    crew.add_options(parser, SYSTEMS, rounds=3, updates=2)
    parser.set_defaults(systems=USUAL)
    add("--sums-through", choices=("auto", "messages"), default="auto",
        help="messages: as between machines")  # fmt: skip
    add("--chunk", default="auto", help="--hybrid-chunk of hybrid, decoupled and model_parallel")
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
    options = parser.parse_args()
    options.workloads = ("fixed", "multi30k") if options.workload == "both" else (options.workload,)
    crew.validate_options(parser, options)
    options.bucket_cap_mb = BUCKET_MB  # for the result
    if options.devices:
        options.sums_through = "messages"
    if options.sentences < 1:
        parser.error(f"--sentences {options.sentences}: give 1 or more")
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
    private = ("multi30k", "cache", "workloads")
    crew.run(options.workloads, measure, report, options, private=private)


if __name__ == "__main__":
    main()
