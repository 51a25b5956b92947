"""A report as one page of HTML that needs nothing beside it: timeline, partition, alternatives."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from fairseq_hybrid.backends.wavefront.options import stacked
from fairseq_hybrid.planner import pictures, tables
from fairseq_hybrid.planner.choose import Prediction
from fairseq_hybrid.planner.pictures import Panel
from fairseq_hybrid.planner.plan import MODEL_PARALLEL
from fairseq_hybrid.planner.tables import Table

STYLE = """
body { font: 15px/1.5 sans-serif; color: #222; max-width: 1250px; margin: 2em auto; padding: 0 1em }
h1 { font-size: 1.5em } h2 { font-size: 1.15em; margin-top: 2em }
svg { width: 100%; height: auto }
.wide { overflow-x: auto }
table { border-collapse: collapse; font-size: 13px }
th, td { padding: .3em .8em; border-bottom: 1px solid #ddd; text-align: right; white-space: nowrap }
th:first-child, td:first-child { text-align: left }
tr.chosen { background: #e5f3ee; font-weight: bold }
.stages { display: flex; flex-wrap: wrap; gap: 1em }
.stage { border: 1px solid #888; border-radius: 6px; padding: .6em 1em; min-width: 11em }
.stage p { margin: .15em 0 } .stage p:first-child { font-weight: bold }
"""


def write_page(
    path: str,
    chosen: Prediction,
    ranked: Sequence[Prediction],
    panels: Sequence[Panel],
    systems: tuple[str, Table] | None = None,
) -> None:
    """`systems`: headline and table of the five systems, if they were projected."""
    how = tables.PROJECTED if chosen.projected else "predicted"
    title = f"Plan: {chosen.plan}"
    speed = f"{1000 * chosen.seconds:,.1f} ms per update, {chosen.words_per_second:,.0f}"
    body = [
        f"<h1>{escape(title)}</h1>",
        f"<p>{how}, on average: {speed} target words per second, {chosen.idle:.0%} of the time "
        "waiting.</p>",
        "<h2>Timeline of one update</h2>",
        pictures.svg(panels),
        "<h2>Partition</h2>",
        partition_boxes(chosen),
        f"<p>What each worker does in one update ({how}):</p>",
        table(tables.workers_table(chosen)),
        f"<h2>Alternatives ({how})</h2>",
        table(tables.alternatives_table(ranked), str(chosen.plan)),
    ]
    if systems is not None:
        body += [f"<h2>{escape(systems[0])}</h2>", table(systems[1])]
    Path(path).write_text(
        '<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>\n<body>\n"
        + "\n".join(body)
        + "\n</body>\n</html>\n",
        encoding="utf-8",
    )


def table(content: Table, chosen: str | None = None) -> str:
    """`chosen`: the first cell of the row to be marked."""
    head = "".join(f"<th>{escape(cell)}</th>" for cell in content.columns)
    rows = []
    for row in content.rows:
        mark = ' class="chosen"' if row[0] == chosen else ""
        rows.append(f"<tr{mark}>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>")
    body = "\n".join(rows)
    return f'<div class="wide"><table><tr>{head}</tr>\n{body}</table></div>'


def partition_boxes(chosen: Prediction) -> str:
    """A box for each stage, or one for all layers where nothing is split."""
    plan = chosen.plan
    boxes = []
    for stage, mine in enumerate(stacked(plan.layers)):
        ranks = ", ".join(map(str, range(stage, plan.workers, plan.stages)))
        name = f"stage {stage}: worker {ranks}" if plan.splits else f"each of workers {ranks}"
        lines = [name, *contents(chosen, stage, ", ".join(str(i + 1) for i in mine))]
        text = "".join(f"<p>{escape(line)}</p>" for line in lines)
        boxes.append(f'<div class="stage">{text}</div>')
    chunk = f"<p>Chunks of {plan.chunk} time steps.</p>" if plan.splits else ""
    return f'<div class="stages">{"".join(boxes)}</div>{chunk}'


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
