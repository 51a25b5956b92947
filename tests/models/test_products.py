"""Products by either library: the same numbers, and a gradient for all that want one."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fairseq_hybrid.models import products


@pytest.fixture(params=[False, True], ids=["MKL", "oneDNN"], autouse=True)
def library(request, monkeypatch):
    monkeypatch.setattr(products, "by_onednn", lambda: request.param)
    monkeypatch.setattr(products, "SMALL", 0)


@pytest.mark.parametrize("rows", [0, 1, 7])
@pytest.mark.parametrize("bias", [True, False])
def test_as_the_layer(rows, bias):
    torch.manual_seed(1)
    layer = nn.Linear(5, 9, bias=bias)
    x = torch.randn(rows, 5, requires_grad=True)
    wanted = [x, *layer.parameters()]
    y, dy = layer(x), torch.randn(rows, 9)
    expected = torch.autograd.grad(y, wanted, dy)
    mine = products.apply(layer, x)
    torch.testing.assert_close(mine, y)
    torch.testing.assert_close(torch.autograd.grad(mine, wanted, dy), expected)


def test_transposed_views():
    a, b = torch.randn(6, 3), torch.randn(6, 4)
    torch.testing.assert_close(products.linear(a.t(), b.t()), a.t() @ b)


@pytest.mark.parametrize("outputs", [3, 12])
def test_gradient_of_a_weight(outputs):
    dy, x = torch.randn(7, 20)[:, 4 : 4 + outputs], torch.randn(7, 5)
    made = products.weight_gradient(dy, x)
    torch.testing.assert_close(made, dy.t() @ x)
    assert made.is_contiguous()


def test_a_layer_that_somebody_watches_is_called():
    layer, seen = nn.Linear(3, 2), []
    layer.register_forward_hook(lambda *_: seen.append(1))
    products.apply(layer, torch.randn(4, 3))
    assert seen == [1]


def test_frozen_weights_get_no_gradient():
    layer = nn.Linear(3, 2)
    layer.weight.requires_grad_(False)
    products.apply(layer, torch.randn(4, 3, requires_grad=True)).sum().backward()
    assert layer.weight.grad is None
    assert layer.bias.grad is not None
