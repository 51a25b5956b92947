"""Text as it comes: bytes to lines, and for a line that is no text what is wrong with it."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator
from typing import BinaryIO, NamedTuple

from fairseq_hybrid.errors import UserError

MARKS = {
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}


class TextLine(NamedTuple):
    number: int
    text: str
    problem: str = ""
    """what is wrong with it; the text is then empty"""


def read(file: BinaryIO, name: str) -> Iterator[TextLine]:
    """Only \\n ends a line: crawled text has other breaks within its sentences."""
    for number, raw in enumerate(file, 1):
        if number == 1:
            for mark, encoding in MARKS.items():
                if raw.startswith(mark):
                    raise UserError(
                        f"{name} is {encoding}: convert it, as by iconv -f {encoding} -t UTF-8"
                    )
            raw = raw.removeprefix(codecs.BOM_UTF8)
        yield decode(number, raw)


def decode(number: int, raw: bytes) -> TextLine:
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        return TextLine(number, "", f"is not UTF-8 (byte {error.start + 1}): convert or mend it")
    if "\0" in text:
        return TextLine(number, "", "has a NUL byte, so it is no text: mend it")
    return TextLine(number, text.strip())


def portions(lines: Iterable[TextLine], size: int) -> Iterator[list[TextLine]]:
    """Lists of up to so many lines."""
    portion: list[TextLine] = []
    for line in lines:
        portion.append(line)
        if len(portion) == size:
            yield portion
            portion = []
    if portion:
        yield portion
