"""The table of translation_quality.sh or parallel_quality.sh, from the folders its trainings left.

    python benchmarks/translation_quality.py OUT translation_quality lstm hybrid_lstm ...

Reads OUT/NAME-SEED/{train.log, seconds.txt, score.txt} of the models named; writes
benchmarks/results/translation_quality.json and prints a Markdown table. Rows of earlier runs that
are not in OUT are kept: each row says where and when it was measured. Where several checkpoints
were averaged, score.txt is theirs and score-best.txt the best one's. Times are CPU minutes (one
thread each), which other work on the machine does not change much; the time to the best epoch is
its share of all epochs.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import common


def read(folder: Path) -> dict:
    name, _, seed = folder.name.rpartition("-")
    log = (folder / "train.log").read_text()
    losses = re.findall(r"valid \| epoch (\d+) \|.*? nll_loss ([\d.]+) .*?num_updates (\d+)", log)
    by_loss = re.findall(r"valid \| epoch (\d+) \|.*? \| loss ([\d.]+) ", log)
    best = min(by_loss, key=lambda pair: float(pair[1]))[0]
    _, nll, updates = next(row for row in losses if row[0] == best)
    seconds = [map(float, line.split()) for line in (folder / "seconds.txt").open()]
    cpu = sum(user + system for _, user, system in seconds)
    bleu, signature = score(folder / "score.txt")
    average = None
    if (folder / "score-best.txt").exists():
        average, (bleu, _) = bleu, score(folder / "score-best.txt")
    return {
        "model": name,
        "seed": int(seed),
        "epochs": len(by_loss),
        "best_epoch": int(best),
        "best_updates": int(updates),
        "updates": int(losses[-1][2]),
        "valid_ppl": round(2 ** float(nll), 2),
        "cpu_minutes": round(cpu / 60, 1),
        "cpu_minutes_to_best": round(cpu / 60 * int(best) / len(by_loss), 1),
        "bleu": bleu,
        "bleu_average": average,
        "signature": signature,
        "curve": [
            {"updates": int(updates), "valid_ppl": round(2 ** float(nll), 2)}
            for _, nll, updates in losses
        ],
    }


def score(path: Path) -> tuple[float, str]:
    """BLEU and its signature."""
    signature, bleu = re.match(r"BLEU\|(\S+) = ([\d.]+)", path.read_text()).groups()
    return float(bleu), signature


def main(out: str, name: str, *models: str) -> None:
    found = sorted(path for model in models for path in Path(out).glob(f"{model}-[0-9]/score.txt"))
    here = common.environment()
    measured = {key: here[key] for key in ("machine", "date", "commit")}
    result = common.ROOT / "benchmarks" / "results" / f"{name}.json"
    runs = json.loads(result.read_text())["runs"] if result.exists() else []
    runs = {(r["model"], r["seed"]): r for r in runs if r["model"] in models}
    for path in found:
        row = read(path.parent)
        before = runs.get((row["model"], row["seed"]), {})
        same = before and all(before.get(key, value) == value for key, value in row.items())
        when = before["measured"] if same else measured
        runs[row["model"], row["seed"]] = {**row, "measured": when}
    rows = [runs[key] for key in sorted(runs, key=lambda key: (models.index(key[0]), key[1]))]
    record = {"environment": here, "runs": rows}
    result.write_text(json.dumps(record, indent=2) + "\n")
    titles = ("model", "seed", "BLEU", "averaged", "valid ppl", "best epoch", "CPU min to it")
    print("| " + " | ".join(titles) + " |")
    print("|" + "---|" * len(titles))
    for r in rows:
        average = "–" if r["bleu_average"] is None else f"{r['bleu_average']:.1f}"
        print(
            f"| `{r['model']}` | {r['seed']} | {r['bleu']:.1f} | {average} | {r['valid_ppl']:.2f} "
            f"| {r['best_epoch']} of {r['epochs']} | {r['cpu_minutes_to_best']:.0f} |"
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
