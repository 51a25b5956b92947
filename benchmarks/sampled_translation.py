"""What does a sampled softmax cost a translation model in quality, and what does it gain in time?

    python benchmarks/sampled_translation.py --data MULTI30K --out build/sampled    # hours
    python benchmarks/sampled_translation.py --out build/sampled --table            # what is there
    python benchmarks/sampled_translation.py --data MULTI30K --out build/tiny --vocab 500 \
        --seeds 1 --hidden 16 --updates 4                                           # a try

Multi30k de-en, joint sentencepiece vocabulary; one worker with one thread. For each seed:

    full            label_smoothed_cross_entropy, `--updates` updates
    sampled         sampled_softmax with the same smoothing, as many updates
    sampled, time   the same, going on until it has had as many minutes as `full`

Minutes are processor minutes of the trainings themselves. Where these run beside other work, take
the ratio of speeds of an alternating run instead (sampled_speed.py): `--faster 1.8` gives the third
system 1.8 times as many updates.

Each is a folder in `--out`, and when it is done its numbers are in run.json there: updates,
processor minutes of training with validation, BLEU and chrF of test2016 (beam 5, detokenised, last
checkpoint). A run that was stopped goes on from its last checkpoint; one that is done is not run
again. The table has means over seeds, and of the difference to `full` the mean of the pairs with
its 95 % interval (Student's t).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import resource
import shutil
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from common import ROOT, environment, prepare

FULL, SAMPLED, TIME = SYSTEMS = "full", "sampled", "sampled, time"
STUDENT = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78}
"""97.5 % quantile of t, by the number of pairs"""


def fairseq(command: str, *words: object, log: Path) -> float:
    """Run a command of fairseq's; returns its processor seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    call = [sys.executable, "-m", f"fairseq_cli.{command}", *map(str, words)]
    call += ["--user-dir", str(ROOT / "fairseq_hybrid"), "--cpu"]
    with log.open("a") as file:
        done = subprocess.run(call, stdout=file, stderr=subprocess.STDOUT, env=environment)
    if done.returncode:
        sys.exit(f"fairseq_cli.{command} failed: see {log}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def criterion(system: str, options) -> Sequence[object]:
    if system == FULL:
        name: tuple[object, ...] = ("label_smoothed_cross_entropy",)
    else:
        name = ("sampled_softmax",)
        if options.sample:
            name += ("--sample-frequent", options.sample[0], "--sample-random", options.sample[1])
    return "--criterion", *name, "--label-smoothing", options.smoothing


def train(folder: Path, data: Path, system: str, seed: int, updates: int, options) -> float:
    """Up to so many updates; returns the processor seconds since the first."""
    spent = folder / "seconds.json"
    seconds = json.loads(spent.read_text()) if spent.exists() else 0.0
    seconds += fairseq(
        "train", data, "--save-dir", folder, "--seed", seed, "--max-update", updates,
        *("--arch", "hybrid_lstm", "--encoder-layers", options.layers, "--share-all-embeddings"),
        *("--encoder-embed-dim", options.hidden, "--encoder-hidden-size", options.hidden),
        *("--encoder-bidirectional-first", "--dropout", options.dropout),
        *("--optimizer", "adam", "--lr", options.lr, "--clip-norm", "1.0"),
        *("--lr-scheduler", "inverse_sqrt", "--warmup-updates", min(400, updates)),
        *("--max-tokens", options.max_tokens, "--num-workers", "0", "--no-epoch-checkpoints"),
        *criterion(system, options),
        log=folder / "train.log",
    )  # fmt: skip
    spent.write_text(json.dumps(seconds))
    return seconds


def scores(folder: Path, data: Path, text: Path) -> dict[str, float]:
    """Of the last checkpoint."""
    import sacrebleu

    output = folder / "generate.log"
    output.unlink(missing_ok=True)
    fairseq(
        "generate", data, "--path", folder / "checkpoint_last.pt", "--beam", "5",
        *("--batch-size", "64", "--remove-bpe", "sentencepiece"), log=output,
    )  # fmt: skip
    found = re.findall(r"^D-(\d+)\t\S+\t(.*)$", output.read_text(), re.MULTILINE)
    lines = [line for _, line in sorted((int(number), line) for number, line in found)]
    wanted = [(text / "test2016.en").read_text(encoding="utf-8").splitlines()]
    return {
        "bleu": sacrebleu.corpus_bleu(lines, wanted).score,
        "chrf": sacrebleu.corpus_chrf(lines, wanted).score,
    }


def updates_of(system: str, seed: int, options) -> int:
    """As many as fit into the time of the full softmax, where that is asked for."""
    if system != TIME:
        return options.updates
    if options.faster:
        return round(options.updates * options.faster)
    full, sampled = (load(options.out, name, seed) for name in (FULL, SAMPLED))
    return round(options.updates * full["minutes"] / sampled["minutes"])


def place(out: Path, system: str, seed: int) -> Path:
    return out / f"{system.replace(', ', '-')}-{seed}"


def load(out: Path, system: str, seed: int) -> dict | None:
    done = place(out, system, seed) / "run.json"
    return json.loads(done.read_text()) if done.exists() else None


def run(system: str, seed: int, data: Path, options) -> None:
    if load(options.out, system, seed):
        return
    folder = place(options.out, system, seed)
    if system == TIME and not folder.exists():
        shutil.copytree(place(options.out, SAMPLED, seed), folder, ignore=lambda *_: ["run.json"])
    folder.mkdir(parents=True, exist_ok=True)
    updates = updates_of(system, seed, options)
    seconds = train(folder, data, system, seed, updates, options)
    shown = ["faster", "vocab", "hidden", "layers", "sample", "smoothing", "lr", "dropout"]
    shown.append("max_tokens")
    result = {
        "system": system,
        "seed": seed,
        "updates": updates,
        "minutes": seconds / 60,
        **scores(folder, data, options.data),
        "options": {name: getattr(options, name) for name in shown},
        "environment": environment(),
    }
    (folder / "run.json").write_text(json.dumps(result, indent=2) + "\n")


def save(options) -> None:
    """All runs that there are, in one file."""
    found = [load(options.out, system, seed) for system in SYSTEMS for seed in options.seeds]
    runs = [run for run in found if run]
    result = {"environment": runs[-1]["environment"], "runs": runs}
    options.json.write_text(json.dumps(result, indent=2) + "\n")


def interval(differences: list[float]) -> str:
    mean = statistics.mean(differences)
    if len(differences) not in STUDENT:
        return f"{mean:+.2f}"
    half = STUDENT[len(differences)] * statistics.stdev(differences) / math.sqrt(len(differences))
    return f"{mean:+.2f} ± {half:.2f}"


def table(options) -> None:
    print("| | seeds | updates | minutes | BLEU | chrF | BLEU - full | chrF - full |")
    print("| --- |" + " --: |" * 7)
    for system in SYSTEMS:
        runs = {seed: load(options.out, system, seed) for seed in options.seeds}
        runs = {seed: found for seed, found in runs.items() if found}
        if not runs:
            continue
        cells = [system, str(len(runs))]
        for name, digits in (("updates", 0), ("minutes", 1), ("bleu", 2), ("chrf", 2)):
            cells.append(f"{statistics.mean(r[name] for r in runs.values()):,.{digits}f}")
        full = {seed: load(options.out, FULL, seed) for seed in runs}
        for name in ("bleu", "chrf"):
            pairs = [r[name] - full[seed][name] for seed, r in runs.items() if full[seed]]
            cells.append(interval(pairs) if system != FULL and pairs else "")
        print(f"| {' | '.join(cells)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, default=os.environ.get("MULTI30K"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--table", action="store_true", help="only print what is there")
    parser.add_argument("--json", type=Path, help="collect what is there in this file")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS))
    parser.add_argument("--faster", type=float, help="how much faster updates of the sample are")
    parser.add_argument("--vocab", type=int, default=6000, help="sentencepiece's")
    parser.add_argument("--sample", type=int, nargs=2, metavar=("FREQUENT", "RANDOM"))
    parser.add_argument("--updates", type=int, default=8000)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--max-tokens", type=int, default=800)
    parser.add_argument("--smoothing", type=float, default=0.1)
    parser.add_argument("--dropout", type=float, default=0.3)
    parser.add_argument("--lr", type=float, default=0.002)
    options = parser.parse_args()
    if not options.table:
        if options.data is None:
            parser.error("--data FOLDER (or the variable MULTI30K) must say where the text is")
        data = prepare(options.data, options.out / f"data-{options.vocab}", options.vocab)
        for seed in options.seeds:
            for system in options.systems:
                run(system, seed, data, options)
                table(options)
    else:
        table(options)
    if options.json:
        save(options)


if __name__ == "__main__":
    main()
