"""Options of `hybrid_lstm_lm`: flags, defaults, and the combinations that are refused.

Flags are named as in fairseq's `lstm_lm` where they mean the same thing.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

SIZES = ("decoder_embed_dim", "decoder_hidden_size", "decoder_layers", "decoder_out_embed_dim")
LAYER_DROPOUTS = ("decoder_dropout_in", "decoder_dropout_hidden", "decoder_dropout_out")
DROPOUTS = ("dropout", *LAYER_DROPOUTS, "word_dropout", "weight_dropout")


def add_args(parser: ArgumentParser) -> None:
    """Add the model's flags. Defaults belong to the architecture, so none is set here."""
    add = parser.add_argument
    add("--decoder-embed-dim", type=int, metavar="N", help="embedding dimension")
    add("--decoder-hidden-size", type=int, metavar="N", help="size of all layers but the last")
    add("--decoder-layers", type=int, metavar="N", help="number of LSTM layers")
    add(
        "--decoder-out-embed-dim", type=int, metavar="N",
        help="size of the last layer, whose vectors are scored against the vocabulary (default: "
        "the embedding dimension if output embeddings are shared, otherwise the hidden size)",
    )  # fmt: skip
    add(
        "--share-decoder-input-output-embed", action="store_true",
        help="share input and output embeddings",
    )  # fmt: skip
    add("--dropout", type=float, metavar="D", help="default of the three --decoder-dropout-...")
    add(
        "--decoder-dropout-in", type=float, metavar="D",
        help="dropout of embeddings, one mask for all words of a sequence",
    )  # fmt: skip
    add(
        "--decoder-dropout-hidden", type=float, metavar="D",
        help="dropout between layers, one mask for all words of a sequence",
    )  # fmt: skip
    add(
        "--decoder-dropout-out", type=float, metavar="D",
        help="dropout above the last layer, one mask for all words of a sequence",
    )  # fmt: skip
    add(
        "--word-dropout", type=float, metavar="D",
        help="dropout of words: all occurrences of a word in the batch, the whole embedding",
    )  # fmt: skip
    add(
        "--weight-dropout", type=float, metavar="D",
        help="dropout of the hidden-to-hidden weights of every layer (DropConnect)",
    )  # fmt: skip
    add(
        "--adaptive-softmax-cutoff", metavar="N,N,...",
        help="adaptive softmax with these limits of word frequency ranks; "
        "for --criterion adaptive_loss",
    )  # fmt: skip


def set_defaults(args: Namespace, **preferred) -> None:
    """Fill in what is not set: first from `preferred` (a named architecture), then in general."""

    def default(name, value):
        setattr(args, name, getattr(args, name, preferred.get(name, value)))

    default("dropout", 0.2)
    for name in LAYER_DROPOUTS:
        default(name, args.dropout)
    default("word_dropout", 0.0)
    default("weight_dropout", 0.0)
    default("share_decoder_input_output_embed", False)
    default("adaptive_softmax_cutoff", None)
    default("decoder_embed_dim", 256)
    default("decoder_hidden_size", 256)
    default("decoder_layers", 2)
    shares = args.share_decoder_input_output_embed
    default("decoder_out_embed_dim", args.decoder_embed_dim if shares else args.decoder_hidden_size)


def check(args: Namespace, source_dictionary, target_dictionary) -> None:
    """Raise ValueError, one line, on what cannot work: the flag, its value, the way out."""
    for name in SIZES:
        value = getattr(args, name)
        if value < 1:
            raise ValueError(f"{_flag(name)} {value} is too small: use 1 or more")
    for name in DROPOUTS:
        value = getattr(args, name)
        if not 0.0 <= value < 1.0:
            raise ValueError(f"{_flag(name)} {value} is not a probability below 1: use 0 <= D < 1")
    if args.decoder_layers == 1 and args.decoder_hidden_size != args.decoder_out_embed_dim:
        raise ValueError(
            f"--decoder-layers 1 leaves one layer, which cannot have both --decoder-hidden-size "
            f"({args.decoder_hidden_size}) and --decoder-out-embed-dim "
            f"({args.decoder_out_embed_dim}): set both to the same number"
        )
    if args.share_decoder_input_output_embed:
        _check_sharing(args, source_dictionary, target_dictionary)
    if args.adaptive_softmax_cutoff:
        _check_cutoffs(args, len(target_dictionary))
    elif getattr(args, "criterion", None) == "adaptive_loss":
        raise ValueError(
            "--criterion adaptive_loss needs --adaptive-softmax-cutoff: give limits such as "
            "2000,10000"
        )


def cutoffs(args: Namespace) -> list[int]:
    """`--adaptive-softmax-cutoff` as numbers."""
    try:
        return [int(part) for part in args.adaptive_softmax_cutoff.split(",")]
    except ValueError:
        raise ValueError(
            f"--adaptive-softmax-cutoff {args.adaptive_softmax_cutoff} is not a list of numbers: "
            f"use commas, as in 2000,10000"
        ) from None


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _check_sharing(args: Namespace, source_dictionary, target_dictionary) -> None:
    flag = "--share-decoder-input-output-embed"
    if args.decoder_embed_dim != args.decoder_out_embed_dim:
        raise ValueError(
            f"{flag} needs --decoder-out-embed-dim ({args.decoder_out_embed_dim}) equal to "
            f"--decoder-embed-dim ({args.decoder_embed_dim}): leave out --decoder-out-embed-dim"
        )
    if len(source_dictionary) != len(target_dictionary):
        raise ValueError(
            f"{flag} needs as many words out ({len(target_dictionary)}) as in "
            f"({len(source_dictionary)}): leave out --output-dictionary-size"
        )
    if args.adaptive_softmax_cutoff:
        raise ValueError(
            f"{flag} has no output embedding to share with --adaptive-softmax-cutoff "
            f"{args.adaptive_softmax_cutoff}: leave out one of them"
        )


def _check_cutoffs(args: Namespace, words: int) -> None:
    given = f"--adaptive-softmax-cutoff {args.adaptive_softmax_cutoff}"
    limits = cutoffs(args)
    if limits[0] < 1 or any(a >= b for a, b in zip(limits, [*limits[1:], words])):
        raise ValueError(f"{given} has to rise from 1 or more to less than the {words} words known")
    if args.decoder_out_embed_dim < 4 ** len(limits):
        raise ValueError(
            f"{given} makes {len(limits)} clusters, each a quarter as wide as the one before, of "
            f"--decoder-out-embed-dim {args.decoder_out_embed_dim}: use fewer limits"
        )
