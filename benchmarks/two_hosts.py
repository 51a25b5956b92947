"""Training across two hosts with a slow link: updates per second of each backend.

    python benchmarks/two_hosts.py --rates 1gbit 100mbit --rounds 3       about 12 minutes, 2 cores
    python benchmarks/two_hosts.py --wikitext2 FOLDER --json benchmarks/results/two_hosts.json
    python benchmarks/two_hosts.py --rates 100mbit --systems translation/legacy_ddp ...

Both hosts are emulated devices of this machine (devices.sh says how, and what it needs) without a
limit of processor time, with one worker of one thread each, started by `torchrun`. Two workloads,
since no backend suits both, each with the `legacy_ddp` and `pytorch_ddp` of fairseq:

    translation     hybrid_lstm, random words         hybrid, model_averaging
    language_model  hybrid_lstm_lm, WikiText-2 or     sampled (with sampled_softmax),
                    the toy corpus                    model_averaging (full softmax)

In a round every system is started anew, one after the other, and makes `--warmup` updates that do
not count and `--updates` that do, which hold one averaging.

    updates/s   wall time from one line of the log to another; median over rounds
    to ddp      over legacy_ddp of the same workload; median of the ratios within a round
    MB/update   what host 0 sent over the link, as the kernel counts it, headers included
    to pytorch  over pytorch_ddp, likewise
    calibration what the hosts have to give, before the rounds (calibration.py)

The hosts share the machine's cores, memory and caches, and the link has no latency of its own but
its queue: two real machines have more of the former and less of the latter.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
BIN = Path(sys.executable).parent
PORT = "29500"

COMMON = (
    *("--cpu", "--optimizer", "adam", "--lr", "1e-3", "--clip-norm", "1.0", "--seed", "1"),
    *("--num-workers", "0", "--log-interval", "1", "--log-format", "json", "--no-save"),
    *("--disable-validation", "--averaging-interval", "{updates}", "--max-update", "{last}"),
)
MODELS = {
    "translation": (
        *("--task", "translation", "-s", "de", "-t", "en", "--arch", "hybrid_lstm"),
        *("--encoder-layers", "2", "--encoder-embed-dim", "{hidden}"),
        *("--encoder-hidden-size", "{hidden}", "--batch-size", "{sentences}"),
    ),
    "language_model": (
        *("--task", "streamed_language_modeling", "--arch", "hybrid_lstm_lm"),
        *("--decoder-layers", "2", "--decoder-embed-dim", "{hidden}"),
        *("--decoder-hidden-size", "{hidden}", "--share-decoder-input-output-embed"),
        *("--tokens-per-sample", "35", "--batch-size", "32"),
    ),
}
BUCKET_MB = 1
"""as in translation_parallel.py"""
PYTORCH = ("--criterion", "cross_entropy", "--bucket-cap-mb", str(BUCKET_MB))
SYSTEMS = {
    "translation/legacy_ddp": ("--criterion", "cross_entropy"),
    "translation/pytorch_ddp": PYTORCH,
    "translation/hybrid": ("--criterion", "cross_entropy"),
    "translation/model_averaging": ("--criterion", "cross_entropy"),
    "language_model/legacy_ddp": ("--criterion", "cross_entropy"),
    "language_model/pytorch_ddp": PYTORCH,
    "language_model/sampled": ("--criterion", "sampled_softmax"),
    "language_model/model_averaging": ("--criterion", "cross_entropy"),
}
BASELINE = "legacy_ddp"


# On a host


def turn(options) -> None:
    """Run this host's part of a training; on host 0 print when and what its log said."""
    first = os.environ["NODE_RANK"] == "0"
    command = [
        *(str(BIN / "torchrun"), "--nnodes", "2", "--nproc-per-node", "1"),
        *("--node-rank", os.environ["NODE_RANK"]),
        *("--master-addr", os.environ["FIRST_HOST"], "--master-port", PORT),
        *(str(BIN / "fairseq-train"), *options.words),
    ]
    with tempfile.TemporaryFile("w+") as errors:
        job = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        marks = dict(marked(job.stdout))
        if job.wait():
            errors.seek(0)
            sys.stderr.write(errors.read()[-3000:])
            raise SystemExit(1)
    if first:
        last = options.warmup + options.updates
        (begin, sent_before), (end, sent) = marks[options.warmup], marks[last]
        rate = options.updates / (end - begin)
        print(json.dumps({"rate": rate, "bytes": (sent - sent_before) / options.updates}))


def marked(log: Iterator[str]) -> Iterator[tuple[int, tuple[float, int]]]:
    """Update number → (time, bytes sent until then), as the log goes by."""
    for line in log:
        found = re.search(r"\| train_inner \| (\{.*\})", line)
        if found:
            update = int(json.loads(found[1])["num_updates"])
            yield update, (time.monotonic(), sent_bytes())


def sent_bytes() -> int:
    for line in Path("/proc/self/net/dev").read_text().splitlines():
        name, _, counters = line.partition(":")
        if name.strip() == "wire":
            return int(counters.split()[8])
    raise SystemExit("error: no wire in /proc/self/net/dev: start it by devices.sh")


# Outside


def on_hosts(rate: str, *command: str) -> str:
    """What a command prints on host 0, both hosts running it."""
    words = ["bash", str(HERE / "devices.sh"), "2", "none", rate, sys.executable, *command]
    done = subprocess.run(
        words, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    if done.returncode:
        sys.stderr.write(done.stderr)
        raise SystemExit(f"error: {Path(command[0]).name} failed on the hosts: see above")
    return done.stdout


def measure(name: str, rate: str, data: dict[str, Path], options) -> dict:
    workload, backend = name.split("/")
    values = {**vars(options), "last": options.warmup + options.updates}
    words = [word.format(**values) for word in (*COMMON, *MODELS[workload])]
    flags = ("turn", "--warmup", str(options.warmup), "--updates", str(options.updates), "--")
    train = [
        *(str(data[workload]), "--user-dir", str(HERE.parent / "fairseq_hybrid"), *words),
        *(*SYSTEMS[name], "--ddp-backend", backend),
        *("--save-dir", str(data[workload] / "checkpoints")),
    ]
    return json.loads(on_hosts(rate, __file__, *flags, *train).splitlines()[-1])


def prepare(options, folder: Path) -> dict[str, Path]:
    """The data of each workload."""
    import common
    from translation_parallel import random_words

    pairs, text = folder / "pairs", options.wikitext2
    pairs.mkdir()
    sizes = argparse.Namespace(
        vocab=options.vocab,
        sentences=options.sentences,
        length=options.length,
        workers=2,
        updates=options.warmup + options.updates,
        rounds=1,
    )
    if text is None:
        text = folder / "text"
        corpus = str(HERE.parent / "examples/toy_corpus")
        command = (sys.executable, corpus, str(text), "--train", "20000")
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        for split in ("train", "valid", "test"):
            words = re.sub(r"([.,;:!?])(\s)", r" \1\2", (text / f"{split}.en").read_text())
            (text / f"wiki.{split}.tokens").write_text(words)
    return {
        "translation": random_words(sizes, pairs),
        "language_model": common.prepare_wikitext2(text, folder / "words"),
    }


def run(options) -> dict:
    import common

    rounds: dict[str, dict[str, list[dict]]] = {}
    calibrations: dict[str, dict] = {}
    with tempfile.TemporaryDirectory() as folder:
        data = prepare(options, Path(folder))
        for rate in options.rates:
            calibrations[rate] = json.loads(on_hosts(rate, str(HERE / "calibration.py")))
            rounds[rate] = {name: [] for name in options.systems}
            for number in range(options.rounds):
                for name in options.systems:
                    result = measure(name, rate, data, options)
                    rounds[rate][name].append(result)
                    print(
                        f"{rate}: round {number + 1}/{options.rounds} {name} "
                        f"{result['rate']:.3f} updates/s",
                        file=sys.stderr,
                        flush=True,
                    )
    return {
        "command": common.command(),
        "environment": common.environment(),
        "options": {k: v for k, v in vars(options).items() if k not in ("wikitext2", "json")},
        "text": "WikiText-2" if options.wikitext2 else "toy corpus",
        "link_mbit": {r: round(8 * c["link_mb_per_s"], 1) for r, c in calibrations.items()},
        "calibration": calibrations,
        "systems": {rate: summary(turns) for rate, turns in rounds.items()},
        "rounds": rounds,
    }


def summary(turns: dict[str, list[dict]]) -> dict[str, dict]:
    import common

    rates = {name: [t["rate"] for t in results] for name, results in turns.items()}
    sent = {name: [t["bytes"] / 1e6 for t in results] for name, results in turns.items()}
    result = {}
    for name in turns:
        workload = name.split("/")[0]
        same = {n: r for n, r in rates.items() if n.startswith(workload + "/")}
        result[name] = {
            "updates_per_second": common.medians(rates, 3)[name],
            "to_legacy_ddp": common.ratios(same, f"{workload}/{BASELINE}").get(name),
            "to_pytorch_ddp": common.ratios(same, f"{workload}/pytorch_ddp").get(name),
            "mb_per_update": common.medians(sent, 2)[name],
        }
    return result


def report(result: dict) -> None:
    print("| link | workload | backend | updates/s | to ddp | to pytorch | MB/update |")
    print("|---|---|---|--:|--:|--:|--:|")
    for rate, systems in result["systems"].items():
        for name, row in systems.items():
            workload, backend = name.split("/")
            ratios = [row["to_legacy_ddp"], row["to_pytorch_ddp"]]
            cells = " | ".join("–" if ratio is None else f"{ratio:.2f}" for ratio in ratios)
            print(
                f"| {rate} | {workload.replace('_', ' ')} | `{backend}` | "
                f"{row['updates_per_second']:.2f} | {cells} | {row['mb_per_update']:.1f} |"
            )
    from calibration import line

    for rate, found in result["calibration"].items():
        print(f"\n{rate}: {line(found)}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--rates", nargs="+", default=["1gbit", "100mbit"], metavar="RATE")
    add("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS), metavar="SYSTEM",
        help=", ".join(SYSTEMS))  # fmt: skip
    add("--rounds", type=int, default=3)
    add("--warmup", type=int, default=2, help="updates of a turn that do not count")
    add("--updates", type=int, default=10, help="of a turn; --averaging-interval is the same")
    add("--hidden", type=int, default=256, help="embedding and hidden size")
    add("--vocab", type=int, default=8000, help="translation: words")
    add("--sentences", type=int, default=64, help="translation: per worker and update")
    add("--length", type=int, default=24, help="translation: words per sentence")
    add("--wikitext2", type=Path, metavar="FOLDER", help="with wiki.{train,valid,test}.tokens")
    add("--json", type=Path, help="write the result here")
    options = parser.parse_args()
    for name in ("rounds", "warmup", "updates", "hidden", "sentences"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} {getattr(options, name)}: give 1 or more")
    for rate in options.rates:
        if not re.fullmatch(r"[1-9][0-9]*[kmg]bit|none", rate):
            parser.error(f"--rates {rate}: give rates such as 1gbit 100mbit, or none")
    if options.wikitext2 and not (options.wikitext2 / "wiki.train.tokens").exists():
        parser.error(f"--wikitext2 {options.wikitext2}: no wiki.train.tokens there")
    return options


def main() -> None:
    if sys.argv[1:2] == ["turn"]:
        parser = argparse.ArgumentParser()
        parser.add_argument("--warmup", type=int)
        parser.add_argument("--updates", type=int)
        parser.add_argument("words", nargs=argparse.REMAINDER)
        options = parser.parse_args(sys.argv[2:])
        options.words = options.words[1:]  # after --
        return turn(options)
    options = parse()
    result = run(options)
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(result, indent=2) + "\n")
    report(result)


if __name__ == "__main__":
    main()
