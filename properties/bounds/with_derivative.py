"""A value with the derivative of another: how a bound of a slope enters a magnitude op."""

# mypy: allow-untyped-calls

from typing import Any

import torch
from torch import Tensor


def with_derivative(value: Tensor, gradient_path: Tensor) -> Tensor:
    """The value, with the derivative of `gradient_path`, itself possibly infinite."""
    y: Tensor = _WithDerivative.apply(value.detach(), gradient_path)
    return y


class _WithDerivative(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, gradient_path: Tensor) -> Tensor:
        ctx.shape = gradient_path.shape
        expanded, _ = torch.broadcast_tensors(value, gradient_path)
        return torch.clone(expanded)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return None, grads[0].sum_to_size(ctx.shape)
