"""``fairseq-hybrid-report``: how one training went, or several, as a page.

fairseq-hybrid-report quickstart-run
fairseq-hybrid-report sweep/*/ --output sweep.html
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

from fairseq_hybrid.errors import UserError, user_line
from fairseq_hybrid.inference import commands
from fairseq_hybrid.pages import skeleton
from fairseq_hybrid.report import run as runs
from fairseq_hybrid.report import samples, sections
from fairseq_hybrid.report.run import Run

EXAMPLE = """\
examples:
  fairseq-hybrid-report quickstart-run
  fairseq-hybrid-report hybrid/train.log legacy_ddp/train.log --output both.html

RUN is the folder of a training that a recipe made, or the file with what fairseq-train wrote
(--log-format simple, json or tqdm). The page has curves of loss, BLEU, speed and learning rate,
where the workers' time went, translations by the best checkpoint, settings that differ between
runs, and the command that trains on. It needs nothing beside it: send it to whom you like.
"""


def parser() -> argparse.ArgumentParser:
    made = commands.CommandParser("report", "Show how trainings went, as one HTML page.", EXAMPLE)
    add = made.add_argument
    add("runs", metavar="RUN", nargs="+", help="folder or log of a training; several are compared")
    add("--output", metavar="FILE", default="report.html",
        help="the page; one of before is replaced (default: report.html)")  # fmt: skip
    add("--samples", type=_count, default=4, metavar="N",
        help="sentences of the test set to translate by the best checkpoint, if it, its "
        "dictionaries and data are found; 0: none, which is faster (default: 4)")  # fmt: skip
    return made


def _count(value: str) -> int:
    if not value.isdecimal() or int(value) > 100:
        raise argparse.ArgumentTypeError(f"{value} is not a whole number from 0 to 100")
    return int(value)


def main() -> None:
    options = parser().parse_intermixed_args()
    commands.run(lambda: run(options))


def run(options: argparse.Namespace) -> None:
    output = Path(options.output)
    validate_output(output)
    found = [runs.open_run(path) for path in options.runs]
    runs.distinguish(found, options.runs)
    write(make_page(found, options.samples), output)
    print(output)


def validate_output(output: Path) -> None:
    """Refuse what is no page of ours."""
    if output.is_dir():
        raise UserError(f"--output {output} is a folder: give a file")
    if not output.absolute().parent.is_dir():
        raise UserError(f"--output {output}: there is no such folder, make it first")
    if output.exists() and not (output.is_file() and skeleton.is_page(output)):
        raise UserError(f"--output {output} is there and is no report: give another name")


def make_page(found: list[Run], count: int) -> str:
    notes: list[str] = []
    split, translated = "", {}
    for each in found if count else []:
        if each.checkpoint is None:
            continue
        try:
            split, translated[each.name] = samples.translate(each.checkpoint, count)
        except (Exception, SystemExit) as error:
            why = user_line(error) or f"{type(error).__name__}: {error}"
            notes.append(f"{each.name}: no translations: {' '.join(why.split())[:300]}")
    if len({tuple(s.source for s in some) for some in translated.values()}) > 1:
        first = next(iter(translated))
        notes.append(f"translations of {first} only: the others have other data")
        translated = {first: translated[first]}
    body = [
        sections.facts(found),
        sections.curves(found),
        sections.time_of_stages(found, notes),
        sections.sentences(found, translated, split),
        sections.comparison(found),
        sections.commands(found),
        sections.remarks(found, notes),
    ]
    title = found[0].name if len(found) == 1 else f"{len(found)} runs"
    when = time.strftime("%Y-%m-%d %H:%M")
    foot = (
        f"Written {when} by fairseq-hybrid-report from {', '.join(str(r.log.path) for r in found)}."
    )
    return skeleton.page(title, sections.summary(found), filter(None, body), foot)


def write(page: str, output: Path) -> None:
    """All of it or nothing."""
    half = output.with_name(f".{output.name}.{os.getpid()}")
    try:
        half.write_text(page, encoding="utf-8")
        os.replace(half, output)
    finally:
        half.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
