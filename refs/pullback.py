"""Gradients of outputs from incoming ones."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def pulled_back(
    outputs: Sequence[Tensor], wrt: Sequence[Tensor], incoming: Sequence[Tensor], **options: Any
) -> tuple[Tensor | None, ...]:
    """What `torch.autograd.grad` returns, None for those of wrt that no output reaches.

    outputs: each requires a gradient. incoming: one for each, of its shape. options: of `torch.autograd.grad`.

    Given an incoming gradient, that imports torch's symbolic shapes and sympy, which takes a third of a second; from a
    scalar it imports nothing.
    """
    with torch.enable_grad():
        head = _head(incoming, *outputs)
    return torch.autograd.grad(head, wrt, allow_unused=True, **options)


class _Head(torch.autograd.Function):
    """A scalar whose gradient reaches the outputs as the incoming ones."""

    @staticmethod
    def forward(ctx: Any, incoming: Sequence[Tensor], *outputs: Tensor) -> Tensor:
        ctx.incoming = incoming
        return outputs[0].new_zeros(())

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor | None, ...]:
        return None, *ctx.incoming


_head: Callable[..., Tensor] = _Head.apply
