"""The commands that README and docs show, taken from their text.

A command is a line of a code block, or code within a sentence that has a space in it. What looks
like one and is none is told by its first word (`NO_PROGRAMS`), or by the language of its block.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from jobs import ROOT

DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
CHECKS = ROOT / "docs/checks.md"

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"(?<=\n\n)(?:    .*\n)+")
CODE = re.compile(r"`([^`]+)`")
SETTING = re.compile(r"([A-Z][A-Z0-9_]*)=(.*)", re.DOTALL)
SCRIPT = re.compile(r"(?:examples|benchmarks)/[\w/-]+\.sh")
WHICH = re.compile(r"\$\(which ([\w-]+)\)")
NO_PROGRAMS = {
    *("forward", "==", "train_step", "update", "worker", "all"),  # pictures and output
    "fairseq-generate:",  # a message
}
"""first words of what is no command: a new picture needs an entry, or a block ```text"""
MESSAGES = re.compile(r"^\| you see \| do \|\n\|---\|---\|\n((?:\|.*\n)+)", re.MULTILINE)


@dataclass(frozen=True)
class Command:
    page: str
    text: str
    settings: tuple[tuple[str, str], ...]
    words: tuple[str, ...]

    @property
    def bare(self) -> bool:
        """Only the name of a script: what it needs stands in its head."""
        return SCRIPT.fullmatch(self.text) is not None

    @property
    def program(self) -> str:
        """What runs: a script's path, or the first word."""
        return self.words[self.words[0] in ("bash", "python")]

    @property
    def check(self) -> str:
        """By what docs/checks.md is searched: a script, whatever its options, or all words."""
        return " ".join(self.words) if self.program == self.words[0] else self.program

    def __str__(self) -> str:
        return f"{self.page}: {self.text}"


def commands() -> list[Command]:
    """Of all documents, each once; docs/checks.md repeats what others say."""
    found = {}
    for path in DOCUMENTS:
        for command in of_page(path) if path != CHECKS else ():
            found.setdefault((command.settings, command.words, command.bare), command)
    return list(found.values())


def of_page(path: Path) -> Iterator[Command]:
    text, blocks = without_blocks(path.read_text(encoding="utf-8"))
    for block in blocks:
        for line in lines(block):
            yield parse(path.name, line)
    shown = set(messages(text))
    for code in CODE.findall(text):
        code = " ".join(code.split())
        if code in shown:
            continue
        if SCRIPT.fullmatch(code):
            yield Command(path.name, code, (), ("bash", code))
        elif " " in code and is_command(code):
            yield parse(path.name, code)


def messages(text: str) -> list[str]:
    """Of the tables "you see | do": messages of ours, with … for what differs."""
    rows = "".join(MESSAGES.findall(text)).splitlines()
    seen = (code for row in rows for code in CODE.findall(row.split("|")[1]))
    return [code for code in seen if " " in code]


def named() -> Iterator[tuple[str, str]]:
    """Page and code within its sentences, but for commands: flags, files, names."""
    for path in DOCUMENTS:
        for code in CODE.findall(without_blocks(path.read_text(encoding="utf-8"))[0]):
            if " " not in code or not is_command(" ".join(code.split())):
                yield path.name, code


def without_blocks(text: str) -> tuple[str, list[str]]:
    """The text without its code blocks, and those blocks that hold commands."""
    blocks = [body for language, body in FENCE.findall(text) if language in ("", "sh", "bash")]
    text = FENCE.sub("", text)
    blocks += INDENTED.findall(text)
    return INDENTED.sub("", text), [b for b in blocks if b.split()[0] not in NO_PROGRAMS]


def lines(block: str) -> Iterator[str]:
    for line in block.replace("\\\n", " ").splitlines():
        if line.strip() and not line.strip().startswith("#"):
            yield " ".join(line.split())


def is_command(code: str) -> bool:
    """Neither flags, nor a name with its flags, nor Python, nor a message."""
    first = next((w for w in code.split() if not SETTING.fullmatch(w)), "-")
    program = re.fullmatch(r"[a-z][a-z0-9.+/:-]*", first)  # names of models and the like have a _
    return bool(program) and first not in NO_PROGRAMS


def parse(page: str, text: str) -> Command:
    try:
        words = shlex.split(WHICH.sub(r"\1", text), comments=True)
    except ValueError as error:
        raise ValueError(
            f"{page}: {text}: {error}; no command? Then mark the block as text"
        ) from None
    settings = []
    while words and (setting := SETTING.fullmatch(words[0])):
        settings.append((setting[1], setting[2]))
        words = words[1:]
    return Command(page, text, tuple(settings), tuple(map(without_brackets, words)))


def without_brackets(word: str) -> str:
    """`[--flag 2]` is optional: it is checked as if it were there."""
    return word.strip("[]") if word.count("[") != word.count("]") else word


def by_hand() -> list[Command]:
    """The first column of docs/checks.md."""
    rows = re.findall(r"^\| (`.*?) \|", CHECKS.read_text(encoding="utf-8"), re.MULTILINE)
    return [parse(CHECKS.name, code) for row in rows for code in CODE.findall(row)]
