"""The tables of model averaging; see tables.py."""

from __future__ import annotations

from collections.abc import Callable

from tabular import cell, load, systems, table

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
}
