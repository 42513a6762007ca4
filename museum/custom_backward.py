"""Forward from one computation, backward from another: used to re-create bugs in gradients alone."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

Outputs = Tensor | tuple[Tensor, Tensor]


class _Graft(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, wrong: Tensor) -> Tensor:
        return value.detach().clone()

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor | None, Tensor | None]:
        return None, d


class _ValueWithSlope(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, value: Tensor, slope: Tensor) -> Tensor:
        ctx.save_for_backward(slope)
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor | None, ...]:
        (slope,) = ctx.saved_tensors
        return d * slope, None, None


def value_with_slope(x: Tensor, value: Tensor, slope: Tensor) -> Tensor:
    """A function of x from its value and slope, both computed without autograd."""
    y = _ValueWithSlope.apply(x, value, slope)  # type: ignore[no-untyped-call]
    assert isinstance(y, Tensor)
    return y


def graft(values: Outputs, gradients: Outputs) -> Outputs:
    """The values of `values` with the gradients of `gradients`: y, or y and the final states."""
    if isinstance(values, tuple) and isinstance(gradients, tuple):
        y, state = (_Graft.apply(v, g) for v, g in zip(values, gradients, strict=True))  # type: ignore[no-untyped-call]
        return y, state
    y = _Graft.apply(values, gradients)  # type: ignore[no-untyped-call]
    assert isinstance(y, Tensor)
    return y


def single_sequence_offsets(cu_seqlens: Tensor) -> Tensor:
    """The offsets of one sequence with all tokens: no boundaries."""
    return cu_seqlens[[0, -1]] if len(cu_seqlens) > 1 else cu_seqlens


def split_outputs(outputs: Outputs) -> tuple[Tensor, Tensor | None]:
    """y, and the final states or None."""
    return outputs if isinstance(outputs, tuple) else (outputs, None)


def join_outputs(y: Tensor, states: Tensor | None) -> Outputs:
    """The result of an op: y alone, or with the final states."""
    return y if states is None else (y, states)
