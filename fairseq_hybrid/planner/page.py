"""A plan as one page that needs nothing beside it: what was chosen, why, and how to use it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from fairseq_hybrid.backends.wavefront.options import stacked
from fairseq_hybrid.pages import skeleton
from fairseq_hybrid.planner import panels, profile, tables
from fairseq_hybrid.planner.choose import Prediction
from fairseq_hybrid.planner.panels import Panel
from fairseq_hybrid.planner.plan import DATA_PARALLEL, MODEL_PARALLEL, SINGLE
from fairseq_hybrid.planner.tables import Table

OWN_FLAGS = {"--workers": 1, "--devices": 1, "--save": 1, "--plot": 1, "--report": 1, "--trace": 1}
OWN_FLAGS.update({"--remeasure": 0, "--distributed-world-size": 1})
"""of fairseq-hybrid-plan, with how many values; the command to train has its own workers"""

WORDS = (
    ("update", "One step of the optimizer. Each worker brings a batch, so with N workers it has "
     "about N times the words of one worker's: compare words per second, not milliseconds."),
    ("words", "Target words, sentence ends included, as fairseq's log counts them (wps)."),
    ("stage", "A worker's share of the layers, neighbours in the stack: encoder layer i with "
     "decoder layer i. Stage 0 has the embeddings."),
    ("replica", "Stages that together are one copy of the layers."),
    ("chunk", "Some time steps of a batch. A stage passes a chunk on when it is done with it, so "
     "that the next can begin: short chunks start it sooner, long ones compute faster."),
    ("head", "What follows the top layer: attention, softmax and loss. Each worker computes that "
     "of its own batch."),
    ("idle, waiting", "Time in which a worker has nothing to compute, as what it needs has not "
     "arrived, or others are not done."),
    ("GB, about", "Weights, gradients, optimizer state and activations; libraries need more."),
)  # fmt: skip


def write_page(
    path: str,
    chosen: Prediction,
    ranked: Sequence[Prediction],
    panels_shown: Sequence[Panel],
    systems: tuple[str, Table] | None = None,
    args: Any = None,
    words: Sequence[str] = (),
) -> None:
    """`systems`: headline and table of the five systems, if they were projected. `args`, `words`:
    the options of fairseq-hybrid-plan, parsed and as they were given."""
    how = tables.PROJECTED if chosen.projected else "predicted"
    all_numbers = table(tables.alternatives_table(ranked), str(chosen.plan))
    body = [
        skeleton.figures(figures(chosen)),
        next_command(chosen, args, words),
        skeleton.section(
            "Timeline of one update", [panels.html(panels_shown)], timeline_note(chosen)
        ),
        skeleton.section("Who has what", [
            partition_boxes(chosen),
            skeleton.element("h3", f"What each worker does in that update ({how})"),
            table(tables.workers_table(chosen)),
        ]),
        skeleton.section(f"Alternatives ({how})", [
            skeleton.bars(speeds(ranked), str(chosen.plan)),
            skeleton.details("All numbers", all_numbers),
        ], alternatives_note(chosen)),
    ]  # fmt: skip
    if systems is not None:
        body.append(skeleton.section(systems[0], [table(systems[1])]))
    body.append(skeleton.section("What the words mean", [skeleton.words_explained(WORDS)]))
    body.append(
        skeleton.section("What this is about", [skeleton.words_explained(about(chosen, args))])
    )
    foot = f"Written {time.strftime('%Y-%m-%d %H:%M')} by fairseq-hybrid-plan."
    page = skeleton.page(f"Plan: {chosen.plan}", summary(chosen, ranked, how), body, foot)
    Path(path).write_text(page, encoding="utf-8")


def summary(chosen: Prediction, ranked: Sequence[Prediction], how: str) -> str:
    others = [p for p in ranked if p.plan.backend != SINGLE and p is not chosen]
    text = f"The fastest of {len(others) + 1} ways to divide the work ({how})"
    for backend, name in ((SINGLE, "one worker"), (DATA_PARALLEL, DATA_PARALLEL)):
        against = next((p for p in ranked if p.plan.backend == backend), None)
        if against is not None and against is not chosen:
            ratio = chosen.words_per_second / against.words_per_second
            text += f"; {ratio:.2f} times as fast as {name}"
    return text + (". One worker alone is faster." if ranked[0].plan.backend == SINGLE else ".")


def figures(chosen: Prediction) -> Iterator[tuple[str, str, str]]:
    words = chosen.words_per_second * chosen.seconds
    yield "words per second", f"{chosen.words_per_second:,.0f}", "target words, all workers"
    yield "ms per update", f"{1000 * chosen.seconds:,.0f}", "on average"
    yield "words per update", f"{words:,.0f}", f"{words / chosen.plan.workers:,.0f} of each worker"
    yield "waiting", f"{chosen.idle:.0%}", "of the workers' time"
    yield "sent per update", f"{sum(chosen.sent) / 1e6:,.1f} MB", "all workers together"
    yield "memory", f"{max(chosen.memory) / 1e9:.2f} GB", "of the largest worker, about"


def next_command(chosen: Prediction, args: Any, words: Sequence[str]) -> str:
    """How to train by the plan."""
    if not words:
        return ""
    kept, skip = [], 0
    for word in words:
        name, _, value = word.partition("=")
        if skip:
            skip -= 1
        elif name in OWN_FLAGS:
            skip = 0 if value else OWN_FLAGS[name]
        else:
            kept.append(word)
    plan, saved = chosen.plan, getattr(args, "save", None)
    own: dict[str, Any] = {"hybrid_plan": saved} if saved else plan.flags()
    kept += ["--distributed-world-size", str(plan.workers)]
    for name, value in own.items():
        kept += [f"--{name.replace('_', '-')}", str(value)]
    note = "It changes how the work is divided, not the update."
    note = f"The plan is in {saved}. {note}" if saved else note
    line = skeleton.command(["fairseq-hybrid-train", *kept])
    return skeleton.section("Train with it", [line], note)


def timeline_note(chosen: Prediction) -> str:
    first, average = 1000 * chosen.timeline.seconds, 1000 * chosen.seconds
    return (
        f"The first update that was looked at; it takes {first:,.1f} ms. What is not about this "
        f"update is a mean over a few, whose sentences are shorter or longer: {average:,.1f} ms."
    )


def alternatives_note(chosen: Prediction) -> str:
    return (
        f"Target words per second, and those of an update. An update of {chosen.plan.workers} "
        "workers has the batches of all of them, one worker's has one: it is shorter, and has "
        "fewer words."
    )


def speeds(ranked: Sequence[Prediction]) -> list[tuple[str, str, str, float]]:
    fastest = ranked[0].words_per_second
    return [
        (
            str(p.plan),
            f"{p.words_per_second * p.seconds:,.0f} words in {1000 * p.seconds:,.0f} ms",
            f"{p.words_per_second:,.0f} words/s",
            p.words_per_second / fastest,
        )
        for p in ranked
    ]


def table(content: Table, chosen: str = "") -> str:
    """`chosen`: the first cell of the row to be marked."""
    return skeleton.table(content.columns, content.rows, marked=chosen)


def about(chosen: Prediction, args: Any) -> Iterator[tuple[str, str]]:
    """Model, data, machine."""
    model = chosen.model
    name = getattr(args, "arch", None) or type(model.module).__name__
    layers = f"{model.layers}+{model.layers} layers of {model.hidden}"
    yield "model", f"{name}, {layers}, {model.numbers:,} parameters"
    if args is not None:
        sizes = ((args.max_tokens, "tokens"), (args.batch_size, "sentences"))
        batch = " and ".join(f"{n:,} {what}" for n, what in sizes if n)
        yield "data", f"{args.data}, batches of at most {batch} for each worker"
        yield "training", f"{args.criterion}, {args.optimizer}"
    if chosen.projected:
        devices = getattr(args, "devices", None) or "other devices"
        yield "devices", f"{devices}: projected from assumed numbers, nothing was measured"
    else:
        threads = os.environ.get("OMP_NUM_THREADS") or "not set"
        here = f"{profile.processor()}, {profile.cores()} cores, OMP_NUM_THREADS {threads}"
        yield "machine", f"{here}; parts of the model were measured on it, updates are simulated"
    yield "software", f"torch {torch.__version__}"


def partition_boxes(chosen: Prediction) -> str:
    """A box for each stage, or one for all layers where nothing is split."""
    plan = chosen.plan
    boxes = []
    for stage, mine in enumerate(stacked(plan.layers)):
        ranks = ", ".join(map(str, range(stage, plan.workers, plan.stages)))
        name = f"stage {stage}: worker {ranks}" if plan.splits else f"each of workers {ranks}"
        lines = [name, *contents(chosen, stage, ", ".join(str(i + 1) for i in mine))]
        boxes.append(skeleton.element("div", "".join(map(skeleton.paragraph, lines))))
    chunk = skeleton.paragraph(f"Chunks of {plan.chunk} time steps." if plan.splits else "", "note")
    return skeleton.element("div", "".join(boxes), "stages") + chunk


def contents(chosen: Prediction, stage: int, layers: str) -> list[str]:
    """What a stage computes."""
    plan, whole_decoder = chosen.plan, chosen.model.feeding
    lines = ["embeddings"] if stage == 0 else []
    what = "layers" if "," in layers else "layer"
    lines.append(f"encoder {what} {layers}")
    if not whole_decoder:
        lines.append(f"decoder {what} {layers}")
    head = "attention, softmax, loss" if not whole_decoder else "decoder, softmax, loss"
    if plan.backend != MODEL_PARALLEL:
        lines.append(f"{head} of its own batch")
    elif stage == plan.stages - 1:
        lines.append(f"{head} of all batches")
    return lines
