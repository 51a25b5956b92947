"""The layer with a split backward pass: what autograd gives for `nn.LSTM`, to 1e-9 in float64."""

from __future__ import annotations

import pytest
import torch
from hybrid_lstm_reference import TinyTask, batch

from fairseq_hybrid.models.lstm_layer import LSTMLayer
from fairseq_hybrid.models.packing import Packing
from fairseq_hybrid.models.split_lstm import SplitLayer, can_split

RAGGED, EVEN, LONE = (3, 6, 1, 4, 6), (4, 4, 4), (5,)
CUTS = {"whole": 100, "steps": 1, "pairs": 2, "threes": 3}


def packing_of(lengths) -> Packing:
    task = TinyTask()
    return Packing.from_tokens(batch(task, lengths), task.source_dictionary.pad())


def chunks(packing: Packing, length: int) -> list[tuple[int, int]]:
    return [(a, min(a + length, packing.steps)) for a in range(0, packing.steps, length)]


def random_like(*tensors: torch.Tensor) -> list[torch.Tensor]:
    return [torch.randn_like(t) for t in tensors]


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("lengths", [RAGGED, EVEN, LONE], ids=["ragged", "even", "lone"])
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("carries", [False, True])
def test_as_autograd(cut, lengths, residual, carries):
    """Outputs, final states, gradients of inputs, of given states and of all weights, twice."""
    torch.manual_seed(1)
    layer = LSTMLayer(6 if residual else 5, 6, residual=residual, forget_bias=0.5).double()
    packing = packing_of(lengths)
    for turn in range(2):  # gradients add up
        x = torch.randn(packing.rows_N.numel(), layer.lstm.input_size, dtype=torch.float64)
        x.requires_grad_()
        state = None
        if carries:
            shape = (len(lengths), 6)
            state = tuple(torch.randn(shape, dtype=x.dtype, requires_grad=True) for _ in range(2))

        for p in layer.parameters():
            p.grad = None if turn == 0 else torch.ones_like(p)
        y, final = layer(x, packing.batch_sizes, state)
        dy, *dfinal = random_like(y, *final)
        torch.autograd.backward([y, *final], [dy, *dfinal])
        expected = [p.grad for p in layer.parameters()]

        for p in layer.parameters():
            p.grad = None if turn == 0 else torch.ones_like(p)
        mine = None if state is None else tuple(s.detach() for s in state)
        split = SplitLayer(layer, packing, x.detach(), mine)
        for a, b in chunks(packing, CUTS[cut]):
            split.forward(a, b)
        torch.testing.assert_close(split.y_NH, y.detach(), rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(split.final_state(), final, rtol=1e-9, atol=1e-12)

        dx = torch.empty_like(x)
        split.begin_backward(tuple(g.clone() for g in dfinal))
        for a, b in reversed(chunks(packing, CUTS[cut])):
            rows = packing.chunk(a, b)[0]
            dx[rows] = split.backward(a, b, dy[rows])
        torch.testing.assert_close(dx, x.grad, rtol=1e-9, atol=1e-11)
        if carries:
            got = (split.dh_BH, split.dc_BH)
            torch.testing.assert_close(got, tuple(s.grad for s in state), rtol=1e-9, atol=1e-11)
        split.weight_gradients()
        got = [p.grad for p in layer.parameters()]
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-11)


def test_no_gradient_of_the_final_state():
    """A decoder's final state is used by nobody."""
    layer, packing = LSTMLayer(4, 4).double(), packing_of(RAGGED)
    x = torch.randn(packing.rows_N.numel(), 4, dtype=torch.float64, requires_grad=True)
    y, _ = layer(x, packing.batch_sizes, None)
    y.square().sum().backward()
    split = SplitLayer(layer, packing, x.detach(), None)
    split.forward(0, packing.steps)
    split.begin_backward(None)
    dx = split.backward(0, packing.steps, 2 * split.y_NH)
    torch.testing.assert_close(dx, x.grad, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("residual", [False, True])
def test_dropout(residual):
    """The same words of the output are dropped in both directions, and scaled."""
    layer, packing = LSTMLayer(8, 8, dropout=0.5, residual=residual).double(), packing_of(RAGGED)
    x = torch.randn(packing.rows_N.numel(), 8, dtype=torch.float64, requires_grad=True)
    split = SplitLayer(layer, packing, x.detach(), None)
    for a, b in chunks(packing, 2):
        split.forward(a, b)
    mask = split.mask_NH.clone()
    assert set(mask.unique().tolist()) == {0.0, 2.0}
    layer.eval()
    plain, _ = layer(x, packing.batch_sizes, None)
    h = plain - x if residual else plain
    expected = h * mask + x if residual else h * mask
    torch.testing.assert_close(split.y_NH, expected.detach(), rtol=1e-9, atol=1e-12)
    dy = torch.randn_like(expected)
    expected.backward(dy)
    split.begin_backward(None)
    dx = torch.cat([split.backward(a, b, dy[packing.chunk(a, b)[0]])
                    for a, b in reversed(chunks(packing, 2))][::-1])  # fmt: skip
    torch.testing.assert_close(dx, x.grad, rtol=1e-9, atol=1e-11)


def test_float32_is_close():
    """The hyperbolic tangent is made of a sigmoid."""
    layer, packing = LSTMLayer(32, 32, forget_bias=1.0), packing_of((12, 9, 7))
    x = torch.randn(packing.rows_N.numel(), 32)
    y, _ = layer(x, packing.batch_sizes, None)
    split = SplitLayer(layer, packing, x, None)
    split.forward(0, packing.steps)
    torch.testing.assert_close(split.y_NH, y.detach(), rtol=0, atol=1e-6)


def test_hooks_of_weights_see_the_gradient():
    layer, packing = LSTMLayer(4, 4), packing_of(RAGGED)
    split = SplitLayer(layer, packing, torch.randn(packing.rows_N.numel(), 4), None)
    split.forward(0, packing.steps)
    layer.lstm.bias_hh_l0.register_hook(lambda grad: 3 * grad)
    split.begin_backward(None)
    split.backward(0, packing.steps, torch.ones_like(split.y_NH))
    split.weight_gradients()
    torch.testing.assert_close(layer.lstm.bias_hh_l0.grad, 3 * layer.lstm.bias_ih_l0.grad)


def test_which_layers_can_be_split():
    assert can_split(LSTMLayer(4, 4))
    assert can_split(LSTMLayer(4, 4).double())
    assert not can_split(LSTMLayer(4, 4, bidirectional=True))
    assert not can_split(LSTMLayer(4, 4).bfloat16())
    with torch.autocast("cpu", torch.bfloat16):
        assert not can_split(LSTMLayer(4, 4))
