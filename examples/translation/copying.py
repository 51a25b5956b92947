"""How many test sentences have all their names and numbers right.

    python examples/translation/copying.py SOURCE REFERENCE OUTPUT [--wrong N]

Counted are words of the reference with a digit or a capital letter that stand in the source
letter for letter: people's names, most places, years, days, prices, times. A word with a capital
counts if some reference has it elsewhere than at its beginning ("Anna", but not "The"). A sentence
is right if its output has each of these words exactly as often as the reference. Names that the
languages spell differently (München, Munich) and numbers in words are no copies: BLEU sees them.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from pathlib import Path

WORD = re.compile(r"\w+(?:[.:,]\d+)*")


def words(line: str) -> list[str]:
    """`Anna's 3.5 kg` → Anna, s, 3.5, kg"""
    return WORD.findall(line)


def names_of(sentences: list[list[str]]) -> set[str]:
    """Words with a capital where no sentence begins."""
    return {word for line in sentences for word in line[1:] if word[0].isupper()}


def copies(source: list[str], reference: list[str], names: set[str]) -> Counter:
    """The names and numbers of a reference that stand in its source, and how often."""
    there = set(source)
    return Counter(
        word
        for word in reference
        if word in there and (word in names or any(map(str.isdigit, word)))
    )


def measure(sources: list[str], references: list[str], outputs: list[str]) -> list[bool | None]:
    """Of each sentence: whether its copies are right, None if it has none."""
    split = [words(line) for line in references]
    names = names_of(split)
    verdicts: list[bool | None] = []
    for source, reference, output in zip(sources, split, outputs):
        wanted = copies(words(source), reference, names)
        found = Counter(words(output))
        verdicts.append(all(found[w] == n for w, n in wanted.items()) if wanted else None)
    return verdicts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("source", "reference", "output"):
        parser.add_argument(name, type=Path, help="a file with a sentence per line")
    parser.add_argument("--wrong", type=int, default=0, help="show so many sentences with errors")
    args = parser.parse_args()
    paths = (args.source, args.reference, args.output)
    files = [path.read_text(encoding="utf-8").rstrip("\n").split("\n") for path in paths]
    if len({len(lines) for lines in files}) != 1:
        counts = ", ".join(f"{path} {len(lines)}" for path, lines in zip(paths, files))
        sys.exit(f"copying.py: not the same number of lines: {counts}")
    verdicts = measure(*files)
    having = [verdict for verdict in verdicts if verdict is not None]
    if not having:
        sys.exit(f"copying.py: {args.source} and {args.reference} have no name or number in common")
    share = sum(having) / len(having)
    print(
        f"names and numbers copied right in {share:.1%} "
        f"of the {len(having)} test sentences that have any"
    )
    wrong = [lines for lines, verdict in zip(zip(*files), verdicts) if verdict is False]
    for lines in wrong[: args.wrong]:
        print(*lines, "", sep="\n")


if __name__ == "__main__":
    main()
