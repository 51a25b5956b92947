"""What tables.py and averaging_tables.py share: Markdown, and where a table was measured."""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from measured import within_rounds

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
    titles: Iterable[str],
    rows: Iterable[Iterable[str]],
    result: dict,
    file: str,
    command: str = "",
    below: str = "",
) -> str:
    """Rows, what stands below them, and the command that measured them."""
    parts = [markdown(titles, rows), below, source(result, file, command)]
    return "\n\n".join(part for part in parts if part)


def source(result: dict, file: str, command: str = "") -> str:
    """Where a table comes from. `command` replaces the one in the file."""
    where = result["environment"]
    command = command or where["command"]
    command = re.sub(r" --(json|cache) \S+", "", command)
    command = re.sub(r"(…|\.\.\S*)/(wikitext-2|multi30k)\b", "FOLDER", command)
    state = ", with changes" if where["dirty"] else ""
    return (
        f"(`{command}`; {where['machine']}, {where.get('cores', 2)} cores, torch {where['torch']}, "
        f"{where['date'][:10]}, commit {where['commit']}{state}; `benchmarks/results/{file}`)"
    )


def calibration(measured: dict) -> str:
    """What the workers' cores and the link between them had to give in this run."""
    found = measured.get("calibration")
    if not found:
        return ""
    return (
        f"Calibration: matrix products of all workers together {found['products_ratio']:.2f} times "
        f"those of one, a message and its answer {found['round_trip_ms']:.2f} ms, "
        f"{found['link_mb_per_s']:,.0f} MB/s in each direction, "
        f"{found['flop_per_byte']:,.0f} FLOP per byte of the link."
    )


def systems(
    file: str, workload: str, titles: Mapping[str, str], columns: Mapping[str, tuple[str, str]]
) -> str:
    """Of a benchmark made with crew.py: a row for each system."""
    result = load(file)
    found = result["workloads"][workload]
    rows = cells(found["systems"], titles, columns, file)
    return table(["", *columns], rows, result, file, below=calibration(found))


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
    """Adds `to_best` to each system: its speed over that of the fastest data parallelism, as the
    benchmarks' own ratios are made. Returns the name of that one."""
    rows, rounds = workload["systems"], workload["rounds"]
    several = [name for name in DATA_PARALLEL if name in rows]
    best = max(several, key=lambda name: rows[name]["tokens_per_second"])
    for name, found in within_rounds(rounds, best).items():
        rows[name]["to_best"] = statistics.median(found)
    return best


def median_ratio(own: Iterable[float], other: Iterable[float]) -> float:
    """Of two systems' speeds: the median of their ratios within a round."""
    return statistics.median(a / b for a, b in zip(own, other))
