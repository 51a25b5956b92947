"""The output weights' gradient at another time: the same numbers, when they are asked for."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fairseq_hybrid.models.late_gradients import LateGradients, Product


def layer_and_input(bias: bool = True) -> tuple[nn.Linear, torch.Tensor]:
    torch.manual_seed(1)
    layer = nn.Linear(5, 7, bias=bias, dtype=torch.float64)
    return layer, torch.randn(11, 5, dtype=torch.float64, requires_grad=True)


def loss_of(y: torch.Tensor) -> torch.Tensor:
    return (y.sin() * torch.arange(7)).sum()


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("batches", [1, 3])
def test_gradients_are_those_of_the_layer(bias, batches):
    layer, x = layer_and_input(bias)
    late = LateGradients()
    for _ in range(batches):
        loss_of(late.linear(layer, x)).backward()
    assert all(p.grad is None for p in layer.parameters()), "nothing before it is asked for"
    late.compute()
    got = [x.grad, *(p.grad for p in layer.parameters())]
    plain, x = layer_and_input(bias)
    for _ in range(batches):
        loss_of(plain(x)).backward()
    for mine, wanted in zip(got, [x.grad, *(p.grad for p in plain.parameters())]):
        torch.testing.assert_close(mine, wanted)
    late.compute()
    assert layer.weight.grad is got[1], "and only once"


def test_some_can_wait_longer():
    layer, x = layer_and_input()
    late = LateGradients()
    loss_of(late.linear(layer, x)).backward()
    late.compute(but={layer.weight})
    assert layer.weight.grad is None
    assert layer.bias.grad is not None
    before = layer.bias.grad.clone()
    late.compute()
    assert layer.weight.grad is not None
    assert torch.equal(layer.bias.grad, before)


def test_frozen_weights_get_none():
    layer, x = layer_and_input()
    layer.weight.requires_grad_(False)
    late = LateGradients()
    loss_of(late.linear(layer, x)).backward()
    late.compute()
    assert layer.weight.grad is None
    assert layer.bias.grad is not None


def test_who_looks_at_the_layer_sees_it():
    """An optimizer with hooks (ng_sgd) finds inputs and gradients as ever."""
    layer, x = layer_and_input()
    seen = []
    layer.register_forward_hook(lambda *_: seen.append(1))
    loss_of(LateGradients().linear(layer, x)).backward()
    assert seen
    assert layer.weight.grad is not None


def test_a_weights_gradient_in_parts():
    """Rows of the product, scaled, against autograd."""
    dy, x = torch.randn(5, 7, dtype=torch.float64), torch.randn(5, 3, dtype=torch.float64)
    product = Product()
    product.set(dy, x)
    block = torch.full((7, 3), float("nan"), dtype=torch.float64)
    product.rows(0, block[:4], 0.5)
    product.rows(4, block[4:], 0.5)
    torch.testing.assert_close(2 * block, dy.t() @ x)
