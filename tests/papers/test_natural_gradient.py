"""Online natural gradient against a plain float64 version that keeps F as a whole matrix."""

from __future__ import annotations

import math

import pytest
import torch

from fairseq_hybrid.papers.natural_gradient import EARLY, OnlineNaturalGradient

ALPHA, HISTORY, EPS, DELTA, PERIOD = 4.0, 2000.0, 1e-10, 5e-4, 4


class Plain:
    """R, d and ρ, and every matrix written out in full; no W, no shortcuts."""

    def __init__(self, x: torch.Tensor, rank: int):
        self.width = x.size(1)
        self.r = torch.zeros(rank, self.width, dtype=torch.float64)
        for column in range(self.width):
            self.r[column % rank, column] = 1
        self.r /= self.r.norm(dim=1, keepdim=True)
        self.d, self.rho, self.calls = torch.full((rank,), EPS, dtype=torch.float64), EPS, 0
        for _ in range(3):
            self.update(x)

    def fisher(self) -> torch.Tensor:
        return self.r.T @ torch.diag(self.d) @ self.r + self.rho * torch.eye(self.width).double()

    def smoothed(self) -> torch.Tensor:
        """F + α tr(F) / D I, up to a factor that the norm takes away."""
        extra = self.alpha_term() * torch.eye(self.width).double()
        return self.r.T @ torch.diag(self.d) @ self.r + extra

    def alpha_term(self) -> float:
        return self.rho * (1 + ALPHA) + ALPHA * float(self.d.sum()) / self.width

    def precondition(self, x: torch.Tensor) -> torch.Tensor:
        out = x @ torch.linalg.inv(self.smoothed())
        out = out * (x.norm() / out.norm())
        if self.calls < EARLY or self.calls % PERIOD == 0:
            self.update(x)
        self.calls += 1
        return out

    def update(self, x: torch.Tensor) -> None:
        rows, rank = x.size(0), self.d.numel()
        eta = 1 - math.exp(-rows / HISTORY)
        t = eta / rows * x.T @ x + (1 - eta) * self.fisher()
        y = self.r @ t
        c, u = torch.linalg.eigh(y @ y.T)
        c, u = c.flip(0).clamp(min=(self.rho * (1 - eta)) ** 2), u.flip(1)
        rho = float(t.trace() - c.sqrt().sum()) / (self.width - rank)
        self.r = torch.diag(c.rsqrt()) @ u.T @ y
        self.d = (c.sqrt() - rho).clamp(min=EPS)
        self.rho = max(rho, EPS, DELTA * float(c.sqrt().max()))


def data(kind: str, calls: int, rows: int = 64, width: int = 12):
    torch.manual_seed(5)
    mix = torch.eye(width)
    if kind == "correlated":
        mix = torch.randn(width, width) @ torch.diag(2.0 ** -torch.arange(width))
    return [(torch.randn(rows, width) @ mix).double() for _ in range(calls)]


@pytest.mark.parametrize("kind", ["random", "correlated"])
def test_agrees_with_the_plain_version_over_50_calls(kind):
    batches = data(kind, 50)
    ours, plain = OnlineNaturalGradient(rank=4), Plain(batches[0], rank=4)
    for x in batches:
        got, expected = ours.precondition(x), plain.precondition(x)
        torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-8)
    fisher = plain.fisher()
    e = 1 / (plain.alpha_term() / plain.d + 1)
    r = ours.w_RD / e.sqrt().unsqueeze(1)
    mine = r.T @ torch.diag(ours.d_R) @ r + ours.rho * torch.eye(12).double()
    torch.testing.assert_close(mine, fisher, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("kind", ["random", "correlated"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_w_stays_orthogonal_and_norms_stay(kind, dtype):
    ours = OnlineNaturalGradient(rank=5)
    for x in data(kind, 50):
        x = x.to(dtype)
        assert ours.precondition(x).norm().item() == pytest.approx(x.norm().item(), rel=1e-4)
    e = torch.diag(ours._e(12)).to(dtype)
    torch.testing.assert_close(ours.w_RD @ ours.w_RD.T, e, rtol=1e-3, atol=1e-4)


def test_tracks_a_fixed_covariance():
    """The directions of F that it keeps are the leading ones of what it sees."""
    torch.manual_seed(2)
    basis, _ = torch.linalg.qr(torch.randn(20, 20).double())
    scale = torch.cat((torch.tensor([10.0, 8.0, 6.0]), torch.full((17,), 0.1))).double()
    ours = OnlineNaturalGradient(rank=3)
    for _ in range(200):
        ours.precondition(torch.randn(64, 20).double() * scale @ basis)
    r = ours.w_RD / ours.w_RD.norm(dim=1, keepdim=True)
    kept = (r @ basis[:3].T).norm() ** 2
    assert kept == pytest.approx(3.0, abs=0.01)
    found = (ours.d_R + ours.rho).sort(descending=True).values
    torch.testing.assert_close(found, scale[:3].square(), rtol=0.25, atol=0)


def test_resumes_exactly():
    batches = data("correlated", 12)
    straight, stopped = OnlineNaturalGradient(rank=4), OnlineNaturalGradient(rank=4)
    for i, x in enumerate(batches):
        expected = straight.precondition(x)
        if i == 6:
            again = OnlineNaturalGradient(rank=4)
            again.load_state_dict(stopped.state_dict())
            stopped = again
        assert torch.equal(stopped.precondition(x), expected)


def test_one_column_and_no_rows_pass_through():
    ours = OnlineNaturalGradient()
    assert torch.equal(ours.precondition(torch.ones(5, 1)), torch.ones(5, 1))
    assert ours.precondition(torch.empty(0, 7)).shape == (0, 7)
    assert OnlineNaturalGradient(rank=40).precondition(torch.randn(9, 6)).shape == (9, 6)


def test_nothing_comes_of_nothing():
    ours = OnlineNaturalGradient(rank=3)
    assert not ours.precondition(torch.zeros(8, 6)).any()
    out = ours.precondition(torch.randn(8, 6))
    assert out.isfinite().all()
