"""``fairseq-hybrid-train --arch hybrid_lstm --help`` with the options of model, task and criterion.

fairseq parses twice: once to learn which model, task, criterion and the like are wanted, and again
with their options added. ``--help`` ends the first of these, so nothing but the options of all
trainings is ever shown. Here the first leaves it alone, and each option says its default: a model's
is that of the architecture which is asked for.
"""

from __future__ import annotations

import argparse
import contextlib
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
        arch: str | None = None

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
            self.arch = getattr(found, "arch", None) if named else None
            if getattr(found, "task", "") is None:  # only the checkpoint will say which
                self.show()
            if hasattr(found, "arch") and not named:  # fairseq-generate's default is a speech model
                del found.arch
            return found, more

        def print_help(self, file: Any = None) -> None:
            usual = defaults_of(self.arch)
            for action in self._actions:
                action.help = with_default(action, usual)
            super().print_help(file)

        def show(self, more: str = "") -> NoReturn:
            self.print_help()
            print(more, end="\n" if more else "")
            raise SystemExit(0)

    return Waiting


def defaults_of(arch: str | None) -> dict[str, Any]:
    """A model's options as this architecture sets them."""
    from fairseq.models import ARCH_CONFIG_REGISTRY

    args = argparse.Namespace()
    if arch in ARCH_CONFIG_REGISTRY:
        with contextlib.suppress(AttributeError):  # one that asks for options of others
            ARCH_CONFIG_REGISTRY[arch](args)
    return vars(args)


def with_default(action: argparse.Action, usual: dict[str, Any]) -> str | None:
    """An option's help, with its default if it has one and does not say it."""
    text, value = action.help, action.default
    if value is None or value == argparse.SUPPRESS:
        value = usual.get(action.dest)
    nothing = value is None or value is False or value in ("", [])
    if nothing or text == argparse.SUPPRESS or "default" in (text or ""):
        return text
    return f"{text or ''} (default: {str(value).replace('%', '%%')})".lstrip()
