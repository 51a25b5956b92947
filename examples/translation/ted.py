"""Plain text, a sentence per line, out of the files of IWSLT's TED talks.

python ted.py train|valid TAGGED_FILE     all but every 23rd sentence, or only those
python ted.py test PREFIX... SUFFIX       the segments of PREFIXSUFFIX, one file after the other

The split of the training sentences is that of fairseq's own recipe.
"""

from __future__ import annotations

import html
import re
import sys
from collections.abc import Iterator

NOT_TEXT = re.compile(r"^\s*<(?!title>|description>)")
"""lines about a talk, but for its title and description, which are translated too"""
MARK = re.compile(r"</?(title|description)>")
SEGMENT = re.compile(r"<seg[^>]*>(.*?)</seg>")
HELD_OUT = 23


def sentences(path: str) -> Iterator[str]:
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            if not NOT_TEXT.match(line):
                yield tidy(MARK.sub("", line))


def segments(path: str) -> Iterator[str]:
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            for segment in SEGMENT.findall(line):
                yield tidy(html.unescape(segment))


def tidy(text: str) -> str:
    # Unicode has line ends of its own, which other programs would take for the end of a sentence.
    return " ".join(text.split())


def main(what: str, *files: str) -> None:
    sys.stdout.reconfigure(encoding="utf-8", newline="\n")
    if what == "test":
        *prefixes, suffix = files
        for prefix in prefixes:
            for sentence in segments(prefix + suffix):
                print(sentence)
        return
    for number, sentence in enumerate(sentences(files[0]), 1):
        if (number % HELD_OUT == 0) == (what == "valid"):
            print(sentence)


if __name__ == "__main__":
    main(*sys.argv[1:])
