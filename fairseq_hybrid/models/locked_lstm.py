"""The dropouts of strong LSTM language models, and an LSTM layer that has them.

Dropping other elements at every word keeps a recurrent net from remembering anything for long. So
a mask is drawn once and then stays: for all words of a sequence (locked dropout, Gal & Ghahramani
2016), for all occurrences of a word (word dropout, same), or, on the hidden-to-hidden weights, for
the whole batch (weight dropout, Merity et al. 2018). None of them gets into the time loop, which
stays one call of the fused kernel.

Shape suffixes: T words of a sequence, B sequences, E embedding, I input size, H hidden size,
V vocabulary.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_hybrid.models.dropout import Dropout

State = tuple[Tensor, Tensor]
"""(hidden_BH, cell_BH) of one layer."""


class LockedDropout(Dropout):
    """One mask for all time steps of a sequence."""

    def forward(self, x_TBE: Tensor) -> Tensor:
        mask_1BE = self.mask(x_TBE, (1, *x_TBE.shape[1:]))
        return x_TBE if mask_1BE is None else x_TBE * mask_1BE


class WordDropout(Dropout):
    """One draw for all occurrences of a word in the batch: the whole embedding or nothing."""

    def forward(self, x_TBE: Tensor, tokens_TB: Tensor, words: int) -> Tensor:
        # On the vectors and not on the table: what is not looked up costs one number, not a row.
        mask_V1 = self.mask(x_TBE, (words, 1))
        return x_TBE if mask_V1 is None else x_TBE * F.embedding(tokens_TB, mask_V1)


class LockedLSTM(nn.Module):
    """`output = locked dropout(lstm(x))`, with dropout on the lstm's hidden-to-hidden weights."""

    def __init__(self, input_size: int, hidden_size: int, *, dropout: float, weight_dropout: float):
        super().__init__()
        self.lstm = nn.LSTM(input_size, hidden_size)
        self.dropout = LockedDropout(dropout, module_name=type(self).__name__)
        self.weight_dropout = Dropout(weight_dropout, module_name=type(self).__name__)

    def forward(self, x_TBI: Tensor, state: State) -> tuple[Tensor, State]:
        lstm = self.lstm
        weights = [
            lstm.weight_ih_l0,
            self.weight_dropout(lstm.weight_hh_l0),
            lstm.bias_ih_l0,
            lstm.bias_hh_l0,
        ]
        # What nn.LSTM calls with its own weights: bias, one layer, no dropout, one direction.
        start = tuple(s.unsqueeze(0) for s in state)
        y_TBH, h, c = torch.lstm(x_TBI, start, weights, True, 1, 0.0, self.training, False, False)
        return self.dropout(y_TBH), (h[0], c[0])

    def zero_state(self, like: Tensor, rows: int) -> State:
        zeros_BH = like.new_zeros(rows, self.lstm.hidden_size)
        return zeros_BH, zeros_BH
