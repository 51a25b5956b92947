"""A restricted Boltzmann machine: two layers of units that predict each other, trained by CD-1.

Hidden units are binary. Visible units are binary (Bernoulli; probabilities serve as data) or real
(Gaussian, of unit variance). Their energy is

    E(v, h) = -hᵀ W v - cᵀ h - bᵀ v              Bernoulli
    E(v, h) = -hᵀ W v - cᵀ h + |v - b|² / 2      Gaussian

so that h given v is a layer of a sigmoid network. Data for Gaussian units are brought to mean 0 and
variance 1 in every dimension first, and `layer` undoes that in the weights: the layer it returns
reads data as they are.

One step of contrastive divergence (Hinton 2002) with the usual shortcuts: the hidden units that
start the step are drawn, the visible ones that they bring forth are means, and the hidden ones
that follow are probabilities.

Shape suffixes: N examples, V visible units, H hidden units.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

LEAST_DEVIATION = 1e-6
"""a dimension that varies less counts as constant"""
PROBABILITIES = 0.01, 0.99
"""between which the means of binary units are taken to be when they set the visible bias"""
EXPLODED = 2.0
"""a reconstruction that varies so many times as much as the data is no reconstruction"""


class RestrictedBoltzmannMachine(nn.Module):
    """Weights, biases, and how data are brought into the form that the visible units have."""

    def __init__(self, visible: int, hidden: int, *, gaussian: bool):
        super().__init__()
        self.gaussian = gaussian
        self.weight_HV = nn.Parameter(torch.zeros(hidden, visible))
        self.hidden_bias_H = nn.Parameter(torch.zeros(hidden))
        self.visible_bias_V = nn.Parameter(torch.zeros(visible))
        self.register_buffer("mean_V", torch.zeros(visible))
        self.register_buffer("deviation_V", torch.ones(visible))

    @torch.no_grad()
    def start(
        self,
        mean_V: Tensor,
        deviation_V: Tensor,
        *,
        weight_scale: float,
        generator: torch.Generator,
    ) -> None:
        """Random weights, and from the data's moments what is known before any training."""
        noise = torch.randn(self.weight_HV.shape, generator=generator)
        self.weight_HV.copy_(noise).mul_(weight_scale)
        if self.gaussian:
            self.mean_V.copy_(mean_V)
            constant = deviation_V < LEAST_DEVIATION
            self.deviation_V.copy_(deviation_V.masked_fill(constant, 1.0))
        else:
            self.visible_bias_V.copy_(torch.logit(mean_V.clamp(*PROBABILITIES)))

    def units(self, data_NV: Tensor) -> Tensor:
        """Data as values of the visible units."""
        return (data_NV - self.mean_V) / self.deviation_V if self.gaussian else data_NV

    def hidden(self, visible_NV: Tensor) -> Tensor:
        """Probabilities of the hidden units."""
        return torch.sigmoid(visible_NV @ self.weight_HV.t() + self.hidden_bias_H)

    def visible(self, hidden_NH: Tensor) -> Tensor:
        """Means of the visible units."""
        mean_NV = hidden_NH @ self.weight_HV + self.visible_bias_V
        return mean_NV if self.gaussian else torch.sigmoid(mean_NV)

    @torch.no_grad()
    def contrast(self, visible_NV: Tensor, generator: torch.Generator) -> Tensor:
        """Set the gradients (of what is to be minimised) by CD-1; returns the reconstruction."""
        hidden_NH = self.hidden(visible_NV)
        drawn_NH = torch.bernoulli(hidden_NH, generator=generator)
        again_NV = self.visible(drawn_NH)
        again_NH = self.hidden(again_NV)
        self.weight_HV.grad = (again_NH.t() @ again_NV - hidden_NH.t() @ visible_NV) / len(
            visible_NV
        )
        self.hidden_bias_H.grad = (again_NH - hidden_NH).mean(0)
        self.visible_bias_V.grad = (again_NV - visible_NV).mean(0)
        return again_NV

    @torch.no_grad()
    def shrink_if_exploded(self, visible_NV: Tensor, again_NV: Tensor) -> bool:
        """Gaussian units have no bound: pull the weights back if a reconstruction runs away."""
        if not self.gaussian:
            return False
        excess = again_NV.std() / visible_NV.std().clamp(min=LEAST_DEVIATION)
        if excess <= EXPLODED:
            return False
        self.weight_HV /= excess
        return True

    @torch.no_grad()
    def layer(self) -> tuple[Tensor, Tensor]:
        """(weight_HV, bias_H) of the layer of a sigmoid network that reads data as they are."""
        weight_HV = self.weight_HV / self.deviation_V
        return weight_HV, self.hidden_bias_H - weight_HV @ self.mean_V
