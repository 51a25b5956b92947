"""Options of `hybrid_lstm`: flags, defaults, and the combinations that are refused.

Flags are named as in fairseq's `lstm` where they mean the same thing.
"""

from __future__ import annotations

import math
from argparse import Namespace
from typing import Any

from fairseq import utils
from fairseq.data import Dictionary

from fairseq_hybrid.models import options as table
from fairseq_hybrid.models.options import option, output_width, probability, same_as, size, switch


def _side(
    side: str, embed_dim: Any, hidden_size: Any, layers: Any
) -> tuple[table.ModelOption, ...]:
    return (
        size(f"--{side}-embed-dim", embed_dim, f"{side} embedding dimension"),
        option(f"--{side}-embed-path", None, f"pre-trained {side} embedding", metavar="FILE"),
        switch(f"--{side}-freeze-embed", f"freeze {side} embeddings"),
        size(f"--{side}-hidden-size", hidden_size, f"{side} hidden size"),
        size(f"--{side}-layers", layers, f"number of {side} layers"),
    )


def _forget_bias(args: Namespace) -> float:
    """Open gates let attention be learnt early; reading both ways does so too, and better
    (docs/benchmarks.md)."""
    return 0.0 if args.encoder_bidirectional_first else 1.0


OPTIONS = table.Options(
    *_side("encoder", 256, 256, 2),
    *_side("decoder", *(same_as(f"encoder_{n}") for n in ("embed_dim", "hidden_size", "layers"))),
    size("--decoder-out-embed-dim", output_width("decoder_hidden_size"),
        "width of the vectors scored against the vocabulary (default: the decoder embedding "
        "dimension if output embeddings are shared, otherwise the hidden size)"),
    switch(table.SHARING, "share decoder input and output embeddings"),
    switch("--share-all-embeddings",
        "share encoder, decoder and output embeddings (needs a joined dictionary)"),
    switch("--input-feeding",
        "feed the attentional vector of each target word to the next step: the decoder then "
        "waits for attention at every word (slower, and not splittable over time)"),
    switch("--encoder-bidirectional-first",
        "the first encoder layer reads in both directions, half of the hidden size each"),
    option("--residual", lambda args: args.encoder_layers > 2,
        "add the input of every layer but the first to its output "
        "(default: with more than two layers)",
        type=utils.eval_bool, metavar="BOOL"),
    option("--forget-bias", _forget_bias,
        "added to the forget gates' biases at the start (default: 1, with "
        "--encoder-bidirectional-first 0)",
        type=float, metavar="B"),
    probability("--dropout", 0.2, "dropout probability"),
    probability("--encoder-dropout-in", same_as("dropout"), "dropout of source embeddings"),
    probability("--encoder-dropout-out", same_as("dropout"), "dropout of encoder layer outputs"),
    probability("--decoder-dropout-in", same_as("dropout"), "dropout of target embeddings"),
    probability("--decoder-dropout-out", same_as("dropout"),
        "dropout of decoder layer outputs and of attentional vectors"),
)  # fmt: skip
add_args, set_defaults = OPTIONS.add_args, OPTIONS.set_defaults


def validate(args: Namespace, source: Dictionary, target: Dictionary) -> None:
    """Raise ValueError, one line, on what cannot work: the flag, its value, the way out."""
    OPTIONS.validate_ranges(args)
    for flag, why in (
        ("layers", "each decoder layer starts from the state of its encoder layer"),
        ("hidden-size", "decoder states start from the encoder's"),
    ):
        ours, theirs = (
            getattr(args, f"{side}_{flag.replace('-', '_')}") for side in ("encoder", "decoder")
        )
        table.refuse(
            ours != theirs,
            f"--encoder-{flag} {ours} and --decoder-{flag} {theirs} cannot be joined, as {why}: "
            f"set both to the same number",
        )
    table.refuse(
        args.encoder_bidirectional_first and args.encoder_hidden_size % 2,
        f"--encoder-bidirectional-first halves --encoder-hidden-size "
        f"({args.encoder_hidden_size}): use an even number",
    )
    bias = args.forget_bias
    table.refuse(not math.isfinite(bias), f"--forget-bias {bias} is not a number: use 0 to 2")
    words = len(target)
    if args.share_all_embeddings:
        flag = "--share-all-embeddings"
        _validate_joined_embeddings(flag, args, source, target)
        table.validate_sharing(args, words, words, flag)
    elif args.share_decoder_input_output_embed:
        table.validate_sharing(args, words, words)


def _validate_joined_embeddings(
    flag: str, args: Namespace, source: Dictionary, target: Dictionary
) -> None:
    table.refuse(
        source != target,
        f"{flag} needs one dictionary for both languages, not {len(source)} and {len(target)} "
        f"words: run fairseq-preprocess with --joined-dictionary",
    )
    table.refuse(
        args.encoder_embed_dim != args.decoder_embed_dim,
        f"{flag} needs --encoder-embed-dim ({args.encoder_embed_dim}) equal to "
        f"--decoder-embed-dim ({args.decoder_embed_dim}): set both to the same number",
    )
    table.refuse(
        args.decoder_embed_path not in (None, args.encoder_embed_path),
        f"{flag} has no place for --decoder-embed-path {args.decoder_embed_path}: give "
        f"--encoder-embed-path only",
    )
