"""fairseq's own `lstm`, tiny: what is ours is not to touch it."""

from argparse import Namespace

import torch
from fairseq.models.lstm import LSTMModel, base_architecture


def fairseq_lstm(task, dtype=torch.float64) -> LSTMModel:
    sizes = dict(encoder_embed_dim=6, encoder_hidden_size=6, dropout=0.0)
    args = Namespace(**sizes, arch="lstm", criterion="")
    base_architecture(args)
    torch.manual_seed(2)
    return LSTMModel.build_model(args, task).to(dtype)
