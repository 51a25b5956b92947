"""Panels as a picture file (matplotlib): a row per worker, a colour per kind of work."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from fairseq_hybrid.planner.panels import KINDS, Panel

WIDTH, ROW, PANEL, LEGEND = 11.0, 0.55, 1.25, 0.8
"""inches: of the picture; of a worker; of what a panel has beside its workers; of the legend"""
BAR, MARGIN = 0.8, 1.005
"""share of a row that is filled; of the time that is shown"""
EDGE, MANY = 0.3, 100
"""points between two things a worker does; how many of these are too many for that"""


def write_picture(panels: Sequence[Panel], path: str) -> None:
    figure(panels).savefig(path, dpi=130)


def figure(panels: Sequence[Panel]) -> Figure:
    heights = [PANEL + ROW * panel.timeline.workers for panel in panels]
    result = Figure(figsize=(WIDTH, sum(heights) + LEGEND), layout="constrained")
    grid = result.subplots(
        len(panels), 1, sharex=True, squeeze=False, gridspec_kw={"height_ratios": heights}
    )
    for axes, panel in zip(grid[:, 0], panels):
        _draw(axes, panel)
    grid[-1, 0].set_xlim(0, MARGIN * 1000 * max(panel.timeline.seconds for panel in panels))
    seen = {span.kind for panel in panels for span in panel.timeline.spans}
    patches = [Patch(facecolor=c, label=text) for kind, (c, text) in KINDS.items() if kind in seen]
    result.legend(handles=patches, loc="outside lower center", ncols=4, frameon=False)
    return result


def _draw(axes, panel: Panel) -> None:
    timeline = panel.timeline
    edge = EDGE if len(timeline.spans) < MANY * timeline.workers else 0.0
    for kind, (colour, _) in KINDS.items():
        for worker in range(timeline.workers):
            bars = [
                (1000 * s.begin, 1000 * (s.end - s.begin))
                for s in timeline.spans
                if (s.worker, s.kind) == (worker, kind)
            ]
            if bars:
                axes.broken_barh(
                    bars,
                    (worker - BAR / 2, BAR),
                    facecolor=colour,
                    edgecolor="white",
                    linewidth=edge,
                )
    axes.axvline(1000 * timeline.seconds, color="black", linewidth=0.8)
    axes.set_ylim(-0.6, timeline.workers - 0.4)  # stage 0 at the bottom, as layers are stacked
    axes.set_yticks(range(timeline.workers), panel.labels)
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelbottom=True)
    axes.set_xlabel("ms since the update began")
    axes.set_title(panel.title, loc="left", fontsize="medium")
    axes.spines[["top", "right", "left"]].set_visible(False)
