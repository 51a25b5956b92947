"""Options of `hybrid_lstm_lm`: flags, defaults, and the combinations that are refused.

Flags are named as in fairseq's `lstm_lm` where they mean the same thing.
"""

from __future__ import annotations

from argparse import Namespace

from fairseq.data import Dictionary

from fairseq_hybrid.models import options as table
from fairseq_hybrid.models.options import option, output_width, probability, same_as, size, switch

OPTIONS = table.Options(
    size("--decoder-embed-dim", 256, "embedding dimension"),
    size("--decoder-hidden-size", 256, "size of all layers but the last"),
    size("--decoder-layers", 2, "number of LSTM layers"),
    size("--decoder-out-embed-dim", output_width("decoder_hidden_size"),
        "size of the last layer, whose vectors are scored against the vocabulary (default: "
        "the embedding dimension if output embeddings are shared, otherwise the hidden size)"),
    switch(table.SHARING, "share input and output embeddings"),
    probability("--dropout", 0.2, "default of the three --decoder-dropout-..."),
    probability("--decoder-dropout-in", same_as("dropout"),
        "dropout of embeddings, one mask for all words of a sequence"),
    probability("--decoder-dropout-hidden", same_as("dropout"),
        "dropout between layers, one mask for all words of a sequence"),
    probability("--decoder-dropout-out", same_as("dropout"),
        "dropout above the last layer, one mask for all words of a sequence"),
    probability("--word-dropout", 0.0,
        "dropout of words: all occurrences of a word in the batch, the whole embedding"),
    probability("--weight-dropout", 0.0,
        "dropout of the hidden-to-hidden weights of every layer (DropConnect)"),
    option("--adaptive-softmax-cutoff", None,
        "adaptive softmax with these limits of word frequency ranks; "
        "for --criterion adaptive_loss",
        metavar="N,N,..."),
)  # fmt: skip
add_args, set_defaults = OPTIONS.add_args, OPTIONS.set_defaults


def validate(args: Namespace, source: Dictionary, target: Dictionary) -> None:
    """Raise ValueError, one line, on what cannot work: the flag, its value, the way out."""
    OPTIONS.validate_ranges(args)
    table.validate_single_layer(args, "--decoder-layers", "--decoder-hidden-size")
    given = f"--adaptive-softmax-cutoff {args.adaptive_softmax_cutoff}"
    adaptive = bool(args.adaptive_softmax_cutoff)
    if args.share_decoder_input_output_embed:
        table.validate_sharing(args, len(source), len(target))
        nothing = f"{table.SHARING} has no output embedding to share with {given}"
        table.refuse(adaptive, f"{nothing}: leave out one of them")
    table.refuse(
        not adaptive and getattr(args, "criterion", None) == "adaptive_loss",
        "--criterion adaptive_loss needs --adaptive-softmax-cutoff: give limits such as 2000,10000",
    )
    limits = cutoffs(args)
    table.refuse(
        adaptive
        and (limits[0] < 1 or any(a >= b for a, b in zip(limits, [*limits[1:], len(target)]))),
        f"{given} has to rise from 1 or more to less than the {len(target)} words known",
    )
    table.refuse(
        args.decoder_out_embed_dim < 4 ** len(limits),
        f"{given} makes {len(limits)} clusters, each a quarter as wide as the one before, of "
        f"--decoder-out-embed-dim {args.decoder_out_embed_dim}: use fewer limits",
    )


def cutoffs(args: Namespace) -> list[int]:
    """`--adaptive-softmax-cutoff` as numbers."""
    given = args.adaptive_softmax_cutoff
    try:
        return [int(part) for part in given.split(",")] if given else []
    except ValueError:
        raise ValueError(
            f"--adaptive-softmax-cutoff {given} is not a list of numbers: use commas, as in "
            f"2000,10000"
        ) from None
