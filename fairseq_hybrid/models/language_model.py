"""What the language models share: embeddings in and out, and how a softmax is had apart.

A model says which decoder it has and where its options are; a decoder what lies between its
embeddings and its softmax (`extract_features`).

Shape suffixes: B sequences, T words of a sequence, d output embedding, V vocabulary.
"""

from __future__ import annotations

from argparse import Namespace
from types import ModuleType
from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.models import FairseqIncrementalDecoder, FairseqLanguageModel
from fairseq.tasks import FairseqTask
from torch import Tensor, nn

from fairseq_hybrid.models import products
from fairseq_hybrid.models.allocator import keep_large_buffers

MAX_POSITIONS = 100_000


class LanguageModel(FairseqLanguageModel):
    """A decoder whose softmax a criterion can take a sample of."""

    options: ModuleType
    """defaults and checks"""
    decoder_class: type[LanguageDecoder]

    def __init__(self, decoder: LanguageDecoder):
        super().__init__(decoder)
        self.num_updates = 0

    @classmethod
    def build_model(cls, args: Namespace, task: FairseqTask) -> LanguageModel:
        cls.options.set_defaults(args)
        cls.options.validate(args, task.source_dictionary, task.target_dictionary)
        keep_large_buffers()
        return cls(cls.decoder_class(args, task.source_dictionary, task.target_dictionary))

    def set_num_updates(self, num_updates: int) -> None:
        super().set_num_updates(num_updates)
        self.num_updates = num_updates

    def softmax_parameters(self) -> tuple[Tensor, Tensor]:
        """(weight_Vd, bias_V1): `features_BTd @ weight_Vd.T + bias_V1.T` are the logits."""
        return self.decoder.output_weight, self.decoder.output_bias

    def has_plain_softmax(self) -> bool:
        """Whether these make logits of features."""
        return True

    def use_row_gradients(self) -> None:
        """From now on the input embedding's gradient holds the batch's rows only (torch.sparse)."""
        self.decoder.embed_tokens.sparse = True

    def rows_read(self, src_tokens: Tensor, **_: Any) -> dict[nn.Parameter, Tensor]:
        """Which rows of the input embedding a batch looks up."""
        return {self.decoder.embed_tokens.weight: src_tokens}


class LanguageDecoder(FairseqIncrementalDecoder):
    """Input embedding, `extract_features`, softmax."""

    def __init__(self, args: Namespace, source: Dictionary, target: Dictionary):
        super().__init__(target)
        self.max_target_positions = getattr(args, "max_target_positions", None) or MAX_POSITIONS
        words, pad = len(source), source.pad()
        self.embed_tokens = nn.Embedding(words, args.decoder_embed_dim, padding_idx=pad)
        nn.init.uniform_(self.embed_tokens.weight, -0.1, 0.1)
        nn.init.zeros_(self.embed_tokens.weight[pad])

    def add_softmax(self, args: Namespace, bias_V: Tensor) -> None:
        """The output weights, the input's if they are shared."""
        if args.share_decoder_input_output_embed:
            self.output_weight = self.embed_tokens.weight
        else:
            shape = len(bias_V), args.decoder_out_embed_dim
            self.output_weight = nn.Parameter(nn.init.uniform_(torch.empty(shape), -0.1, 0.1))
        # A column, so that its gradient can be sparse by rows like the weight's.
        self.output_bias = nn.Parameter(bias_V.unsqueeze(1))

    def forward(
        self, prev_output_tokens: Tensor, features_only: bool = False, **kwargs: Any
    ) -> tuple[Tensor, dict[str, Any]]:
        """Scores of all next words, logits_BTV, or with `features_only` what they come from."""
        features_BTd, extra = self.extract_features(prev_output_tokens, **kwargs)
        if features_only:
            return features_BTd, extra
        return self.output_layer(features_BTd), extra

    def output_layer(self, features_BTd: Tensor) -> Tensor:
        rows_Nd, bias_V = features_BTd.flatten(0, -2), self.output_bias.squeeze(1)
        logits_NV = products.scores(rows_Nd, self.output_weight, bias_V)
        return logits_NV.view(*features_BTd.shape[:-1], -1)

    def max_positions(self) -> int:
        return self.max_target_positions
