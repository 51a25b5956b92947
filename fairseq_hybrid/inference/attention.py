"""A picture of attention: which pieces of the source each piece of a translation looked at.

An SVG, which every browser shows; no library draws it.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

CELL = 22
LETTER = 8
LONGEST = 200
"""pieces of a side: beyond, nobody could read it"""

PAGE = """<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"
 font-family="sans-serif" font-size="13">
<rect width="100%" height="100%" fill="white"/>
{body}
</svg>
"""


def picture(source: Sequence[str], target: Sequence[str], weights) -> str:
    """`weights[i][j]`: how much piece j of the target looked at piece i of the source."""
    left = 10 + LETTER * max(map(len, target))
    top = 10 + LETTER * max(map(len, source))
    body = []
    for i, piece in enumerate(source):
        x = left + CELL * i + CELL // 2 + 4
        body.append(
            f'<text transform="translate({x} {top - 6}) rotate(-90)">{escape(piece)}</text>'
        )
    for j, piece in enumerate(target):
        y = top + CELL * j
        body.append(f'<text x="{left - 6}" y="{y + 16}" text-anchor="end">{escape(piece)}</text>')
        for i, name in enumerate(source):
            weight = float(weights[i][j])
            body.append(
                f'<rect x="{left + CELL * i}" y="{y}" width="{CELL}" height="{CELL}"'
                f' fill="#08519c" fill-opacity="{weight:.3f}" stroke="#ddd">'
                f"<title>{escape(piece)} / {escape(name)}: {weight:.0%}</title></rect>"
            )
    width, height = left + CELL * len(source) + 10, top + CELL * len(target) + 10
    return PAGE.format(width=width, height=height, body="\n".join(body))
