"""The table of a series of trainings, from what they left in their folders.

    python results.py OUT NAME BASELINE,... RUN...

A run is a folder OUT/RUN with run.txt (lines `title: ...`, `workers: ...`), train.log of
fairseq-train (`--log-format simple`) and score.txt (sacreBLEU's line) or test.log (of
fairseq-eval-lm). Prints a Markdown table and writes it with where and when as OUT/NAME.json.

    tokens/s   target tokens of the updates, over the time spent in them (fairseq's train_wall: no
               validation, no saving); `epoch_tokens: N` in run.txt says how many there are in an
               epoch, for backends whose log counts only worker 0's
    speed-up   tokens/s over those of each baseline
"""

from __future__ import annotations

import datetime
import json
import platform
import re
import subprocess
import sys
from pathlib import Path

TRAIN = re.compile(r"\| train \| epoch (.*)")
VALID = re.compile(r"\| valid \| epoch (.*)")


def fields(line: str) -> dict[str, float]:
    """`epoch 001 | loss 4.2 | ...` as numbers."""
    pairs = (part.split() for part in f"epoch {line}".split(" | "))
    return {pair[0]: float(pair[1].replace(",", "")) for pair in pairs if len(pair) == 2}


def read(folder: Path) -> dict:
    """What a run was and what came out of it."""
    lines = (folder / "run.txt").read_text().splitlines()
    run = dict(line.split(": ", 1) for line in lines)
    log = (folder / "train.log").read_text()
    epochs = [fields(line) for line in TRAIN.findall(log)]
    valid = [fields(line) for line in VALID.findall(log)]
    if not epochs:
        raise SystemExit(f"results.py: {folder}/train.log has no finished epoch: train it first")
    updates, tokens, seconds = 0.0, 0.0, 0.0
    for epoch in epochs:
        new, updates = epoch["num_updates"] - updates, epoch["num_updates"]
        tokens += float(run.get("epoch_tokens", epoch["wpb"] * new))
        seconds += epoch["train_wall"]
    return {
        "run": folder.name,
        "title": run["title"],
        "workers": int(run["workers"]),
        "updates": int(updates),
        "train_seconds": round(seconds),
        "tokens_per_second": round(tokens / max(seconds, 1), 1),
        "mb_per_update": epochs[-1].get("sent_mb"),
        "valid_ppl": min((v["ppl"] for v in valid), default=None),
        **score(folder),
    }


def score(folder: Path) -> dict:
    if (folder / "score.txt").exists():
        line = (folder / "score.txt").read_text()
        signature, bleu = re.match(r"BLEU\|(\S+) = ([\d.]+)", line).groups()
        return {"bleu": float(bleu), "signature": signature}
    if (folder / "test.log").exists():
        found = re.findall(r"Perplexity: ([\d.]+)", (folder / "test.log").read_text())
        return {"test_ppl": float(found[-1])} if found else {}
    return {}


def environment() -> dict:
    import torch

    def git(*words: str) -> str:
        here = Path(__file__).parent
        done = subprocess.run(["git", *words], cwd=here, capture_output=True, text=True)
        return done.stdout.strip()

    names = re.findall(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return {
        "machine": names[0] if names else platform.processor(),
        "gpus": torch.cuda.device_count(),
        "date": datetime.datetime.now().isoformat(timespec="seconds"),
        "commit": git("rev-parse", "--short", "HEAD") or "none",
        "torch": torch.__version__,
    }


def table(rows: list[dict], baselines: list[str]) -> list[str]:
    columns = {"tokens/s": ("tokens_per_second", "{:,.0f}")}
    for name in baselines:
        columns[f"to `{name}`"] = (f"to_{name}", "{:.2f}×")
    columns |= {
        "MB sent per update": ("mb_per_update", "{:,.1f}"),
        "updates": ("updates", "{:,}"),
        "training s": ("train_seconds", "{:,}"),
        "valid ppl": ("valid_ppl", "{:.2f}"),
        "test ppl": ("test_ppl", "{:.2f}"),
        "BLEU": ("bleu", "{:.1f}"),
    }
    columns = {
        title: (key, form)
        for title, (key, form) in columns.items()
        if any(row.get(key) is not None for row in rows)
    }
    lines = ["| | workers | " + " | ".join(columns) + " |", "|---|--:|" + "--:|" * len(columns)]
    for row in rows:
        cells = [row["title"], str(row["workers"])]
        for key, form in columns.values():
            cells.append("–" if row.get(key) is None else form.format(row[key]))
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def main(out: str, name: str, baselines: str, *runs: str) -> None:
    rows = [read(Path(out, run)) for run in runs]
    there = [b for b in baselines.split(",") if b in runs]
    for baseline in there:
        base = next(row["tokens_per_second"] for row in rows if row["run"] == baseline)
        for row in rows:
            row[f"to_{baseline}"] = round(row["tokens_per_second"] / base, 3)
    record = {"environment": environment(), "runs": rows}
    path = Path(out, f"{name}.json")
    path.write_text(json.dumps(record, indent=2) + "\n")
    print("\n".join(table(rows, there)))
    where = record["environment"]
    print(f"\n{where['machine']}, torch {where['torch']}, {where['date']}; {path}")


if __name__ == "__main__":
    main(*sys.argv[1:])
