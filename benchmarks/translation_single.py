"""How fast is `hybrid_lstm` on one core, beside fairseq's own `lstm`?

    python benchmarks/translation_single.py --json build/translation_single.json    # about 5 min
    python benchmarks/translation_single.py --rounds 1 --updates 1 --gen-rounds 1   # a quick look

Parts that the JSON has already (training, each kind of search) are not measured again.

Multi30k de→en, joint sentencepiece vocabulary of 8,000; 2+2 layers, embedding 256, hidden 512,
nothing shared; batches of at most `--max-tokens` tokens as fairseq's sampler makes them; one
thread. The systems, each in a process of its own:

    hybrid_lstm
    hybrid_lstm --input-feeding      the arithmetic of fairseq's lstm, parameter for parameter
    fairseq lstm                     as fairseq ships it, this package not loaded
    fairseq lstm, buffers kept       the same with our setting of the memory allocator
                                     (models/allocator.py): the rest of the gain is the model's

Training: in each round every system does full updates (forward, label-smoothed loss, backward,
clipping, Adam) on the same `--updates` batches, one system after the other, so that a machine that
slows down slows down all of them. The number is the median over rounds of target tokens per
second, padding not counted; the ratio is the median of the ratios within a round. "of peak" is the
arithmetic that real tokens need (matrix products only, backward = twice forward) over the time and
over what this core reaches in a large float32 matrix product, measured in every round.

Generation: beam 5 and greedy search in batches, beam 5 one by one, as by fairseq-generate and
fairseq-interactive; every hypothesis forced to the same length (`--gen-len`), so that models
do equal work whatever they have learnt; sentences per second.

Processor time is recorded beside wall time (JSON: "cpu"): where something else runs on the machine,
look at that one.
"""

from __future__ import annotations

import argparse
import functools
import json
import multiprocessing
import os
import statistics
import time
from argparse import Namespace
from pathlib import Path

import torch
from common import ROOT, environment, medians, prepare, ratios, sgemm_peak

SIZES = dict(
    encoder_embed_dim=256,
    encoder_hidden_size=512,
    encoder_layers=2,
    decoder_embed_dim=256,
    decoder_hidden_size=512,
    decoder_layers=2,
    decoder_out_embed_dim=512,
)
SYSTEMS = {
    "hybrid_lstm": ("hybrid_lstm", {}),
    "hybrid_lstm --input-feeding": ("hybrid_lstm", {"input_feeding": True}),
    "fairseq lstm": ("lstm", {}),
    "fairseq lstm, buffers kept": ("lstm", {}),
}
BASELINE = "fairseq lstm"
BEAM = "beam 5"
GENERATION = {BEAM: (5, False), "greedy": (1, False), "beam 5, one by one": (5, True)}
"""beam, and whether sentences come one by one"""
SMOOTHING = 0.1


class System:
    """A model with fairseq's criterion and optimizer."""

    def __init__(self, name: str, task, options):
        from fairseq.criterions import CRITERION_REGISTRY
        from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY

        arch, extra = SYSTEMS[name]
        args = Namespace(**SIZES, **extra, dropout=options.dropout, criterion="", arch=arch)
        ARCH_CONFIG_REGISTRY[arch](args)
        torch.manual_seed(1)
        self.model = ARCH_MODEL_REGISTRY[arch].build_model(args, task)
        self.task = task
        criterion = CRITERION_REGISTRY["label_smoothed_cross_entropy"]
        self.criterion = criterion(task, False, SMOOTHING)
        self.optimizer = build_adam(self.model)
        if arch == "hybrid_lstm":
            from fairseq_hybrid.optim.optimizer import wrap

            self.optimizer = wrap(self.optimizer, of=[self.model])

    @property
    def parameters(self) -> int:
        return sum(p.numel() for p in self.model.parameters())

    def generator(self, length: int, beam: int):
        from fairseq.sequence_generator import SequenceGenerator

        # As in fairseq-generate, but for forbidding to train afterwards.
        self.model.decoder.make_generation_fast_(need_attn=False)
        lengths = dict(max_len_a=0, max_len_b=length, min_len=length)
        words = self.task.target_dictionary
        return SequenceGenerator([self.model], words, beam_size=beam, **lengths)

    def update(self, sample) -> None:
        self.model.train()
        self.optimizer.zero_grad()
        loss, size, _ = self.criterion(self.model, sample)
        self.optimizer.backward(loss)
        self.optimizer.multiply_grads(1.0 / size)
        self.optimizer.clip_grad_norm(1.0)
        self.optimizer.step()


def build_adam(model):
    from fairseq.optim.adam import FairseqAdam, FairseqAdamConfig

    config = FairseqAdamConfig(lr=[1e-3], adam_betas="(0.9, 0.98)")
    config.tpu = False
    return FairseqAdam(config, list(model.parameters()))


def load_task(data: Path):
    from fairseq.tasks.translation import TranslationConfig, TranslationTask

    config = TranslationConfig(data=str(data), source_lang="de", target_lang="en")
    config.train_subset = "train"
    config.dataset_impl, config.required_seq_len_multiple = None, 1
    task = TranslationTask.setup_task(config)
    task.load_dataset("train")
    task.load_dataset("test")
    return task


def batches(task, split: str, count: int, seed: int, **limits) -> list[dict]:
    # (the cache takes no notice of limits)
    epoch = task.get_batch_iterator(
        task.dataset(split), seed=seed, **limits, num_workers=0, disable_iterator_cache=True
    )
    iterator = epoch.next_epoch_itr(shuffle=True)
    return [next(iterator) for _ in range(min(count, len(iterator)))]


def flops(sample, vocab: int, pad: int) -> float:
    """Multiplications and additions of an update's matrix products, real tokens only."""
    embed, hidden, out = (
        SIZES[f"decoder_{n}"] for n in ("embed_dim", "hidden_size", "out_embed_dim")
    )
    source = sample["net_input"]["src_tokens"].ne(pad).sum(1)
    target = sample["target"].ne(pad).sum(1)
    lstm = 4 * hidden * (embed + hidden) + 4 * hidden * 2 * hidden
    attention = int((source * target).sum()) * 2 * hidden
    per_source, per_target = lstm + hidden * hidden, lstm + 2 * hidden * hidden + out * vocab
    products = int(source.sum()) * per_source + int(target.sum()) * per_target + attention
    return 3 * 2.0 * products


def serve(connection, name: str, options, data: Path) -> None:
    """A system's process: answers "train" and "generate" with the seconds they took."""
    torch.set_num_threads(1)
    if name.startswith("hybrid"):
        import fairseq_hybrid  # noqa: F401  (registers the model)
    elif name.endswith("buffers kept"):
        from fairseq_hybrid.models.allocator import keep_large_buffers

        keep_large_buffers()
    task = load_task(data)
    system = System(name, task, options)
    training = train_batches(task, options)
    generating = {}
    for kind in GENERATION:
        beam, batch, count = search(kind, options)
        samples = batches(task, "test", count, 1, max_sentences=batch)
        generating[kind] = system.generator(options.gen_len, beam), samples
    connection.send(system.parameters)
    for command, start in iter(connection.recv, ("quit", 0)):
        if command == "train":
            work, samples = system.update, training[start : start + options.updates]
        else:
            system.model.eval()
            generator, samples = generating[start]
            work = functools.partial(generator.generate, [])
        wall, cpu = time.perf_counter(), time.process_time()
        for sample in samples:
            work(sample)
        connection.send((time.perf_counter() - wall, time.process_time() - cpu))


def search(kind: str, options) -> tuple[int, int, int]:
    """Beam, sentences of a batch, batches."""
    beam, alone = GENERATION[kind]
    if alone:
        return beam, 1, options.gen_alone
    return beam, options.gen_sentences, options.gen_batches


def train_batches(task, options) -> list[dict]:
    count = options.updates * (options.rounds + 1)
    return batches(task, "train", count, 1, max_tokens=options.max_tokens)


class Workers:
    """All systems' processes."""

    def __init__(self, options, data: Path):
        context = multiprocessing.get_context("spawn")
        self.pipes, self.parameters, self.processes = {}, {}, []
        for name in options.systems:
            self.pipes[name], theirs = context.Pipe()
            arguments = (theirs, name, options, data)
            self.processes.append(context.Process(target=serve, args=arguments, daemon=True))
            self.processes[-1].start()
            self.parameters[name] = self.pipes[name].recv()

    def ask(self, name: str, command: str, start: int | str) -> tuple[float, float]:
        self.pipes[name].send((command, start))
        return self.pipes[name].recv()

    def close(self) -> None:
        for pipe in self.pipes.values():
            pipe.send(("quit", 0))
        for process in self.processes:
            process.join()


def measure_training(workers: Workers, task, options) -> dict:
    samples, pad = train_batches(task, options), task.target_dictionary.pad()
    seconds, peaks, of_peak, tokens = ({n: [] for n in options.systems} for _ in range(4))
    for start in range(0, len(samples), options.updates):  # the first round warms up
        part = samples[start : start + options.updates]
        work = sum(flops(sample, len(task.target_dictionary), pad) for sample in part) / 1e9
        for name in options.systems:
            peak, both = sgemm_peak(), workers.ask(name, "train", start)
            if start:
                seconds[name].append(both)
                peaks[name].append(peak)
                of_peak[name].append(work / both[0] / peak)
                tokens[name].append(sum(sample["ntokens"] for sample in part))
    return {
        "sgemm_gflops": round(statistics.median(p for values in peaks.values() for p in values), 1),
        "of_peak": medians(of_peak, 3),
        **rates(tokens, seconds, "tokens_per_second"),
    }


def measure_generation(workers: Workers, kind: str, options) -> dict:
    _, batch, turns = search(kind, options)
    count = batch * turns
    seconds = {name: [] for name in options.systems}
    for r in range(options.gen_rounds + 1):
        for name in options.systems:
            both = workers.ask(name, "generate", kind)
            if r:
                seconds[name].append(both)
    counts = {name: [count] * options.gen_rounds for name in options.systems}
    return rates(counts, seconds, "sentences_per_second")


def rates(counts: dict, seconds: dict, unit: str) -> dict:
    """Medians, ratios and single rounds, by wall time and by processor time."""
    result = {}
    for i, clock in enumerate(("wall", "cpu")):
        rate = {n: [c / s[i] for c, s in zip(counts[n], seconds[n])] for n in counts}
        result[clock] = {
            unit: medians(rate, 2),
            "ratio": ratios(rate, BASELINE),
            "rounds": {n: [round(v, 2) for v in values] for n, values in rate.items()},
        }
    return result


def report(result: dict) -> None:
    train, generate = result["training"], result["searches"].get(BEAM)
    print(f"{'':28} {'parameters':>10} {'target':>8} {'':>6} {'of':>6} {'beam 5':>8}")
    print(f"{'':28} {'':>10} {'tok/s':>8} {'ratio':>6} {'peak':>6} {'sent/s':>8} {'ratio':>6}")
    for name, parameters in result["parameters"].items():
        wall = train["wall"]
        row = f"{name:28} {parameters:10,} {wall['tokens_per_second'][name]:8.0f} "
        row += f"{wall['ratio'].get(name, 0):6.2f} {train['of_peak'][name]:6.1%}"
        if generate:
            wall = generate["wall"]
            row += f" {wall['sentences_per_second'][name]:8.1f} {wall['ratio'].get(name, 0):6.2f}"
        print(row)
    print(f"by processor time: ratio {train['cpu']['ratio']}")
    for kind, found in result["searches"].items():
        print(f"{kind}: {found['wall']['sentences_per_second']}, ratio {found['wall']['ratio']}")
    machine, load = result["environment"]["machine"], train["load"]
    print(f"sgemm {train['sgemm_gflops']} GFLOP/s; {machine}; load before and after: {load}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--data",
        type=Path,
        default=os.environ.get("MULTI30K"),
        help="folder with train, valid and test2016 .de and .en (default: the variable MULTI30K)",
    )
    parser.add_argument("--cache", type=Path, default=ROOT / "build/multi30k-8000")
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS))
    parser.add_argument("--max-tokens", type=int, default=4000)
    parser.add_argument("--updates", type=int, default=1, help="batches per round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dropout", type=float, default=0.2)
    parser.add_argument("--gen-batches", type=int, default=1)
    parser.add_argument("--gen-sentences", type=int, default=64)
    parser.add_argument("--gen-alone", type=int, default=12, help="sentences, one by one")
    parser.add_argument("--gen-len", type=int, default=15)
    parser.add_argument("--gen-rounds", type=int, default=5, help="0: training only")
    parser.add_argument("--json", type=Path, help="write the result here")
    options = parser.parse_args()  # fmt: skip

    torch.set_num_threads(1)
    if options.data is None or not (options.data / "train.de").exists():
        parser.error(
            f"--data {options.data}: no train.de there; see examples/translation/multi30k.sh"
        )
    data = prepare(options.data, options.cache, vocab=8000)
    task = load_task(data)
    result = json.loads(options.json.read_text()) if options.json and options.json.exists() else {}
    workers = Workers(options, data)
    result |= {
        "environment": environment(),
        "options": {k: v for k, v in vars(options).items() if k not in ("data", "cache", "json")},
        "sizes": {**SIZES, "vocabulary": len(task.target_dictionary), "label_smoothing": SMOOTHING},
        "parameters": workers.parameters,
    }
    result.setdefault("searches", {})
    kinds = GENERATION if options.gen_rounds else ()
    for part in ("training", *kinds):
        if part in result or part in result["searches"]:
            continue
        load = os.getloadavg()[0]
        if part == "training":
            found = result[part] = measure_training(workers, task, options)
        else:
            found = result["searches"][part] = measure_generation(workers, part, options)
        found["load"] = [round(load, 2), round(os.getloadavg()[0], 2)]
        if options.json:  # a part is measured once, whatever stops the others
            options.json.parent.mkdir(parents=True, exist_ok=True)
            options.json.write_text(json.dumps(result, indent=2) + "\n")
    workers.close()
    report(result)


if __name__ == "__main__":
    main()
