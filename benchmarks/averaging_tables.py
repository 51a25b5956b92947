"""The tables of model averaging; see tables.py."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable

from tabular import NONE, RESULTS, cell, load, systems, table

QUALITY, EXPLORATION = "averaging_quality.json", "averaging_exploration.json"
EXPLORATION_COMMAND = "WIKITEXT2=FOLDER bash benchmarks/averaging_exploration.sh"
TITLES = {
    "single": "1 worker, SGD",
    "single_ng": "1 worker, NG-SGD",
    "threads": "1 worker, 2 threads, SGD",
    "legacy_ddp": "2 workers, `legacy_ddp`, SGD",
    "pytorch_ddp": "2 workers, `pytorch_ddp`, SGD",
    "legacy_ddp_ng": "2 workers, `legacy_ddp`, NG-SGD",
    "pytorch_ddp_ng": "2 workers, `pytorch_ddp`, NG-SGD",
    "bmuf": "2 workers, fairseq's `--use-bmuf`, SGD",
    "slowmo": "2 workers, fairseq's `slowmo`, SGD",
    "averaging": "2 workers, `model_averaging`, SGD",
    "averaging_ng": "2 workers, `model_averaging`, NG-SGD",
    "apart": "2 workers, nothing exchanged",
    "outer": "2 workers, outer Nesterov",
    "overlap": "2 workers, outer Nesterov, overlapped",
}
COLUMNS = {
    "tok/s": ("tokens_per_second", "{:,.0f}"),
    "to 1 worker with the same optimizer": ("speed_up", "{:.2f}"),
    "to 1 worker, SGD": ("to_single", "{:.2f}"),
    "to `legacy_ddp`": ("to_ddp", "{:.2f}"),
    "ms per update": ("ms_per_update", "{:,.1f}"),
    "MB sent per update": ("mb_counted", "{:,.2f}"),
    "matrix products": ("sgemm_ratio", "{:.2f}"),
}
BACKENDS = {
    "single": "1 worker",
    "legacy_ddp": "2 workers, `legacy_ddp`",
    "bmuf": "2 workers, fairseq's `--use-bmuf`",
    "averaging": "2 workers, `model_averaging`",
}
OPTIMIZERS = {"sgd": "SGD", "ng_sgd": "NG-SGD"}
ORDER = ["sgd", "ng_sgd", "random", "rbm"]


def speed(file: str) -> Callable[[], str]:
    return lambda: systems(file, "wikitext-2", TITLES, COLUMNS)


def quality() -> str:
    result = load(QUALITY)
    rows = [
        [
            BACKENDS[r["backend"]],
            OPTIMIZERS[r["optimizer"]],
            f"{r['lr']:g}",
            f"{r['valid_ppl']:.1f}",
            f"{r['to_ddp']:+.1%}",
            cell(r["valid_ppl_at_time"] or None, "{:.1f}"),
        ]
        for r in result["best"]
    ]
    time = result["best"][0]["seconds"]
    titles = ["", "optimizer", "best rate", "perplexity", "to `legacy_ddp`, SGD"]
    titles.append(f"after {time:.0f} s" if time else "at equal time")
    command = "WIKITEXT2=FOLDER bash benchmarks/averaging_quality.sh"
    return table(titles, rows, result, QUALITY, command)


def exploration(
    sweep: str, rows: tuple[str, ...], column: str, unit: str, **wanted: object
) -> Callable[[], str]:
    """Perplexities of a sweep's runs that have what is wanted: a row for each of the values of
    `rows`, a column for each of `column`."""

    def made() -> str:
        result = load(EXPLORATION)
        runs = [r for r in result[sweep] if all(r[k] in v for k, v in wanted.items())]
        values = sorted({r[column] for r in runs}, key=lambda v: (isinstance(v, str), v))
        keys = {tuple(r[name] for name in rows) for r in runs}
        found = {(tuple(r[n] for n in rows), r[column]): r["curve"][-1]["valid_ppl"] for r in runs}
        lines = [
            [
                *(OPTIMIZERS.get(str(value), str(value)) for value in key),
                *(cell(found.get((key, value)), "{:.1f}") for value in values),
            ]
            for key in sorted(keys, key=lambda key: tuple(map(_order, key)))
        ]
        titles = [*rows, *(f"{unit} {value}" for value in values)]
        return table(titles, lines, result, EXPLORATION, EXPLORATION_COMMAND)

    return made


def _order(value: object) -> tuple:
    return (ORDER.index(value), 0) if value in ORDER else (0, value)


def pretraining() -> str:
    result = load(EXPLORATION)
    runs = sorted(result["pretraining"], key=lambda r: (_order(r["start"]), r["lr"], r["seed"]))
    rows = [
        [
            *(r["start"], f"{r['lr']:g}", str(r["seed"])),
            *(f"{point['valid_ppl']:.1f}" for point in r["curve"]),
        ]
        for r in runs
    ]
    words = [f"{point['tokens']:,} words" for point in runs[0]["curve"]]
    titles = ["start", "rate", "seed", *words]
    return table(titles, rows, result, EXPLORATION, EXPLORATION_COMMAND)


OUTER_TITLES = {
    "ddp": "`legacy_ddp`, Adam",
    "bmuf": "`--use-bmuf`, Adam",
    "mean_sgd": "plain mean, SGD",
    "mean_ng": "plain mean, NG-SGD",
    "mean": "plain mean, Adam",
    "outer": "outer Nesterov, Adam",
    "overlap": "the same, overlapped",
    "mean_warm": "plain mean, Adam, warm-up",
    "outer_warm": "outer Nesterov, Adam, warm-up",
}
SLOW_LINK_COLUMNS = {
    "tok/s": ("tokens_per_second", "{:,.0f}"),
    "to no exchange": ("to_apart", "{:.3f}"),
    "MB sent per update": ("mb_counted", "{:,.2f}"),
    "by the kernel": ("mb_loopback", "{:,.2f}"),
}
SETTINGS = ("lr", "outer_rate", "outer_momentum")
OUTER_COMMAND = "python benchmarks/averaging_outer.py compare --task lm --data FOLDER"


def trainings(task: str) -> list[dict]:
    """What averaging_outer.py left."""
    return [json.loads(p.read_text()) for p in sorted(RESULTS.glob(f"averaging_outer/{task}_*"))]


def those(found: list[dict], **wanted: object) -> list[dict]:
    return [one for one in found if all(one["run"][key] == v for key, v in wanted.items())]


def over_seeds(found: list[dict], key: str, form: str = "{:.1f}") -> str:
    """Mean, and half of what the seeds are apart."""
    values = [one["result"][key] for one in found]
    if not values:
        return NONE
    apart = f" ± {form.format((max(values) - min(values)) / 2)}" if len(values) > 1 else ""
    return form.format(statistics.mean(values)) + apart


def outer_quality() -> str:
    """All systems at equal words: the best of those that tuned, then in full length."""
    found = trainings("lm")
    short, full = sorted({one["run"]["updates"] for one in found})[-2:]
    rows = []
    for system, title in OUTER_TITLES.items():
        mine = those(found, system=system)
        mine = [one for one in mine if one["run"]["interval"] == (1 if system == "ddp" else 50)]
        if not mine:
            continue
        tuned = those(mine, updates=short)
        if tuned and len(tuned) < 3:  # not yet
            continue
        best = min(tuned or mine, key=lambda one: one["result"]["valid_ppl"])
        run = best["run"]
        mine = those(mine, **{key: run[key] for key in SETTINGS})
        settings = f"{run['lr']:g}"
        if run["outer_momentum"]:
            settings += f"; {run['outer_rate']:g}, {run['outer_momentum']:g}"
        rows.append(
            [
                *(title, settings, over_seeds([best] if tuned else [], "valid_ppl")),
                *(over_seeds(those(mine, updates=full, workers=n), "valid_ppl") for n in (2, 4, 8)),
                f"{best['result']['mb_per_update']:.2f}",
            ]
        )
    titles = ["perplexity", "rate; outer rate, momentum", f"{short} updates"]
    titles += [f"{full:,} updates, 2 workers", "4", "8", "MB per update"]
    return table(titles, rows, found[-1], "averaging_outer/", OUTER_COMMAND)


def slow_link() -> str:
    """Two files: where gradients are sent, an update takes six times as long."""
    titles = {name: title.replace(", SGD", "") for name, title in TITLES.items()}
    files = ("averaging_100mbit.json", "averaging_100mbit_ddp.json")
    return "\n\n".join(systems(file, "wikitext-2", titles, SLOW_LINK_COLUMNS) for file in files)


def outer_translation() -> str:
    found = trainings("mt")
    full = max(one["run"]["updates"] for one in found)
    rows = []
    for system, title in OUTER_TITLES.items():
        mine = those(found, system=system, updates=full)
        for workers in (2, 4, 8):
            if at := those(mine, workers=workers):
                rate, lr = f"{at[0]['run']['lr']:g}", at[0]["result"]["mb_per_update"]
                scores = over_seeds(at, "bleu"), over_seeds(at, "valid_ppl", "{:.2f}")
                rows.append([title, str(workers), rate, *scores, f"{lr:.2f}"])
    titles = ["", "workers", "rate", "BLEU", "valid. ppl", "MB per update"]
    command = OUTER_COMMAND.replace("lm", "mt")
    return table(titles, rows, found[-1], "averaging_outer/", command)


def outer_intervals() -> str:
    """Quality against the number of updates between two averagings: two workers, seed 1."""
    found = those(trainings("lm"), workers=2, seed=1)
    found = those(found, updates=max(one["run"]["updates"] for one in found))
    intervals = sorted({one["run"]["interval"] for one in found} - {1})
    rows = []
    for system, title in OUTER_TITLES.items():
        mine = those(found, system=system)
        settings = sorted({tuple(one["run"][key] for key in SETTINGS) for one in mine})
        for setting in settings:
            same = those(mine, **dict(zip(SETTINGS, setting)))
            each = [those(same, interval=interval) for interval in intervals]
            if system == "ddp":
                each = [same] * len(intervals)
            elif len(same) == 1:
                continue
            words = f"{setting[0]:g}" + f"; {setting[1]:g}, {setting[2]:g}" * bool(setting[2])
            rows.append([title, words, *(over_seeds(at, "valid_ppl") for at in each)])
    titles = ["perplexity, interval:", "rate; outer rate, momentum", *map(str, intervals)]
    command = OUTER_COMMAND.replace("compare", "intervals")
    return table(titles, rows, found[-1], "averaging_outer/", command)


TABLES: dict[str, Callable[[], str]] = {
    "averaging": speed("averaging.json"),
    "averaging_large": speed("averaging_large.json"),
    "averaging_quality": quality,
    "averaging_workers": exploration(
        "short", ("optimizer", "start"), "workers", "workers:", minibatch=(128,), interval=(10,)
    ),
    "averaging_intervals": exploration(
        "short",
        ("optimizer", "workers"),
        "interval",
        "interval:",
        minibatch=(128,),
        start=("rbm",),
        workers=(2, 4, 8, 16),
    ),
    "averaging_minibatches": exploration(
        "short",
        ("optimizer", "workers"),
        "minibatch",
        "words:",
        interval=(10,),
        start=("rbm",),
        workers=(2, 16),
    ),
    "averaging_long": exploration("long", ("optimizer", "schedule"), "workers", "workers:"),
    "averaging_pretraining": pretraining,
    "averaging_outer": outer_quality,
    "averaging_100mbit": slow_link,
    "averaging_outer_translation": outer_translation,
    "averaging_outer_intervals": outer_intervals,
}
