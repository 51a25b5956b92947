"""Options of `feedforward_lm`: flags, defaults, and the combinations that are refused.

Flags are named as in fairseq's language models where they mean the same thing.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

SIZES = ("decoder_embed_dim", "hidden_layers", "hidden_size", "decoder_out_embed_dim")
ACTIVATIONS = ("sigmoid", "relu")


def add_args(parser: ArgumentParser) -> None:
    """Add the model's flags. Defaults belong to the architecture, so none is set here."""
    add = parser.add_argument
    add("--ngram", type=int, metavar="N", help="a word is predicted from the N - 1 before it")
    add("--decoder-embed-dim", type=int, metavar="N", help="embedding dimension")
    add("--hidden-layers", type=int, metavar="N", help="number of hidden layers")
    add("--hidden-size", type=int, metavar="N", help="size of all hidden layers but the last")
    add(
        "--decoder-out-embed-dim", type=int, metavar="N",
        help="size of the last hidden layer, whose vectors are scored against the vocabulary "
        "(default: the embedding dimension if output embeddings are shared, otherwise the hidden "
        "size)",
    )  # fmt: skip
    add("--activation", choices=ACTIVATIONS, help="of all hidden layers")
    add(
        "--share-decoder-input-output-embed", action="store_true",
        help="share input and output embeddings",
    )  # fmt: skip
    add("--dropout", type=float, metavar="D", help="of embeddings and after every hidden layer")


def set_defaults(args: Namespace) -> None:
    """Fill in what is not set."""

    def default(name, value):
        setattr(args, name, getattr(args, name, value))

    default("ngram", 5)
    default("decoder_embed_dim", 128)
    default("hidden_layers", 2)
    default("hidden_size", 512)
    default("activation", "sigmoid")
    default("dropout", 0.2)
    default("share_decoder_input_output_embed", False)
    shares = args.share_decoder_input_output_embed
    default("decoder_out_embed_dim", args.decoder_embed_dim if shares else args.hidden_size)


def layer_sizes(args: Namespace) -> list[int]:
    """Width of the concatenated embeddings, then of every hidden layer."""
    between = [args.hidden_size] * (args.hidden_layers - 1)
    return [(args.ngram - 1) * args.decoder_embed_dim, *between, args.decoder_out_embed_dim]


def check(args: Namespace, source_dictionary, target_dictionary) -> None:
    """Raise ValueError, one line, on what cannot work: the flag, its value, the way out."""
    if args.ngram < 2:
        raise ValueError(f"--ngram {args.ngram} leaves no word to predict from: use 2 or more")
    for name in SIZES:
        value = getattr(args, name)
        if value < 1:
            flag = "--" + name.replace("_", "-")
            raise ValueError(f"{flag} {value} is too small: use 1 or more")
    if not 0.0 <= args.dropout < 1.0:
        raise ValueError(f"--dropout {args.dropout} is not a probability below 1: use 0 <= D < 1")
    if args.activation not in ACTIVATIONS:
        raise ValueError(
            f"--activation {args.activation} is not known: use {' or '.join(ACTIVATIONS)}"
        )
    if args.hidden_layers == 1 and args.hidden_size != args.decoder_out_embed_dim:
        raise ValueError(
            f"--hidden-layers 1 leaves one layer, which cannot have both --hidden-size "
            f"({args.hidden_size}) and --decoder-out-embed-dim ({args.decoder_out_embed_dim}): "
            f"set both to the same number"
        )
    if args.share_decoder_input_output_embed:
        _check_sharing(args, len(source_dictionary), len(target_dictionary))
    if getattr(args, "criterion", None) == "adaptive_loss":
        raise ValueError(
            "--criterion adaptive_loss needs an adaptive softmax, which --arch feedforward_lm does "
            "not have: use cross_entropy or sampled_softmax"
        )


def _check_sharing(args: Namespace, words_in: int, words_out: int) -> None:
    flag = "--share-decoder-input-output-embed"
    if args.decoder_embed_dim != args.decoder_out_embed_dim:
        raise ValueError(
            f"{flag} needs --decoder-out-embed-dim ({args.decoder_out_embed_dim}) equal to "
            f"--decoder-embed-dim ({args.decoder_embed_dim}): leave out --decoder-out-embed-dim"
        )
    if words_in != words_out:
        raise ValueError(
            f"{flag} needs as many words out ({words_out}) as in ({words_in}): leave out "
            f"--output-dictionary-size"
        )
