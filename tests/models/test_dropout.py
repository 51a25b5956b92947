"""The cheap dropout drops as often as it should, and fairseq's switches work on it."""

import pytest
import torch

from fairseq_hybrid.models.dropout import Dropout


@pytest.mark.parametrize("p", [0.1, 0.3, 0.9])
@pytest.mark.parametrize("shape", [(1001, 257), (400_003,)])
def test_share_and_scale(p, shape):
    torch.manual_seed(1)
    x = torch.ones(shape, dtype=torch.float64)
    y = Dropout(p)(x)
    kept = y != 0
    n = x.numel()
    assert abs(kept.sum().item() / n - (1 - p)) < 5 * (p * (1 - p) / n) ** 0.5
    scale = y[kept].unique()
    assert scale.numel() == 1
    assert scale.item() == pytest.approx(1 / (1 - p), rel=1e-4)


def test_elements_are_independent():
    """Four elements come from one draw: neighbours must not know of each other."""
    torch.manual_seed(1)
    dropped = (Dropout(0.5)(torch.ones(400_000)) == 0).double().view(-1, 4)
    correlation = torch.corrcoef(dropped.t()) - torch.eye(4)
    assert correlation.abs().max() < 0.02
    assert (dropped.mean(0) - 0.5).abs().max() < 0.01


def test_gradient_passes_where_values_do():
    x = torch.randn(50, 20, requires_grad=True)
    y = Dropout(0.4)(x)
    y.sum().backward()
    assert torch.equal(x.grad == 0, y == 0)


def test_off_in_evaluation_unless_retained():
    x = torch.randn(100)
    dropout = Dropout(0.5, module_name="Here").eval()
    assert dropout(x) is x
    dropout.make_generation_fast_("x", retain_dropout=True, retain_dropout_modules=["Here"])
    assert (dropout(x) == 0).any()
    assert Dropout(0.0)(x) is x


def test_nearly_everything_dropped_stays_finite():
    assert Dropout(0.9999999)(torch.ones(1000)).isfinite().all()
