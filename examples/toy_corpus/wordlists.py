"""The word lists in ``words/``: sections of rows, whose fields stand between tabs."""

from __future__ import annotations

from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent / "words"


@cache
def sections(name: str) -> dict[str, list[list[str]]]:
    """The rows of ``words/NAME.tsv`` by section, in the file's order."""
    found: dict[str, list[list[str]]] = {}
    for line in (FOLDER / f"{name}.tsv").read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            rows = found.setdefault(line[1:-1], [])
        elif line and not line.startswith("#"):
            rows.append(line.split("\t"))
    return found


def words(name: str, section: str) -> list[str]:
    """A section of single words."""
    return [word for row in sections(name)[section] for word in row[0].split()]
