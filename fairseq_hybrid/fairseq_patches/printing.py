"""What fairseq's commands print: one line for an error, no deprecation noise, no pages of usage."""

from __future__ import annotations

import argparse
import difflib
import logging
import re
import sys
import types
import warnings
from typing import Any

from fairseq_hybrid.errors import USAGE_EXIT, fail, user_line

NOISE = (
    # (start of the message, category): what fairseq's calls provoke in hydra and torch
    (r"hydra\.experimental\.\w+\(\) is no longer experimental", UserWarning),
    (r"\s*The version_base parameter is not specified", UserWarning),
    (r"In 'config': Usage of deprecated keyword in package header", UserWarning),
    (r"\s*'config' is validated against ConfigStore schema", UserWarning),
    (r"\s*The strict flag in the compose API is deprecated", UserWarning),
    (r"'pin_memory' argument is set as true but no accelerator is found", UserWarning),
    (r"`broadcast_buffers` is deprecated", FutureWarning),
    (r"`torch\.cuda\.amp\.\w+\(args\.\.\.\)` is deprecated", FutureWarning),
)


class Parser(argparse.ArgumentParser):
    """fairseq has some hundred options: an error shows the one that is wrong, not all of them."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        found, more = super().parse_known_args(args, namespace)
        if getattr(found, "arch", "none asked for") is None:  # fairseq: RuntimeError()
            self.error(
                "--arch is not given: name a model, as --arch hybrid_lstm (translation) or "
                "--arch hybrid_lstm_lm (language models)"
            )
        return found, more

    def error(self, message: str) -> None:
        unknown = message.partition("unrecognized arguments: ")[2].split()
        if unknown:
            flags = [word.partition("=")[0] for word in unknown if word.startswith("-")]
            message = "; ".join(map(self._unknown, flags or unknown))
        match = re.match(r"argument (\S+): invalid choice: '?(.*?)'? \(choose from (.*)\)", message)
        if match:
            flag, value, listed = match.groups()
            choices = re.findall(r"[^\s,']+", listed)
            near = difflib.get_close_matches(value, choices, n=3)
            hint = f"did you mean {' or '.join(near)}? " if near else ""
            message = (
                f"{flag.split('/')[0]} {value} is not known: {hint}"
                f"{self.prog} --help lists the {len(choices)} choices"
            )
        self.exit(USAGE_EXIT, f"{self.prog}: error: {message}\n")

    def _unknown(self, word: str) -> str:
        """What to say of a word that is no option here."""
        elsewhere = flags_of_choices()
        if word in elsewhere:
            named = elsewhere[word]
            whose = ", ".join(named[:3]) + (f" or {len(named) - 3} more" if named[3:] else "")
            return f"{word} is an option of {whose}: choose that, or leave it out"
        every = [*self._option_string_actions, *elsewhere]
        near = difflib.get_close_matches(word, every, n=3, cutoff=0.75)
        near = near or sorted(flag for flag in every if flag.startswith(word))[:3]
        hint = f"did you mean {' or '.join(near)}?" if near else f"{self.prog} --help lists all"
        return f"{word} is not known: {hint}"


def flags_of_choices() -> dict[str, list[str]]:
    """Flag → the choices that bring it along: models, tasks, criteria, optimizers, schedules."""
    from fairseq import models, registry, tasks
    from fairseq.dataclass.utils import gen_parser_from_dataclass

    kinds = {"arch": models.MODEL_REGISTRY, "task": tasks.TASK_REGISTRY}
    kinds.update({name: each["registry"] for name, each in registry.REGISTRIES.items()})
    found: dict[str, list[str]] = {}
    for option, choices in kinds.items():
        for name, kind in choices.items():
            parser = argparse.ArgumentParser(add_help=False, conflict_handler="resolve")
            if hasattr(kind, "add_args"):
                kind.add_args(parser)
            elif hasattr(kind, "__dataclass"):
                gen_parser_from_dataclass(parser, kind.__dataclass())
            for flag in parser._option_string_actions:
                found.setdefault(flag, []).append(f"--{option.replace('_', '-')} {name}")
    return found


def install_errors() -> None:
    """One line also where no ``call_main`` is in the way: fairseq-generate, a model's options."""
    previous = sys.excepthook

    def hook(kind, error, trace):
        line = user_line(error)
        if line is None:
            previous(kind, error, trace)
        else:
            fail(line)

    sys.excepthook = hook


def install_quiet() -> None:
    for start, category in NOISE:
        warnings.filterwarnings("ignore", message=start, category=category)
    logging.getLogger("hydra").setLevel(logging.INFO)


def install_options() -> None:
    """Let fairseq build its parsers from ours, without touching argparse for anybody else."""
    from fairseq import options

    shim = types.ModuleType("argparse")
    shim.__dict__.update(vars(argparse))
    shim.ArgumentParser = Parser
    options.argparse = shim
