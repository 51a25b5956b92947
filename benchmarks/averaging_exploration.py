"""What the sweeps of benchmarks/averaging_exploration.sh left, as one JSON and one picture.

    python benchmarks/averaging_exploration.py OUT

Reads OUT/{short,long,pretraining}/runs; writes averaging_exploration.json and .png into
benchmarks/results. The tables are made by tables.py.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import get_type_hints

import common

sys.path.insert(0, str(common.ROOT / "examples" / "language_model"))

from averaging_sweep import Run, read

RESULTS = common.ROOT / "benchmarks" / "results"
SWEEPS = ("short", "long", "pretraining")


def runs(folder: Path) -> list[dict]:
    """Of a sweep, whichever are finished."""
    found = []
    for finished in sorted(folder.glob("runs/*/finished")):
        words = finished.parent.name.split("-")
        kinds = get_type_hints(Run).values()
        run = Run(*(kind(word) for kind, word in zip(kinds, words)))
        row = read(run, finished.parent)
        found.append({k: v for k, v in row.items() if k not in ("wall", "cpu")})
    return found


def plot(rows: list[dict], path: Path) -> None:
    """Perplexity against workers and against the interval."""
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(12, 4.5), layout="constrained")
    names = {"sgd": "SGD", "ng_sgd": "NG-SGD", "rbm": "pretrained", "random": "random start"}
    usual = [r for r in rows if r["minibatch"] == 128]
    for number, optimizer in enumerate(("sgd", "ng_sgd")):
        for start, line in (("random", "--"), ("rbm", "-")):
            some = [r for r in usual if (r["optimizer"], r["start"]) == (optimizer, start)]
            points = sorted((r["workers"], last(r)) for r in some if r["interval"] == 10)
            if points:
                label = f"{names[optimizer]}, {names[start]}"
                left.plot(*zip(*points), line, marker="o", color=f"C{number}", label=label)
        for workers, line in ((2, "-"), (4, "--"), (8, "-."), (16, ":")):
            some = [r for r in usual if (r["optimizer"], r["start"]) == (optimizer, "rbm")]
            points = sorted((r["interval"], last(r)) for r in some if r["workers"] == workers)
            if points:
                label = f"{names[optimizer]}, {workers} workers"
                right.plot(*zip(*points), line, marker="o", color=f"C{number}", label=label)
    left.set(xscale="log", xlabel="workers", title="a meeting every 10 updates")
    right.set(xscale="log", xlabel="updates between two meetings", title="pretrained")
    for axes, ticks in ((left, (1, 2, 4, 8, 16)), (right, (1, 10, 50))):
        axes.set_xticks(ticks, map(str, ticks))
        axes.minorticks_off()
        axes.set_ylabel("validation perplexity")
        axes.grid(alpha=0.3)
    left.legend(fontsize=8)
    right.legend(fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.savefig(path, dpi=120)


def last(row: dict) -> float:
    return row["curve"][-1]["valid_ppl"]


def main(out: str) -> None:
    found = {name: runs(Path(out, name)) for name in SWEEPS}
    record = {"environment": common.environment(), **found}
    (RESULTS / "averaging_exploration.json").write_text(json.dumps(record, indent=1) + "\n")
    print({name: len(rows) for name, rows in found.items()})
    try:
        plot(found["short"], RESULTS / "averaging_exploration.png")
    except ImportError:
        print("no matplotlib: no picture", file=sys.stderr)


if __name__ == "__main__":
    main(*sys.argv[1:])
