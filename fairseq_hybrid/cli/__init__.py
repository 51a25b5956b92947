"""``fairseq-hybrid-train`` and its siblings: fairseq's commands, and ours, ``--user-dir`` preset.

fairseq's command modules set up the log when they are imported, and that only works before fairseq
itself is.  The package imports this file first, so that our commands, and the workers they start,
log as fairseq's do.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
from pathlib import Path
from types import ModuleType

from fairseq_hybrid.cli import usage

USER_DIR = str(Path(__file__).resolve().parent.parent)
PREFIX = "fairseq-hybrid-"
OURS = {"pretrain": "fairseq_hybrid.pretraining.command"}
COMMANDS = ("train", "generate", "interactive", "validate", "eval-lm", "preprocess", *OURS)


def called() -> str | None:
    """The command that the user typed, without its prefix, if it is one of these."""
    name = os.path.basename(sys.argv[0]) if sys.argv else ""
    command = name[len(PREFIX) :] if name.startswith(PREFIX) else None
    return command if command in COMMANDS else None


def command_module(command: str) -> ModuleType:
    name = OURS.get(command) or "fairseq_cli." + command.replace("-", "_")
    return importlib.import_module(name)


if called():
    command_module("train" if called() in OURS else called())
elif os.path.basename(sys.argv[0] if sys.argv else "").startswith(PREFIX):
    logging.disable(logging.INFO)  # our other commands say what there is to say themselves


def main() -> None:
    """Run the command as if ``--user-dir`` had been given first."""
    if not any(a == "--user-dir" or a.startswith("--user-dir=") for a in sys.argv[1:]):
        sys.argv[1:1] = ["--user-dir", USER_DIR]
    usage.install()
    command_module(called()).cli_main()
