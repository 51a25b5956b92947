"""`--arch hybrid_lstm_lm`: an LSTM language model, with the dropouts of the strong ones.

Embedding, stacked LSTM layers (locked_lstm.py), softmax. The last layer is as wide as the output
embedding (Merity et al. 2018), so that sharing it with the input needs no projection. What comes
before the softmax and the softmax's own parameters can be had apart (`features_only`,
`softmax_parameters`), for a criterion that does not want the scores of all words.

    fairseq-train DATA --user-dir fairseq_hybrid --task streamed_language_modeling \\
        --arch hybrid_lstm_lm --tokens-per-sample 35 --batch-size 32 --optimizer adam --lr 1e-3 ...

With `--task streamed_language_modeling` every batch goes on where the one before ended, and says
by `fresh` where it does not: the layers then start from the states they ended in, without gradient
(truncated back-propagation). The states are kept for training and for evaluation apart, so a
validation between two updates changes nothing, and they are not saved: training that resumes
within an epoch starts from zeros. A sequence may have padding on its right only where its stream
ends. Without `fresh` (`--task language_modeling`) all sequences start from zeros.

Shape suffixes: B sequences, T words of a sequence, R rows of a beam, E embedding, H hidden,
d output embedding, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from fairseq.models import register_model, register_model_architecture
from fairseq.modules import AdaptiveSoftmax
from torch import Tensor, nn

from fairseq_hybrid.models import hybrid_lstm_lm_options as options
from fairseq_hybrid.models.language_model import LanguageDecoder, LanguageModel
from fairseq_hybrid.models.locked_lstm import LockedDropout, LockedLSTM, State, WordDropout

SPECIAL_SHARE = 0.01
"""of a text that ends of sentences, and unknown words, are taken to be before training"""


class HybridLSTMLanguageDecoder(LanguageDecoder):
    """LSTM layers and, with `--adaptive-softmax-cutoff`, an adaptive softmax."""

    def __init__(self, args, source_dictionary, target_dictionary):
        super().__init__(args, source_dictionary, target_dictionary)
        name = type(self).__name__
        self.word_dropout = WordDropout(args.word_dropout, module_name=name)
        self.dropout_in = LockedDropout(args.decoder_dropout_in, module_name=name)
        between, width = (
            [args.decoder_hidden_size] * (args.decoder_layers - 1),
            args.decoder_out_embed_dim,
        )
        sizes = [args.decoder_embed_dim, *between, width]
        dropouts = [*[args.decoder_dropout_hidden] * len(between), args.decoder_dropout_out]
        self.layers = nn.ModuleList(
            LockedLSTM(below, above, dropout=dropout, weight_dropout=args.weight_dropout)
            for below, above, dropout in zip(sizes, sizes[1:], dropouts)
        )
        if args.adaptive_softmax_cutoff:
            # Its features come with their dropout: it needs none of its own.
            words, limits = len(target_dictionary), options.cutoffs(args)
            self.adaptive_softmax = AdaptiveSoftmax(words, width, limits, 0.0)
        else:
            self.add_softmax(args, log_frequencies(target_dictionary))
        self._carried: dict[bool, list[State]] = {}  # by self.training

    def extract_features(
        self,
        prev_output_tokens: Tensor,
        fresh: Tensor | None = None,
        incremental_state: dict | None = None,
        **_: Any,
    ) -> tuple[Tensor, dict]:
        """All words at once or, given `incremental_state`, those that are new."""
        cached = self._cached(incremental_state)
        tokens_TB = (prev_output_tokens if cached is None else prev_output_tokens[:, -1:]).t()
        x_TBE = self.embed_tokens(tokens_TB)
        x_TBE = self.word_dropout(x_TBE, tokens_TB, self.embed_tokens.num_embeddings)
        x = self.dropout_in(x_TBE)
        starts = self._first_states(x, fresh) if cached is None else cached
        states = []
        for layer, start in zip(self.layers, starts):
            x, state = layer(x, start)
            states.append(state)
        if fresh is not None:
            self._carried[self.training] = [(h.detach(), c.detach()) for h, c in states]
        if incremental_state is not None:
            self.set_incremental_state(incremental_state, "states", _to_entries(states))
        return x.transpose(0, 1).contiguous(), {"attn": [None]}

    def output_layer(self, features_BTd: Tensor) -> Tensor:
        """The features themselves for an adaptive softmax: `get_normalized_probs` knows."""
        if self.adaptive_softmax is not None:
            return features_BTd
        return super().output_layer(features_BTd)

    def _first_states(self, x_TBE: Tensor, fresh_B: Tensor | None) -> list[State]:
        """Where the batch before ended, zeros where `fresh_B` says so or if its shape differs.

        A batch with fewer rows than the one before goes on with its first rows.
        """
        rows, carried = x_TBE.size(1), self._carried.get(self.training)
        if fresh_B is not None and carried is not None:
            h = carried[0][0]
            if h.size(0) >= rows and (h.dtype, h.device) == (x_TBE.dtype, x_TBE.device):
                fresh_B1 = fresh_B.unsqueeze(1)
                return [
                    (h[:rows].masked_fill(fresh_B1, 0.0), c[:rows].masked_fill(fresh_B1, 0.0))
                    for h, c in carried
                ]
        return [layer.zero_state(x_TBE, rows) for layer in self.layers]

    def _cached(self, incremental_state: dict | None) -> list[State] | None:
        if incremental_state is None:
            return None
        entries = self.get_incremental_state(incremental_state, "states")
        return None if entries is None else list(zip(entries["h"], entries["c"]))

    def reorder_incremental_state(self, incremental_state: dict, new_order: Tensor) -> None:
        cached = self._cached(incremental_state)
        if cached is not None:
            states = [tuple(s.index_select(0, new_order) for s in state) for state in cached]
            self.set_incremental_state(incremental_state, "states", _to_entries(states))


@register_model("hybrid_lstm_lm")
class HybridLSTMLanguageModel(LanguageModel):
    """LSTM language model."""

    add_args = staticmethod(options.add_args)
    options = options
    decoder_class = HybridLSTMLanguageDecoder

    def softmax_parameters(self) -> tuple[Tensor, Tensor]:
        if self.decoder.adaptive_softmax is not None:
            raise ValueError(
                "--adaptive-softmax-cutoff leaves no softmax over all words to take a sample of: "
                "leave it out or use --criterion adaptive_loss"
            )
        return super().softmax_parameters()

    def has_plain_softmax(self) -> bool:
        """Not so with `--adaptive-softmax-cutoff`."""
        return self.decoder.adaptive_softmax is None


def _to_entries(states: list[State]) -> dict:
    """As fairseq keeps incremental states: a dictionary."""
    h, c = zip(*states)
    return {"h": h, "c": c}


def log_frequencies(dictionary) -> Tensor:
    """What a model knows of the words before it has read any: the output bias starts from it.

    Else most of an epoch is spent on learning it, and with a sample, in which a rare word seldom
    is, a multiple of that. Zeros if the dictionary has no counts (all are the same). fairseq has
    none for ends of sentences and unknown words, so these are given one.
    """
    counts = torch.tensor(dictionary.count, dtype=torch.float64).clamp(min=1)
    words = counts[dictionary.nspecial :]
    if len(words) == 0 or words.min() == words.max():
        return torch.zeros(len(counts))
    counts[[dictionary.eos(), dictionary.unk()]] = SPECIAL_SHARE * words.sum()
    return (counts / counts.sum()).log().float()


@register_model_architecture("hybrid_lstm_lm", "hybrid_lstm_lm")
def hybrid_lstm_lm(args):
    """Small: trains on a laptop."""
    options.set_defaults(args)


@register_model_architecture("hybrid_lstm_lm", "hybrid_lstm_lm_awd")
def hybrid_lstm_lm_awd(args):
    """Size and dropouts of the AWD-LSTM of Merity et al. (2018) for WikiText-2."""
    options.set_defaults(
        args,
        decoder_embed_dim=400,
        decoder_hidden_size=1150,
        decoder_layers=3,
        share_decoder_input_output_embed=True,
        dropout=0.4,
        decoder_dropout_in=0.65,
        decoder_dropout_hidden=0.2,
        word_dropout=0.1,
        weight_dropout=0.5,
    )
