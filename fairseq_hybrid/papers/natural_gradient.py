"""Kaldi's online natural gradient: rows of a matrix multiplied with an inverse Fisher matrix.

The Fisher matrix of the rows that come by is tracked as a diagonal plus low rank,
F = Rᵀ diag(d) R + ρ I, with R orthonormal rows that rotate a little with every update (one step of
the power method). Each row x becomes x (F + smoothing)⁻¹, then all are scaled so that the norm of
the matrix stays what it was: directions in which rows vary much are shortened, the others
lengthened. (Povey, Zhang, Khudanpur 2015; the numbers and formulas are those of Kaldi's source.)

What is kept between calls is W = E^½ R, with E = diag(1 / (β / d + 1)).

The gradient of a weight has two sides, the inputs it is multiplied with and the outputs it makes;
`TwoSided` has a Fisher matrix for each, and `NaturalLinear` is a layer that uses them.

A host waits for its device where F is updated, and there alone: two R×R matrices and a number go to
the CPU.

Shape suffixes: N rows, D columns, R rank; O outputs and I inputs of a weight.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

EARLY = 10
"""calls at the beginning that all update F, before every `period`-th does"""
WARM_UP = 3
"""times that the first rows are looked at before they are used"""
MAX_CONDITION = 1e6
MAX_ETA = 0.9
"""share that one call can have in F: if it could be all, rows of zeros would leave nothing"""


class OnlineNaturalGradient:
    """`precondition(x_ND)` for matrices of one width, remembering what it has seen."""

    def __init__(
        self,
        rank: int = 40,
        *,
        period: int = 4,
        history: float = 2000.0,
        alpha: float = 4.0,
        eps: float = 1e-10,
        delta: float = 5e-4,
    ):
        self.rank, self.period, self.history = rank, period, history
        self.alpha, self.eps, self.delta = alpha, eps, delta
        self.calls = 0
        self.w_RD: Tensor | None = None
        self.d_R: Tensor | None = None
        self.rho = 0.0

    def precondition(self, x_ND: Tensor) -> Tensor:
        """The rows in natural coordinates; of the same norm, all together."""
        if x_ND.size(1) == 1 or x_ND.size(0) == 0:
            return x_ND
        if self.w_RD is None:
            self._begin(x_ND)
        updates = self.calls < EARLY or self.calls % self.period == 0
        self.calls += 1
        h_NR = x_ND @ self.w_RD.T
        out_ND = x_ND - h_NR @ self.w_RD
        before, after = x_ND.square().sum(), out_ND.square().sum()
        if updates:
            self._update(x_ND, h_NR, before)
        return out_ND * torch.where(after > 0, (before / after).sqrt(), 1.0)

    def _begin(self, x_ND: Tensor) -> None:
        columns = x_ND.size(1)
        rank = min(self.rank, columns - 1)
        which = torch.arange(columns) % rank == torch.arange(rank).unsqueeze(1)
        orthonormal_RD = which / which.sum(1, keepdim=True).sqrt()
        self.rho = self.eps
        self.d_R = torch.full((rank,), self.eps, dtype=torch.float64)
        scale = math.sqrt(1 / (2 + (columns + rank) * self.alpha / columns))
        self.w_RD = (scale * orthonormal_RD).to(x_ND)
        calls = self.calls
        for _ in range(WARM_UP):
            self.calls = 0
            self.precondition(x_ND)
        self.calls = calls

    def _e(self, columns: int) -> Tensor:
        beta = self.rho * (1 + self.alpha) + self.alpha * self.d_R.sum() / columns
        return 1 / (beta / self.d_R + 1)

    def _update(self, x_ND: Tensor, h_NR: Tensor, square_sum: Tensor) -> None:
        """F ← (1 - η) F + η XᵀX / N, brought back to low rank. Small matrices, in float64."""
        total = float(square_sum)
        if not 0 < total < math.inf:
            return  # nothing to learn from; what is not finite is for the trainer to report
        rows, columns = x_ND.shape
        eta = min(1 - math.exp(-rows / self.history), MAX_ETA)
        part = eta / rows
        rho, d_R, rank = self.rho, self.d_R, self.d_R.numel()
        j_RD = h_NR.T @ x_ND
        wide = {"dtype": torch.float64, "device": "cpu"}
        share_RD = j_RD / total  # K is a fourth power of the rows: too much for float32
        k_RR, l_RR = (share_RD @ share_RD.T).to(**wide) * total**2, (h_NR.T @ h_NR).to(**wide)
        inverse_R = self._e(columns).rsqrt()
        k_RR = inverse_R.unsqueeze(1) * k_RR * inverse_R
        l_RR = inverse_R.unsqueeze(1) * l_RR * inverse_R
        dr_R = d_R + rho
        z_RR = part**2 * k_RR + (1 - eta) ** 2 * torch.diag(dr_R.square())
        z_RR += part * (1 - eta) * (l_RR * dr_R + dr_R.unsqueeze(1) * l_RR)
        c_R, u_RR = torch.linalg.eigh((z_RR + z_RR.T) / 2)
        c_R, u_RR = c_R.flip(0), u_RR.flip(1)
        floor = (rho * (1 - eta)) ** 2
        uneven = bool((c_R < floor).any()) or float(c_R[0] / c_R[-1].clamp(min=floor)) > (
            MAX_CONDITION
        )
        c_R = c_R.clamp(min=floor)
        root_R = c_R.sqrt()
        trace = part * total + (1 - eta) * (columns * rho + float(d_R.sum()))
        new_rho = (trace - float(root_R.sum())) / (columns - rank)
        self.d_R = (root_R - new_rho).clamp(min=self.eps)
        self.rho = max(new_rho, self.eps, self.delta * float(root_R.max()))
        left_RR = (u_RR / root_R).T * inverse_R  # C^-½ Uᵀ E^-½
        carried_RD = (left_RR * (1 - eta) * dr_R).to(x_ND) @ self.w_RD
        r_RD = (part * left_RR).to(x_ND) @ j_RD + carried_RD
        if uneven:
            r_RD = orthonormal(r_RD)
        self.w_RD = self._e(columns).sqrt().unsqueeze(1).to(x_ND) * r_RD

    def state_dict(self) -> dict[str, Any]:
        return {"calls": self.calls, "w": self.w_RD, "d": self.d_R, "rho": self.rho}

    def load_state_dict(self, state: dict[str, Any], device: Any = None) -> None:
        """`device`: where the rows will be (where W is)."""
        self.calls, self.rho = state["calls"], state["rho"]
        self.w_RD, self.d_R = state["w"], state["d"]
        if self.w_RD is not None:
            self.w_RD, self.d_R = self.w_RD.to(device), self.d_R.cpu()


class TwoSided:
    """Preconditions the gradient of one weight_OI, from whatever is known of it."""

    def __init__(self, rank_in: int, rank_out: int, **options: Any):
        self.inputs = OnlineNaturalGradient(rank_in, **options)
        self.outputs = OnlineNaturalGradient(rank_out, **options)

    def of_layer(self, x_NI: Tensor, dy_NO: Tensor) -> Tensor:
        """Kaldi's form, of a layer's inputs and of the derivatives by its outputs."""
        return self.outputs.precondition(dy_NO).T @ self.inputs.precondition(x_NI)

    def of_gradient(self, grad_OI: Tensor) -> Tensor:
        """Of the gradient alone: its rows stand for samples of the inputs, then its columns for
        samples of the outputs. The norm stays."""
        return self.outputs.precondition(self.of_rows(grad_OI).T).T

    def of_rows(self, grad_NI: Tensor) -> Tensor:
        """The same for single rows of it, on the side of the inputs only."""
        return self.inputs.precondition(grad_NI)

    def state_dict(self) -> dict[str, Any]:
        return {"inputs": self.inputs.state_dict(), "outputs": self.outputs.state_dict()}

    def load_state_dict(self, state: dict[str, Any], device: Any = None) -> None:
        self.inputs.load_state_dict(state["inputs"], device)
        self.outputs.load_state_dict(state["outputs"], device)


class NaturalLinear:
    """Computes for an `nn.Linear`: the gradients of weight and bias are born preconditioned."""

    def __init__(self, layer: nn.Linear, natural: TwoSided):
        self.layer, self.natural = layer, natural
        self.called = False
        """whether a gradient has come this way"""
        layer.forward = self.forward  # of this module alone, found before that of its class

    def release(self) -> None:
        """Let the layer have plain gradients."""
        del self.layer.forward

    def forward(self, x: Tensor) -> Tensor:
        layer = self.layer
        if not torch.is_grad_enabled():
            return F.linear(x, layer.weight, layer.bias)
        return _Linear.apply(x, layer.weight, layer.bias, self)


class _Linear(torch.autograd.Function):
    """`F.linear`; the gradient of the input is the plain one."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, computes: NaturalLinear
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.computes, ctx.biased = computes, bias is not None
        return F.linear(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        (x, weight), computes = ctx.saved_tensors, ctx.computes
        computes.called = True
        dx = dy @ weight if ctx.needs_input_grad[0] else None
        x_NI, dy_NO = x.reshape(-1, x.size(-1)), dy.reshape(-1, dy.size(-1))
        if not ctx.biased:
            return dx, computes.natural.of_layer(x_NI, dy_NO), None, None
        grad = computes.natural.of_layer(F.pad(x_NI, (0, 1), value=1.0), dy_NO)
        return dx, grad[:, :-1], grad[:, -1], None


def orthonormal(r_RD: Tensor) -> Tensor:
    """The rows made orthonormal, each as near to what it was as the ones before it allow."""
    q_DR, upper_RR = torch.linalg.qr(r_RD.double().T)
    signs_R = torch.where(upper_RR.diagonal() < 0, -1.0, 1.0).to(q_DR)
    return (q_DR * signs_R).T.to(r_RD)
