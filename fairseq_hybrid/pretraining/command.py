"""``fairseq-hybrid-pretrain``: a start for ``fairseq-train --arch feedforward_lm``.

    fairseq-hybrid-pretrain DATA --arch feedforward_lm --hidden-layers 5 --save-dir PRE ...
    fairseq-train DATA --user-dir fairseq_hybrid --arch feedforward_lm --hidden-layers 5 ... \\
        --finetune-from-model PRE/pretrained.pt --save-dir MODEL --optimizer adam --lr 1e-3 ...

The hidden layers are trained one by one as restricted Boltzmann machines (layerwise.py), on one
worker or, averaging, on several (``--distributed-world-size``). The same command resumes.
"""

from __future__ import annotations

import logging
import os
from typing import Any

import torch
from fairseq import checkpoint_utils, tasks, utils
from fairseq import options as fairseq_options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.distributed import utils as distributed_utils

from fairseq_hybrid import checkpoints
from fairseq_hybrid.errors import UserError
from fairseq_hybrid.launch import topology
from fairseq_hybrid.models.feedforward_lm import FeedforwardLanguageModel
from fairseq_hybrid.pretraining import options
from fairseq_hybrid.pretraining.layerwise import Pretraining
from fairseq_hybrid.pretraining.windows import Windows

logger = logging.getLogger(__name__)

EMBEDDINGS = "decoder.embed_tokens.weight"


def cli_main() -> None:
    cfg, settings = parse()
    if all(name in os.environ for name in topology.TORCHRUN):
        topology.join_torchrun(cfg)
    options.validate(cfg, settings)
    distributed_utils.call_main(cfg, main, settings=settings)


def parse(words: list[str] | None = None) -> tuple[Any, options.Settings]:
    """The command line."""
    parser = fairseq_options.get_training_parser(default_task="language_modeling")
    options.add_args(parser)
    args = fairseq_options.parse_args_and_arch(parser, words)
    return convert_namespace_to_omegaconf(args), options.settings_of(args)


def main(cfg: Any, settings: options.Settings) -> None:
    """A worker's part."""
    utils.import_user_module(cfg.common)
    if distributed_utils.is_master(cfg.distributed_training):
        checkpoint_utils.verify_checkpoint_directory(cfg.checkpoint.save_dir)
    pretraining = prepare(cfg, settings)
    pretraining.resume()
    pretraining.run()


def prepare(cfg: Any, settings: options.Settings) -> Pretraining:
    """The network and the text, as if nothing had been trained yet."""
    utils.set_torch_seed(cfg.common.seed)
    task = tasks.setup_task(cfg.task)
    model = task.build_model(cfg.model)
    if settings.embeddings_from:
        copy_embeddings(model, settings.embeddings_from)
    split = cfg.dataset.train_subset
    task.load_dataset(split)
    windows = Windows.of_task(task, split, model.decoder.context)
    on_gpu = torch.cuda.is_available() and not cfg.common.cpu
    device = torch.device("cuda" if on_gpu else "cpu")
    logger.info(f"{len(windows):,} words to pretrain {len(model.decoder.layers)} layers on")
    return Pretraining(cfg, settings, model, windows, device)


@torch.no_grad()
def copy_embeddings(model: FeedforwardLanguageModel, path: str) -> None:
    """Those of another language model's input."""
    found = checkpoints.load(path, map_location="cpu").get("model", {}).get(EMBEDDINGS)
    wanted = model.decoder.embed_tokens.weight
    if found is None or found.shape != wanted.shape:
        has = "none" if found is None else " x ".join(map(str, found.shape))
        raise UserError(
            f"--embeddings-from {path} needs {EMBEDDINGS} of {len(wanted)} words x "
            f"--decoder-embed-dim {wanted.size(1)}, and it has {has}: name another checkpoint"
        )
    wanted.copy_(found)


if __name__ == "__main__":
    cli_main()
