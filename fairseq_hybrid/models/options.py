"""Options of a model as one table: every flag with its default, its help and its range.

A table adds its flags, fills in what is not set and refuses what is out of range; what must not be
combined is a function of the model's own, with `validate_sharing` and `validate_single_layer`.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from typing import Any, NamedTuple


class ModelOption(NamedTuple):
    """A flag. Its default is a value, or a function of the arguments with values filled in."""

    flag: str
    default: Any
    help: str
    how: dict[str, Any]
    """further arguments of `add_argument`"""
    range: str = ""
    """size: 1 or more; probability: below 1"""

    @property
    def name(self) -> str:
        return self.flag[2:].replace("-", "_")


def option(flag: str, default: Any, help: str, **how: Any) -> ModelOption:
    return ModelOption(flag, default, help, how)


def size(flag: str, default: Any, help: str) -> ModelOption:
    return ModelOption(flag, default, help, {"type": int, "metavar": "N"}, "size")


def probability(flag: str, default: Any, help: str) -> ModelOption:
    return ModelOption(flag, default, help, {"type": float, "metavar": "D"}, "probability")


def switch(flag: str, help: str) -> ModelOption:
    return ModelOption(flag, False, help, {"action": "store_true"})


def same_as(name: str) -> Callable[[Namespace], Any]:
    """The default of an option that follows another one."""
    return lambda args: getattr(args, name)


def output_width(hidden: str) -> Callable[[Namespace], int]:
    """As wide as the embeddings that are shared with the output, otherwise as the layers."""

    def default(args: Namespace) -> int:
        shares = ("share_decoder_input_output_embed", "share_all_embeddings")
        shared = any(getattr(args, name, False) for name in shares)
        return getattr(args, "decoder_embed_dim" if shared else hidden)

    return default


class Options:
    """A model's table."""

    def __init__(self, *options: ModelOption) -> None:
        self.options = options

    def add_args(self, parser: ArgumentParser) -> None:
        """Add the flags. Defaults belong to the architecture, so none is set here."""
        for option in self.options:
            parser.add_argument(option.flag, help=option.help, **option.how)

    def set_defaults(self, args: Namespace, **preferred: Any) -> None:
        """Fill in what is not set: first from `preferred` (a named architecture), then in general.

        Values first, then functions in the order of the table.
        """
        for option in sorted(self.options, key=lambda option: callable(option.default)):
            if not hasattr(args, option.name):
                value = preferred.get(option.name, option.default)
                setattr(args, option.name, value(args) if callable(value) else value)

    def validate_ranges(self, args: Namespace) -> None:
        """Refuse a number that no model can have."""
        for option in self.options:
            value = getattr(args, option.name)
            given = f"{option.flag} {value}"
            if option.range == "size":
                refuse(value < 1, f"{given} is too small: use 1 or more")
            elif option.range == "probability":
                below = 0.0 <= value < 1.0
                refuse(not below, f"{given} is not a probability below 1: use 0 <= D < 1")


def refuse(wrong: bool, message: str) -> None:
    """Raise ValueError, one line, on what cannot work: the flag, its value, the way out."""
    if wrong:
        raise ValueError(message)


SHARING = "--share-decoder-input-output-embed"


def validate_sharing(args: Namespace, words_in: int, words_out: int, flag: str = SHARING) -> None:
    """Input and output embeddings that are one: refuse other shapes."""
    refuse(
        args.decoder_embed_dim != args.decoder_out_embed_dim,
        f"{flag} needs --decoder-out-embed-dim ({args.decoder_out_embed_dim}) equal to "
        f"--decoder-embed-dim ({args.decoder_embed_dim}): leave out --decoder-out-embed-dim",
    )
    refuse(
        words_in != words_out,
        f"{flag} needs as many words out ({words_out}) as in ({words_in}): leave out "
        f"--output-dictionary-size",
    )


def validate_single_layer(args: Namespace, layers: str, size: str) -> None:
    """A first layer that is also the last has one size."""
    number, width = (getattr(args, flag[2:].replace("-", "_")) for flag in (layers, size))
    refuse(
        number == 1 and width != args.decoder_out_embed_dim,
        f"{layers} 1 leaves one layer, which cannot have both {size} ({width}) and "
        f"--decoder-out-embed-dim ({args.decoder_out_embed_dim}): set both to the same number",
    )
