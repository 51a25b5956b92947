"""Errors of the user's, and how they are shown: one line.

An error is the user's when it says so (``UserError``), when the system refuses a file, or when
fairseq raises a ``ValueError`` or ``AssertionError`` whose text names an option.  Everything else
is a bug of ours or of fairseq's and keeps its traceback.
"""

from __future__ import annotations

import os
import re
import sys
from typing import NoReturn

USAGE_EXIT = 2
FLAG = re.compile(r"(^|[\s(`'\"])--[a-z]")

REWORDED = (
    # (what fairseq says of the user's input without naming a flag, what we say)
    (
        r"sentence at index \d+ of size (\d+) exceeds max_tokens limit of (\d+)!",
        r"--max-tokens \2 is less than a sentence of \1: give \1 or more, or split the sentence",
    ),
    (
        r"Sentences lengths should not exceed max_tokens=(\d+)",
        r"--max-tokens \1 is less than the longest sentence: give more, or split the sentence",
    ),
    (
        r"Trying to create tensor with negative dimension (-\d+).*",
        r"a size of the model is \1: give 1 or more to --encoder-embed-dim and the like",
    ),
    (r"Dataset not found: (\S+) \((.*)\)", r"\2 has no data set \1: see what is in the folder"),
)


class UserError(ValueError):
    """Something the user can put right; the message names the option, the value, the way out."""


def program() -> str:
    """The command as the user typed it, for the start of a message."""
    return os.path.basename(sys.argv[0]) or "fairseq_hybrid"


def user_line(error: BaseException) -> str | None:
    """One line for an error that is the user's to mend; None for any other error."""
    if type(error) is Exception and isinstance(error.__context__, UserError):
        error = error.__context__  # fairseq's "cannot load" around what is wrong with the file
    text = " ".join(str(error).split())
    for words, line in REWORDED:
        match = re.fullmatch(words, text)
        if match:
            return match.expand(line)
    if isinstance(error, UserError):
        return text
    if isinstance(error, OSError) and not isinstance(error, (ConnectionError, TimeoutError)):
        if error.filename is None:
            return text or None
        reason = error.strerror or ("not found" if isinstance(error, FileNotFoundError) else "")
        return f"{error.filename}: {reason.lower()}" if reason else str(error.filename)
    if isinstance(error, FileNotFoundError):
        return f"not found: {text}"
    plain = isinstance(error, (ValueError, AssertionError)) or type(error) is Exception
    if plain and FLAG.search(text):
        return text
    return None


def fail(line: str, code: int = USAGE_EXIT) -> NoReturn:
    """Print one line on stderr and leave."""
    sys.stdout.flush()
    print(f"{program()}: error: {line}", file=sys.stderr, flush=True)
    raise SystemExit(code)
