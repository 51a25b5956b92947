"""The page: style for light and dark and for narrow screens, and its small parts.

Every function takes plain text and returns HTML, but for those parameters that are called `html`.
"""

from __future__ import annotations

import html as _html
import re
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

HERE = Path(__file__).parent
COLOURS = 8
"""of curves in style.css; more begin again"""
MARK = '<meta name="generator" content="fairseq_hybrid">'
"""what tells a page of ours from any other file"""
NOT_SHOWN = re.compile(
    r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]"
)
"""colours of a terminal, and characters that HTML does not have"""


def text(value: object) -> str:
    return _html.escape(NOT_SHOWN.sub("", str(value)))


def element(name: str, html: str, kind: str = "") -> str:
    mark = f' class="{text(kind)}"' if kind else ""
    return f"<{name}{mark}>{html}</{name}>"


def page(title: str, summary: str, html: Iterable[str], foot: str) -> str:
    """A whole page: below the title one line that says what there is to know first."""
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n{MARK}\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{text(title)}</title>\n<style>{_read('style.css')}</style>\n</head>\n<body>\n<main>\n"
        f"<header><h1>{text(title)}</h1>{paragraph(summary)}</header>\n"
        + "\n".join(html)
        + f"\n<footer>{paragraph(foot)}</footer>\n</main>\n<script>{_read('script.js')}</script>\n"
        "</body>\n</html>\n"
    )


def _read(name: str) -> str:
    return (HERE / name).read_text(encoding="utf-8")


def is_page(path: Path) -> bool:
    """Whether a file is a page of ours, which another may replace."""
    with path.open("rb") as file:
        return MARK.encode() in file.read(400)


def paragraph(words: str, kind: str = "") -> str:
    return element("p", text(words), kind) if words else ""


def section(title: str, html: Iterable[str], note: str = "") -> str:
    return (
        f"<section><h2>{text(title)}</h2>{paragraph(note, 'note')}\n"
        + "\n".join(html)
        + "</section>"
    )


def details(title: str, html: str, is_open: bool = False) -> str:
    return f"<details{' open' if is_open else ''}><summary>{text(title)}</summary>{html}</details>"


def figures(values: Iterable[tuple[str, str, str]]) -> str:
    """Numbers to see first: what, how much, and a word on it."""
    tiles = (
        f"<div><dt>{text(what)}</dt><dd>{text(value)}</dd><dd>{text(more)}</dd></div>"
        for what, value, more in values
    )
    return element("dl", "".join(tiles), "figures")


def table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    marked: str = "",
    colours: bool = False,
) -> str:
    """`marked`: the first cell of rows to be set off. `colours`: columns have those of curves."""

    def swatch(column: int) -> str:
        return f'<i class="key {colour(column - 1)}"></i> ' if colours and column else ""

    head = "".join(
        f'<th scope="col">{swatch(i)}{text(cell)}</th>' for i, cell in enumerate(columns)
    )
    body = []
    for first, *others in rows:
        cells = f'<th scope="row">{text(first)}</th>'
        cells += "".join(f"<td>{text(cell)}</td>" for cell in others)
        body.append(element("tr", cells, "marked" if marked and first == marked else ""))
    inside = f"<thead><tr>{head}</tr></thead><tbody>" + "\n".join(body) + "</tbody>"
    return f'<div class="wide" tabindex="0"><table>{inside}</table></div>'


def bars(rows: Sequence[tuple[str, str, str, float]], marked: str = "") -> str:
    """Name, a word on it, what is written, and the share of the longest bar, 0 to 1."""
    shown = "".join(
        f"<div{' class=marked' if name == marked else ''}>"
        f"<span>{text(name)} <small>{text(more)}</small></span>"
        f'<b style="--share:{share:.4f}">{text(value)}</b></div>'
        for name, more, value, share in rows
    )
    return f'<div class="bars">{shown}</div>'


def command(words: Sequence[str]) -> str:
    return f'<div class="command"><pre><code>{text(shell_lines(words))}</code></pre></div>'


def shell_lines(words: Sequence[str]) -> str:
    """As a shell reads them, an option on the line of its value."""
    parts: list[str] = []
    for word in words:
        is_value = parts and parts[-1].startswith("--") and " " not in parts[-1]
        if is_value and not word.startswith("--"):
            parts[-1] += f" {shlex.quote(word)}"
        else:
            parts.append(shlex.quote(word))
    rows = parts[:1]
    for part in parts[1:]:
        if len(rows[-1]) + len(part) > 88:
            rows.append(part)
        else:
            rows[-1] += f" {part}"
    return " \\\n  ".join(rows)


def words_explained(pairs: Iterable[tuple[str, str]]) -> str:
    """What words mean."""
    return element(
        "dl", "".join(f"<dt>{text(a)}</dt><dd>{text(b)}</dd>" for a, b in pairs), "words"
    )


def colour(number: int) -> str:
    """The class of the n-th curve."""
    return f"c{number % COLOURS}"


def key(entries: Iterable[tuple[str, str]]) -> str:
    """A legend: classes of a mark, and what it stands for."""
    shown = (f'<span><i class="key {text(kind)}"></i>{text(name)}</span>' for kind, name in entries)
    return element("p", "".join(shown), "legend")


def number(value: float) -> str:
    """Some three digits of it."""
    size = abs(value)
    if size >= 1e6:
        return f"{value / 1e6:,.3g} M" if size < 1e9 else f"{value:.3g}"
    if size >= 100 or value == int(value):
        return f"{value:,.0f}"
    if size >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if size >= 1 else f"{value:.3g}"
