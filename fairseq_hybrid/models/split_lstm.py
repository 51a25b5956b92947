"""An LSTM layer over a batch in chunks of time, its backward pass split in two.

Going back through time only the gradients of inputs and states are urgent: other stages wait for
them. The gradients of the weights nobody waits for, and they are cheaper in one piece. So

    forward(a, b)        times [a, b): one product for all inputs, then the steps
    backward(a, b, dy)   the gates' gradients step by step, then one product for all inputs
    weight_gradients()   after all chunks: a product over all times for each matrix

All of it is plain arithmetic on buffers for the whole batch, without autograd: a step reads the
states that the step before has left there, whichever chunk that was in. For CPUs: on a GPU the
chunk is one cuDNN kernel, which a loop over steps would not beat.

Shape suffixes: N packed rows (packing.py), B sentences (longest first), I input size, H hidden
size, G = 4H gates (input, forget, new, output, as in `torch.nn.LSTM`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from fairseq_hybrid.models.lstm_layer import LSTMLayer, State
from fairseq_hybrid.models.packing import Packing
from fairseq_hybrid.models.products import linear

sigmoid_backward = torch.ops.aten.sigmoid_backward.grad_input
tanh_backward = torch.ops.aten.tanh_backward.grad_input


class SplitLayer:
    """`layer` over the rows of one batch. `x_NI` is read when a chunk is run, not before."""

    @torch.no_grad()
    def __init__(self, layer: LSTMLayer, packing: Packing, x_NI: Tensor, state: State | None):
        lstm, rows = layer.lstm, packing.rows_N.numel()
        self.layer, self.packing, self.x_NI, self.state = layer, packing, x_NI, state
        self.bias_G = lstm.bias_ih_l0 + lstm.bias_hh_l0
        empty, hidden = x_NI.new_empty, layer.hidden_size
        self.gates: dict[int, Tensor] = {}
        """of each chunk, by its first time"""
        self.cells_NH, self.tanh_NH, self.h_NH = (empty(rows, hidden) for _ in range(3))
        self.mask_NH = layer.dropout.mask(x_NI, (rows, hidden))
        copies = layer.residual or self.mask_NH is not None
        self.y_NH = empty(rows, hidden) if copies else self.h_NH
        """the layer's output"""
        self.dgates_NG: Tensor | None = None

    @torch.no_grad()
    def forward(self, start: int, stop: int) -> None:
        """Fill the rows of these times of `y_NH`."""
        lstm, starts = self.layer.lstm, self.packing.starts
        rows = slice(starts[start], starts[stop])
        all_gates = linear(self.x_NI[rows], lstm.weight_ih_l0, self.bias_G)
        self.gates[start] = all_gates
        for t in range(start, stop):
            now = slice(starts[t], starts[t + 1])
            before = self._before(t, starts[t + 1] - starts[t])
            gates = all_gates[now.start - rows.start : now.stop - rows.start]
            cell, tanh = self.cells_NH[now], self.tanh_NH[now]
            if before is not None:
                gates += linear(before[0], lstm.weight_hh_l0)
            i, f, new, o = gates.chunk(4, dim=1)
            # torch's tanh takes eight times as long as its sigmoid: tanh(x) = 2 sigmoid(2x) - 1
            new.mul_(2)
            gates.sigmoid_()
            new.mul_(2).sub_(1)
            torch.mul(i, new, out=cell)
            if before is not None:
                cell.addcmul_(f, before[1])
            torch.mul(cell, 2, out=tanh).sigmoid_().mul_(2).sub_(1)
            torch.mul(o, tanh, out=self.h_NH[now])
        if self.y_NH is not self.h_NH:
            y = self.y_NH[rows]
            if self.mask_NH is None:
                torch.add(self.x_NI[rows], self.h_NH[rows], out=y)
            else:
                torch.mul(self.h_NH[rows], self.mask_NH[rows], out=y)
                if self.layer.residual:
                    y += self.x_NI[rows]

    def _before(self, t: int, n: int) -> State | None:
        """The states of `n` sentences before time t; None: zeros."""
        if t == 0:
            return None if self.state is None else (self.state[0][:n], self.state[1][:n])
        first = self.packing.starts[t - 1]
        return self.h_NH[first : first + n], self.cells_NH[first : first + n]

    def final_state(self) -> State:
        """Each sentence's at its end."""
        last_B = self.packing.last_B
        return self.h_NH.index_select(0, last_B), self.cells_NH.index_select(0, last_B)

    def begin_backward(self, dstate: State | None) -> None:
        """Given the gradients of the final state (None: zeros)."""
        if dstate is None:
            zeros = self.h_NH.new_zeros
            shape = (self.packing.shape[0], self.layer.hidden_size)
            dstate = zeros(shape), zeros(shape)
        self.dh_BH, self.dc_BH = dstate
        """of the states where the backward pass is, in the end of the initial state"""
        self.dgates_NG = self.h_NH.new_empty(self.h_NH.size(0), 4 * self.layer.hidden_size)

    @torch.no_grad()
    def backward(self, start: int, stop: int, dy: Tensor) -> Tensor:
        """Gradients of the outputs of these times → of the inputs."""
        lstm, starts, hidden = self.layer.lstm, self.packing.starts, self.layer.hidden_size
        rows = slice(starts[start], starts[stop])
        dh_all = dy if self.mask_NH is None else dy * self.mask_NH[rows]
        gates, dgates, tanh = self.gates.pop(start), self.dgates_NG[rows], self.tanh_NH[rows]
        # First what each gate's gradient is to be multiplied with, then, in its place, itself.
        i, f, new, o = gates.chunk(4, dim=1)
        d_i, d_f, d_new, d_o = dgates.chunk(4, dim=1)
        sigmoid_backward(new, i, grad_input=d_i)
        tanh_backward(i, new, grad_input=d_new)
        sigmoid_backward(tanh, o, grad_input=d_o)
        into_cell = torch.ops.aten.tanh_backward(o, tanh)
        for t in reversed(range(start, stop)):
            first, n = starts[t] - rows.start, starts[t + 1] - starts[t]
            now = slice(first, first + n)
            before = self._before(t, n)
            if before is None:
                d_f[now].zero_()
            else:
                sigmoid_backward(before[1], f[now], grad_input=d_f[now])
            dh, dc = self.dh_BH[:n], self.dc_BH[:n]
            dh += dh_all[now]
            d_o[now] *= dh
            dc.addcmul_(dh, into_cell[now])
            dgates[now, : 3 * hidden].view(n, 3, hidden).mul_(dc.unsqueeze(1))
            dc *= f[now]
            if before is not None:
                dh.copy_(linear(dgates[now], lstm.weight_hh_l0.t()))
        dx = linear(dgates, lstm.weight_ih_l0.t())
        return dx.add_(dy) if self.layer.residual else dx

    @torch.no_grad()
    def weight_gradients(self) -> None:
        """Add to `.grad`, and let go of everything."""
        lstm, dgates_NG = self.layer.lstm, self.dgates_NG
        first = self.packing.starts[1]
        _add_product(lstm.weight_ih_l0, dgates_NG, self.x_NI)
        before = self.h_NH.index_select(0, self.packing.before_N)
        _add_product(lstm.weight_hh_l0, dgates_NG[first:], before)
        if self.state is not None:
            _add_product(lstm.weight_hh_l0, dgates_NG[:first], self.state[0][:first])
        dbias_G = dgates_NG.sum(0)
        for bias in (lstm.bias_ih_l0, lstm.bias_hh_l0):
            _add_gradient(bias, dbias_G.clone())
        self.dgates_NG = self.x_NI = self.y_NH = self.h_NH = None
        self.cells_NH = self.tanh_NH = self.mask_NH = None


def _add_product(weight_GI: Tensor, dgates_NG: Tensor, x_NI: Tensor) -> None:
    if weight_GI.requires_grad:
        _add_gradient(weight_GI, linear(dgates_NG.t(), x_NI.t()))


def _add_gradient(p: Tensor, grad: Tensor) -> None:
    """As autograd does it: hooks that `p.register_hook` has made get to see the gradient."""
    for hook in list((p._backward_hooks or {}).values()):
        changed = hook(grad)
        grad = grad if changed is None else changed
    if p.requires_grad:
        p.grad = grad if p.grad is None else p.grad.add_(grad)


def can_split(layer: LSTMLayer) -> bool:
    """Whether `SplitLayer` computes what `layer` does, and is faster."""
    lstm = layer.lstm
    weight = lstm.weight_hh_l0
    return (
        weight.device.type == "cpu"
        and weight.dtype in (torch.float32, torch.float64)
        and not layer.bidirectional
        and not (lstm._forward_hooks or lstm._forward_pre_hooks)
        and not torch.is_autocast_enabled("cpu")
    )
