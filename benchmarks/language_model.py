"""How fast does `hybrid_lstm_lm` train with a full, an adaptive and a sampled softmax?

    python benchmarks/language_model.py --wikitext2 FOLDER --json build/language_model.json
    python benchmarks/language_model.py --wikitext2 FOLDER --rounds 1 --updates 1 \
        --hidden 64                                                         # a quick look, 2 min

WikiText-2 (33,278 words), 2 LSTM layers, embedding, hidden and output size 512, nothing shared;
blocks of 35 words, 32 sequences per worker, dropout, clipping, Adam; one thread per worker. The
systems, each a set of processes, started anew in each round (crew.py says how they take turns):

    pytorch     1 worker, a plain PyTorch loop: nn.LSTM, F.cross_entropy, torch.optim.Adam, nothing
                of this package: the naive single worker
    fairseq     1 worker, fairseq's own --arch lstm_lm, --criterion cross_entropy: what users have
    fairseq_adaptive  the same, --criterion adaptive_loss with --adaptive-softmax-cutoff
    full        1 worker, --criterion cross_entropy, with all else that makes our model fast:
                baseline of "speed-up", measured beside every other system
    adaptive    1 worker, our model with fairseq's adaptive_loss
    threads     `full` with as many torch threads as the others have workers
    sampled     1 worker, --criterion sampled_softmax
    dense2      2 workers, --criterion cross_entropy --ddp-backend legacy_ddp
    pytorch2    the same with --ddp-backend pytorch_ddp, buckets of BUCKET_MB
    sampled2    2 workers, --criterion sampled_softmax --ddp-backend sampled
    messages2   the same with --sums-through messages: as between machines

What is timed is `HybridTrainer.train_step` (crew.py). In each round every system has its turn,
after `--warmup` updates that do not count: 2 workers make `--updates` updates of 64 sequences, a
single worker twice as many of 32. The text is read as streams, as many as an update has sequences,
so one worker and two have other words in their batches, but as many of them: compare rates. Two
workers train on the union of their target words; so that the softmax of all is over about 2,000
words, one worker draws more of them at random.

    tok/s            words of all workers per second of wall time, median over rounds
    speed-up, to ... over `full`, `pytorch`, `fairseq`, `fairseq_adaptive`, `adaptive`, `sampled`;
                     median of the ratios in a round
    words            over which the softmax of an update is computed, where that is not all
    MB sent          per update, by all workers together: as the program counts its tensors (an
                     all-reduce as a ring makes it; what is read from memory of other workers too),
                     and as the kernel counts the loopback device
    of dense         share of the bytes counted of `dense2`
    peak MB          of the largest worker, since its start (VmHWM)
    sgemm            what the machine has to give: large matrix products of all workers at the same
                     time, over those of `full`, right after the updates of each round

Processor time of all workers is in the JSON: where something else runs on the machine, look there.
"""

from __future__ import annotations

import argparse
import math
import os
from pathlib import Path

import crew
import torch
import torch.nn.functional as F
from common import medians, prepare_wikitext2
from crew import System
from torch import nn

FULL = ("--criterion", "cross_entropy")
ADAPTIVE_LOSS = ("--criterion", "adaptive_loss")
SAMPLED = ("--criterion", "sampled_softmax")
MESSAGES = ("--sums-through", "messages")
BUCKET_MB = 1
"""as in translation_parallel.py"""
ONE_WORKERS_RANDOM = 1210
"""random words of one worker's sample, with which its softmax has as many words as that of two"""

SYSTEMS = {
    "pytorch": System("1 worker, plain PyTorch, full softmax", flags=FULL),
    "fairseq": System("1 worker, fairseq's lstm_lm, full softmax", flags=FULL),
    "fairseq_adaptive": System("1 worker, fairseq's lstm_lm, adaptive", flags=ADAPTIVE_LOSS),
    "full": System("1 worker, full softmax", flags=FULL),
    "adaptive": System("1 worker, adaptive softmax", flags=ADAPTIVE_LOSS),
    "sampled": System("1 worker, sampled softmax", flags=SAMPLED),
    "dense2": System("{n} workers, full softmax, legacy_ddp", "legacy_ddp", FULL),
    "pytorch2": System(
        "{n} workers, full softmax, pytorch_ddp",
        "pytorch_ddp",
        (*FULL, "--bucket-cap-mb", str(BUCKET_MB)),
    ),
    "threads": System("1 worker, {n} threads, full softmax", flags=FULL, threaded=True),
    "messages2": System("{n} workers, sampled, by messages", "sampled", (*SAMPLED, *MESSAGES)),
    "sampled2": System("{n} workers, sampled softmax, sampled", "sampled", SAMPLED),
}
PLAIN, FAIRSEQ, BASELINE, ADAPTIVE = "pytorch", "fairseq", "full", "adaptive"
ONE_SAMPLED, DENSE, FAIRSEQ_ADAPTIVE = "sampled", "dense2", "fairseq_adaptive"
PYTORCH_DDP = "pytorch2"


def arguments(name: str, data: Path, options) -> list[str]:
    """Of fairseq-train."""
    system = SYSTEMS[name]
    values = {
        "--decoder-layers": options.layers,
        "--decoder-embed-dim": options.embed or options.hidden,
        "--decoder-hidden-size": options.hidden,
        "--decoder-out-embed-dim": options.output or options.hidden,
        "--dropout": options.dropout,
        "--tokens-per-sample": options.length,
        "--batch-size": options.sequences,
        "--distributed-world-size": system.workers(options),
    }
    task, arch = "streamed_language_modeling", "hybrid_lstm_lm"
    if name in (FAIRSEQ, FAIRSEQ_ADAPTIVE):  # its model can't carry a state from batch to batch
        task, arch, values["--decoder-attention"] = "language_modeling", "lstm_lm", 0
    if name == PLAIN:  # the model that is built only shows what the batches are: a tiny one
        widths = ("embed-dim", "hidden-size", "out-embed-dim")
        values |= {f"--decoder-{width}": 8 for width in widths}
    if system.flags == ADAPTIVE_LOSS:
        values["--adaptive-softmax-cutoff"] = options.cutoff
    if SAMPLED[1] in system.flags and options.sample:
        values["--sample-frequent"], values["--sample-random"] = options.sample
    elif name == ONE_SAMPLED:
        values["--sample-random"] = ONE_WORKERS_RANDOM
    return [
        *(str(data), "--task", task, "--cpu", "--seed", "1"),
        *("--arch", arch, "--ddp-backend", system.backend or "legacy_ddp"),
        *system.flags,
        *("--optimizer", "adam", "--lr", "1e-3", "--clip-norm", "0.25", "--num-workers", "0"),
        *("--save-dir", str(data / "checkpoints")),  # fairseq saves there if an update fails
        *(str(word) for pair in values.items() for word in pair),
    ]


class Worker(crew.Worker):
    """One process of a system."""

    def __init__(self, name: str, rank: int, options, data: Path):
        if name == PLAIN:
            os.environ["FAIRSEQ_HYBRID_KEEP_BUFFERS"] = "0"  # malloc as it comes
        super().__init__(SYSTEMS[name], arguments(name, data, options), rank, options)
        dictionary = self.trainer.task.target_dictionary
        self.vocabulary = len(dictionary)
        if name == PLAIN:
            self.trainer = PlainLoop(dictionary, options)
            self.trainer.train_step(self.updates[0])

    def note(self, log: dict) -> dict[str, float]:
        words = {"words": float(log["words"])} if "words" in log else {}
        return {**super().note(log), **words}

    def facts(self) -> dict:
        """About the model and the batches of all rounds."""
        samples = [sample for update in self.updates for sample in update]
        return {
            "parameters": sum(p.numel() for p in self.trainer.get_model().parameters()),
            "vocabulary": self.vocabulary,
            "sequences_per_batch": sum(sample["nsentences"] for sample in samples) / len(samples),
            "tokens_per_batch": sum(sample["ntokens"] for sample in samples) / len(samples),
        }


class PlainLoop:
    """The same training as a PyTorch user would write it down."""

    def __init__(self, dictionary, options):
        self.pad, words, hidden = dictionary.pad(), len(dictionary), options.hidden
        embed, output = options.embed or hidden, options.output or hidden
        self.embed = nn.Embedding(words, embed, padding_idx=self.pad)
        self.lstm = nn.LSTM(embed, hidden, options.layers, dropout=options.dropout)
        self.narrow = nn.Linear(hidden, output) if output != hidden else nn.Identity()
        self.output = nn.Linear(output, words)
        self.dropout, self.state = nn.Dropout(options.dropout), None
        self.modules = nn.ModuleList((self.embed, self.lstm, self.narrow, self.output))
        self.optimizer = torch.optim.Adam(self.modules.parameters(), lr=1e-3)

    def get_model(self) -> nn.Module:
        return self.modules

    def train_step(self, samples: list[dict]) -> dict[str, float]:
        self.optimizer.zero_grad()
        total = sum(sample["ntokens"] for sample in samples)
        for sample in samples:
            words_TB, target_TB = sample["net_input"]["src_tokens"].t(), sample["target"].t()
            x_TBH, state = self.lstm(self.dropout(self.embed(words_TB)), self.state)
            self.state = tuple(part.detach() for part in state)
            logits_TBV = self.output(self.narrow(self.dropout(x_TBH)))
            loss = F.cross_entropy(
                logits_TBV.flatten(0, 1), target_TB.flatten(), ignore_index=self.pad,
                reduction="sum",
            )  # fmt: skip
            (loss / total).backward()
        nn.utils.clip_grad_norm_(self.modules.parameters(), 0.25)
        self.optimizer.step()
        return {"loss": float(loss) / samples[-1]["ntokens"] / math.log(2)}


# Results


def measure(workload: str, options) -> dict:
    def job(scratch: Path) -> tuple[Path]:
        return (prepare_wikitext2(options.wikitext2, options.cache or scratch),)

    facts, rounds, calibration = crew.take_turns(workload, SYSTEMS, Worker, options, job, BASELINE)
    return {
        **next(iter(facts.values())),
        "calibration": calibration,
        "parameters": {name: f["parameters"] for name, f in facts.items()},
        "systems": summary(rounds, options),
        "rounds": rounds,
    }


def summary(rounds: crew.Rounds, options) -> dict[str, dict]:
    def ratios(to: str) -> dict[str, float]:
        return medians(crew.within_rounds(rounds, to), 2)

    sampled = {name: turns for name, turns in rounds.items() if "words" in turns[0]}
    columns = {
        **crew.common_columns(rounds, BASELINE),
        "to_pytorch": ratios(PLAIN),
        "to_fairseq": ratios(FAIRSEQ),
        "to_fairseq_adaptive": ratios(FAIRSEQ_ADAPTIVE),
        "to_adaptive": ratios(ADAPTIVE),
        "to_sampled": ratios(ONE_SAMPLED),
        "to_pytorch_ddp": ratios(PYTORCH_DDP),
        "words": medians(crew.every(sampled, lambda r: r["words"]), 0),
        "of_dense": shares_of_dense(rounds),
        "workers": {name: SYSTEMS[name].workers(options) for name in rounds},
    }
    return crew.by_system(columns, rounds)


def shares_of_dense(rounds: crew.Rounds) -> dict[str, float]:
    """Bytes counted per update, by those of dense sharing."""
    if DENSE not in rounds:
        return {}
    sent = medians(crew.every(rounds, lambda r: r["bytes_counted"] / r["updates"]), 0)
    return {name: round(size / sent[DENSE], 4) for name, size in sent.items() if size}


COLUMNS = {
    "tok/s": ("tokens_per_second", "{:,.0f}"),
    "speed-up": ("speed_up", "{:.2f}"),
    "to pytorch": ("to_pytorch", "{:.2f}"),
    "to fairseq": ("to_fairseq", "{:.2f}"),
    "to fairseq adaptive": ("to_fairseq_adaptive", "{:.2f}"),
    "to adaptive": ("to_adaptive", "{:.2f}"),
    "to sampled": ("to_sampled", "{:.2f}"),
    "to pytorch ddp": ("to_pytorch_ddp", "{:.2f}"),
    "ms/update": ("ms_per_update", "{:,.0f}"),
    "words": ("words", "{:,.0f}"),
    "MB sent, counted": ("mb_counted", "{:,.1f}"),
    "by the kernel": ("mb_loopback", "{:,.1f}"),
    "of dense": ("of_dense", "{:.1%}"),
    "peak MB": ("peak_mb", "{:,.0f}"),
    "sgemm": ("sgemm_ratio", "{:.2f}"),
}


def report(workload: str, result: dict, options) -> None:
    """A Markdown table."""
    embed, output = options.embed or options.hidden, options.output or options.hidden
    print(
        f"\n**{workload}**: {options.layers} layers of {options.hidden}, embedding {embed}, output "
        f"{output}, vocabulary {result['vocabulary']:,}; {options.length} words x "
        f"{result['sequences_per_batch']:.0f} sequences per worker\n"
    )
    titles = {name: system.title.format(n=options.workers) for name, system in SYSTEMS.items()}
    crew.print_table(COLUMNS, result["systems"], titles)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    crew.add_options(parser, SYSTEMS, rounds=7, updates=5)
    add("--layers", type=int, default=2)
    add("--hidden", type=int, default=512, help="hidden size")
    add("--embed", type=int, help="size of the input embedding (default: the hidden size)")
    add("--output", type=int, help="size of the output embedding (default: the hidden size)")
    add("--dropout", type=float, default=0.2)
    add("--length", type=int, default=35, help="words of a sequence")
    add("--sequences", type=int, default=32, help="per worker")
    add("--cutoff", default="2000,10000", help="--adaptive-softmax-cutoff of adaptive")
    add("--sample", type=int, nargs=2, metavar=("FREQUENT", "RANDOM"),
        help="--sample-frequent and --sample-random; the words of the batch come on top "
        "(default: the criterion's; with them about 1,900, of two workers 2,200)")  # fmt: skip
    add("--wikitext2", type=Path, default=os.environ.get("WIKITEXT2"), metavar="FOLDER",
        help="with wiki.{train,valid,test}.tokens (default: the variable WIKITEXT2)")  # fmt: skip
    add("--cache", type=Path, help="keep the prepared WikiText-2 here (default: nowhere)")
    options = parser.parse_args()
    crew.validate_options(parser, options)
    options.bucket_cap_mb = BUCKET_MB  # for the result
    for name in ("layers", "hidden", "length", "sequences"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} {getattr(options, name)}: give 1 or more")
    if options.wikitext2 is None:
        parser.error("--wikitext2 FOLDER (or the variable WIKITEXT2) must say where the text is")
    for split in ("train", "valid", "test"):
        if not (options.wikitext2 / f"wiki.{split}.tokens").exists():
            parser.error(f"--wikitext2 {options.wikitext2}: no wiki.{split}.tokens there")
    return options


def main() -> None:
    crew.run(("wikitext-2",), measure, report, parse(), private=("wikitext2", "cache"))


if __name__ == "__main__":
    main()
