"""What can be said of the turns of several systems: rates, ratios within a round, a table."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping

Rounds = dict[str, list[dict]]
"""system → what came out of each of its turns"""


def medians(values: Mapping[str, list[float]], digits: int) -> dict[str, float]:
    return {name: round(statistics.median(v), digits) for name, v in values.items()}


def ratios(rates: Mapping[str, list[float]], baseline: str) -> dict[str, float]:
    """Median of the ratios within each round: what the machine does to both cancels out."""
    if baseline not in rates:
        return {}
    return {
        name: round(statistics.median(a / b for a, b in zip(values, rates[baseline])), 2)
        for name, values in rates.items()
    }


def every(rounds: Rounds, value: Callable[[dict], float]) -> dict[str, list[float]]:
    """A number of each turn of each system."""
    return {name: [value(turn) for turn in turns] for name, turns in rounds.items()}


def rate(turn: Mapping[str, float]) -> float:
    return turn["tokens"] / turn["seconds"]


def rates(rounds: Rounds) -> dict[str, list[float]]:
    return every(rounds, rate)


def within_rounds(
    rounds: Rounds, baseline: str, value: Callable[[Mapping], float] = rate
) -> dict[str, list[float]]:
    """system → in each round, its value over that of `baseline`.

    Where one worker was measured beside every turn of the others, their values are taken as ratios
    to what was beside them, so what the machine did in the meantime cancels out.
    """
    if baseline not in rounds:
        return {}
    others = [turns for turns in rounds.values() if "beside" in turns[0]]

    def relative(turns: list[dict]) -> list[float]:
        if "beside" in turns[0]:
            return [value(turn) / value(turn["beside"]) for turn in turns]
        return [1.0] * len(others[0]) if others else [value(turn) for turn in turns]

    mine = {name: relative(turns) for name, turns in rounds.items()}
    return {name: [a / b for a, b in zip(v, mine[baseline])] for name, v in mine.items()}


def common_columns(rounds: Rounds, baseline: str) -> dict[str, dict[str, float]]:
    """What can be said of any system: column → system → value."""
    sgemm = every(rounds, lambda r: r["sgemm"])
    per_cpu = every(rounds, lambda r: r["tokens"] / r["cpu_seconds"])

    def megabytes(key):
        return medians(every(rounds, lambda r: r[key] / r["updates"] / 1e6), 2)

    def ratios(value):
        return medians(within_rounds(rounds, baseline, value), 2)

    return {
        "tokens_per_second": medians(rates(rounds), 1),
        "speed_up": ratios(rate),
        "ms_per_update": medians(every(rounds, lambda r: 1000 * r["seconds"] / r["updates"]), 1),
        "tokens_per_update": medians(every(rounds, lambda r: r["tokens"] / r["updates"]), 1),
        "mb_counted": megabytes("bytes_counted"),
        "mb_loopback": megabytes("bytes_loopback"),
        "mb_busiest": megabytes("bytes_busiest"),
        "peak_mb": {n: round(max(r[-1]["peak_bytes"]) / 1e6) for n, r in rounds.items()},
        "tokens_per_cpu_second": medians(per_cpu, 1),
        "sgemm": medians(sgemm, 1),
        "sgemm_ratio": ratios(lambda turn: turn["sgemm"]),
    }


def by_system(columns: Mapping[str, Mapping[str, float]], rounds: Rounds) -> dict[str, dict]:
    """system → column → value, None where there is none."""
    return {name: {key: values.get(name) for key, values in columns.items()} for name in rounds}


def print_table(
    columns: Mapping[str, tuple[str, str]], rows: Mapping[str, dict], titles: Mapping[str, str]
) -> None:
    """Markdown. `columns`: title → (key in a row, format)."""
    print("| system | " + " | ".join(columns) + " |")
    print("|---|" + "--:|" * len(columns))
    for name, row in rows.items():
        cells = [titles[name]]
        for key, form in columns.values():
            cells.append("–" if row[key] is None else form.format(row[key]))
        print("| " + " | ".join(cells) + " |", flush=True)
