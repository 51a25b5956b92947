"""Options of `feedforward_lm`: flags, defaults, and the combinations that are refused.

Flags are named as in fairseq's language models where they mean the same thing.
"""

from __future__ import annotations

from argparse import Namespace

from fairseq.data import Dictionary

from fairseq_hybrid.models import options as table
from fairseq_hybrid.models.options import option, output_width, probability, size, switch

SIZES = ("decoder_embed_dim", "hidden_layers", "hidden_size", "decoder_out_embed_dim")
ACTIVATIONS = ("sigmoid", "relu")


OPTIONS = table.Options(
    option("--ngram", 5, "a word is predicted from the N - 1 before it", type=int, metavar="N"
    ),
    size("--decoder-embed-dim", 128, "embedding dimension"),
    size("--hidden-layers", 2, "number of hidden layers"),
    size("--hidden-size", 512, "size of all hidden layers but the last"),
    size("--decoder-out-embed-dim", output_width("hidden_size"),
        "size of the last hidden layer, whose vectors are scored against the vocabulary "
        "(default: the embedding dimension if output embeddings are shared, otherwise the hidden "
        "size)"),
    option("--activation", "sigmoid", "of all hidden layers", choices=ACTIVATIONS),
    switch(table.SHARING, "share input and output embeddings"),
    probability("--dropout", 0.2, "of embeddings and after every hidden layer"),
)  # fmt: skip
add_args, set_defaults = OPTIONS.add_args, OPTIONS.set_defaults


def layer_sizes(args: Namespace) -> list[int]:
    """Width of the concatenated embeddings, then of every hidden layer."""
    between = [args.hidden_size] * (args.hidden_layers - 1)
    return [(args.ngram - 1) * args.decoder_embed_dim, *between, args.decoder_out_embed_dim]


def validate(args: Namespace, source: Dictionary, target: Dictionary) -> None:
    """Raise ValueError, one line, on what cannot work: the flag, its value, the way out."""
    table.refuse(
        args.ngram < 2, f"--ngram {args.ngram} leaves no word to predict from: use 2 or more"
    )
    OPTIONS.validate_ranges(args)
    known = " or ".join(ACTIVATIONS)
    unknown = args.activation not in ACTIVATIONS
    table.refuse(unknown, f"--activation {args.activation} is not known: use {known}")
    table.validate_single_layer(args, "--hidden-layers", "--hidden-size")
    if args.share_decoder_input_output_embed:
        table.validate_sharing(args, len(source), len(target))
    table.refuse(
        getattr(args, "criterion", None) == "adaptive_loss",
        "--criterion adaptive_loss needs an adaptive softmax, which --arch feedforward_lm does "
        "not have: use cross_entropy or sampled_softmax",
    )
