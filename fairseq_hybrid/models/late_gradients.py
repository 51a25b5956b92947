"""The gradient of the output weights, computed when a worker would otherwise wait.

Of all that a head's backward pass computes only the gradient of the top states is urgent: the
reverse wavefront starts from it. The gradient of the output weights, a matrix product as large as
the softmax itself, can wait. `linear` is `torch.nn.functional.linear` whose backward pass leaves
that product in a list, and `LateGradients.compute` does it: on the last stage, as far as it owns
the weights, after its last unit, while the stages below still have some to do; elsewhere before the
first unit, which has to come down from above anyway.

    time →
    stage 1   ... forward | softmax | backward ............ | weights |
    stage 0   ... forward | softmax | weights | backward ............ |

Data parallelism (sampled.py) does it after the backward pass, while the gradients of the hidden
layers are still on their way.
"""

from __future__ import annotations

from collections.abc import Callable, Container

import torch
from torch import Tensor, nn

from fairseq_hybrid.models.products import linear, weight_gradient


class LateGradients:
    """What is left to compute of a backward pass."""

    def __init__(self) -> None:
        self.left: list[tuple[Tensor, Callable[[], Tensor]]] = []
        """parameters and how to compute the gradients that they get"""

    def linear(self, layer: nn.Linear, x: Tensor) -> Tensor:
        """`layer(x)`, the gradients of its parameters in `compute`."""
        hooks = layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks
        if hooks or torch.is_autocast_enabled(x.device.type):  # who looks on, and who changes types
            return layer(x)
        return _Linear.apply(x, layer.weight, layer.bias, self.left)

    def of(self, weight: nn.Parameter) -> Callable[[Tensor, Tensor], None]:
        """Takes the factors of its gradient: derivatives of a layer's outputs, and inputs."""
        return lambda dy, x: self.left.append((weight, lambda: weight_gradient(dy, x)))

    @torch.no_grad()
    def compute(self, *, but: Container[Tensor] = ()) -> None:
        """Give all parameters their gradients, `but` some, which get them another time."""
        left, self.left[:] = list(self.left), []
        for p, gradient in left:
            if p in but:
                self.left.append((p, gradient))
            else:
                p.grad = gradient() if p.grad is None else p.grad.add_(gradient())


class Product:
    """The gradient of a linear layer's weight, in rows of it or as a whole."""

    factors: tuple[Tensor, Tensor] | None = None
    """derivatives of the outputs_NO and the inputs_NI; None until backward has been here"""

    def set(self, *factors: Tensor) -> None:
        self.factors = factors

    @torch.no_grad()
    def rows(self, begin: int, out: Tensor, scale: float = 1.0) -> None:
        """Write some of them to `out`."""
        dy_NO, x_NI = self.factors
        dy_NO = dy_NO[:, begin : begin + out.size(0)]
        torch.mul(weight_gradient(dy_NO, x_NI), scale, out=out)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor | None, left: list) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.bias, ctx.left = bias, left
        return linear(x, weight, bias)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, dy: Tensor):
        x, weight = ctx.saved_tensors
        bias, (_, for_weight, for_bias, _) = ctx.bias, ctx.needs_input_grad
        if for_weight:
            ctx.left.append((weight, lambda: weight_gradient(dy, x)))
        if for_bias:
            ctx.left.append((bias, lambda: dy.sum(0)))
        return linear(dy, weight.t()), None, None, None
