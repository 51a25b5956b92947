"""``fairseq-hybrid-convert``: fairseq's ``lstm`` as a ``hybrid_lstm --input-feeding``.

The two compute the same, with these differences in how the weights are kept:

- attention: fairseq projects the decoder's state, W h, and compares it with the encoder's; ours
  projects the encoder's states once per sentence. `s · (W h) = (Wᵀ s) · h`, so W is transposed.
- the attentional vector: of [context; state] there, of [state; context] here.
- names; layers of the encoder are one module there.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

import torch
from omegaconf import OmegaConf
from torch import Tensor

from fairseq_hybrid import checkpoints
from fairseq_hybrid.errors import UserError
from fairseq_hybrid.inference import commands
from fairseq_hybrid.inference.trained import find_checkpoint, read
from fairseq_hybrid.models import hybrid_lstm_options

EXAMPLE = """\
example:
  fairseq-hybrid-convert checkpoints/checkpoint_best.pt converted/checkpoint_best.pt

The new checkpoint gives the same translations, and what takes a hybrid_lstm takes it. To train on
from it: fairseq-hybrid-train DATA --finetune-from-model converted/checkpoint_best.pt with the sizes
of before (optimizer and position in the data are not carried over). Refused, as hybrid_lstm has no
equal: --decoder-attention 0, an adaptive softmax, unlike sizes of encoder and decoder, and
--encoder-bidirectional but for one layer whose two directions are as wide as the decoder.
"""
ARCHS = ("lstm", "lstm_wiseman_iwslt_de_en", "lstm_luong_wmt_en_de")
FINAL = re.compile(r"encoder\.lstm\.(\w+)_l(\d+)(_reverse)?")


def parser() -> argparse.ArgumentParser:
    made = commands.CommandParser("convert", "Make a hybrid_lstm of fairseq's lstm.", EXAMPLE)
    made.add_argument(
        "checkpoint", metavar="CHECKPOINT", help="of --arch lstm, or a folder with one"
    )
    made.add_argument("output", metavar="OUTPUT", help="the checkpoint to write")
    return made


def main() -> None:
    options = parser().parse_intermixed_args()
    commands.run(lambda: run(options))


def run(options: argparse.Namespace) -> None:
    path, output = find_checkpoint(options.checkpoint), Path(options.output)
    if output.is_dir():
        raise UserError(f"{output} is a folder: name the file, as {output}/checkpoint_best.pt")
    if output.exists():
        raise UserError(f"{output} is there already: give another name, or remove it")
    state = read(path)
    converted = convert(state, str(path))
    os.makedirs(output.absolute().parent, exist_ok=True)
    checkpoints.save(converted, str(output))
    print(f"{output}: hybrid_lstm --input-feeding, with the weights of {path}")


def convert(state: dict, path: str = "the checkpoint") -> dict:
    """The whole checkpoint; what belongs to its optimizer is left out."""
    cfg = state["cfg"]
    old = cfg.model
    args = Namespace(**vars(old)) if isinstance(old, Namespace) else Namespace(**dict(old))
    if getattr(args, "arch", None) not in ARCHS:
        raise UserError(f"{path} is of --arch {getattr(args, 'arch', None)}: only lstm is taken")
    refuse_other_kinds(args, state["model"], path)
    new = options_of(args)
    cfg = OmegaConf.to_container(cfg, resolve=True, enum_to_str=True)
    cfg["model"] = new
    return {
        "args": None,
        "cfg": cfg,
        "model": dict(weights(state["model"], new)),
        "optimizer_history": state["optimizer_history"],
        "last_optimizer_state": None,
        "extra_state": {},
        "task_state": state.get("task_state", {}),
    }


def refuse_other_kinds(args: Namespace, weights: dict[str, Tensor], path: str) -> None:
    """Refuse what hybrid_lstm cannot be."""

    def refuse(what: str) -> None:
        raise UserError(f"{path} has {what}, for which hybrid_lstm has no equal")

    if "decoder.attention.input_proj.weight" not in weights:
        refuse("--decoder-attention 0")
    if any("adaptive_softmax" in name for name in weights):
        refuse("an adaptive softmax (--criterion adaptive_loss)")
    if args.encoder_bidirectional and args.encoder_layers > 1:
        refuse(f"--encoder-bidirectional with --encoder-layers {args.encoder_layers}")
    if "decoder.encoder_hidden_proj.weight" in weights:
        both = " in both directions" if args.encoder_bidirectional else ""
        refuse(
            f"--encoder-hidden-size {args.encoder_hidden_size}{both} and --decoder-hidden-size "
            f"{args.decoder_hidden_size}"
        )


def options_of(args: Namespace) -> Namespace:
    """The same model as options of hybrid_lstm."""
    new = Namespace(**vars(args))
    new.arch = new._name = "hybrid_lstm"
    new.input_feeding, new.residual, new.forget_bias = True, False, 0.0
    new.encoder_bidirectional_first = args.encoder_bidirectional
    new.encoder_hidden_size = args.decoder_hidden_size
    new.encoder_embed_path = new.decoder_embed_path = None
    for name in ("encoder_bidirectional", "decoder_attention", "adaptive_softmax_cutoff"):
        vars(new).pop(name, None)
    hybrid_lstm_options.set_defaults(new)
    return new


def weights(old: dict[str, Tensor], args: Namespace) -> Iterator[tuple[str, Tensor]]:
    shares = args.share_all_embeddings or args.share_decoder_input_output_embed
    for name, value in old.items():
        encoder = FINAL.fullmatch(name)
        if encoder:
            kind, layer, reverse = encoder.groups()
            yield f"encoder.layers.{layer}.lstm.{kind}_l0{reverse or ''}", value
        elif name.startswith("decoder.layers."):
            _, _, layer, kind = name.split(".")
            yield f"decoder.layers.{layer}.lstm.{kind}_l0", value
        elif name == "decoder.attention.input_proj.weight":
            yield "decoder.head.key_proj.weight", value.t().contiguous()
        elif name == "decoder.attention.output_proj.weight":
            context, state = value.chunk(2, dim=1)
            yield "decoder.head.combine.weight", torch.cat((state, context), dim=1)
        elif name.startswith("decoder.additional_fc."):
            yield name.replace("additional_fc", "head.out_embed"), value
        elif name.startswith("decoder.fc_out."):
            yield name.replace("fc_out", "head.output"), value
        elif name.endswith("embed_tokens.weight"):
            yield name, value
            if shares and name.startswith("decoder"):
                yield "decoder.head.output.weight", value
        elif not name.endswith("version"):
            raise UserError(f"{name} in the checkpoint is unknown: not of fairseq's lstm")


if __name__ == "__main__":
    sys.exit(main())
