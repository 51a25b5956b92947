"""The decoder's time loop with input feeding (Luong et al. 2015, section 3.3).

With input feeding the attentional vector of a word is part of the decoder's input at the next one,
so attention has to run inside the time loop. Only what depends on the previous word is done there:
the embeddings' share of the first layer's gates, the keys and the softmax over the vocabulary are
computed for all words at once, outside. The backward pass is written out by hand for the same
reason: the loop carries the gradients of the states back through time, and the gradient of every
weight, of the keys and of the values is one large product after it, not one small one per word.

Shape suffixes: N packed rows, B sentences sorted longest first (see packing.py), S source columns,
H hidden size, G = 4H gates (input, forget, cell, output as in `torch.nn.LSTM`), E embedding size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_hybrid.models.attention import AttentionSoftmax, Memory
from fairseq_hybrid.models.lstm_layer import LSTMLayer, State

aten = torch.ops.aten


def run_with_feeding(
    layers: Sequence[LSTMLayer],
    head: AttentionSoftmax,
    x_NE: Tensor,
    batch_sizes: Tensor,
    states: Sequence[State],
    memory: Memory,
) -> tuple[Tensor, Tensor]:
    """Run the decoder's layers and its attention over packed rows of embedded target words.

    `states` and `memory` are in the order of the sorted sentences. Returns the attentional
    vectors_NH (after dropout) and the attention_NS, of which only the former carry gradients.
    """
    embed_dim = x_NE.size(1)
    parts = []
    for i, (layer, (h, c)) in enumerate(zip(layers, states)):
        lstm = layer.lstm
        bias_G = lstm.bias_ih_l0 + lstm.bias_hh_l0
        w_in_GI = lstm.weight_ih_l0
        if i == 0:
            pre_NG = F.linear(x_NE, w_in_GI[:, :embed_dim], bias_G)
            w_in_GI, bias_G = w_in_GI[:, embed_dim:], None
        parts += [torch.cat((w_in_GI, lstm.weight_hh_l0), 1), bias_G, h, c]
    shape = (x_NE.size(0), layers[0].hidden_size)
    plan = _Plan(
        sizes=batch_sizes.tolist(),
        residual=[layer.residual for layer in layers],
        # Drawn for all words at once: the random generator stays out of the loop.
        masks=[layer.dropout.mask(x_NE, shape) for layer in layers],
        out_mask=head.dropout.mask(x_NE, shape),
        source_mask_BS=memory.mask_BS,
    )
    return _FeedingLoop.apply(
        plan, pre_NG, memory.keys_BSH, memory.values_BSH, head.combine.weight, *parts
    )


@dataclass(frozen=True)
class _Plan:
    """What the loop needs besides differentiable tensors. A mask of None: no dropout."""

    sizes: list[int]
    residual: list[bool]
    masks: list[Tensor | None]
    out_mask: Tensor | None
    source_mask_BS: Tensor


def _masked(x: Tensor, mask: Tensor | None, rows: slice) -> Tensor:
    return x if mask is None else x * mask[rows]


class _FeedingLoop(torch.autograd.Function):
    """See the module docstring. Per layer it takes (w_GU, bias_G, h_BH, c_BH) with U = 2H: the
    layer's input from the loop beside its previous hidden state, so that one product per layer and
    step gives the gates, and in `backward` both gradients."""

    @staticmethod
    def forward(ctx, plan, pre_NG, keys_BSH, values_BSH, w_out, *parts):
        weights, biases, hiddens, cells = (parts[i::4] for i in range(4))
        depth, rows, hidden = len(weights), pre_NG.size(0), w_out.size(0)
        buffers = lambda *shape: [pre_NG.new_empty(rows, *shape) for _ in range(depth)]  # noqa: E731
        inputs_NU, gates_NG, cells_NH, tanh_NH = (
            buffers(2 * hidden), buffers(4 * hidden), buffers(hidden), buffers(hidden),
        )  # fmt: skip
        read_NU = pre_NG.new_empty(rows, 2 * hidden)  # [decoder top; context]
        out_NH = pre_NG.new_empty(rows, hidden)
        attn_NS = pre_NG.new_empty(rows, keys_BSH.size(1))
        hiddens, cells = [h.clone() for h in hiddens], [c.clone() for c in cells]
        feed_BH = pre_NG.new_zeros(plan.sizes[0], hidden)

        start = 0
        for n in plan.sizes:
            now = slice(start, start + n)
            x = feed_BH[:n]
            for i in range(depth):
                u, g, c = inputs_NU[i][now], gates_NG[i][now], cells[i][:n]
                u[:, :hidden], u[:, hidden:] = x, hiddens[i][:n]
                cells_NH[i][now] = c
                bias = pre_NG[now] if i == 0 else biases[i]
                torch.addmm(bias, u, weights[i].t(), out=g)
                g[:, : 2 * hidden].sigmoid_()
                g[:, 3 * hidden :].sigmoid_()
                gate_i, gate_f, new, gate_o = g.chunk(4, dim=1)
                new.tanh_()
                c.mul_(gate_f).addcmul_(gate_i, new)
                h = torch.mul(gate_o, torch.tanh(c, out=tanh_NH[i][now]), out=hiddens[i][:n])
                y = _masked(h, plan.masks[i], now)
                x = x + y if plan.residual[i] else y
            memory = Memory(keys_BSH[:n], values_BSH[:n], plan.source_mask_BS[:n])
            context, attn = AttentionSoftmax.attend(x.unsqueeze(1), memory)
            attn_NS[now] = attn.squeeze(1)
            read = read_NU[now]
            read[:, :hidden], read[:, hidden:] = x, context.squeeze(1)
            torch.tanh(torch.mm(read, w_out.t(), out=out_NH[now]), out=out_NH[now])
            feed_BH[:n] = _masked(out_NH[now], plan.out_mask, now)
            start += n

        ctx.plan = plan
        ctx.save_for_backward(
            keys_BSH, values_BSH, w_out, out_NH, attn_NS, read_NU,
            *weights, *inputs_NU, *gates_NG, *cells_NH, *tanh_NH,
        )  # fmt: skip
        ctx.mark_non_differentiable(attn_NS)
        fed_NH = out_NH.clone() if plan.out_mask is None else out_NH * plan.out_mask
        return fed_NH, attn_NS

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, dfed_NH, *_):
        plan = ctx.plan
        keys_BSH, values_BSH, w_out, out_NH, attn_NS, read_NU, *saved = ctx.saved_tensors
        depth = len(plan.residual)
        weights, inputs_NU, gates_NG, cells_NH, tanh_NH = (
            saved[i * depth : (i + 1) * depth] for i in range(5)
        )
        rows, hidden = out_NH.shape
        bsz = plan.sizes[0]
        zeros = lambda: out_NH.new_zeros(bsz, hidden)  # noqa: E731
        dfeed_BH, dh_BH, dc_BH = (
            zeros(), [zeros() for _ in range(depth)], [zeros() for _ in range(depth)],
        )  # fmt: skip
        dgates_NG = [torch.empty_like(g) for g in gates_NG]
        dcombine_NH, dcontext_NH = torch.empty_like(out_NH), torch.empty_like(out_NH)
        dscore_NS = torch.empty_like(attn_NS)

        stop = rows
        for n in reversed(plan.sizes):
            now = slice(stop - n, stop)
            dout = _masked(dfed_NH[now] + dfeed_BH[:n], plan.out_mask, now)
            dcombine = aten.tanh_backward.grad_input(dout, out_NH[now], grad_input=dcombine_NH[now])
            dread = dcombine @ w_out
            dx, dcontext = dread[:, :hidden], dread[:, hidden:]
            dcontext_NH[now] = dcontext
            dattn = torch.bmm(values_BSH[:n], dcontext.unsqueeze(2)).squeeze(2)
            attn = attn_NS[now]
            dscore = torch.mul(
                attn, dattn - (attn * dattn).sum(1, keepdim=True), out=dscore_NS[now]
            )
            dx = dx + torch.bmm(dscore.unsqueeze(1), keys_BSH[:n]).squeeze(1)
            for i in reversed(range(depth)):
                dinput = _cell_backward(
                    _masked(dx, plan.masks[i], now), dh_BH[i][:n], dc_BH[i][:n],
                    gates_NG[i][now], cells_NH[i][now], tanh_NH[i][now],
                    weights[i], dgates_NG[i][now],
                )  # fmt: skip
                dx = dx + dinput if plan.residual[i] else dinput
            dfeed_BH[:n] = dx
            stop -= n

        dkeys_BSH, dvalues_BSH = _memory_backward(
            plan.sizes, dscore_NS, read_NU[:, :hidden], attn_NS, dcontext_NH
        )
        dparts = []
        for i in range(depth):
            dbias_G = dgates_NG[i].sum(0) if i > 0 else None
            dparts += [dgates_NG[i].t() @ inputs_NU[i], dbias_G, dh_BH[i], dc_BH[i]]
        dw_out = dcombine_NH.t() @ read_NU
        return None, dgates_NG[0], dkeys_BSH, dvalues_BSH, dw_out, *dparts


def _cell_backward(dy, dh, dc, gates, cell, tanh_cell, weight, dgates):
    """One step of one layer. `dh` and `dc` hold the gradients of this step's state when called and
    those of the previous step's afterwards; `dgates` is filled. Returns the input's gradient."""
    gate_i, gate_f, new, gate_o = gates.chunk(4, dim=1)
    d_i, d_f, d_new, d_o = dgates.chunk(4, dim=1)
    dh.add_(dy)
    aten.sigmoid_backward.grad_input(dh * tanh_cell, gate_o, grad_input=d_o)
    dc.add_(aten.tanh_backward(dh * gate_o, tanh_cell))
    aten.sigmoid_backward.grad_input(dc * new, gate_i, grad_input=d_i)
    aten.sigmoid_backward.grad_input(dc * cell, gate_f, grad_input=d_f)
    aten.tanh_backward.grad_input(dc * gate_i, new, grad_input=d_new)
    dc.mul_(gate_f)
    dinput, dprevious = (dgates @ weight).chunk(2, dim=1)
    dh.copy_(dprevious)
    return dinput


def _memory_backward(sizes, dscore_NS, query_NH, attn_NS, dcontext_NH):
    """Gradients of keys and values: for each sentence a product over all its words."""
    steps, bsz = len(sizes), sizes[0]
    sentence_B = torch.arange(bsz, device=query_NH.device) * steps
    rows_N = torch.cat([sentence_B[:n] + t for t, n in enumerate(sizes)])

    def by_sentence(x_NX):
        flat = x_NX.new_zeros(bsz * steps, x_NX.size(1))
        return flat.index_copy_(0, rows_N, x_NX).view(bsz, steps, -1)

    dkeys_BSH = torch.bmm(by_sentence(dscore_NS).transpose(1, 2), by_sentence(query_NH))
    dvalues_BSH = torch.bmm(by_sentence(attn_NS).transpose(1, 2), by_sentence(dcontext_NH))
    return dkeys_BSH, dvalues_BSH
