"""`hybrid_lstm`'s decoder, word by word, for the hypotheses of a beam.

What beam search asks of a model again and again: the scores of the next word of every hypothesis.
Keys and values of attention are computed once per sentence and shared by its hypotheses; going on
with other hypotheses, and without finished sentences, is one selection of rows of the states. No
weight is copied, so that a single sentence costs no more than reading them.

Shape suffixes: S sentences, R hypotheses (rows), the same number for each sentence and next to each
other, H hidden, G = 4H gates (input, forget, cell, output), V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fairseq_hybrid.models.lstm_layer import State
from fairseq_hybrid.models.products import linear


class DecoderSteps:
    """Starts with one row per sentence."""

    def __init__(self, decoder: Any, encoder_out: Any):
        """A `HybridLSTMDecoder` and what its encoder made of the sentences."""
        self.decoder, self.head = decoder, decoder.head
        self.memory = self.head.read(encoder_out.top_MH, encoder_out.packing)
        self.states: list[State] = list(encoder_out.states)
        self.feed_RH = torch.zeros_like(self.states[0][0])
        self.biases_G = [layer.lstm.bias_ih_l0 + layer.lstm.bias_hh_l0 for layer in decoder.layers]

    def go_on(self, rows_R: Tensor, sentences_S: Tensor | None = None) -> None:
        """With copies of these rows; of these sentences, if some are finished."""
        self.states = [
            (h.index_select(0, rows_R), c.index_select(0, rows_R)) for h, c in self.states
        ]
        if self.decoder.input_feeding:
            self.feed_RH = self.feed_RH.index_select(0, rows_R)
        if sentences_S is not None:
            self.memory = self.memory.select(sentences_S)

    def logits(self, words_R: Tensor) -> Tensor:
        """logits_RV of the words after these."""
        x_RI = self.decoder.embed(words_R)
        if self.decoder.input_feeding:
            x_RI = torch.cat((x_RI, self.feed_RH), 1)
        for i, (layer, bias_G) in enumerate(zip(self.decoder.layers, self.biases_G)):
            self.states[i] = step(layer.lstm, bias_G, x_RI, self.states[i])
            y_RH = layer.dropout(self.states[i][0])
            x_RI = x_RI + y_RH if layer.residual else y_RH
        queries_SRH = x_RI.view(self.memory.mask_BS.size(0), -1, x_RI.size(1))
        context_SRH, _ = self.head.attend(queries_SRH, self.memory)
        self.feed_RH = self.head.attentional(x_RI, context_SRH.flatten(0, 1))
        return self.head.logits(self.feed_RH)


def step(lstm: nn.LSTM, bias_G: Tensor, x_RI: Tensor, state: State) -> State:
    """The next state of all rows. `bias_G`: the sum of the layer's two."""
    h_RH, c_RH = state
    if x_RI.device.type != "cpu":  # where it is one kernel
        return torch.lstm_cell(x_RI, state, list(lstm.parameters()))
    gates_RG = linear(x_RI, lstm.weight_ih_l0, bias_G)
    gates_RG += linear(h_RH, lstm.weight_hh_l0)
    hidden = lstm.hidden_size
    gates_RG[:, : 2 * hidden].sigmoid_()
    gates_RG[:, 2 * hidden : 3 * hidden].tanh_()
    gates_RG[:, 3 * hidden :].sigmoid_()
    input_RH, forget_RH, new_RH, output_RH = gates_RG.chunk(4, 1)
    c_RH = (c_RH * forget_RH).addcmul_(input_RH, new_RH)
    return c_RH.tanh().mul_(output_RH), c_RH
