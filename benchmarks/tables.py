"""The tables of README.md and docs/, from the JSON that the benchmarks left in benchmarks/results.

    python benchmarks/tables.py            rewrites what stands between the marks in the files
    python benchmarks/tables.py --check    says which files are not what the JSON gives; exit code 1

A table stands between `<!-- table: NAME -->` and `<!-- end -->`, and says below where,
when, from which commit and by which command it was measured. Whoever changes a number by hand
loses it here, and tests/test_documents.py notices.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
MARKED = re.compile(r"(<!-- table: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
NONE = "–"


def markdown(titles: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    titles = list(titles)
    lines = [titles, ["---"] + ["--:"] * (len(titles) - 1), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def cell(value: float | str | None, form: str = "{}") -> str:
    return NONE if value is None else form.format(value)


def source(result: dict, file: str, command: str) -> str:
    """Where a table comes from."""
    where = result["environment"]
    command = re.sub(r" --(json|cache) \S+", "", command)
    command = re.sub(r"…/(wikitext-2|multi30k)\b", "FOLDER", command)
    state = ", with changes" if where["dirty"] else ""
    return (
        f"(`{command}`; {where['machine']}, {where.get('cores', 2)} cores, torch {where['torch']}, "
        f"{where['date'][:10]}, commit {where['commit']}{state}; `benchmarks/results/{file}`)"
    )


def systems(
    file: str,
    workload: str,
    titles: dict[str, str],
    columns: dict[str, tuple[str, str]],
    program: str = "",
) -> str:
    """Of a benchmark made with crew.py: a row for each system."""
    result = json.loads((RESULTS / file).read_text())
    rows = result["workloads"][workload]["systems"]
    cells = [
        [title, *(cell(rows[name].get(key), form) for key, form in columns.values())]
        for name, title in titles.items()
        if name in rows
    ]
    command = result["environment"]["command"]
    if program:
        command = re.sub(r"python \S+", program, command)
    return markdown(["", *columns], cells) + "\n\n" + source(result, file, command)


def translation_single() -> str:
    file = "translation_single.json"
    result = json.loads((RESULTS / file).read_text())
    training, generation = result["training"], result["generation"]["wall"]
    names = {
        "fairseq lstm": "fairseq `lstm`",
        "fairseq lstm, buffers kept": "fairseq `lstm` with our allocator setting",
        "hybrid_lstm --input-feeding": "`hybrid_lstm --input-feeding`",
        "hybrid_lstm": "`hybrid_lstm`",
    }
    rows = [
        [
            title,
            f"{training['wall']['tokens_per_second'][name]:,.0f}",
            f"{training['wall']['ratio'][name]:.2f}",
            f"{training['of_peak'][name]:.0%}",
            f"{generation['sentences_per_second'][name]:.1f}",
            f"{generation['ratio'][name]:.2f}",
        ]
        for name, title in names.items()
    ]
    titles = ["", "training tok/s", "ratio", "of sgemm peak", "beam 5, sentences/s", "ratio"]
    command = "python benchmarks/translation_single.py --data FOLDER"
    return markdown(titles, rows) + "\n\n" + source(result, file, command)


def translation_quality() -> str:
    file = "translation_quality.json"
    result = json.loads((RESULTS / file).read_text())
    names = {
        "lstm": "fairseq `lstm`",
        "bidirectional_lstm": "fairseq `lstm --encoder-bidirectional`",
        "hybrid_lstm": "`hybrid_lstm`",
        "feeding_hybrid_lstm": "`hybrid_lstm --input-feeding`",
        "bidirectional_hybrid_lstm": "`hybrid_lstm --encoder-bidirectional-first`",
    }
    rows = [
        [
            names[r["model"]],
            str(r["seed"]),
            f"{r['bleu']:.1f}",
            cell(r.get("bleu_average"), "{:.1f}"),
            f"{r['valid_ppl']:.2f}",
            f"{r['best_epoch']} of {r['epochs']}",
            f"{r['cpu_minutes_to_best']:.0f}",
        ]
        for r in sorted(result["runs"], key=lambda r: (list(names).index(r["model"]), r["seed"]))
    ]
    titles = ["", "seed", "BLEU", "averaged", "valid. ppl", "best epoch", "CPU minutes to it"]
    command = "MULTI30K=FOLDER bash benchmarks/translation_quality.sh"
    return markdown(titles, rows) + "\n\n" + source(result, file, command)


def parallel_quality() -> str:
    file = "parallel_quality.json"
    result = json.loads((RESULTS / file).read_text())
    names = {"single": "1 worker", **{k: v for k, v in PARALLEL_TITLES.items() if k != "single"}}
    rows = [
        [
            names[r["model"]],
            str(r["seed"]),
            f"{r['bleu']:.1f}",
            f"{r['valid_ppl']:.2f}",
            f"{r['updates']:,}",
            f"{r['cpu_minutes']:.0f}",
        ]
        for r in sorted(result["runs"], key=lambda r: (list(names).index(r["model"]), r["seed"]))
    ]
    titles = ["", "seed", "BLEU", "valid. ppl", "updates", "CPU minutes"]
    command = "MULTI30K=FOLDER bash benchmarks/parallel_quality.sh"
    return markdown(titles, rows) + "\n\n" + source(result, file, command)


PARALLEL_TITLES = {
    "feeding": "1 worker, `--input-feeding`",
    "single": "1 worker",
    "threads": "1 worker, 2 threads",
    "legacy_ddp": "2 workers, `legacy_ddp`",
    "model_parallel": "2 workers, `model_parallel`",
    "hybrid": "2 workers, `hybrid`",
    "decoupled": "2 workers, `hybrid`, decoupled",
}
PARALLEL_COLUMNS = {
    "target tok/s": ("tokens_per_second", "{:,.0f}"),
    "speed-up": ("speed_up", "{:.2f}"),
    "to `legacy_ddp`": ("to_legacy_ddp", "{:.2f}"),
    "MB sent per update": ("mb_counted", "{:,.0f}"),
    "peak MB per worker": ("peak_mb", "{:,.0f}"),
    "the machine's sgemm": ("sgemm_ratio", "{:.2f}"),
}


def parallel(file: str, workload: str, program: str = "") -> Callable[[], str]:
    """`program`: what started the benchmark, if that was something else."""
    return lambda: systems(file, workload, PARALLEL_TITLES, PARALLEL_COLUMNS, program)


LANGUAGE_TITLES = {
    "pytorch": "1 worker, plain PyTorch, full softmax",
    "fairseq": "1 worker, fairseq's `lstm_lm`, full softmax",
    "fairseq_adaptive": "1 worker, fairseq's `lstm_lm`, its adaptive softmax",
    "full": "1 worker, full softmax",
    "adaptive": "1 worker, fairseq's adaptive softmax",
    "sampled": "1 worker, `sampled_softmax`",
    "dense2": "2 workers, full softmax, `legacy_ddp`",
    "messages2": "2 workers, `sampled_softmax`, `sampled`, by messages",
    "sampled2": "2 workers, `sampled_softmax`, `sampled`",
}
LANGUAGE_COLUMNS = {
    "tok/s": ("tokens_per_second", "{:,.0f}"),
    "to full softmax": ("speed_up", "{:.2f}"),
    "to plain PyTorch": ("to_pytorch", "{:.2f}"),
    "to fairseq's `lstm_lm`": ("to_fairseq", "{:.2f}"),
    "to the same, adaptive": ("to_fairseq_adaptive", "{:.2f}"),
    "words in the softmax": ("words", "{:,.0f}"),
    "MB sent per update": ("mb_counted", "{:,.0f}"),
    "of dense": ("of_dense", "{:.1%}"),
    "peak MB per worker": ("peak_mb", "{:,.0f}"),
}


LANGUAGE_QUALITY = "language_model_quality.json"
LANGUAGE_QUALITY_COMMAND = "WIKITEXT2=FOLDER bash benchmarks/language_model_quality.sh"


def language_model_quality() -> str:
    """One worker: what a sample costs, and its parts."""
    result = json.loads((RESULTS / LANGUAGE_QUALITY).read_text())
    full = min(r["test_ppl"] for r in result["runs"] if r["run"].startswith("full"))
    rows = [
        [
            f"`{r['run']}`",
            f"`{r['criterion']}`",
            f"{r['test_ppl']:.1f}",
            f"{r['test_ppl'] / full - 1:+.1%}",
            f"{r['cpu_minutes']:.1f}",
        ]
        for r in result["runs"]
        if r["workers"] == 1
    ]
    titles = ["", "criterion", "test ppl", "to full", "CPU minutes"]
    return (
        markdown(titles, rows) + "\n\n" + source(result, LANGUAGE_QUALITY, LANGUAGE_QUALITY_COMMAND)
    )


def language_model_workers() -> str:
    """Two workers, with and without waiting for each other, beside one."""
    result = json.loads((RESULTS / LANGUAGE_QUALITY).read_text())
    shown = [r for r in result["runs"] if r["workers"] > 1 or r["run"] in ("full", "sampled")]
    rows = [
        [
            f"{r['workers']}, `{r['criterion']}`"
            + (f" under `{r['backend']}`" if r["workers"] > 1 else ""),
            f"{statistics.median(r['tokens_per_second']):,.0f}",
            f"{r['mb_sent_per_update']:.1f}" if r["workers"] > 1 else NONE,
            f"{r['curve'][-1]['train_seconds']:,}",
            f"{r['test_ppl']:.1f}",
        ]
        for r in shown
    ]
    titles = ["workers", "tok/s", "MB per update", "training, s", "test ppl"]
    return (
        markdown(titles, rows) + "\n\n" + source(result, LANGUAGE_QUALITY, LANGUAGE_QUALITY_COMMAND)
    )


AVERAGING_TITLES = {
    "single": "1 worker, SGD",
    "single_ng": "1 worker, NG-SGD",
    "legacy_ddp": "2 workers, `legacy_ddp`, SGD",
    "legacy_ddp_ng": "2 workers, `legacy_ddp`, NG-SGD",
    "bmuf": "2 workers, fairseq's `--use-bmuf`, SGD",
    "slowmo": "2 workers, fairseq's `slowmo`, SGD",
    "averaging": "2 workers, `model_averaging`, SGD",
    "averaging_ng": "2 workers, `model_averaging`, NG-SGD",
}
AVERAGING_COLUMNS = {
    "tok/s": ("tokens_per_second", "{:,.0f}"),
    "to 1 worker with the same optimizer": ("speed_up", "{:.2f}"),
    "to 1 worker, SGD": ("to_single", "{:.2f}"),
    "to `legacy_ddp`": ("to_ddp", "{:.2f}"),
    "ms per update": ("ms_per_update", "{:,.1f}"),
    "MB sent per update": ("mb_counted", "{:,.2f}"),
    "the machine's sgemm": ("sgemm_ratio", "{:.2f}"),
}
AVERAGING_BACKENDS = {
    "single": "1 worker",
    "legacy_ddp": "2 workers, `legacy_ddp`",
    "bmuf": "2 workers, fairseq's `--use-bmuf`",
    "averaging": "2 workers, `model_averaging`",
}
OPTIMIZERS = {"sgd": "SGD", "ng_sgd": "NG-SGD"}


def averaging_quality() -> str:
    file = "averaging_quality.json"
    result = json.loads((RESULTS / file).read_text())
    rows = [
        [
            AVERAGING_BACKENDS[r["backend"]],
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
    return markdown(titles, rows) + "\n\n" + source(result, file, command)


EXPLORATION = "averaging_exploration.json"


def exploration(
    sweep: str, rows: tuple[str, ...], column: str, unit: str, **wanted: object
) -> Callable[[], str]:
    """Perplexities of a sweep's runs that have what is wanted: a row for each of the values of
    `rows`, a column for each of `column`."""

    def made() -> str:
        result = json.loads((RESULTS / EXPLORATION).read_text())
        runs = [r for r in result[sweep] if all(r[k] in v for k, v in wanted.items())]
        values = sorted({r[column] for r in runs}, key=lambda v: (isinstance(v, str), v))
        keys = sorted({tuple(r[name] for name in rows) for r in runs}, reverse=True)
        found = {(tuple(r[n] for n in rows), r[column]): r["curve"][-1]["valid_ppl"] for r in runs}
        lines = [
            [
                *(OPTIMIZERS.get(str(value), str(value)) for value in key),
                *(cell(found.get((key, value)), "{:.1f}") for value in values),
            ]
            for key in sorted(keys, key=lambda key: tuple(map(_order, key)))
        ]
        titles = [*rows, *(f"{unit} {value}" for value in values)]
        command = "WIKITEXT2=FOLDER bash benchmarks/averaging_exploration.sh"
        return markdown(titles, lines) + "\n\n" + source(result, EXPLORATION, command)

    return made


def _order(value: object) -> tuple:
    order = ["sgd", "ng_sgd", "random", "rbm"]
    return (order.index(value), 0) if value in order else (0, value)


def averaging_pretraining() -> str:
    result = json.loads((RESULTS / EXPLORATION).read_text())
    runs = sorted(result["pretraining"], key=lambda r: (_order(r["start"]), r["lr"], r["seed"]))
    rows = [
        [
            r["start"],
            f"{r['lr']:g}",
            str(r["seed"]),
            *(f"{point['valid_ppl']:.1f}" for point in r["curve"]),
        ]
        for r in runs
    ]
    words = [f"{point['tokens']:,} words" for point in runs[0]["curve"]]
    command = "WIKITEXT2=FOLDER bash benchmarks/averaging_exploration.sh"
    return (
        markdown(["start", "rate", "seed", *words], rows)
        + "\n\n"
        + source(result, EXPLORATION, command)
    )


def planning() -> str:
    file = "planning.json"
    result = json.loads((RESULTS / file).read_text())
    rows = []
    for name, shape in result["workloads"].items():
        found, several = shape["verdict"], shape["alternatives"]
        fastest = min(r["measured"] for r in several if r["backend"] != "single")
        one = next(r["measured"] for r in several if r["backend"] == "single")
        rows.append(
            [
                f"{name}: {shape['shape']}",
                found["chosen"],
                found["fastest"],
                f"{found['behind']:.1%}",
                f"{2 * one / fastest:.2f}",
                cell(found["errors"].get("hybrid"), "{:+.1%}"),
                f"{found['errors']['legacy_ddp']:+.1%}",
                cell(found.get("decoupled"), "{:.2f}"),
            ]
        )
    titles = ["shape", "chosen", "fastest", "behind", "speed-up of it", "error, `hybrid`"]
    titles += ["error, `legacy_ddp`", "`decoupled` to `hybrid`"]
    return markdown(titles, rows) + "\n\n" + source(result, file, result["environment"]["command"])


def two_hosts() -> str:
    file = "two_hosts.json"
    result = json.loads((RESULTS / file).read_text())
    names = {"translation": "translation", "language_model": "language model"}
    rows = []
    for rate, found in result["systems"].items():
        for name, row in found.items():
            workload, backend = name.split("/")
            rows.append(
                [
                    rate.replace("bit", "bit/s"),
                    names[workload],
                    f"`{backend}`",
                    f"{row['updates_per_second']:.2f}",
                    f"{row['to_legacy_ddp']:.2f}",
                    f"{row['mb_per_update']:.1f}",
                ]
            )
    titles = ["link", "", "backend", "updates/s", "to `legacy_ddp`", "MB per update and host"]
    return markdown(titles, rows) + "\n\n" + source(result, file, result["command"])


TABLES: dict[str, Callable[[], str]] = {
    "translation_single": translation_single,
    "translation_quality": translation_quality,
    "translation_parallel": parallel("translation_parallel.json", "fixed"),
    "translation_parallel_multi30k": parallel("translation_parallel_multi30k.json", "multi30k"),
    "translation_decoupled": parallel("translation_decoupled.json", "fixed"),
    "translation_1gbit": parallel(
        "translation_1gbit.json", "fixed", "bash benchmarks/slow_link.sh 1gbit"
    ),
    "translation_2500mbit": parallel(
        "translation_2500mbit.json", "fixed", "bash benchmarks/slow_link.sh 2500mbit"
    ),
    "parallel_quality": parallel_quality,
    "language_model": lambda: systems(
        "language_model.json", "wikitext-2", LANGUAGE_TITLES, LANGUAGE_COLUMNS
    ),
    "language_model_quality": language_model_quality,
    "language_model_workers": language_model_workers,
    "averaging": lambda: systems(
        "averaging.json", "wikitext-2", AVERAGING_TITLES, AVERAGING_COLUMNS
    ),
    "averaging_large": lambda: systems(
        "averaging_large.json", "wikitext-2", AVERAGING_TITLES, AVERAGING_COLUMNS
    ),
    "averaging_quality": averaging_quality,
    "averaging_workers": exploration(
        "short", ("optimizer", "start"), "workers", "workers:", minibatch=(128,), interval=(10,)
    ),
    "averaging_intervals": exploration(
        "short",
        ("optimizer", "workers"),
        "interval",
        "updates apart:",
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
    "averaging_pretraining": averaging_pretraining,
    "planning": planning,
    "two_hosts": two_hosts,
}


def filled(text: str) -> str:
    """A document with the tables that its marks ask for."""

    def table(match: re.Match) -> str:
        try:
            return f"{match[1]}{TABLES[match[2]]()}\n{match[3]}"
        except FileNotFoundError as missing:
            sys.exit(f"tables.py: table {match[2]} needs {Path(missing.filename).name}: measure it")

    return MARKED.sub(table, text)


def documents() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def main() -> None:
    if sys.argv[1:] not in ([], ["--check"]):
        sys.exit(f"tables.py: unknown {' '.join(sys.argv[1:])}: only --check is known")
    wrong = []
    for path in documents():
        text = path.read_text()
        if filled(text) != text:
            wrong.append(path.relative_to(ROOT))
            if not sys.argv[1:]:
                path.write_text(filled(text))
    for path in wrong:
        print(f"{path}: {'is not what the JSON gives' if sys.argv[1:] else 'rewritten'}")
    sys.exit(bool(wrong and sys.argv[1:]))


if __name__ == "__main__":
    main()
