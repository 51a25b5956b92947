"""One LSTM layer on packed rows, and runs of them.

A layer is a single-layer `torch.nn.LSTM` kernel with its residual connection and the dropout on
its output, so that any run of layers, on any chunk of time, composes to the whole stack: what
comes out of one layer is exactly what goes into the next. The encoder, the decoder and a wrapper
that spreads layers over devices all call `run_layers`.

Shape suffixes: N packed rows (see packing.py), B sentences (longest first), I input size,
H hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from fairseq_hybrid.models.dropout import Dropout

State = tuple[Tensor, Tensor]
"""(hidden_BH, cell_BH) of one layer, sentences sorted longest first."""


class LSTMLayer(nn.Module):
    """`output = dropout(lstm(x))`, plus `x` itself if the layer is residual.

    A bidirectional layer gives each direction half of the hidden size. Its output and its final
    state `[forward after the last word; backward after the first word]` are then as wide as any
    other layer's, and the decoder layer above it can start from that state without a projection.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        dropout: float = 0.0,
        residual: bool = False,
        bidirectional: bool = False,
        forget_bias: float = 0.0,
    ):
        super().__init__()
        self.hidden_size = hidden_size
        self.residual = residual
        self.bidirectional = bidirectional
        self.lstm = nn.LSTM(
            input_size,
            hidden_size // 2 if bidirectional else hidden_size,
            bidirectional=bidirectional,
        )
        for weight in self.lstm.parameters():
            nn.init.uniform_(weight, -0.1, 0.1)
        self._remember(forget_bias)
        self.dropout = Dropout(dropout, module_name=type(self).__name__)

    @torch.no_grad()
    def _remember(self, forget_bias: float) -> None:
        """Open the forget gates a good deal (Jozefowicz et al. 2015): gradients reach far back from
        the first update on, and what to attend to is learnt an epoch or two earlier."""
        for name, bias_G in self.lstm.named_parameters():
            if name.startswith("bias_ih"):
                _, forget, _, _ = bias_G.chunk(4)
                forget += forget_bias

    def forward(
        self, x_NI: Tensor, batch_sizes: Tensor, state: State | None
    ) -> tuple[Tensor, State]:
        """Run over packed rows; `state=None` starts from zeros."""
        if self.bidirectional:
            if state is not None:
                raise ValueError("a bidirectional layer reads whole sentences: it takes no state")
            packed, (h, c) = self.lstm(PackedSequence(x_NI, batch_sizes))
            y_NH, state = packed.data, (_join_directions(h), _join_directions(c))
        else:
            y_NH, state = _run_forward(self.lstm, x_NI, batch_sizes, state)
        y_NH = self.dropout(y_NH)
        return (x_NI + y_NH if self.residual else y_NH), state


def run_layers(
    layers: Sequence[LSTMLayer],
    x_NI: Tensor,
    batch_sizes: Tensor,
    states: Sequence[State] | None = None,
) -> tuple[Tensor, list[State]]:
    """Run consecutive layers on a chunk of time.

    `batch_sizes` are those of the chunk (`Packing.chunk`), `states` the layers' states at its
    start (None: zeros), one row per sentence that runs at the start of the chunk or more. The
    returned states have as many rows as the given ones; those of sentences that had ended
    before are passed through.
    """
    new_states = []
    for i, layer in enumerate(layers):
        x_NI, state = layer(x_NI, batch_sizes, None if states is None else states[i])
        new_states.append(state)
    return x_NI, new_states


def _run_forward(
    lstm: nn.LSTM, x_NI: Tensor, batch_sizes: Tensor, state: State | None
) -> tuple[Tensor, State]:
    running = int(batch_sizes[0])
    if state is None:
        zeros_BH = x_NI.new_zeros(running, lstm.hidden_size)
        state = (zeros_BH, zeros_BH)
    if batch_sizes.numel() == 1:  # a step of generation: no kernel over time to set up
        h, c = torch.lstm_cell(x_NI, (state[0][:running], state[1][:running]), *lstm.parameters())
        return h, (_keep_ended(h, state[0]), _keep_ended(c, state[1]))
    h, c = (s[:running].unsqueeze(0) for s in state)
    outputs = []
    # The leading times in which every sentence runs need no packing. On CPU that matters: the
    # fused oneDNN kernel takes dense input only and beats the packed one. cuDNN takes both.
    full = int((batch_sizes == running).sum())
    if full == batch_sizes.numel() or x_NI.device.type == "cpu":
        rows = full * running
        y_TBH, (h, c) = lstm(x_NI[:rows].view(full, running, -1), (h, c))
        outputs.append(y_TBH.flatten(0, 1))
        x_NI, batch_sizes = x_NI[rows:], batch_sizes[full:]
    if batch_sizes.numel() > 0:
        left = int(batch_sizes[0])
        packed, (h_left, c_left) = lstm(
            PackedSequence(x_NI, batch_sizes), (h[:, :left].contiguous(), c[:, :left].contiguous())
        )
        outputs.append(packed.data)
        h, c = (torch.cat((new, old[:, left:]), 1) for new, old in ((h_left, h), (c_left, c)))
    y_NH = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
    return y_NH, (_keep_ended(h[0], state[0]), _keep_ended(c[0], state[1]))


def _keep_ended(new: Tensor, old: Tensor) -> Tensor:
    """Append the states of the sentences that had ended before this chunk."""
    return new if new.size(0) == old.size(0) else torch.cat((new, old[new.size(0) :]))


def _join_directions(state_2BH: Tensor) -> Tensor:
    return torch.cat((state_2BH[0], state_2BH[1]), dim=1)
