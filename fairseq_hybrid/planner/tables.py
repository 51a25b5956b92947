"""Predictions as tables and as the note in a plan file. What is projected says so in its cell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from fairseq_hybrid.backends.wavefront.options import stacked
from fairseq_hybrid.planner.choose import Prediction
from fairseq_hybrid.planner.costs import BACKWARD, COPY, FORWARD, HEAD, UPDATE
from fairseq_hybrid.planner.devices import Device

PROJECTED = "projected"


class Table(NamedTuple):
    columns: list[str]
    rows: list[list[str]]

    def markdown(self) -> str:
        rule = "|---|" + "--:|" * (len(self.columns) - 1)
        head, *body = ("| " + " | ".join(cells) + " |" for cells in (self.columns, *self.rows))
        return "\n".join([head, rule, *body])


def _row(prediction: Prediction, to: float) -> list[str]:
    """The numbers of a prediction, its speed relative to `to`."""
    speed = prediction.words_per_second
    return _marked(prediction, [
        f"{speed * prediction.seconds:,.0f}",
        f"{1000 * prediction.seconds:,.1f}",
        f"{speed:,.0f}",
        f"{speed / to:.2f}",
        f"{prediction.idle:.0%}",
        f"{sum(prediction.sent) / 1e6:,.1f}",
        f"{max(prediction.memory) / 1e9:.2f}",
    ])  # fmt: skip


def _marked(prediction: Prediction, cells: list[str]) -> list[str]:
    return [f"{cell} {PROJECTED}" for cell in cells] if prediction.projected else cells


def _columns(first: str, relative: str) -> list[str]:
    speed = ["words/update", "ms/update", "target words/s", relative]
    return [first, *speed, "idle", "MB sent/update", "GB of the largest worker, about"]


def alternatives_table(ranked: Sequence[Prediction]) -> Table:
    """All of them, the fastest first."""
    fastest = ranked[0].words_per_second
    rows = [[_label(p), *_row(p, fastest)] for p in ranked]
    return Table(_columns("plan", "of the fastest"), rows)


def _label(prediction: Prediction) -> str:
    plan = prediction.plan
    return str(plan) if plan.exact else f"{plan} (gradients one update late: never chosen)"


def systems_table(systems: dict[str, Prediction]) -> Table:
    """The systems that Ono et al. compare, relative to the first of them."""
    baseline = next(iter(systems.values())).words_per_second
    rows = [[title, *_row(p, baseline)] for title, p in systems.items()]
    return Table(_columns("system", "speed-up"), rows)


def projection_headline(device: Device, systems: dict[str, Prediction]) -> str:
    """What the table of the five systems is about."""
    count = max(p.plan.workers for p in systems.values())
    memory = max(size for p in systems.values() for size in p.memory)
    line = f"{PROJECTED}, not measured: {count} x {device.name}"
    if memory > device.memory:
        line += f"; {memory / 1e9:.0f} GB would not fit into {device.memory / 1e9:.0f} GB"
    return line


def workers_table(prediction: Prediction) -> Table:
    """What each worker does in the first update, and what it needs."""
    timeline = prediction.timeline
    rows = []
    for worker in range(timeline.workers):
        kinds = ((FORWARD,), (HEAD,), (BACKWARD,), (COPY, UPDATE))
        spent = [sum(timeline.spent(worker, kind) for kind in some) for some in kinds]
        waiting = timeline.seconds - sum(spent)
        times = [f"{1000 * seconds:,.1f}" for seconds in (*spent, waiting)]
        sizes = [f"{timeline.sent[worker] / 1e6:,.1f}", f"{prediction.memory[worker] / 1e9:.2f}"]
        rows.append([f"worker {worker}", *_marked(prediction, [*times, *sizes])])
    spans = ["layers forward, ms", "head, ms", "layers backward, ms", "rest, ms", "waiting, ms"]
    return Table(["", *spans, "MB sent", "GB, about"], rows)


def layer_labels(prediction: Prediction) -> list[str]:
    """What lies on each worker."""
    plan = prediction.plan
    if not plan.splits:
        return [f"worker {i}: all layers" for i in range(plan.workers)]
    layers = [
        f"layer {mine.start + 1}" if len(mine) == 1 else f"layers {mine.start + 1}–{mine.stop}"
        for mine in stacked(plan.layers)
    ]
    return [f"worker {i}: {layers[i % plan.stages]}" for i in range(plan.workers)]


def plan_note(chosen: Prediction) -> dict[str, Any]:
    """For the reader of a plan file."""
    how = PROJECTED if chosen.projected else "predicted"
    return {
        "plan": str(chosen.plan),
        f"{how} ms per update": round(1000 * chosen.seconds, 1),
        f"{how} target words per second": round(chosen.words_per_second),
    }
