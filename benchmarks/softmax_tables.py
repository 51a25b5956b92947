"""tables.py: the tables of losses, full and sampled."""

from __future__ import annotations

import statistics

from tabular import cells, load, table

SYSTEMS = {
    "full": "1 worker, full softmax",
    "sampled": "1 worker, `sampled_softmax`",
    "full2": "2 workers, full softmax, `legacy_ddp`",
    "sampled2": "2 workers, `sampled_softmax`, `sampled`",
    "hybrid2": "2 workers, full softmax, `hybrid`",
    "sampled_hybrid2": "2 workers, `sampled_softmax`, `hybrid`",
}
PAIRS = {"sampled": "full", "sampled2": "full2", "sampled_hybrid2": "hybrid2"}
SPEED = {
    "target tokens per processor second": ("tokens_per_cpu_second", "{:,.0f}"),
    "to full": ("cpu_to_full", "{:.2f}"),
    "words in the softmax": ("words", "{:,.0f}"),
    "MB sent per update": ("mb_counted", "{:,.0f}"),
    "peak MB per worker": ("peak_mb", "{:,.0f}"),
}


def loss() -> str:
    file = "loss.json"
    result = load(file)
    rows = []
    for case, found in result["cases"].items():
        speed, memory = found["words_per_cpu_second"], found["megabytes"]
        parts = [f"{speed[system]:,.0f}" for system in ("before", "after")]
        parts += [f"{found['ratio_by_cpu']:.3f}"]
        parts += [f"{memory[system]:,}" for system in ("before", "after")]
        rows.append([case, *parts])
    titles = ["", "words per processor second, fairseq's loss", "in place", "ratio"]
    titles += ["peak MB, fairseq's loss", "in place"]
    return table(titles, rows, result, file, "python benchmarks/loss.py")


def sampled_speed() -> str:
    """Of several runs, a table each."""
    file = "sampled_speed.json"
    parts = []
    for result in load(file)["runs"]:
        for title, found in result["workloads"].items():
            systems = found["systems"]
            for name, full in PAIRS.items():
                if name in systems and full in systems:
                    both = (systems[n]["tokens_per_cpu_second"] for n in (name, full))
                    systems[name]["cpu_to_full"] = next(both) / next(both)
            rows = cells(systems, SYSTEMS, SPEED, file)
            made = table(["", *SPEED], rows, result, file)
            parts.append(f"**{title}** ({found['vocabulary']:,} target words)\n\n{made}")
    return "\n\n".join(parts)


def sampled_quality() -> str:
    file = "sampled_translation.json"
    result = load(file)
    rows = []
    for system in ("full", "sampled", "sampled, time"):
        runs = sorted((r for r in result["runs"] if r["system"] == system), key=lambda r: r["seed"])
        for r in runs:
            scores = [f"{r['bleu']:.1f}", f"{r['chrf']:.1f}"]
            rows.append([system, str(r["seed"]), f"{r['updates']:,}", *scores])
        if len(runs) > 1:
            means = [f"{statistics.mean(r[key] for r in runs):.1f}" for key in ("bleu", "chrf")]
            rows.append([f"{system}, mean", "–", "–", *means])
    titles = ["", "seed", "updates", "BLEU", "chrF"]
    command = "python benchmarks/sampled_translation.py --data FOLDER --out FOLDER --vocab 8000 "
    command += "--updates 2000 --faster 1.6"
    return table(titles, rows, result, file, command)


TABLES = {"loss": loss, "sampled_speed": sampled_speed, "sampled_quality": sampled_quality}
