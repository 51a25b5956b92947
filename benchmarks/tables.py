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
    "MB sent per update": ("mb_loopback", "{:,.0f}"),
    "peak MB per worker": ("peak_mb", "{:,.0f}"),
    "the machine's sgemm": ("sgemm_ratio", "{:.2f}"),
}


def parallel(file: str, workload: str, program: str = "") -> Callable[[], str]:
    """`program`: what started the benchmark, if that was something else."""
    return lambda: systems(file, workload, PARALLEL_TITLES, PARALLEL_COLUMNS, program)


LANGUAGE_TITLES = {
    "pytorch": "1 worker, plain PyTorch, full softmax",
    "fairseq": "1 worker, fairseq's `lstm_lm`, full softmax",
    "full": "1 worker, full softmax",
    "adaptive": "1 worker, fairseq's adaptive softmax",
    "sampled": "1 worker, `sampled_softmax`",
    "dense2": "2 workers, full softmax, `legacy_ddp`",
    "messages2": "2 workers, the same by messages",
    "sampled2": "2 workers, `sampled_softmax`, `sampled`",
}
LANGUAGE_COLUMNS = {
    "tok/s": ("tokens_per_second", "{:,.0f}"),
    "to full softmax": ("speed_up", "{:.2f}"),
    "to plain PyTorch": ("to_pytorch", "{:.2f}"),
    "to fairseq's `lstm_lm`": ("to_fairseq", "{:.2f}"),
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
}


def filled(text: str) -> str:
    """A document with the tables that its marks ask for."""

    def table(match: re.Match) -> str:
        return f"{match[1]}{TABLES[match[2]]()}\n{match[3]}"

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
