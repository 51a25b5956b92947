"""The tables of README.md and docs/, from the JSON that the benchmarks left in benchmarks/results.

    python benchmarks/tables.py            rewrites what stands between the marks in the files
    python benchmarks/tables.py --check    says which files are not what the JSON gives; exit code 1

A table stands between `<!-- table: NAME -->` and `<!-- end -->`, and says below where,
when, from which commit and by which command it was measured. A number that is changed by hand is
lost here; tests/test_documents.py notices.
"""

from __future__ import annotations

import re
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

import averaging_tables
import export
import softmax_tables
from tabular import (
    DATA_PARALLEL,
    NONE,
    RESULTS,
    ROOT,
    calibration,
    cell,
    cells,
    load,
    markdown,
    median_ratio,
    systems,
    table,
    to_best_data_parallelism,
)

MARKED = re.compile(r"(<!-- table: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
README_WORKLOAD = "fixed"
"""of the table in the README: fixed or multi30k"""


def translation_single() -> str:
    file = "translation_single.json"
    result = load(file)
    training, generation = result["training"], result["searches"]["beam 5"]["wall"]
    names = {
        "fairseq lstm": "fairseq `lstm`",
        "fairseq lstm, buffers kept": "fairseq `lstm` with our allocator setting",
        "hybrid_lstm --input-feeding": "`hybrid_lstm --input-feeding`",
        "hybrid_lstm": "`hybrid_lstm`",
    }
    rounds = training["wall"]["rounds"]
    best = "fairseq lstm, buffers kept"
    rows = [
        [
            title,
            f"{training['wall']['tokens_per_second'][name]:,.0f}",
            f"{training['wall']['ratio'][name]:.2f}",
            f"{median_ratio(rounds[name], rounds[best]):.2f}",
            f"{training['of_peak'][name]:.0%}",
            f"{generation['sentences_per_second'][name]:.1f}",
            f"{generation['ratio'][name]:.2f}",
        ]
        for name, title in names.items()
    ]
    titles = ["", "training tok/s", "to fairseq `lstm`", "to the same, our allocator setting"]
    titles += ["of `torch.mm`'s peak", "beam 5, sentences/s", "to fairseq `lstm`"]
    command = "python benchmarks/translation_single.py --data FOLDER"
    return table(titles, rows, result, file, command)


def searches() -> str:
    file = "translation_single.json"
    result = load(file)
    rows = []
    for kind, found in result["searches"].items():
        cpu = found["cpu"]  # one thread
        speeds = [cpu["sentences_per_second"][name] for name in ("fairseq lstm", "hybrid_lstm")]
        ratio = cpu["ratio"]["hybrid_lstm"]
        rows.append([kind, *(f"{speed:.1f}" for speed in speeds), f"{ratio:.2f}"])
    titles = ["sentences per processor second", "fairseq `lstm`", "`hybrid_lstm`", "ratio"]
    command = "python benchmarks/translation_single.py --data FOLDER"
    return table(titles, rows, result, file, command)


def translation_quality() -> str:
    file = "translation_quality.json"
    result = load(file)
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
    return table(titles, rows, result, file, command)


def parallel_quality() -> str:
    file = "parallel_quality.json"
    result = load(file)
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
    return table(titles, rows, result, file, command)


PARALLEL_TITLES = {
    "feeding": "1 worker, `--input-feeding`",
    "single": "1 worker",
    "threads": "1 worker, 2 threads",
    "legacy_ddp": "2 workers, `legacy_ddp`",
    "pytorch_ddp": "2 workers, `pytorch_ddp`",
    "model_parallel": "2 workers, `model_parallel`",
    "hybrid": "2 workers, `hybrid`",
    "decoupled": "2 workers, `hybrid`, decoupled",
}
WORKLOADS = {"fixed": "Batches of one shape", "multi30k": "Multi30k's batches"}
LINKS = {
    "loopback": "translation_parallel",
    "2.5 Gbit/s": "translation_2500mbit",
    "1 Gbit/s": "translation_1gbit",
}
"""link between two workers → name of its JSON, also with `_multi30k` at its end"""
SHARED_BUCKET = (
    "(An older measurement: both directions share one token bucket of this rate, and the only "
    "data parallelism is `legacy_ddp`.)"
)


def parallel(file: str, workload: str) -> str:
    """A row for each system of translation_parallel.py."""
    result = load(file)
    measured = result["workloads"][workload]
    best = to_best_data_parallelism(measured)
    both = all(name in measured["systems"] for name in DATA_PARALLEL)
    columns = {
        "target tok/s": ("tokens_per_second", "{:,.0f}"),
        "speed-up": ("speed_up", "{:.2f}"),
        f"to `{best}`" + (", the faster of both" if both else ""): ("to_best", "{:.2f}"),
        "MB sent per update": ("mb_counted", "{:,.0f}"),
        "peak MB per worker": ("peak_mb", "{:,.0f}"),
        "matrix products": ("sgemm_ratio", "{:.2f}"),
    }
    rows = cells(measured["systems"], PARALLEL_TITLES, columns, file)
    return table(["", *columns], rows, result, file, below=calibration(measured))


FOUR_TITLES = {
    **{name: title.replace("2 workers", "4 workers") for name, title in PARALLEL_TITLES.items()},
    "fp16_hook": "4 workers, `pytorch_ddp`, `--ddp-comm-hook fp16`",
    "whole_head": "4 workers, `hybrid`, `--hybrid-head whole`",
    "bf16": "4 workers, `hybrid`, `--hybrid-messages bf16`",
    "hybrid_feeding": "4 workers, `hybrid`, `--input-feeding`",
    "replicas": "4 workers, `hybrid`, `--hybrid-stages 2`",
}
FOUR_LINKS = {
    "none": "no limit",
    "1gbit": "1 Gbit/s",
    "500mbit": "500 Mbit/s",
    "250mbit": "250 Mbit/s",
}


def four_devices() -> str:
    """A table for each link that was measured."""
    parts = []
    for rate, link in FOUR_LINKS.items():
        file = f"four_{rate}.json"
        if not (RESULTS / file).exists():
            continue
        result = load(file)
        measured = result["workloads"]["multi30k"]
        best = to_best_data_parallelism(measured)
        single = measured["systems"]["single"]
        for row in measured["systems"].values():
            row["of_products"] = row["speed_up"] / row["sgemm_ratio"]
            row["waits"] = row["idle"] or None
        single["of_products"] = None
        columns = {
            "target tok/s": ("tokens_per_second", "{:,.0f}"),
            "speed-up": ("speed_up", "{:.2f}"),
            "of matrix products": ("of_products", "{:.0%}"),
            f"to `{best}`": ("to_best", "{:.2f}"),
            "waits": ("waits", "{:.0%}"),
            "MB of the busiest link": ("mb_busiest", "{:,.0f}"),
            "peak MB per worker": ("peak_mb", "{:,.0f}"),
            "matrix products": ("sgemm_ratio", "{:.2f}"),
        }
        rows = cells(measured["systems"], FOUR_TITLES, columns, file)
        made = table(["", *columns], rows, result, file, below=calibration(measured))
        parts += [f"**Links: {link}**", made]
    return "\n\n".join(parts)


def measured_links(workload: str) -> dict[str, str]:
    """Link → file, of those links for which this workload was measured."""
    found = {}
    for link, name in LINKS.items():
        for file in (f"{name}_{workload}.json", f"{name}.json"):
            if (RESULTS / file).exists() and workload in load(file)["workloads"]:
                found[link] = file
                break
    return found


def two_workers() -> str:
    """A table for each link and workload that was measured."""
    parts = []
    for workload, title in WORKLOADS.items():
        for link, file in measured_links(workload).items():
            parts += [f"**{title}, {link}**", parallel(file, workload)]
            if link != "loopback" and not calibration(load(file)["workloads"][workload]):
                parts.append(SHARED_BUCKET)
    return "\n\n".join(parts)


def shown_links() -> dict[str, tuple[str, dict]]:
    """Of the README: link → its file and systems. A link counts only where both its directions
    have the rate (its devices are calibrated) and the best data parallelism was measured."""
    shown = {}
    for link, file in measured_links(README_WORKLOAD).items():
        found = load(file)["workloads"][README_WORKLOAD]
        if link == "loopback" or (calibration(found) and "pytorch_ddp" in found["systems"]):
            shown[link] = (file, found["systems"])
    return shown


def comparison() -> str:
    """For the README: speed over one worker by link."""
    shown = shown_links()
    local = shown["loopback"][1]
    wanted = [n for n in PARALLEL_TITLES if n not in ("feeding", "model_parallel")]
    lines = []
    for name in wanted:
        speeds = [rows.get(name, {}).get("speed_up") for _, rows in shown.values()]
        if any(speeds):
            sent = local.get(name, {}).get("mb_counted")
            row = [*(cell(speed, "{:.2f}") for speed in speeds), cell(sent, "{:,.0f}")]
            lines.append([PARALLEL_TITLES[name], *row])
    titles = ["speed over one worker", *shown, "MB sent per update"]
    files = ", ".join(f"`benchmarks/results/{file}`" for file, _ in shown.values())
    where = "[docs/benchmarks.md](docs/benchmarks.md#translation-on-two-workers)"
    made = f"(`python benchmarks/tables.py`, from {files}; how it was measured: {where})"
    return markdown(titles, lines) + "\n\n" + made


LANGUAGE_TITLES = {
    "pytorch": "1 worker, plain PyTorch, full softmax",
    "fairseq": "1 worker, fairseq's `lstm_lm`, full softmax",
    "fairseq_adaptive": "1 worker, fairseq's `lstm_lm`, its adaptive softmax",
    "full": "1 worker, full softmax",
    "adaptive": "1 worker, fairseq's adaptive softmax",
    "sampled": "1 worker, `sampled_softmax`",
    "threads": "1 worker, 2 threads, full softmax",
    "dense2": "2 workers, full softmax, `legacy_ddp`",
    "pytorch2": "2 workers, full softmax, `pytorch_ddp`",
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
    result = load(LANGUAGE_QUALITY)
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
    return table(titles, rows, result, LANGUAGE_QUALITY, LANGUAGE_QUALITY_COMMAND)


def language_model_workers() -> str:
    """Two workers, with and without waiting for each other, beside one."""
    result = load(LANGUAGE_QUALITY)
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
    return table(titles, rows, result, LANGUAGE_QUALITY, LANGUAGE_QUALITY_COMMAND)


def planning() -> str:
    file = "planning.json"
    result = load(file)
    rows = []
    for name, shape in result["workloads"].items():
        found, several = shape["verdict"], shape["alternatives"]
        exact = [r for r in several if r["backend"] != "single" and r.get("exact", True)]
        fastest = min(r["measured"] for r in exact)
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
    return table(titles, rows, result, file)


def two_hosts() -> str:
    file = "two_hosts.json"
    result = load(file)
    names = {"translation": "translation", "language_model": "language model"}
    rows = []
    for rate, found in result["systems"].items():
        best: dict[str, float] = {}
        for name, row in found.items():
            workload, backend = name.split("/")
            if backend in DATA_PARALLEL:
                best[workload] = max(best.get(workload, 0), row["updates_per_second"])
        for name, row in found.items():
            workload, backend = name.split("/")
            rows.append(
                [
                    rate.replace("bit", "bit/s"),
                    names[workload],
                    f"`{backend}`",
                    f"{row['updates_per_second']:.2f}",
                    f"{row['updates_per_second'] / best[workload]:.2f}",
                    f"{row['mb_per_update']:.1f}",
                ]
            )
    titles = ["link", "", "backend", "updates/s", "to data parallelism", "MB per update and host"]
    said = {
        rate: calibration({"calibration": c}) for rate, c in result.get("calibration", {}).items()
    }
    below = "\n\n".join(f"{rate.replace('bit', 'bit/s')}: {line}" for rate, line in said.items())
    return table(titles, rows, result, file, result["command"], below)


def exported() -> str:
    result = load("export.json")
    rows = [[name, *export.cells(row)] for name, row in result["systems"].items()]
    return table(export.TITLES, rows, result, "export.json")


TABLES: dict[str, Callable[[], str]] = {
    "comparison": comparison,
    "translation_single": translation_single,
    "searches": searches,
    **softmax_tables.TABLES,
    "translation_quality": translation_quality,
    "two_workers": two_workers,
    "four_devices": four_devices,
    "parallel_quality": parallel_quality,
    "language_model": lambda: systems(
        "language_model.json", "wikitext-2", LANGUAGE_TITLES, LANGUAGE_COLUMNS
    ),
    "language_model_quality": language_model_quality,
    "language_model_workers": language_model_workers,
    **averaging_tables.TABLES,
    "exported": exported,
    "planning": planning,
    "two_hosts": two_hosts,
}


def filled(text: str) -> str:
    """A document with the tables that its marks ask for."""

    def made(match: re.Match) -> str:
        if match[2] not in TABLES:
            sys.exit(f"tables.py: no table {match[2]}: there are {', '.join(TABLES)}")
        try:
            return f"{match[1]}{TABLES[match[2]]()}\n{match[3]}"
        except FileNotFoundError as missing:
            sys.exit(f"tables.py: table {match[2]} needs {Path(missing.filename).name}: measure it")

    return MARKED.sub(made, text)


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
