"""`--arch feedforward_lm`: an n-gram language model, a plain deep network over the last words.

The embeddings of the last n - 1 words (`--ngram`), side by side, go through hidden layers of
sigmoid or rectified units and a softmax. All positions of a sequence are computed at once: a
position's input is a window over the row of embeddings. What comes before the softmax and the
softmax's own parameters can be had apart, as in hybrid_lstm_lm.py. With sigmoid units the hidden
layers can be pretrained (pretraining/).

    fairseq-train DATA --user-dir fairseq_hybrid --task language_modeling --arch feedforward_lm \\
        --ngram 5 --tokens-per-sample 100 --batch-size 16 --optimizer adam --lr 1e-3 ...

Words before the start of a sequence, and padding, are read as ends of sentences. With `--task
streamed_language_modeling`, which says by `fresh` where a sequence goes on from the batch before,
they are the last words of that batch instead, kept for training and evaluation apart and not saved.

Shape suffixes: B sequences, T words of a sequence, L words read for them (n - 2 more), E embedding,
C the n - 1 embeddings of a context, d output embedding, V vocabulary.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from fairseq.models import (
    FairseqIncrementalDecoder,
    FairseqLanguageModel,
    register_model,
    register_model_architecture,
)
from torch import Tensor, nn

from fairseq_hybrid.models import feedforward_lm_options as options
from fairseq_hybrid.models.allocator import keep_large_buffers
from fairseq_hybrid.models.dropout import Dropout

MAX_POSITIONS = 100_000


@register_model("feedforward_lm")
class FeedforwardLanguageModel(FairseqLanguageModel):
    """n-gram language model."""

    add_args = staticmethod(options.add_args)

    def __init__(self, decoder: FeedforwardLanguageDecoder):
        super().__init__(decoder)
        self.num_updates = 0

    @classmethod
    def build_model(cls, args, task):
        options.set_defaults(args)
        options.check(args, task.source_dictionary, task.target_dictionary)
        keep_large_buffers()
        return cls(FeedforwardLanguageDecoder(args, task.source_dictionary, task.target_dictionary))

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

    def rows_read(
        self, src_tokens: Tensor, fresh: Tensor | None = None, **_
    ) -> dict[nn.Parameter, Tensor]:
        """Which rows of the input embedding a batch looks up."""
        return {self.decoder.embed_tokens.weight: self.decoder.words_read(src_tokens, fresh)}


class FeedforwardLanguageDecoder(FairseqIncrementalDecoder):
    def __init__(self, args, source_dictionary, target_dictionary):
        super().__init__(target_dictionary)
        self.max_target_positions = getattr(args, "max_target_positions", None) or MAX_POSITIONS
        self.context = args.ngram - 1
        self.eos, self.pad = source_dictionary.eos(), source_dictionary.pad()
        self.embed_tokens = nn.Embedding(
            len(source_dictionary), args.decoder_embed_dim, padding_idx=self.pad
        )
        nn.init.uniform_(self.embed_tokens.weight, -0.1, 0.1)
        nn.init.zeros_(self.embed_tokens.weight[self.pad])
        self.activation = {"sigmoid": torch.sigmoid, "relu": torch.relu}[args.activation]
        sizes = options.layer_sizes(args)
        self.layers = nn.ModuleList(nn.Linear(*pair) for pair in zip(sizes, sizes[1:]))
        for layer in self.layers:
            nn.init.xavier_uniform_(layer.weight, nn.init.calculate_gain(args.activation))
            nn.init.zeros_(layer.bias)
        self.dropout = Dropout(args.dropout, module_name=type(self).__name__)
        if args.share_decoder_input_output_embed:
            self.output_weight = self.embed_tokens.weight
        else:
            shape = len(target_dictionary), args.decoder_out_embed_dim
            self.output_weight = nn.Parameter(nn.init.uniform_(torch.empty(shape), -0.1, 0.1))
        # A column, so that its gradient can be sparse by rows like the weight's.
        self.output_bias = nn.Parameter(torch.zeros(len(target_dictionary), 1))
        self._carried: dict[bool, Tensor] = {}  # the last words of a batch, by self.training

    def forward(self, prev_output_tokens, features_only=False, **kwargs):
        """Scores of all next words, logits_BTV, or with `features_only` what they come from."""
        features_BTd, extra = self.extract_features(prev_output_tokens, **kwargs)
        if features_only:
            return features_BTd, extra
        return self.output_layer(features_BTd), extra

    def extract_features(
        self,
        prev_output_tokens: Tensor,
        src_lengths: Tensor | None = None,
        fresh: Tensor | None = None,
        incremental_state: dict | None = None,
        encoder_out=None,
    ) -> tuple[Tensor, dict]:
        """Of all positions or, given `incremental_state`, of the last one.

        Nothing has to be kept from step to step: the words themselves are the state.
        """
        words_BL = self.words_read(prev_output_tokens, fresh)
        if incremental_state is not None:
            words_BL = words_BL[:, -self.context :]
        if fresh is not None:
            self._carried[self.training] = words_BL[:, words_BL.size(1) - self.context + 1 :]
        return self.hidden(words_BL), {"attn": [None]}

    def words_read(self, tokens_BT: Tensor, fresh_B: Tensor | None = None) -> Tensor:
        """words_BL: the tokens, and the n - 2 before them that their contexts reach back to."""
        words_BT = tokens_BT.masked_fill(tokens_BT.eq(self.pad), self.eos)
        rows, carried = words_BT.size(0), self._carried.get(self.training)
        before = words_BT.new_full((rows, self.context - 1), self.eos)
        if fresh_B is not None and carried is not None and len(carried) >= rows:
            # A batch with fewer rows than the one before goes on with its first rows.
            before = carried[:rows].to(before.device).masked_fill(fresh_B.unsqueeze(1), self.eos)
        return torch.cat((before, words_BT), 1)

    def hidden(self, words_BL: Tensor, layers: int | None = None) -> Tensor:
        """What the last hidden layer says of every context, or the last of the first `layers`."""
        embedded = self.dropout(self.embed_tokens(words_BL)).flatten(1)
        width = self.embed_tokens.embedding_dim
        x_BTC = embedded.unfold(1, self.context * width, width)
        for layer in self.layers[:layers]:
            x_BTC = self.dropout(self.activation(layer(x_BTC)))
        return x_BTC

    def output_layer(self, features_BTd: Tensor) -> Tensor:
        return F.linear(features_BTd, self.output_weight, self.output_bias.squeeze(1))

    def max_positions(self):
        return self.max_target_positions


@register_model_architecture("feedforward_lm", "feedforward_lm")
def feedforward_lm(args):
    """Small: trains on a laptop."""
    options.set_defaults(args)
