"""Curves as SVG that fills its place: lines keep their width, labels their size.

The picture is stretched to whatever the page gives it, so ticks are HTML beside it, placed by
percent. The points go along as data for the page's script, which shows those under the pointer.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

from fairseq_hybrid.pages.skeleton import number, text

MOST = 320
"""points of a curve: more would not be seen"""
SHORT = {"minutes": "min", "hours": "h"}
LOOSE = 0.03
"""share of the first points that need not fit into the picture, as a loss falls at once"""


@dataclass(frozen=True)
class Curve:
    name: str
    kind: str
    """classes: a colour, and how it is drawn"""
    points: Sequence[tuple[float, float]]
    """in the order of x; where y is not finite the line is interrupted"""
    dots: bool = False
    """show the points themselves, as of a validation"""


def chart(
    title: str, unit: str, curves: Sequence[Curve], x_unit: str, kind: str = "", zero: bool = False
) -> str:
    """`x_unit`: "update", or a unit of time. `zero`: the scale of y begins there."""
    thin = [Curve(c.name, c.kind, thinned(c.points), c.dots) for c in curves]
    shown = [c for c in thin if any(math.isfinite(y) for _, y in c.points)]
    if not shown:
        return ""
    xs = [x for curve in shown for x, _ in curve.points]
    x_range = (min(0.0, *xs), max(xs) or 1.0)
    low, high = limits(shown)
    low = min(low, 0.0) if zero else low
    y_ticks = ticks(low, high)
    y_range = (min(low, y_ticks[0]), max(high, y_ticks[-1]))
    x_ticks = [x for x in ticks(*x_range) if x <= x_range[1]]
    body = "".join(drawn(curve, x_range, y_range) for curve in shown)
    grid = "".join(f"M0 {place(y, y_range, True)}H1000" for y in y_ticks)
    data = {"x": x_range, "unit": x_unit, "curves": [
        [c.name, c.kind + (" dot" if c.dots else ""),
         [[_short(x), _short(y)] for x, y in c.points if math.isfinite(y)]] for c in shown
    ]}  # fmt: skip
    said = "; ".join(f"{c.name} ends at {number(_last(c))}" for c in shown)
    across = "updates" if x_unit == "update" else x_unit
    return (
        f'<figure class="chart {text(kind)}"><figcaption>{text(title)} <span>{text(unit)}</span>'
        f'</figcaption><div class="plot" data-curves="{text(json.dumps(data))}">'
        f'<svg viewBox="0 0 1000 1000" preserveAspectRatio="none" role="img" '
        f'aria-label="{text(f"{title} by {across}: {said}")}">'
        f'<path class="grid" d="{grid}"/>{body}</svg>'
        f'<div class="ticks y">{_labels(y_ticks, y_range, "bottom")}</div>'
        f'<div class="ticks x">{_labels(x_ticks, x_range, "left", across)}</div></div></figure>'
    )


def thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most `MOST` points: neighbours become their mean; what is not finite stays a gap."""
    size = -(-len(points) // MOST)
    if size <= 1:
        return list(points)
    result = []
    for start in range(0, len(points), size):
        some = points[start : start + size]
        finite = [y for _, y in some if math.isfinite(y)]
        mean = sum(finite) / len(finite) if finite else math.nan
        result.append((some[-1][0], mean))
    return result


def limits(curves: Sequence[Curve]) -> tuple[float, float]:
    """Of y. A loss that falls from far above at first does not flatten what follows."""
    every = [y for c in curves for _, y in c.points if math.isfinite(y)]
    later = [
        y for c in curves for _, y in c.points[int(LOOSE * len(c.points)) :] if math.isfinite(y)
    ]
    return min(every), max(later or every)


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers from below `low` to above `high`."""
    width = high - low
    if not width > abs(high) * 1e-9:
        width = abs(high) or 1.0
        low, high = (0.0, 2 * high) if high > 0 else (2 * high, 0.0 if high else 1.0)
        width = high - low
    rough = width / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * n for n in (1, 2, 2.5, 5, 10) if power * n >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [n * step for n in range(first, last + 1)]


def place(value: float, span: tuple[float, float], down: bool = False) -> str:
    """Of a thousand parts."""
    share = (value - span[0]) / ((span[1] - span[0]) or 1.0)
    return f"{1000 * (1 - share if down else share):.4g}"


def drawn(curve: Curve, x_range: tuple[float, float], y_range: tuple[float, float]) -> str:
    line, dots, pen = [], [], "M"
    for x, y in curve.points:
        if not math.isfinite(y):
            pen = "M"
            continue
        at = f"{place(x, x_range)} {place(y, y_range, True)}"
        line.append(f"{pen}{at}")
        dots.append(f"M{at}h0")
        pen = "L"
    kind = text(curve.kind)
    result = f'<path class="curve {kind}" d="{"".join(line)}"/>'
    if curve.dots:
        result += f'<path class="dots {kind}" d="{"".join(dots)}"/>'
    return result


def _labels(values: Sequence[float], span: tuple[float, float], side: str, unit: str = "") -> str:
    names = [_tick(value, values) for value in values]
    if unit and len(names) > 1 and unit != "updates":
        names[-1] += f" {SHORT.get(unit, unit)}"
    return "".join(
        f'<span style="{side}:{float(place(value, span)) / 10:.4g}%">{text(name)}</span>'
        for value, name in zip(values, names)
    )


def _tick(value: float, values: Sequence[float]) -> str:
    step = values[1] - values[0] if len(values) > 1 else abs(value) or 1.0
    value = 0.0 if abs(value) < step * 1e-6 else value
    if max(map(abs, values)) >= 1e6 or step < 1e-3:
        short = f"{value:.3g}"
        return short.replace("e-0", "e-").replace("e+0", "e+").replace("e+", "e")
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    if step * 10**digits % 1 > 1e-6 and (step * 10**digits) % 1 < 1 - 1e-6:
        digits += 1  # steps of 2.5
    return f"{value:,.{digits}f}"


def _short(value: float) -> float:
    return float(f"{value:.6g}")


def _last(curve: Curve) -> float:
    return next(y for _, y in reversed(curve.points) if math.isfinite(y))
