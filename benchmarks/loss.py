"""What does the loss in place bring, and how much memory does it need?

    python benchmarks/loss.py --json build/loss.json                         # about 10 min
    python benchmarks/loss.py --cases huge --rounds 1 --updates 1 --alone    # 250,000 words
    python benchmarks/loss.py --rounds 1 --updates 1                         # a quick look

Cases that the JSON has already are not measured again.

`hybrid_lstm` (2+2 layers, embedding 256, hidden 512, label smoothing) at vocabulary 8,000 and
16,000, `hybrid_lstm_lm` (2 layers of 512, cross-entropy) at WikiText-2's 33,278, and one of 250,000
words. The words are random, the frequent ones as frequent as in text: speed does not depend on what
they mean. One worker with one thread, full updates: forward, loss, backward, clipping, Adam.

Each workload runs in two processes, with fairseq's criterion ("before") and with ours ("after"),
which take turns within each round. The number is the median over rounds of target words per second,
the ratio the median of the ratios within a round; memory is the most that a process ever had.
Processor time is recorded, too: where something else runs on the machine, look at that ratio.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import operator
import os
import resource
import statistics
import time
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace

import torch
from common import environment, medians

BEFORE, AFTER = SYSTEMS = "before", "after"
TRANSLATION = dict(encoder_embed_dim=256, encoder_hidden_size=512, encoder_layers=2)
LANGUAGE = dict(decoder_embed_dim=512, decoder_hidden_size=512, decoder_layers=2)
CASES = {
    "translation 8,000": ("hybrid_lstm", TRANSLATION, 8000),
    "translation 16,000": ("hybrid_lstm", TRANSLATION, 16000),
    "language model 33,278": ("hybrid_lstm_lm", LANGUAGE, 33278),
    "huge": ("hybrid_lstm_lm", LANGUAGE, 250_000),
}
SENTENCES, LENGTHS = 140, (18, 32)
SEQUENCES, WORDS = 32, 35
SMOOTHING = 0.1


def dictionary(words: int):
    from fairseq.data import Dictionary

    made = Dictionary()
    for i in range(words - made.nspecial):
        made.add_symbol(str(i), n=10 * words // (i + 1) + 1)
    return made


def some_words(shape: tuple[int, ...], words: int) -> torch.Tensor:
    """Ranks whose logarithms are all as likely, which is Zipf's law."""
    rank = (torch.rand(shape) * torch.tensor(float(words - 4)).log()).exp().long()
    return (rank + 3).clamp(max=words - 1)


def translation_batch(words: int, pad: int, eos: int) -> dict:
    def sentences() -> torch.Tensor:
        lengths = torch.randint(*LENGTHS, (SENTENCES, 1))
        made = some_words((SENTENCES, LENGTHS[1]), words)
        made.scatter_(1, lengths, eos)
        return made.masked_fill(torch.arange(LENGTHS[1]) > lengths, pad)

    source, target = sentences(), sentences()
    previous = target.roll(1, 1)
    previous = previous.masked_fill(previous == eos, pad)
    previous[:, 0] = eos
    net_input = {
        "src_tokens": source,
        "src_lengths": source.ne(pad).sum(1),
        "prev_output_tokens": previous,
    }
    return {"net_input": net_input, "target": target, "ntokens": int(target.ne(pad).sum())}


def language_batch(words: int) -> dict:
    text = some_words((SEQUENCES, WORDS + 1), words)
    net_input = {"src_tokens": text[:, :-1], "src_lengths": torch.full((SEQUENCES,), WORDS)}
    target = text[:, 1:].contiguous()
    return {"net_input": net_input, "target": target, "ntokens": SEQUENCES * WORDS}


class System:
    def __init__(self, case: str, system: str):
        from fairseq import criterions
        from fairseq.criterions.cross_entropy import CrossEntropyCriterion
        from fairseq.criterions.label_smoothed_cross_entropy import (
            LabelSmoothedCrossEntropyCriterion,
        )
        from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
        from translation_single import build_adam

        import fairseq_hybrid  # noqa: F401
        from fairseq_hybrid.optim.optimizer import wrap

        arch, sizes, self.words = CASES[case]
        words = dictionary(self.words)
        self.pad, self.eos = words.pad(), words.eos()
        task = SimpleNamespace(source_dictionary=words, target_dictionary=words)
        args = Namespace(**sizes, arch=arch, dropout=0.2)
        ARCH_CONFIG_REGISTRY[arch](args)
        torch.manual_seed(1)
        self.model = ARCH_MODEL_REGISTRY[arch].build_model(args, task).train()
        ours = criterions.CRITERION_REGISTRY if system == AFTER else {}
        self.translates = arch == "hybrid_lstm"
        if self.translates:
            kind = ours.get("label_smoothed_cross_entropy", LabelSmoothedCrossEntropyCriterion)
            self.criterion = kind(task, False, SMOOTHING)
        else:
            self.criterion = ours.get("cross_entropy", CrossEntropyCriterion)(task, False)
        self.optimizer = wrap(build_adam(self.model), of=[self.model])

    def batch(self) -> dict:
        if self.translates:
            return translation_batch(self.words, self.pad, self.eos)
        return language_batch(self.words)

    def update(self) -> tuple[int, float, float, float]:
        """Words, seconds and processor seconds of an update, and its loss per word."""
        sample = self.batch()
        begin, cpu = time.perf_counter(), time.process_time()
        self.optimizer.zero_grad()
        loss, size, _ = self.criterion(self.model, sample)
        self.optimizer.backward(loss)
        self.optimizer.multiply_grads(1.0 / size)
        self.optimizer.clip_grad_norm(1.0)
        self.optimizer.step()
        seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
        return sample["ntokens"], seconds, cpu, float(loss) / size


def serve(connection, case: str, system: str, updates: int) -> None:
    """A process: words per second, loss and megabytes, each time it is asked."""
    torch.set_num_threads(1)
    made = System(case, system)
    made.update()
    connection.send("ready")
    for _ in iter(connection.recv, "quit"):
        results = [made.update() for _ in range(updates)]
        words, seconds, cpu, losses = zip(*results)
        megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        rates = sum(words) / sum(seconds), sum(words) / sum(cpu)
        connection.send((rates, losses[-1], megabytes))


class Process:
    """A system's process."""

    def __init__(self, case: str, system: str, updates: int):
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        arguments = (theirs, case, system, updates)
        self.process = context.Process(target=serve, args=arguments, daemon=True)
        self.process.start()

    def turn(self) -> tuple[tuple[float, float], float, float]:
        self.pipe.send("go")
        return self.pipe.recv()

    def close(self) -> None:
        self.pipe.send("quit")
        self.process.join()


def measure(case: str, options) -> dict:
    rounds: dict[str, list[float]] = {system: [] for system in (AFTER, BEFORE)}
    by_cpu: dict[str, list[float]] = {system: [] for system in (AFTER, BEFORE)}
    losses, megabytes = {}, {}
    for systems in [[s] for s in SYSTEMS] if options.alone else [SYSTEMS]:
        processes = {system: Process(case, system, options.updates) for system in systems}
        for process in processes.values():
            process.pipe.recv()
        for turn in range(options.rounds):
            for system in systems[:: 1 if turn % 2 else -1]:
                (rate, per_cpu), losses[system], megabytes[system] = processes[system].turn()
                rounds[system].append(rate)
                by_cpu[system].append(per_cpu)
        for process in processes.values():
            process.close()
    return {
        "words_per_second": medians(rounds, 1),
        "ratio": round(statistics.median(map(operator.truediv, *rounds.values())), 3),
        "words_per_cpu_second": medians(by_cpu, 1),
        "ratio_by_cpu": round(statistics.median(map(operator.truediv, *by_cpu.values())), 3),
        "rounds": {name: [round(rate, 1) for rate in rates] for name, rates in rounds.items()},
        "megabytes": {name: round(most) for name, most in megabytes.items()},
        "loss": losses,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES)[:3])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--updates", type=int, default=4, help="in a round")
    parser.add_argument(
        "--alone", action="store_true", help="no turns: first the one, then the other, for memory"
    )
    parser.add_argument("--json", type=Path, help="write the result here")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    result = json.loads(options.json.read_text()) if options.json and options.json.exists() else {}
    result["environment"] = environment()
    result["options"] = {k: v for k, v in vars(options).items() if k != "json"}
    result.setdefault("cases", {})
    for case in options.cases:
        if case in result["cases"]:
            continue
        found = result["cases"][case] = measure(case, options)
        for system, rate in found["words_per_second"].items():
            memory, loss = found["megabytes"][system], found["loss"][system]
            row = f"{case:22} {system:6} {rate:8.0f} words/s {memory:7} MB   loss {loss:.5f}"
            print(row, flush=True)
        by_cpu = f"by processor time {found['ratio_by_cpu']:.3f}"
        print(f"{case:22} ratio {found['ratio']:8.3f}, {by_cpu}", flush=True)
        if options.json:  # a case is measured once, whatever stops the others
            options.json.parent.mkdir(parents=True, exist_ok=True)
            options.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
