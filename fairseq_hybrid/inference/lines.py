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


class Line(NamedTuple):
    number: int
    text: str
    problem: str = ""
    """what is wrong with it; the text is then empty"""


def read(file: BinaryIO, name: str) -> Iterator[Line]:
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


def decode(number: int, raw: bytes) -> Line:
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        return Line(number, "", f"is not UTF-8 (byte {error.start + 1}): convert or mend it")
    if "\0" in text:
        return Line(number, "", "has a NUL byte, so it is no text: mend it")
    return Line(number, text.strip())


def portions(lines: Iterable[Line], size: int) -> Iterator[list[Line]]:
    """Lists of up to so many lines."""
    portion: list[Line] = []
    for line in lines:
        portion.append(line)
        if len(portion) == size:
            yield portion
            portion = []
    if portion:
        yield portion
