"""Matrix products on CPUs, by the faster of the two libraries that PyTorch comes with.

`torch.mm` calls MKL, which leaves half the width of an AMD processor's vector units idle; oneDNN,
which PyTorch's fused LSTM kernel is made of, does not: 64 x 512 times 512 x 2048 in float32 runs at
95 GFLOP/s with the one and at 210 with the other on an EPYC with AVX-512. So there, and for
float32, products go to oneDNN, and to `torch.mm` everywhere else. Without autograd.
"""

from __future__ import annotations

import functools
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor


def linear(x_NI: Tensor, weight_OI: Tensor, bias_O: Tensor | None = None) -> Tensor:
    """`F.linear`; either factor may be a transposed view."""
    if x_NI.dtype == torch.float32 and x_NI.device.type == "cpu" and by_onednn() and x_NI.numel():
        return torch.ops.mkldnn._linear_pointwise(x_NI, weight_OI, bias_O, "none", [], "")
    return F.linear(x_NI, weight_OI, bias_O)


@functools.cache
def by_onednn() -> bool:
    """Whether this is a processor on which oneDNN is the faster one."""
    cpuinfo = Path("/proc/cpuinfo")
    amd = cpuinfo.exists() and "AuthenticAMD" in cpuinfo.read_text()
    # An operator that PyTorch keeps for its compiler: a later version may do without it.
    return amd and hasattr(torch.ops.mkldnn, "_linear_pointwise")
