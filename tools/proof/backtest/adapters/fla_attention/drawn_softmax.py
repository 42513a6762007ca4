"""The softmax of kernels that sum its gradient by themselves, with roundings of random signs."""

from typing import Any

import torch
from torch import Tensor


class DrawnSoftmax(torch.autograd.Function):
    """P = softmax(S) along the last axis, and dS = P ∘ (dP - D).

    A kernel has D = Σ P dP from another sum than dP, such as dy · y, so that their roundings do not cancel.
    """

    @staticmethod
    def forward(ctx: Any, signs: Any, S: Tensor) -> Tensor:
        P = S.softmax(-1)
        ctx.signs, ctx.P = signs, P
        result: Tensor = signs.operand(P)
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (dP,), P, signs = grads, ctx.P, ctx.signs
        D = signs.rounded((P * dP).sum(-1), (P * dP).square().sum(-1).sqrt())
        return None, signs.operand(P * (signs.operand(dP) - D[..., None]))
