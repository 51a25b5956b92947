"""Who did what when: a row for each worker, a colour for each kind of work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fairseq_hybrid.pages.charts import ticks
from fairseq_hybrid.pages.skeleton import number, text

WIDTH = 10_000
"""what a row is divided into"""
MOST = 4000
"""spans of a row: of more the narrowest are left out, which nobody sees"""


class Stretch(NamedTuple):
    kind: str
    """one of the kinds in the page's style"""
    name: str
    begin: float
    end: float
    """milliseconds"""


def timeline(title: str, rows: Sequence[tuple[str, Sequence[Stretch]]], until: float) -> str:
    """`rows`: name and bars of each, the first one at the bottom. `until`: where the scale ends."""
    lanes = [
        f'<div class="lane"><span>{text(name)}</span><svg viewBox="0 0 {WIDTH} 1" '
        f'preserveAspectRatio="none" role="img" aria-label="{text(f"{title}: {name}")}">'
        f"{_bars(bars, until)}</svg></div>"
        for name, bars in reversed(rows)
    ]
    marks = [t for t in ticks(0.0, until) if t <= until * 1.001]
    names = [number(t) for t in marks[:-1]] + [f"{number(marks[-1])} ms"]
    scale = "".join(
        f'<span style="left:{100 * t / until:.4g}%">{name}</span>' for t, name in zip(marks, names)
    )
    foot = f'<div class="lane foot"><span></span><div class="scale ticks x">{scale}</div></div>'
    return f'<div class="lanes"><h3>{text(title)}</h3>{"".join(lanes)}{foot}</div>'


def _bars(bars: Sequence[Stretch], until: float) -> str:
    narrow = sorted((bar.end - bar.begin for bar in bars), reverse=True)
    least = narrow[MOST] if len(narrow) > MOST else 0.0
    return "".join(
        f'<rect class="k-{text(bar.kind)}" x="{WIDTH * bar.begin / until:.5g}" '
        f'width="{WIDTH * (bar.end - bar.begin) / until:.5g}" height="1">'
        f"<title>{text(bar.name)}: {number(bar.end - bar.begin)} ms</title></rect>"
        for bar in bars
        if bar.end - bar.begin >= least
    )


def shares(rows: Sequence[tuple[str, Sequence[tuple[str, str, float]]]]) -> str:
    """Bars of a hundred percent: name of a row, and of its parts kind, name and percent."""
    lanes = []
    for name, parts in rows:
        said = ", ".join(f"{what} {percent:.0f} %" for _, what, percent in parts)
        stack = "".join(
            f'<i class="k-{text(kind)}" style="width:{max(percent, 0):.4g}%"></i>'
            for kind, _, percent in parts
        )
        lanes.append(
            f'<div class="lane"><span>{text(name)}</span><div class="stack" role="img" '
            f'title="{text(said)}" aria-label="{text(said)}">{stack}</div></div>'
        )
    return f'<div class="lanes">{"".join(lanes)}</div>'
