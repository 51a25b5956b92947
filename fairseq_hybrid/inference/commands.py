"""What the commands of this package share: one line for what is wrong, a quiet log, a bar."""

from __future__ import annotations

import argparse
import logging
import math
import os
import sys
from collections.abc import Callable
from typing import NoReturn

import torch

from fairseq_hybrid import errors as messages


class CommandParser(argparse.ArgumentParser):
    """Complains in one line."""

    def __init__(self, command: str, description: str, example: str):
        super().__init__(
            prog=f"fairseq-hybrid-{command}",
            description=description,
            epilog=example,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message} ({self.prog} --help lists the options)\n")


def whole(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number above 0")
    return int(text)


def amount(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a number from 0 on")
    return value


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Which model, and where what belongs to it is."""
    parser.add_argument(
        "checkpoint", metavar="CHECKPOINT",
        help="a trained model, or a folder with checkpoint_best.pt, as one that a recipe made",
    )  # fmt: skip
    parser.add_argument(
        "--data", metavar="FOLDER",
        help="where dict.*.txt are (default: beside the checkpoint, or where it was trained)",
    )  # fmt: skip
    parser.add_argument(
        "--pieces", metavar="FILE",
        help="sentencepiece model (default: pieces.model beside the checkpoint or dictionaries)",
    )  # fmt: skip


def add_device_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cpu", action="store_true", help="do not use a GPU if there is one")
    parser.add_argument(
        "--threads", type=whole, metavar="N", help="CPU threads (default: OMP_NUM_THREADS, or all)"
    )


def device(options: argparse.Namespace) -> torch.device:
    if options.threads:
        torch.set_num_threads(options.threads)
    return torch.device("cuda" if torch.cuda.is_available() and not options.cpu else "cpu")


def run(work: Callable[[], object]) -> None:
    """Do it; errors of the user's are one line, a closed pipe or Ctrl-C is no error of ours."""
    logging.disable(logging.WARNING)  # of libraries
    sys.stdout.reconfigure(encoding="utf-8")
    try:
        work()
        sys.stdout.flush()
    except BrokenPipeError:  # as by `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except Exception as error:
        line = messages.user_line(error)
        if line is None:
            raise
        messages.fail(line)


def note(text: str) -> None:
    print(f"{messages.program()}: {text}", file=sys.stderr, flush=True)
