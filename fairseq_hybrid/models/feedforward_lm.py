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

from typing import Any

import torch
from fairseq.models import register_model, register_model_architecture
from torch import Tensor, nn

from fairseq_hybrid.models import feedforward_lm_options as options
from fairseq_hybrid.models.dropout import Dropout
from fairseq_hybrid.models.language_model import LanguageDecoder, LanguageModel


class FeedforwardLanguageDecoder(LanguageDecoder):
    """A window over the embeddings, then hidden layers."""

    def __init__(self, args, source_dictionary, target_dictionary):
        super().__init__(args, source_dictionary, target_dictionary)
        self.context = args.ngram - 1
        self.eos, self.pad = source_dictionary.eos(), source_dictionary.pad()
        self.activation = {"sigmoid": torch.sigmoid, "relu": torch.relu}[args.activation]
        sizes = options.layer_sizes(args)
        self.layers = nn.ModuleList(nn.Linear(*pair) for pair in zip(sizes, sizes[1:]))
        for layer in self.layers:
            nn.init.xavier_uniform_(layer.weight, nn.init.calculate_gain(args.activation))
            nn.init.zeros_(layer.bias)
        self.dropout = Dropout(args.dropout, module_name=type(self).__name__)
        self.add_softmax(args, torch.zeros(len(target_dictionary)))
        self._carried: dict[bool, Tensor] = {}  # the last words of a batch, by self.training

    def extract_features(
        self,
        prev_output_tokens: Tensor,
        fresh: Tensor | None = None,
        incremental_state: dict | None = None,
        **_: Any,
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


@register_model("feedforward_lm")
class FeedforwardLanguageModel(LanguageModel):
    """n-gram language model."""

    add_args = staticmethod(options.add_args)
    options = options
    decoder_class = FeedforwardLanguageDecoder

    def rows_read(
        self, src_tokens: Tensor, fresh: Tensor | None = None, **_
    ) -> dict[nn.Parameter, Tensor]:
        return {self.decoder.embed_tokens.weight: self.decoder.words_read(src_tokens, fresh)}


@register_model_architecture("feedforward_lm", "feedforward_lm")
def feedforward_lm(args):
    """Small: trains on a laptop."""
    options.set_defaults(args)
