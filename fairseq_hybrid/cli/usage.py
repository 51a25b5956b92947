"""``fairseq-hybrid-train --arch hybrid_lstm --help`` with the options of model, task and criterion.

fairseq parses twice: once to learn which model, task, criterion and the like are wanted, and again
with their options added. ``--help`` ends the first of these, so nothing but the options of all
trainings is ever shown. Here the first leaves it alone.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any, NoReturn

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
            named = any(word.partition("=")[0] in ("-a", "--arch") for word in given)
            if (
                "--arch" in self._option_string_actions
                and not named
                and not self.get_default("arch")
            ):
                self.show("\nWith --arch NAME before --help: the options of that model as well.")
            asking = [word for word in given if word not in HELP]
            found, more = super().parse_known_args(asking, namespace)
            if getattr(found, "task", "") is None:  # only the checkpoint will say which
                self.show()
            if hasattr(found, "arch") and not named:  # fairseq-generate's default is a speech model
                del found.arch
            return found, more

        def show(self, more: str = "") -> NoReturn:
            self.print_help()
            print(more, end="\n" if more else "")
            raise SystemExit(0)

    return Waiting
