"""Adam in one pass: fairseq's, up to rounding, where it is used; nothing else where it is not."""

from __future__ import annotations

from argparse import Namespace

import pytest
import torch
from fairseq.optim import FairseqOptimizer
from fairseq.optim.adam import Adam, FairseqAdam, FairseqAdamConfig
from torch import nn

from fairseq_hybrid.models.lstm_layer import LSTMLayer
from fairseq_hybrid.optim import one_pass, rows
from fairseq_hybrid.optim.optimizer import HybridOptimizer, InnerScale, wrap


class Optimizer(FairseqOptimizer):
    def __init__(self, optimizer):
        super().__init__(Namespace())
        self._optimizer = optimizer


@pytest.fixture
def calls(monkeypatch) -> list[int]:
    """How many parameters each call of torch's kernel had."""
    counts, fused = [], torch._fused_adam_

    def counted(params, *args, **how):
        counts.append(len(params))
        return fused(params, *args, **how)

    monkeypatch.setattr(torch, "_fused_adam_", counted)
    return counts


def train(make, rules=(), dtype=torch.float32):
    """Parameters and state after six steps; one parameter has a gradient every other time."""
    torch.manual_seed(3)
    first, second = torch.randn(5, 4, dtype=dtype), torch.randn(7, dtype=dtype) * 1e-4
    params = [nn.Parameter(first), nn.Parameter(second)]
    optimizer = HybridOptimizer(Optimizer(make(params)), rules=rules)
    for number in range(6):
        torch.manual_seed(number)
        for p in params[: 2 - number % 2]:
            p.grad = torch.randn_like(p) * 1e-3
        optimizer.step()
        assert params[0].grad is not None, "gradients stay for who looks at them"
        optimizer.zero_grad()
    return params, [optimizer.optimizer.state[p] for p in params]


@pytest.mark.parametrize("rules", [[one_pass.step], [rows.step, one_pass.step]])
def test_it_is_fairseqs_adam(calls, rules):
    """Also the state, also from the first steps on, where the corrections are large."""

    def adam(params):
        return Adam(params, lr=0.01, weight_decay=0.1, eps=1e-3)

    systems = train(adam), train(adam, rules)
    # The first step makes the state; later the parameters are at steps of their own.
    assert calls == [1, 1, 1, 1, 1, 1, 1]
    for (plain, plain_state), (fast, fast_state) in zip(*(zip(*s) for s in systems)):
        torch.testing.assert_close(fast, plain)
        assert plain_state.keys() == fast_state.keys()
        assert plain_state["step"] == fast_state["step"]
        for name in ("exp_avg", "exp_avg_sq"):
            torch.testing.assert_close(fast_state[name], plain_state[name])


@pytest.mark.parametrize(
    ("make", "dtype"),
    [
        pytest.param(lambda p: Adam(p, amsgrad=True), torch.float32, id="amsgrad"),
        pytest.param(Adam, torch.float64, id="float64"),
        pytest.param(lambda p: torch.optim.SGD(p, lr=0.1), torch.float32, id="sgd"),
    ],
)
def test_others_are_left_alone(calls, make, dtype):
    (plain, _), (same, _) = train(make, dtype=dtype), train(make, [one_pass.step], dtype)
    assert not calls
    assert all(torch.equal(a, b) for a, b in zip(plain, same))


def built(model: nn.Module) -> HybridOptimizer:
    """What is made of the optimizer that fairseq builds."""
    cfg = FairseqAdamConfig(adam_betas="(0.9, 0.98)", fp16_adam_stats=False)
    cfg.tpu, cfg.lr = False, [0.1]
    inner = FairseqAdam(cfg, list(model.parameters()))
    return wrap(inner, of=(model,))


def test_models_of_ours_get_it_and_fairseqs_do_not():
    ours, theirs = built(LSTMLayer(2, 2)), built(nn.LSTM(2, 2))
    assert ours.rules == (one_pass.step,)
    assert ours.scales_once
    assert theirs.rules == ()
    assert isinstance(theirs.scale, InnerScale)
