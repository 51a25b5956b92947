"""The table of benchmarks/averaging_quality.sh, from what its trainings left.

    python benchmarks/averaging_quality.py OUT RESULTS

Reads OUT/sweep.json (averaging_sweep.py) and, if it is there, RESULTS/averaging.json for the words
per second of each system; writes RESULTS/averaging_quality.json and prints a Markdown table. A
system's row is that of its best learning rate, by the perplexity at the end. Perplexity at equal
time: when the fastest system has seen all its words; the others are in the middle of their
training then, with a learning rate that is still high, and points in between are interpolated.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import common

SPEEDS = {
    # (backend, optimizer) → the system of averaging.py
    ("single", "sgd"): "single",
    ("single", "ng_sgd"): "single_ng",
    ("legacy_ddp", "sgd"): "legacy_ddp",
    ("bmuf", "sgd"): "bmuf",
    ("averaging", "sgd"): "averaging",
    ("averaging", "ng_sgd"): "averaging_ng",
    ("legacy_ddp", "ng_sgd"): "legacy_ddp_ng",
}


def best(rows: list[dict]) -> dict[tuple, dict]:
    """(backend, optimizer) → its best run; a run that diverged has no place."""
    chosen: dict[tuple, dict] = {}
    for row in rows:
        key, last = (row["backend"], row["optimizer"]), row["curve"][-1]["valid_ppl"]
        if math.isfinite(last) and (
            key not in chosen or last < chosen[key]["curve"][-1]["valid_ppl"]
        ):
            chosen[key] = row
    return {key: chosen[key] for key in SPEEDS if key in chosen}


def at(curve: list[dict], tokens: float) -> float | None:
    """Perplexity after so many words, between two validations by the line between their losses."""
    for before, after in zip(curve, curve[1:]):
        if before["tokens"] <= tokens <= after["tokens"]:
            share = (tokens - before["tokens"]) / (after["tokens"] - before["tokens"])
            losses = math.log(before["valid_ppl"]), math.log(after["valid_ppl"])
            return math.exp(losses[0] + share * (losses[1] - losses[0]))
    return None


def rates(results: Path) -> dict[str, float]:
    """Words per second, by system."""
    path = results / "averaging.json"
    if not path.exists():
        return {}
    systems = json.loads(path.read_text())["workloads"]["wikitext-2"]["systems"]
    return {name: system["tokens_per_second"] for name, system in systems.items()}


def summary(chosen: dict[tuple, dict], rate: dict[str, float]) -> list[dict]:
    known = {key: rate[SPEEDS[key]] for key in chosen if SPEEDS[key] in rate}
    ends = {key: chosen[key]["curve"][-1]["tokens"] for key in chosen}
    deadline = min((ends[key] / known[key] for key in known), default=0.0)
    reference = chosen.get(("legacy_ddp", "sgd"))
    rows = []
    for key, run in chosen.items():
        last = run["curve"][-1]
        rows.append(
            {
                **{name: run[name] for name in ("backend", "optimizer", "workers", "lr", "seed")},
                "tokens": last["tokens"],
                "valid_ppl": last["valid_ppl"],
                "to_ddp": reference and last["valid_ppl"] / reference["curve"][-1]["valid_ppl"] - 1,
                "tokens_per_second": known.get(key),
                "seconds": round(deadline, 1) or None,
                "valid_ppl_at_time": key in known
                and at(run["curve"], min(deadline * known[key], last["tokens"])),
            }
        )
    return rows


def table(rows: list[dict]) -> None:
    print(
        "| workers | backend | optimizer | best lr | ppl | to legacy_ddp, sgd | ppl at equal time |"
    )
    print("|--:|---|---|--:|--:|--:|--:|")
    for r in rows:
        more = "–" if r["to_ddp"] is None else f"{r['to_ddp']:+.1%}"
        timed = f"{r['valid_ppl_at_time']:.1f}" if r["valid_ppl_at_time"] else "–"
        print(
            f"| {r['workers']} | {r['backend']} | {r['optimizer']} | {r['lr']:g} | "
            f"{r['valid_ppl']:.1f} | {more} | {timed} |"
        )


def main(out: str, results: str) -> None:
    runs = json.loads(Path(out, "sweep.json").read_text())
    rows = summary(best(runs), rates(Path(results)))
    record = {"environment": common.environment(), "best": rows, "runs": runs}
    Path(results, "averaging_quality.json").write_text(json.dumps(record, indent=1) + "\n")
    table(rows)


if __name__ == "__main__":
    main(*sys.argv[1:])
