"""The optimizer around fairseq's: what fairseq does in several passes, in one."""

from __future__ import annotations

from argparse import Namespace

import pytest
import torch
from fairseq.optim import AMPOptimizer, FairseqBMUF, FairseqOptimizer
from torch import nn

from fairseq_hybrid.optim import rows
from fairseq_hybrid.optim.optimizer import Gradients, HybridOptimizer, InnerScale, wrap


class SGD(FairseqOptimizer):
    def __init__(self, params):
        super().__init__(Namespace())
        self._optimizer = torch.optim.SGD(params, lr=0.5)


class Shares(Gradients):
    """Gradients of several workers, of which each parameter's is of another kind."""

    world, scales_once, mean_gradients = 4, True, False

    def gradient_groups(self, params, factor):
        first, second = params
        return [([first], factor / self.world), ([second], factor)]


def params() -> list[nn.Parameter]:
    torch.manual_seed(1)
    made = [nn.Parameter(torch.randn(3, 4)), nn.Parameter(torch.randn(5))]
    for p in made:
        p.grad = torch.randn_like(p)
    return made


@pytest.fixture
def products(monkeypatch) -> list[int]:
    """How many gradients each multiplication had."""
    counts, multiply = [], torch._foreach_mul_

    def counted(tensors, by):
        counts.append(len(tensors))
        return multiply(tensors, by)

    monkeypatch.setattr(torch, "_foreach_mul_", counted)
    return counts


@pytest.mark.parametrize("clip", [0.0, 1.0, 100.0])
def test_once_over_the_gradients(products, clip):
    plain, once = SGD(params()), HybridOptimizer(SGD(params()))
    norms = []
    for optimizer in (plain, once):
        products.clear()
        optimizer.multiply_grads(3.0)
        optimizer.multiply_grads(torch.tensor(0.5))
        norms.append(optimizer.clip_grad_norm(clip))
    assert products == [2]
    torch.testing.assert_close(*norms)
    for expected, got in zip(plain.params, once.params):
        torch.testing.assert_close(got.grad, expected.grad)


def test_groups_have_factors_of_their_own():
    optimizer, expected = wrap(SGD(params()), Shares()), params()
    optimizer.multiply_grads(8.0)
    norm = optimizer.clip_grad_norm(0.0)
    expected[0].grad *= 2
    expected[1].grad *= 8
    for p, want in zip(optimizer.params, expected):
        torch.testing.assert_close(p.grad, want.grad)
    joined = torch.cat([p.grad.flatten() for p in expected])
    torch.testing.assert_close(norm, joined.norm())


def test_what_is_not_finite_is_so_everywhere():
    optimizer = wrap(SGD(params()), Shares())
    next(optimizer.params).grad[0, 0] = float("inf")
    assert not optimizer.clip_grad_norm(0.0).isfinite()
    assert all(p.grad.isnan().all() for p in optimizer.params)


def test_what_nobody_asks_for_stays_fairseqs():
    optimizer = wrap(SGD(params()))
    assert isinstance(optimizer.scale, InnerScale)
    assert optimizer.rules == ()
    assert optimizer.state_dict() == optimizer.inner.state_dict()


def test_what_rules_leave_is_the_inner_optimizers():
    first, second = made = params()
    before = [p.detach().clone() for p in made]
    optimizer = HybridOptimizer(SGD(made), rules=[lambda _: [first]])
    optimizer.step()
    assert torch.equal(first, before[0])
    torch.testing.assert_close(second.detach(), before[1] - 0.5 * second.grad)
    assert first.grad is not None
    assert list(map(id, optimizer.params)) == list(map(id, made))


def test_fairseqs_tasks_see_that_it_is_for_amp():
    common = Namespace(fp16_init_scale=4, min_loss_scale=1e-4)
    inner = AMPOptimizer(Namespace(optimizer=None, common=common), [], SGD(params()))
    optimizer = wrap(inner, Shares())
    assert isinstance(optimizer, AMPOptimizer)
    assert optimizer.scaler is inner.scaler
    assert optimizer.scales_once


def test_bmuf_averages_all_parameters_after_a_step_of_some_rows():
    table, other = made = params()
    table.grad = rows.sparse_rows(torch.tensor([1]), torch.ones(1, 4), table)
    before = table.detach().clone()
    cfg = Namespace(
        global_sync_iter=1, block_momentum=0.5, block_lr=1, warmup_iterations=9, use_nbm=False,
        average_sync=False, distributed_world_size=1,
    )  # fmt: skip
    bmuf = FairseqBMUF(cfg, SGD(made))
    seen = []
    bmuf._is_warmup_end = lambda: seen.extend(bmuf.params)
    optimizer = wrap(bmuf, by_rows=True)
    optimizer.multiply_grads(2.0)
    optimizer.clip_grad_norm(0.0)
    optimizer.step()
    assert list(map(id, seen)) == [id(table), id(other)]
    before[1] -= 0.5 * 2
    torch.testing.assert_close(table.detach(), before)
