"""What tables.py and averaging_tables.py share: Markdown, and where a table was measured."""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
NONE = "–"
DATA_PARALLEL = ("legacy_ddp", "pytorch_ddp")


def load(file: str) -> dict:
    return json.loads((RESULTS / file).read_text())


def markdown(titles: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    titles = list(titles)
    lines = [titles, ["---"] + ["--:"] * (len(titles) - 1), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def cell(value: float | str | None, form: str = "{}") -> str:
    return NONE if value is None else form.format(value)


def table(
    titles: Iterable[str], rows: Iterable[Iterable[str]], result: dict, file: str, command: str = ""
) -> str:
    """Rows, the calibration of emulated devices if there is one, and the command that measured."""
    parts = [markdown(titles, rows), calibration(result), source(result, file, command)]
    return "\n\n".join(part for part in parts if part)


def source(result: dict, file: str, command: str = "") -> str:
    """Where a table comes from. `command` replaces the one in the file."""
    where = result["environment"]
    command = command or where["command"]
    command = re.sub(r" --(json|cache) \S+", "", command)
    command = re.sub(r"…/(wikitext-2|multi30k)\b", "FOLDER", command)
    state = ", with changes" if where["dirty"] else ""
    return (
        f"(`{command}`; {where['machine']}, {where.get('cores', 2)} cores, torch {where['torch']}, "
        f"{where['date'][:10]}, commit {where['commit']}{state}; `benchmarks/results/{file}`)"
    )


CALIBRATION = {
    "products_ratio": "matrix products of all devices at once {:.2f} times those of one",
    "round_trip_ms": "a message and its answer {:.2f} ms",
    "link_mb_per_s": "the link {:,.0f} MB/s in each direction",
    "flop_per_byte": "{:,.0f} FLOP per byte of the link",
}


def calibration(result: dict) -> str:
    """What the emulated devices of this run can do; empty if they were not emulated."""
    measured = result.get("calibration") or result["environment"].get("calibration")
    if not measured:
        return ""
    said = (t.format(measured[k]) for k, t in CALIBRATION.items() if measured.get(k) is not None)
    return f"Calibration of the emulated devices: {'; '.join(said)}."


def systems(
    file: str, workload: str, titles: Mapping[str, str], columns: Mapping[str, tuple[str, str]]
) -> str:
    """Of a benchmark made with crew.py: a row for each system."""
    result = load(file)
    rows = result["workloads"][workload]["systems"]
    return table(["", *columns], cells(rows, titles, columns, file), result, file)


def cells(
    rows: Mapping[str, dict],
    titles: Mapping[str, str],
    columns: Mapping[str, tuple[str, str]],
    file: str,
) -> list[list[str]]:
    """A row for each system, in the order of `titles`; `columns`: title → (key, format)."""
    unknown = sorted(set(rows) - set(titles))
    if unknown:
        sys.exit(f"tables.py: {file} has systems without a title: {', '.join(unknown)}")
    return [
        [title, *(cell(rows[name].get(key), form) for key, form in columns.values())]
        for name, title in titles.items()
        if name in rows
    ]


def to_best_data_parallelism(workload: dict) -> str:
    """Adds `to_best` to each system: its speed over that of the fastest data parallelism, as a
    median of the ratios within a round. Returns the name of that one."""
    rows, rounds = workload["systems"], workload["rounds"]
    several = [name for name in DATA_PARALLEL if name in rows]
    best = max(several, key=lambda name: rows[name]["tokens_per_second"])
    speeds = {n: [r["tokens"] / r["seconds"] for r in turns] for n, turns in rounds.items()}
    for name, row in rows.items():
        row["to_best"] = median_ratio(speeds[name], speeds[best])
    return best


def median_ratio(own: Iterable[float], other: Iterable[float]) -> float:
    """Of two systems' speeds: the median of their ratios within a round."""
    return statistics.median(a / b for a, b in zip(own, other))
