"""Timelines side by side, a predicted and a measured one: on the same scale, a row per worker.

`html` makes them a part of a page, `pictures.py` a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fairseq_hybrid.backends.wavefront.simulate import WAIT as WAITING
from fairseq_hybrid.backends.wavefront.simulate import Timeline
from fairseq_hybrid.pages import skeleton, timelines
from fairseq_hybrid.planner.costs import BACKWARD, COPY, FORWARD, HEAD, UPDATE
from fairseq_hybrid.planner.traces import OTHER, SENDING

KINDS = {
    # kind → (colour, what the legend says); colours that most eyes can tell apart
    FORWARD: ("#0072b2", "layers, forward"),
    HEAD: ("#009e73", "attention, softmax, loss"),
    BACKWARD: ("#e69f00", "layers, backward"),
    COPY: ("#56b4e9", "copying and adding up"),
    SENDING: ("#d55e00", "busy sending"),
    UPDATE: ("#cc79a7", "clipping, optimizer, bookkeeping"),
    OTHER: ("#8c8c8c", "other"),
    WAITING: ("#ececec", "waiting"),
}


class Panel(NamedTuple):
    title: str
    timeline: Timeline
    labels: Sequence[str]
    """of the workers"""


def html(panels: Sequence[Panel]) -> str:
    """All of them for a page, with one legend."""
    until = 1000 * max(panel.timeline.seconds for panel in panels)
    seen = {span.kind for panel in panels for span in panel.timeline.spans}
    key = [(f"k-{kind} box", name) for kind, (_, name) in KINDS.items() if kind in seen]
    return skeleton.key(key) + "".join(_timeline(panel, until) for panel in panels)


def _timeline(panel: Panel, until: float) -> str:
    rows: list[list[timelines.Stretch]] = [[] for _ in panel.labels]
    for span in panel.timeline.spans:
        what = KINDS[span.kind][1] if span.name in (span.kind, "") else span.name
        bar = timelines.Stretch(span.kind, what, 1000 * span.begin, 1000 * span.end)
        rows[span.worker].append(bar)
    return timelines.timeline(panel.title, list(zip(panel.labels, rows)), until)
