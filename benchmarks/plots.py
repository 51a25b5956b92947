"""The pictures of README.md and docs/, from the JSON that the benchmarks left in results/.

    python benchmarks/plots.py        draws what there is JSON for, into benchmarks/results

    speed_up.png   speed-up of two workers over one, by system and by the link between them
    bytes.png      megabytes that all workers send in an update
    learning.png   validation perplexity against updates, and BLEU against processor time

Nothing is measured here, and nothing is drawn that was not measured. Needs matplotlib.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

RESULTS = Path(__file__).resolve().parent / "results"
LINKS = {
    "one machine": ("translation_parallel.json", "translation_decoupled.json"),
    "2.5 Gbit/s": ("translation_2500mbit.json",),
    "1 Gbit/s": ("translation_1gbit.json",),
}
TRANSLATION = {
    "legacy_ddp": "legacy_ddp",
    "model_parallel": "model_parallel",
    "hybrid": "hybrid",
    "decoupled": "hybrid, decoupled",
}
LANGUAGE = {
    "dense2": "legacy_ddp, full softmax",
    "messages2": "sampled, by messages",
    "sampled2": "sampled, in shared memory",
}
QUALITY = {
    "single": "1 worker",
    "hybrid": "2 workers, hybrid",
    "decoupled": "2 workers, hybrid, decoupled",
}
COLOURS = {
    name: f"C{number}"
    for number, name in enumerate([*TRANSLATION.values(), *LANGUAGE.values(), "1 worker"])
}


def load(file: str) -> dict | None:
    path = RESULTS / file
    return json.loads(path.read_text()) if path.exists() else None


def systems(file: str, workload: str) -> dict[str, dict]:
    result = load(file)
    return result["workloads"][workload]["systems"] if result else {}


def speeds() -> dict[str, dict[str, dict]]:
    """Group → system → what was measured of it."""
    groups: dict[str, dict[str, dict]] = {}
    for link, files in LINKS.items():
        found = {}
        for file in files:
            rows = systems(file, "fixed")
            found |= {t: rows[n] for n, t in TRANSLATION.items() if n in rows and t not in found}
        groups[f"translation,\n{link}"] = found
    rows = systems("language_model.json", "wikitext-2")
    if rows:
        # (`speed_up` there is over one worker with a full softmax)
        one = {"dense2": "full", "messages2": "sampled", "sampled2": "sampled"}
        groups["language model,\none machine"] = {
            t: {**rows[n], "speed_up": rows[n]["speed_up"] / rows[one[n]]["speed_up"]}
            for n, t in LANGUAGE.items()
            if n in rows
        }
    return {name: found for name, found in groups.items() if found}


def bars(groups: dict[str, dict[str, dict]], key: str, label: str, title: str, form: str):
    """A group of bars for each kind of work, a colour for each system."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 4.5), layout="constrained")
    place, ticks = 0.0, []
    for name, found in groups.items():
        begin = place
        for system, row in found.items():
            bar = axes.bar(place, row[key], width=0.9, color=COLOURS[system], label=system)
            background = {"facecolor": "white", "edgecolor": "none", "pad": 0.4}  # over lines
            axes.bar_label(bar, fmt=form, fontsize=8, padding=2, bbox=background)
            place += 1
        ticks.append(((begin + place - 1) / 2, name))
        place += 0.8
    axes.set_xticks(*zip(*ticks), fontsize=9)
    axes.set(ylabel=label, title=title)
    axes.margins(y=0.12)
    axes.grid(axis="y", alpha=0.3)
    unique = dict(zip(*reversed(axes.get_legend_handles_labels())))
    figure.legend(unique.values(), unique, loc="outside lower center", ncols=4, fontsize=8)
    return figure, axes


def speed_up(groups: dict[str, dict[str, dict]]) -> None:
    title = "Two workers of one thread, on two cores"
    figure, axes = bars(groups, "speed_up", "speed-up over one worker", title, "%.2f")
    axes.axhline(1, color="black", linewidth=0.8)
    axes.axhline(2, color="black", linewidth=0.8, linestyle=":")
    figure.savefig(RESULTS / "speed_up.png", dpi=120)


def bytes_sent(groups: dict[str, dict[str, dict]]) -> None:
    shown = {name: g for name, g in groups.items() if "one machine" in name}
    shown = {name.replace(",\none machine", ""): found for name, found in shown.items()}
    title = "What two workers send to each other in an update"
    figure, _ = bars(shown, "mb_counted", "megabytes", title, "%.0f")
    figure.savefig(RESULTS / "bytes.png", dpi=120)


def learning(runs: list[dict]) -> None:
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.5), layout="constrained")
    for name, title in QUALITY.items():
        colour = COLOURS[title.removeprefix("2 workers, ")]
        for run in (r for r in runs if r["model"] == name):
            first = run["seed"] == min(r["seed"] for r in runs if r["model"] == name)
            style = {"color": colour, "label": title if first else None}
            if "curve" in run:
                points = [(c["updates"], c["valid_ppl"]) for c in run["curve"]]
                left.plot(*zip(*points), linestyle="-" if first else "--", marker=".", **style)
            right.scatter(run["cpu_minutes"], run["bleu"], **style)
    left.set(xlabel="updates", ylabel="validation perplexity", yscale="log")
    left.yaxis.set_major_formatter("{x:g}")
    left.yaxis.set_minor_formatter("{x:g}")
    left.set_title("Multi30k de-en; second seed dashed", fontsize=10)
    right.set(xlabel="processor minutes of all workers, evaluation included", ylabel="test BLEU")
    right.set_title("at the end, two seeds each", fontsize=10)
    right.margins(0.2)
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    figure.savefig(RESULTS / "learning.png", dpi=120)


def main() -> None:
    try:
        import matplotlib
    except ImportError:
        sys.exit("plots.py: no matplotlib, nothing drawn: pip install fairseq_hybrid[plots]")
    matplotlib.use("agg")
    groups = speeds()
    if groups:
        speed_up(groups)
        bytes_sent(groups)
    quality = load("parallel_quality.json")
    if quality:
        learning(quality["runs"])


if __name__ == "__main__":
    main()
