"""The table of benchmarks/translation_quality.sh, from the folders its trainings left.

    python benchmarks/translation_quality.py OUT RESULTS

Reads OUT/NAME-SEED/{train.log, seconds.txt, score.txt}; writes RESULTS/translation_quality.json and
prints a Markdown table. Times are CPU minutes (one thread each), which other work on the machine
does not change much; the time to the best epoch is its share of all epochs.
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
    bleu, signature = re.match(r"BLEU\|(\S+) = ([\d.]+)", (folder / "score.txt").read_text()).group(
        2, 1
    )
    return {
        "model": name,
        "seed": int(seed),
        "epochs": len(by_loss),
        "best_epoch": int(best),
        "best_updates": int(updates),
        "valid_ppl": round(2 ** float(nll), 2),
        "cpu_minutes": round(cpu / 60, 1),
        "cpu_minutes_to_best": round(cpu / 60 * int(best) / len(by_loss), 1),
        "bleu": float(bleu),
        "signature": signature,
    }


def main(out: str, results: str) -> None:
    rows = [read(score.parent) for score in sorted(Path(out).glob("*lstm-[0-9]*/score.txt"))]
    record = {"environment": common.environment(), "runs": rows}
    Path(results, "translation_quality.json").write_text(json.dumps(record, indent=2) + "\n")
    print("| model | seed | test2016 BLEU | valid ppl | best epoch | CPU minutes to it | in all |")
    print("|---|---|---|---|---|---|---|")
    for r in rows:
        print(
            f"| `{r['model']}` | {r['seed']} | {r['bleu']:.1f} | {r['valid_ppl']:.2f} | "
            f"{r['best_epoch']} of {r['epochs']} | {r['cpu_minutes_to_best']:.0f} | "
            f"{r['cpu_minutes']:.0f} |"
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
