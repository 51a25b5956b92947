"""The pictures of README.md and docs/, from the JSON that the benchmarks left in results/.

    python benchmarks/plots.py        draws what there is JSON for, into benchmarks/results

    speed_up.png   speed of two workers over one, by system and by the link between them
    bytes.png      megabytes that all workers send in an update
    learning.png   validation perplexity against updates, and BLEU against processor time

Nothing is measured here, and nothing is drawn that was not measured. Needs matplotlib.
"""

from __future__ import annotations

import json
import sys

from tables import shown_links
from tabular import RESULTS

TRANSLATION = {
    "threads": "one process, 2 threads",
    "legacy_ddp": "legacy_ddp",
    "pytorch_ddp": "pytorch_ddp",
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
    "one process, 2 threads": "0.75",
    "legacy_ddp": "tab:blue",
    "pytorch_ddp": "tab:cyan",
    "model_parallel": "tab:olive",
    "hybrid": "tab:green",
    "hybrid, decoupled": "tab:red",
    "1 worker": "tab:blue",
    "legacy_ddp, full softmax": "tab:purple",
    "sampled, by messages": "tab:brown",
    "sampled, in shared memory": "tab:pink",
}
Groups = dict[str, dict[str, dict]]
"""group of bars → system → what was measured of it"""


def load(file: str) -> dict | None:
    path = RESULTS / file
    return json.loads(path.read_text()) if path.exists() else None


def translation() -> Groups:
    """By the link between the workers. model_parallel is in the table only."""
    wanted = {name: title for name, title in TRANSLATION.items() if name != "model_parallel"}
    return {
        link: {title: rows[name] for name, title in wanted.items() if name in rows}
        for link, (_, rows) in shown_links().items()
    }


def sent() -> Groups:
    groups = {}
    for title, file, workload, titles in (
        ("translation", "translation_parallel.json", "fixed", TRANSLATION),
        ("language model", "language_model.json", "wikitext-2", LANGUAGE),
    ):
        result = load(file)
        rows = result["workloads"][workload]["systems"] if result else {}
        found = {t: rows[n] for n, t in titles.items() if n in rows and rows[n]["mb_counted"]}
        if found:
            groups[title] = found
    return groups


def bars(groups: Groups, key: str, label: str, title: str, form: str):
    """A group of bars for each kind of work, a colour for each system."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 3.6), layout="constrained")
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
    figure.legend(unique.values(), unique, loc="outside lower center", ncols=5, fontsize=8)
    return figure, axes


def speed_up(groups: Groups) -> None:
    title = "Training a translation model on two cores"
    figure, axes = bars(groups, "speed_up", "speed over one worker", title, "%.2f")
    axes.axhline(1, color="black", linewidth=0.8)
    axes.axhline(2, color="black", linewidth=0.8, linestyle=":")
    axes.set_ylim(0, 2.15)
    figure.savefig(RESULTS / "speed_up.png", dpi=120)


def bytes_sent(groups: Groups) -> None:
    title = "What two workers send to each other in an update"
    figure, _ = bars(groups, "mb_counted", "megabytes", title, "%.0f")
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
    speed_up(translation())
    bytes_sent(sent())
    quality = load("parallel_quality.json")
    if quality:
        learning(quality["runs"])


if __name__ == "__main__":
    main()
