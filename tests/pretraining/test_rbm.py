"""Boltzmann machines against sums over all their states, and what becomes of them in training."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from fairseq_hybrid.pretraining.machine import CALMER, Machine
from fairseq_hybrid.pretraining.options import Settings
from fairseq_hybrid.pretraining.rbm import EXPLODED, RestrictedBoltzmannMachine

VISIBLE, HIDDEN = 5, 3
NAMES = ("weight_HV", "hidden_bias_H", "visible_bias_V")
kinds = pytest.mark.parametrize("gaussian", [False, True], ids=["bernoulli", "gaussian"])


def states(units: int) -> Tensor:
    """All values of so many binary units."""
    return torch.tensor(list(itertools.product((0.0, 1.0), repeat=units))).double()


def machine(gaussian: bool, scale: float = 0.3) -> RestrictedBoltzmannMachine:
    generator = torch.Generator().manual_seed(4)
    rbm = RestrictedBoltzmannMachine(VISIBLE, HIDDEN, gaussian=gaussian).double()
    for p in rbm.parameters():
        p.data = scale * torch.randn(p.shape, generator=generator).double()
    return rbm


def examples(gaussian: bool) -> Tensor:
    """Units that go together in twos and threes, some more often than others."""
    generator = torch.Generator().manual_seed(9)
    causes = torch.bernoulli(torch.tensor([0.3, 0.7]).expand(40, 2), generator=generator)
    noise = torch.randn(40, VISIBLE, generator=generator)
    values = causes[:, [0, 0, 1, 1, 1]] * 2 - 1 + 0.4 * noise
    return (values if gaussian else values > 0).double()


def free_energies(rbm: RestrictedBoltzmannMachine, visible: Tensor) -> Tensor:
    """-log of the sum over all hidden states of exp(-E), state by state as the energy is given."""
    w, c, b = (getattr(rbm, name) for name in NAMES)
    hidden = states(HIDDEN)
    energy = -(visible @ w.T @ hidden.T) - hidden @ c
    own = (visible - b).square().sum(1) / 2 if rbm.gaussian else -(visible @ b)
    return -torch.logsumexp(-energy, 1) + own


def log_likelihood(rbm: RestrictedBoltzmannMachine, visible: Tensor) -> Tensor:
    w, c, b = (getattr(rbm, name) for name in NAMES)
    if rbm.gaussian:  # the sum over v is an integral: of a Gaussian, for each hidden state
        hidden, constant = states(HIDDEN), VISIBLE / 2 * torch.log(torch.tensor(2 * torch.pi))
        drive = hidden @ w
        whole = torch.logsumexp(hidden @ c + drive @ b + drive.square().sum(1) / 2, 0) + constant
    else:
        whole = torch.logsumexp(-free_energies(rbm, states(VISIBLE)), 0)
    return (-free_energies(rbm, visible) - whole).mean()


def exact_gradients(rbm: RestrictedBoltzmannMachine, visible: Tensor) -> dict[str, Tensor]:
    rbm.zero_grad()
    (-log_likelihood(rbm, visible)).backward()
    return {name: getattr(rbm, name).grad.clone() for name in NAMES}


def expected_cd1(rbm: RestrictedBoltzmannMachine, visible: Tensor) -> dict[str, Tensor]:
    """The mean over all hidden states that could be drawn, by their probabilities."""
    total = {name: torch.zeros_like(getattr(rbm, name)) for name in NAMES}
    for v in visible:
        h = rbm.hidden(v)
        for drawn in states(HIDDEN):
            chance = torch.where(drawn > 0, h, 1 - h).prod()
            again_v = rbm.visible(drawn)
            again_h = rbm.hidden(again_v)
            total["weight_HV"] += chance * (torch.outer(again_h, again_v) - torch.outer(h, v))
            total["hidden_bias_H"] += chance * (again_h - h)
            total["visible_bias_V"] += chance * (again_v - v)
    return {name: value.detach() / len(visible) for name, value in total.items()}


def ranks(x: Tensor) -> Tensor:
    return x.flatten().argsort().argsort().double()


@kinds
def test_the_exact_gradient_is_that_of_the_likelihood(gaussian):
    """(of the reference above: the likelihood sums to one, which a wrong energy would not do)"""
    rbm = machine(gaussian)
    if gaussian:
        line = torch.linspace(-7, 7, 15).double()
        grid = torch.cartesian_prod(*[line] * VISIBLE)
        likelihoods = -free_energies(rbm, grid)
        assert torch.isfinite(likelihoods).all()
        total = likelihoods.exp().sum() * (line[1] - line[0]) ** VISIBLE
        whole = -free_energies(rbm, grid[:1])[0] - log_likelihood(rbm, grid[:1])
        assert total.log().item() == pytest.approx(whole.item(), abs=1e-3)
    else:
        all_states = states(VISIBLE)
        chances = torch.stack([log_likelihood(rbm, v[None]).exp() for v in all_states])
        assert chances.sum().item() == pytest.approx(1.0)


@kinds
def test_what_is_drawn_has_the_expected_gradient(gaussian):
    rbm, data, copies = machine(gaussian), examples(gaussian), 2000
    rbm.contrast(data.repeat(copies, 1), torch.Generator().manual_seed(1))
    for name, expected in expected_cd1(rbm, data).items():
        got = getattr(rbm, name).grad
        torch.testing.assert_close(got, expected, rtol=0, atol=5e-3)
        assert expected.abs().max() > 0.05


@kinds
def test_cd1_agrees_with_the_exact_gradient_in_sign_and_order(gaussian):
    rbm, data = machine(gaussian), examples(gaussian)
    exact, cd1 = exact_gradients(rbm, data), expected_cd1(rbm, data)
    for name in ("weight_HV", "visible_bias_V"):
        ours, theirs = cd1[name].flatten(), exact[name].flatten()
        clear = theirs.abs() > 0.25 * theirs.abs().max()
        assert torch.equal(ours[clear].sign(), theirs[clear].sign())
        order = torch.corrcoef(torch.stack((ranks(ours), ranks(theirs))))[0, 1]
        assert order > 0.9, (name, order)


@kinds
def test_training_makes_data_likely_and_reconstructions_better(gaussian):
    data = examples(gaussian)
    rbm = machine(gaussian, scale=0.01)
    before = log_likelihood(rbm, data).item()
    updates = 300
    settings = Settings(rbm_gaussian_lr=0.05)
    trained, errors = Machine(rbm, settings, updates=updates), []
    generator = torch.Generator().manual_seed(2)
    for _ in range(updates):
        errors.append(trained.step(data, generator).item())
    assert log_likelihood(rbm, data).item() > before + 0.5
    assert sum(errors[-20:]) < 0.8 * sum(errors[:20])
    assert trained.momentum == pytest.approx(0.9)


def test_momentum_rises_to_the_middle_and_scales_the_rate():
    trained = Machine(machine(False), Settings(rbm_lr=0.4), updates=100)
    data, generator = examples(False), torch.Generator().manual_seed(2)
    seen = []
    for _ in range(100):
        trained.step(data, generator)
        seen.append([trained.optimizer.param_groups[0][key] for key in ("lr", "momentum")])
    assert seen[0] == pytest.approx([0.4 * 0.5, 0.5])
    assert seen[25] == pytest.approx([0.4 * 0.3, 0.7])
    assert seen[50] == seen[99] == pytest.approx([0.4 * 0.1, 0.9])


def test_weights_that_run_away_are_pulled_back_and_the_update_is_skipped():
    rbm, data = machine(True, scale=20.0), examples(True)
    rbm.visible_bias_V.data.zero_()
    trained = Machine(rbm, Settings(), updates=10)
    before = {name: getattr(rbm, name).detach().clone() for name in NAMES}
    trained.step(data, torch.Generator().manual_seed(1))
    ratio = before["weight_HV"] / rbm.weight_HV.detach()
    assert ratio.min().item() == pytest.approx(ratio.max().item())
    assert ratio.min() > EXPLODED
    assert torch.equal(rbm.hidden_bias_H, before["hidden_bias_H"])
    assert trained.calm.item() == pytest.approx(CALMER)
    rbm.weight_HV.data /= 1e3
    before = rbm.weight_HV.detach().clone()
    trained.step(data, torch.Generator().manual_seed(1))
    assert not torch.equal(rbm.weight_HV, before)
    rate = 0.01 * CALMER * (1 - 0.58)  # momentum of the second update of ten
    assert trained.optimizer.param_groups[0]["lr"] == pytest.approx(rate)


@kinds
def test_a_start_knows_the_means_and_a_layer_reads_data_as_they_are(gaussian):
    rbm = RestrictedBoltzmannMachine(VISIBLE, HIDDEN, gaussian=gaussian)
    data = 3 * examples(True).float() + torch.arange(VISIBLE)
    data[:, 1] = 7.0  # a constant has no deviation to divide by
    data = data if gaussian else torch.sigmoid(data - data.mean())
    rbm.start(data.mean(0), data.std(0), weight_scale=0.1, generator=torch.Generator())
    assert rbm.weight_HV.std().item() == pytest.approx(0.1, rel=0.5)
    units = rbm.units(data)
    if gaussian:
        torch.testing.assert_close(units.mean(0), torch.zeros(VISIBLE), rtol=0, atol=1e-5)
        torch.testing.assert_close(units.std(0), torch.tensor([1.0, 0.0, 1.0, 1.0, 1.0]))
    else:
        expected = data.mean(0).clamp(0.01, 0.99)
        torch.testing.assert_close(rbm.visible(torch.zeros(1, HIDDEN))[0], expected)
    weight, bias = rbm.layer()
    by_layer = torch.sigmoid(data @ weight.T + bias)
    torch.testing.assert_close(by_layer, rbm.hidden(units), rtol=0, atol=1e-5)
