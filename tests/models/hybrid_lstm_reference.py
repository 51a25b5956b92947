"""An independent `hybrid_lstm`: `nn.LSTMCell`, one sentence and one word at a time, no padding.

Slow and plain on purpose: the tests compare the real model with it. It shares the model's
parameters, so that gradients can be compared too.
"""

from argparse import Namespace

import torch
from fairseq.data import Dictionary
from torch import nn

from fairseq_hybrid.models.hybrid_lstm import HybridLSTMModel


class TinyTask:
    """As much of a translation task as building a model and generating need."""

    def __init__(self, words: int = 11):
        self.source_dictionary = self.target_dictionary = dictionary(words)


def dictionary(words: int) -> Dictionary:
    result = Dictionary()
    for i in range(words):
        result.add_symbol(f"w{i}")
    return result


def tiny_model(task=None, dtype=torch.float64, seed=0, **options) -> HybridLSTMModel:
    sizes = dict(encoder_embed_dim=5, encoder_hidden_size=6, encoder_layers=3, dropout=0.0)
    torch.manual_seed(seed)
    model = HybridLSTMModel.build_model(Namespace(**(sizes | options)), task or TinyTask())
    for name, weight in model.named_parameters():
        if "embed_tokens" not in name:
            nn.init.uniform_(weight, -0.5, 0.5)  # larger than in practice: errors show
    return model.to(dtype)


def batch(task, lengths, *, left_pad=False, eos_first=False, seed=1):
    """Random sentences [B, T]: they end in eos, or (decoder input) start with it."""
    torch.manual_seed(seed)
    vocab, pad, eos = (
        task.source_dictionary,
        task.source_dictionary.pad(),
        task.source_dictionary.eos(),
    )
    tokens = torch.full((len(lengths), max(lengths)), pad)
    for row, length in zip(tokens, lengths):
        words = torch.randint(vocab.nspecial, len(vocab), (length,))
        words[0 if eos_first else -1] = eos
        row[slice(len(row) - length, None) if left_pad else slice(length)] = words
    return tokens


def reference_logits(model, source, target):
    """Logits [T, V] and attention [T, S] of one sentence pair, both without padding."""
    encoder, decoder, head = model.encoder, model.decoder, model.decoder.head
    inputs, states = [encoder.embed_tokens(word) for word in source], []
    for layer in encoder.layers:
        outputs, state = run_layer(layer, inputs)
        inputs = [x + y for x, y in zip(inputs, outputs)] if layer.residual else outputs
        states.append(state)
    memory = torch.stack(inputs)
    feed = torch.zeros_like(memory[0])
    logits, attention = [], []
    for word in target:
        x = decoder.embed_tokens(word)
        if decoder.input_feeding:
            x = torch.cat((x, feed))
        for i, layer in enumerate(decoder.layers):
            h, c = cell(layer.lstm)(x[None], states[i])
            states[i] = (h, c)
            x = x + h[0] if layer.residual else h[0]
        weights = torch.softmax(memory @ head.key_proj.weight.t() @ x, dim=0)
        feed = torch.tanh(head.combine.weight @ torch.cat((x, weights @ memory)))
        out = feed if head.out_embed is None else head.out_embed(feed)
        logits.append(head.output(out))
        attention.append(weights)
    return torch.stack(logits), torch.stack(attention)


def run_layer(layer, inputs):
    forward, state = run_cell(cell(layer.lstm), inputs)
    if not layer.bidirectional:
        return forward, state
    backward, back_state = run_cell(cell(layer.lstm, "_reverse"), inputs[::-1])
    outputs = [torch.cat(pair) for pair in zip(forward, backward[::-1])]
    return outputs, tuple(torch.cat(pair, 1) for pair in zip(state, back_state))


def run_cell(lstm_cell, inputs):
    state, outputs = None, []
    for x in inputs:
        state = lstm_cell(x[None], state)
        outputs.append(state[0][0])
    return outputs, state


def cell(lstm: nn.LSTM, suffix: str = "") -> nn.LSTMCell:
    result = nn.LSTMCell(lstm.input_size, lstm.hidden_size)
    for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
        setattr(result, name, getattr(lstm, f"{name}_l0{suffix}"))
    return result
