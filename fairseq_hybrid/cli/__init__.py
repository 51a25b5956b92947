"""``fairseq-hybrid-train`` and its siblings: fairseq's commands with ``--user-dir`` preset.

fairseq's command modules set up the log when they are imported, and that only works before fairseq
itself is.  The package imports this file first, so that our commands, and the workers they start,
log as fairseq's do.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

USER_DIR = str(Path(__file__).resolve().parent.parent)
PREFIX = "fairseq-hybrid-"
COMMANDS = ("train", "generate", "interactive", "validate", "eval-lm", "preprocess")


def called() -> str | None:
    """The fairseq command behind the one that the user typed, if it is one of ours."""
    name = os.path.basename(sys.argv[0]) if sys.argv else ""
    command = name[len(PREFIX) :] if name.startswith(PREFIX) else None
    return command if command in COMMANDS else None


def load(command: str):
    return importlib.import_module("fairseq_cli." + command.replace("-", "_"))


if called():
    load(called())


def main() -> None:
    """Run fairseq's command as if ``--user-dir`` had been given first."""
    if not any(a == "--user-dir" or a.startswith("--user-dir=") for a in sys.argv[1:]):
        sys.argv[1:1] = ["--user-dir", USER_DIR]
    load(called()).cli_main()
