"""Matrix products on CPUs, by the faster of the two libraries that PyTorch comes with.

`torch.mm` calls MKL, which leaves half the width of an AMD processor's vector units idle; oneDNN,
which PyTorch's fused LSTM kernel is made of, does not: 64 x 512 times 512 x 2048 in float32 runs at
95 GFLOP/s with the one and at 210 with the other on an EPYC with AVX-512. So there, and for
float32, products go to oneDNN, and to `torch.mm` everywhere else.
"""

from __future__ import annotations

import functools
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SMALL = 1 << 16
"""multiplications, for which it does not matter which"""


def linear(x_NI: Tensor, weight_OI: Tensor, bias_O: Tensor | None = None) -> Tensor:
    """`F.linear` without autograd; either factor may be a transposed view."""
    if _suits(x_NI, weight_OI):
        return torch.ops.mkldnn._linear_pointwise(x_NI, weight_OI, bias_O, "none", [], "")
    return F.linear(x_NI, weight_OI, bias_O)


def weight_gradient(dy_NO: Tensor, x_NI: Tensor) -> Tensor:
    """`dy.t() @ x`, the gradient of a linear layer's weight_OI.

    oneDNN copies its first factor where that is a transposed view: let it be the narrower one.
    """
    if not _suits(dy_NO.t(), x_NI.t()):
        return dy_NO.t() @ x_NI
    if dy_NO.size(1) <= x_NI.size(1):
        return linear(dy_NO.t(), x_NI.t())
    return linear(x_NI.t(), dy_NO.t()).t().contiguous()


def apply(layer: nn.Linear, x_NI: Tensor) -> Tensor:
    """`layer(x_NI)`, with autograd."""
    hooks = layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks
    plain = type(layer).forward is nn.Linear.forward and not hooks
    return scores(x_NI, layer.weight, layer.bias) if plain else layer(x_NI)


def scores(x_NI: Tensor, weight_OI: Tensor, bias_O: Tensor | None) -> Tensor:
    """`F.linear`, with autograd."""
    if x_NI.dim() == 2 and _suits(x_NI, weight_OI) and not torch.is_autocast_enabled("cpu"):
        return _Linear.apply(x_NI, weight_OI, bias_O)
    return F.linear(x_NI, weight_OI, bias_O)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return linear(x, weight, bias)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, dy: Tensor):
        (x, weight), (for_x, for_weight, for_bias) = ctx.saved_tensors, ctx.needs_input_grad
        return (
            linear(dy, weight.t()) if for_x else None,
            weight_gradient(dy, x) if for_weight else None,
            dy.sum(0) if for_bias else None,
        )


def _suits(x_NI: Tensor, weight_OI: Tensor) -> bool:
    on_cpu = x_NI.dtype == torch.float32 and x_NI.device.type == "cpu"
    return on_cpu and x_NI.numel() * weight_OI.size(0) > SMALL and by_onednn()


@functools.cache
def by_onednn() -> bool:
    """Whether this is a processor on which oneDNN is the faster one."""
    cpuinfo = Path("/proc/cpuinfo")
    amd = cpuinfo.exists() and "AuthenticAMD" in cpuinfo.read_text()
    # An operator that PyTorch keeps for its compiler: a later version may do without it.
    return amd and hasattr(torch.ops.mkldnn, "_linear_pointwise")
