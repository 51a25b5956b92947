"""Sentences of a run's data as its best model translates them, with what it looked at."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fairseq_hybrid.inference import trained
from fairseq_hybrid.inference.translator import Translator
from fairseq_hybrid.pages.skeleton import text

SPLITS = ("test", "valid")
SHORTEST, LONGEST = 6, 26
"""pieces of a sentence that is chosen"""
LOOKED_AT = 4000
"""sentences from which they are chosen"""
CELL, LETTER, ROW = 24, 7.4, 20
"""of a picture of attention"""


class Sample(NamedTuple):
    source: str
    wanted: str
    output: str
    source_pieces: list[str]
    pieces: list[str]
    """of the output"""
    attention: list[list[float]] | None
    """a row for each piece of the source"""


def translate(checkpoint: Path, count: int) -> tuple[str, list[Sample]]:
    """The split they are of, and the sentences; the same ones for every model of the same data."""
    model = trained.load(str(checkpoint))
    translator = Translator(model, attention=True)
    split = _load(model.task)
    dataset = model.task.dataset(split)
    chosen = _choose([int(n) for n in dataset.src_sizes[:LOOKED_AT]], count)
    sources = [dataset.src[i].long() for i in chosen]
    found = translator.translate(sources)
    samples = []
    for i, source, (best, *_) in zip(chosen, sources, found):
        attention = None if best.attention is None else best.attention.tolist()
        samples.append(
            Sample(
                _string(model, source, model.source), _string(model, dataset.tgt[i], model.target),
                best.text, [model.source[n] for n in source], best.pieces, attention,
            )
        )  # fmt: skip
    return split, samples


def _string(model: Any, ids: Any, dictionary: Any) -> str:
    return str(dictionary.string(ids, bpe_symbol=trained.joined_by(dictionary)))


def _load(task: Any) -> str:
    for split in SPLITS:
        try:
            task.load_dataset(split)
        except FileNotFoundError:
            continue
        return split
    raise FileNotFoundError(f"there is neither a {' nor a '.join(SPLITS)} set beside the model")


def _choose(lengths: Sequence[int], count: int) -> list[int]:
    """Some of usual length, from all over the text."""
    fit = [i for i, n in enumerate(lengths) if SHORTEST <= n <= LONGEST] or [*range(len(lengths))]
    return [fit[len(fit) * i // count] for i in range(min(count, len(fit)))]


def attention_map(sample: Sample) -> str:
    """A row for each piece of the output, a column for each of the source; dark: looked at."""
    if sample.attention is None or len(sample.attention) != len(sample.source_pieces):
        return ""
    left = 10 + LETTER * max(map(len, sample.pieces))
    top = 10 + LETTER * max(map(len, sample.source_pieces))
    width, height = CELL * len(sample.source_pieces), ROW * len(sample.pieces)
    body = []
    for i, piece in enumerate(sample.source_pieces):
        x = left + CELL * i + CELL / 2 + 4
        body.append(
            f'<text transform="translate({x:.1f} {top - 6:.1f}) rotate(-90)">{text(piece)}</text>'
        )
    for j, piece in enumerate(sample.pieces):
        y = top + ROW * j
        body.append(
            f'<text x="{left - 7:.1f}" y="{y + 14:.1f}" text-anchor="end">{text(piece)}</text>'
        )
        for i, looked in enumerate(sample.source_pieces):
            share = sample.attention[i][j]
            if share >= 0.005:
                body.append(
                    f'<rect x="{left + CELL * i + 1:.1f}" y="{y + 1:.1f}" width="{CELL - 2}" '
                    f'height="{ROW - 2}" rx="2" fill-opacity="{min(share, 1):.2f}">'
                    f"<title>{text(piece)} from {text(looked)}: {share:.0%}</title></rect>"
                )
    frame = f'x="{left:.1f}" y="{top:.1f}" width="{width}" height="{height}"'
    size = f'width="{left + width + 6:.0f}" height="{top + height + 6:.0f}"'
    label = text(f"Attention of: {sample.output}")
    return (
        f'<div class="map" tabindex="0"><svg {size} role="img" aria-label="{label}">'
        f'{"".join(body)}<rect class="frame" {frame} rx="3"/></svg></div>'
    )
