"""``fairseq-hybrid-train --arch hybrid_lstm --help`` with the options of model, task and criterion.

fairseq parses twice: once to learn which model, task, criterion and the like are wanted, and again
with their options added. ``--help`` ends the first of these, so nothing but the options of all
trainings is ever shown. Here the first leaves it alone.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

HELP = ("-h", "--help")


def install() -> None:
    """Let fairseq build its parsers from one that waits, if help is asked for."""
    if not any(word in HELP for word in sys.argv[1:]):
        return
    from fairseq import options

    options.argparse.ArgumentParser = waiting(options.argparse.ArgumentParser)


def waiting(parser: type[argparse.ArgumentParser]) -> type[argparse.ArgumentParser]:
    class Waiting(parser):
        final = False

        def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
            self.final = True
            return super().parse_args(args, namespace)

        def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
            given = list(sys.argv[1:] if args is None else args)
            asked = any(word in HELP for word in given)
            if self.final or not (self.add_help and asked):
                return super().parse_known_args(args, namespace)
            if self.has("--arch") and not any(w.partition("=")[0] == "--arch" for w in given):
                self.print_help()
                print("\nWith --arch NAME before --help: the options of that model as well.")
                raise SystemExit(0)
            return super().parse_known_args([w for w in given if w not in HELP], namespace)

        def has(self, flag: str) -> bool:
            return flag in self._option_string_actions

    return Waiting
