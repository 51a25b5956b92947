"""The tables of benchmarks/language_model_quality.sh, from the folders its trainings left.

    python benchmarks/language_model_quality.py OUT RESULTS

Reads OUT/NAME-SEED/{run.txt, train.log, test.log, seconds.txt}; writes
RESULTS/language_model_quality.json, with matplotlib also RESULTS/language_model_quality.png, and
prints Markdown tables. Training time is the sum of fairseq's `train_wall`, without validation,
which is by full softmax whatever is trained. Rows of earlier runs that are not in OUT are kept:
each row says where and when it was measured. Words per second are those of all workers; under
`async` fairseq's log has worker 0's only, so they are taken times the workers.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import common

TRAIN = re.compile(r" \| train \| epoch (\d+) \|.*? wps ([\d.]+) .*? train_wall (\d+)")
VALID = re.compile(r" \| valid \| epoch (\d+) \|.*? ppl ([\d.]+) ")
SENT = re.compile(r" \| train \| .*? sent_mb ([\d.]+)")

TITLES = {
    "full": "full softmax, 1 worker",
    "sampled": "sampled softmax, 1 worker",
    "sampled-2": "sampled softmax, 2 workers",
}
"""of the runs in the plot"""


def read(folder: Path) -> dict:
    name, _, seed = folder.name.rpartition("-")
    _, workers, backend, criterion = (folder / "run.txt").read_text().strip().split(";")
    log = (folder / "train.log").read_text()
    seconds = {int(epoch): int(wall) for epoch, _, wall in TRAIN.findall(log)}
    valid = {int(epoch): float(ppl) for epoch, ppl in VALID.findall(log)}
    curve, elapsed = [], 0
    for epoch in sorted(valid):
        elapsed += seconds[epoch]
        curve.append({"epoch": epoch, "train_seconds": elapsed, "valid_ppl": valid[epoch]})
    sent = SENT.findall(log)
    processor = [map(float, line.split()) for line in (folder / "seconds.txt").open()]
    return {
        "run": name,
        "seed": int(seed),
        "workers": int(workers),
        "backend": backend,
        "criterion": criterion,
        "tokens_per_second": [
            float(wps) * (int(workers) if backend == "async" else 1)
            for _, wps, _ in TRAIN.findall(log)
        ],
        "mb_sent_per_update": float(sent[-1]) if sent else 0.0,
        "curve": curve,
        "cpu_minutes": round(sum(user + system for _, user, system in processor) / 60, 1),
        "test_ppl": float(re.search(r"Perplexity: ([\d.]+)", (folder / "test.log").read_text())[1]),
    }


def table(rows: list[dict], full: float | None) -> None:
    print("| run | workers | criterion | test ppl | to full | training s | tok/s | MB per update |")
    print("|---|--:|---|--:|--:|--:|--:|--:|")
    for r in rows:
        more = f"{r['test_ppl'] / full - 1:+.1%}" if full else "–"
        rate = sum(r["tokens_per_second"]) / len(r["tokens_per_second"])
        print(
            f"| {r['run']} | {r['workers']} | `{r['criterion']}` | {r['test_ppl']:.1f} | {more} | "
            f"{r['curve'][-1]['train_seconds']:,} | {rate:,.0f} | {r['mb_sent_per_update']:.1f} |"
        )


def plot(rows: list[dict], path: Path) -> None:
    """Validation perplexity against training time."""
    try:
        from matplotlib import pyplot
    except ImportError:
        print(f"no matplotlib: {path.name} not drawn", file=sys.stderr)
        return
    figure, axes = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
    for r in rows:
        points = [(c["train_seconds"] / 60, c["valid_ppl"]) for c in r["curve"]]
        axes.plot(*zip(*points), marker="o", label=TITLES[r["run"]])
    axes.set(xscale="log", xlabel="minutes of training", ylabel="validation perplexity")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_title("a sixth of WikiText-2, an LSTM layer of 128")
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    figure.savefig(path, dpi=120)


def main(out: str, results: str) -> None:
    finished = sorted(Path(out).glob("*/finished"), key=lambda path: path.stat().st_mtime)
    here, file = common.environment(), Path(results, "language_model_quality.json")
    runs = json.loads(file.read_text())["runs"] if file.exists() else []
    runs = {(r["run"], r["seed"]): r for r in runs}
    for path in finished:
        row = read(path.parent)
        measured = {key: here[key] for key in ("machine", "date", "commit")}
        runs[row["run"], row["seed"]] = {**row, "measured": measured}
    rows = sorted(runs.values(), key=lambda r: (r["workers"], r["run"]))
    if not rows:
        sys.exit(f"{out}: no finished run")
    file.write_text(json.dumps({"environment": here, "runs": rows}, indent=2) + "\n")
    full = [r["test_ppl"] for r in rows if r["run"].startswith("full")]
    table(rows, min(full) if full else None)
    curves = [r for r in rows if r["run"] in TITLES]
    if curves:
        plot(curves, Path(results, "language_model_quality.png"))


if __name__ == "__main__":
    main(*sys.argv[1:])
