"""Options of `hybrid_lstm`: flags, defaults, and the combinations that are refused.

Flags are named as in fairseq's `lstm` where they mean the same thing.
"""

from __future__ import annotations

import math
from argparse import ArgumentParser, Namespace

from fairseq import utils


def add_args(parser: ArgumentParser) -> None:
    """Add the model's flags. Defaults belong to the architecture, so none is set here."""
    add = parser.add_argument
    for side in ("encoder", "decoder"):
        add(f"--{side}-embed-dim", type=int, metavar="N", help=f"{side} embedding dimension")
        add(f"--{side}-embed-path", metavar="FILE", help=f"pre-trained {side} embedding")
        add(f"--{side}-freeze-embed", action="store_true", help=f"freeze {side} embeddings")
        add(f"--{side}-hidden-size", type=int, metavar="N", help=f"{side} hidden size")
        add(f"--{side}-layers", type=int, metavar="N", help=f"number of {side} layers")
    add(
        "--decoder-out-embed-dim", type=int, metavar="N",
        help="width of the vectors scored against the vocabulary (default: the decoder embedding "
        "dimension if output embeddings are shared, otherwise the hidden size)",
    )  # fmt: skip
    add(
        "--share-decoder-input-output-embed", action="store_true",
        help="share decoder input and output embeddings",
    )  # fmt: skip
    add(
        "--share-all-embeddings", action="store_true",
        help="share encoder, decoder and output embeddings (needs a joined dictionary)",
    )  # fmt: skip
    add(
        "--input-feeding", action="store_true",
        help="feed the attentional vector of each target word to the next step: the decoder then "
        "waits for attention at every word (slower, and not splittable over time)",
    )  # fmt: skip
    add(
        "--encoder-bidirectional-first", action="store_true",
        help="the first encoder layer reads in both directions, half of the hidden size each",
    )  # fmt: skip
    add(
        "--residual", type=utils.eval_bool, metavar="BOOL",
        help="add the input of every layer but the first to its output "
        "(default: with more than two layers)",
    )  # fmt: skip
    add(
        "--forget-bias", type=float, metavar="B",
        help="added to the forget gates' biases at the start (default: 1, with "
        "--encoder-bidirectional-first 0)",
    )  # fmt: skip
    add("--dropout", type=float, metavar="D", help="dropout probability")
    add("--encoder-dropout-in", type=float, metavar="D", help="dropout of source embeddings")
    add("--encoder-dropout-out", type=float, metavar="D", help="dropout of encoder layer outputs")
    add("--decoder-dropout-in", type=float, metavar="D", help="dropout of target embeddings")
    add(
        "--decoder-dropout-out", type=float, metavar="D",
        help="dropout of decoder layer outputs and of attentional vectors",
    )  # fmt: skip


def set_defaults(args: Namespace, **preferred) -> None:
    """Fill in what is not set: first from `preferred` (a named architecture), then in general."""

    def default(name, value):
        setattr(args, name, getattr(args, name, preferred.get(name, value)))

    default("dropout", 0.2)
    for name in (
        "encoder_freeze_embed",
        "decoder_freeze_embed",
        "share_decoder_input_output_embed",
        "share_all_embeddings",
        "input_feeding",
        "encoder_bidirectional_first",
    ):
        default(name, False)
    default("encoder_embed_dim", 256)
    default("decoder_embed_dim", args.encoder_embed_dim)
    default("encoder_hidden_size", 256)
    default("decoder_hidden_size", args.encoder_hidden_size)
    default("encoder_layers", 2)
    default("decoder_layers", args.encoder_layers)
    default("residual", args.encoder_layers > 2)
    # Open gates let attention be learnt early; reading both ways does so too, and better
    # (docs/benchmarks.md).
    default("forget_bias", 0.0 if args.encoder_bidirectional_first else 1.0)
    shares_output = args.share_decoder_input_output_embed or args.share_all_embeddings
    default(
        "decoder_out_embed_dim",
        args.decoder_embed_dim if shares_output else args.decoder_hidden_size,
    )
    for side in ("encoder", "decoder"):
        default(f"{side}_embed_path", None)
        default(f"{side}_dropout_in", args.dropout)
        default(f"{side}_dropout_out", args.dropout)


def check(args: Namespace, source_dictionary, target_dictionary) -> None:
    """Raise ValueError, one line, on what cannot work: the flag, its value, the way out."""
    _check_sizes(args)
    for name in (
        "dropout",
        *(f"{s}_dropout_{e}" for s in ("encoder", "decoder") for e in ("in", "out")),
    ):
        value = getattr(args, name)
        if not 0.0 <= value < 1.0:
            flag = "--" + name.replace("_", "-")
            raise ValueError(f"{flag} {value} is not a probability below 1: use 0 <= D < 1")
    if not math.isfinite(args.forget_bias):
        raise ValueError(f"--forget-bias {args.forget_bias} is not a number: use 0 to 2")
    if args.share_all_embeddings:
        _check_shared_embeddings(args, source_dictionary, target_dictionary)
    if args.share_all_embeddings or args.share_decoder_input_output_embed:
        flag = (
            "share-all-embeddings"
            if args.share_all_embeddings
            else "share-decoder-input-output-embed"
        )
        if args.decoder_embed_dim != args.decoder_out_embed_dim:
            raise ValueError(
                f"--{flag} needs --decoder-out-embed-dim ({args.decoder_out_embed_dim}) equal to "
                f"--decoder-embed-dim ({args.decoder_embed_dim}): leave out --decoder-out-embed-dim"
            )


def _check_sizes(args: Namespace) -> None:
    for name in ("embed_dim", "hidden_size", "layers"):
        for side in ("encoder", "decoder"):
            value = getattr(args, f"{side}_{name}")
            if value < 1:
                flag = f"--{side}-{name.replace('_', '-')}"
                raise ValueError(f"{flag} {value} is too small: use 1 or more")
    if args.decoder_out_embed_dim < 1:
        raise ValueError(
            f"--decoder-out-embed-dim {args.decoder_out_embed_dim} is too small: use 1 or more"
        )
    for name, what in (
        ("layers", "each decoder layer starts from the state of its encoder layer"),
        ("hidden_size", "decoder states start from the encoder's"),
    ):
        flag = name.replace("_", "-")
        ours, theirs = getattr(args, f"encoder_{name}"), getattr(args, f"decoder_{name}")
        if ours != theirs:
            raise ValueError(
                f"--encoder-{flag} {ours} and --decoder-{flag} {theirs} cannot be joined, as "
                f"{what}: set both to the same number"
            )
    if args.encoder_bidirectional_first and args.encoder_hidden_size % 2:
        raise ValueError(
            f"--encoder-bidirectional-first halves --encoder-hidden-size "
            f"({args.encoder_hidden_size}): use an even number"
        )


def _check_shared_embeddings(args: Namespace, source_dictionary, target_dictionary) -> None:
    if source_dictionary != target_dictionary:
        raise ValueError(
            f"--share-all-embeddings needs one dictionary for both languages, not "
            f"{len(source_dictionary)} and {len(target_dictionary)} words: run fairseq-preprocess "
            f"with --joined-dictionary"
        )
    if args.encoder_embed_dim != args.decoder_embed_dim:
        raise ValueError(
            f"--share-all-embeddings needs --encoder-embed-dim ({args.encoder_embed_dim}) equal to "
            f"--decoder-embed-dim ({args.decoder_embed_dim}): set both to the same number"
        )
    if args.decoder_embed_path not in (None, args.encoder_embed_path):
        raise ValueError(
            f"--share-all-embeddings has no place for --decoder-embed-path "
            f"{args.decoder_embed_path}: give --encoder-embed-path only"
        )
