"""Attention of one query whose gradient reads the stored output, with roundings of random signs."""

from typing import Any

import torch
from torch import Tensor


class DrawnAttention(torch.autograd.Function):
    """y = P V with P = softmax(S) along the last axis: S (h, j), V (h, j, v) and y (h, v). dS = P ∘ (dP - D).

    A kernel has D = Σ P dP as dy · y, from y as it was stored, so that the roundings of D and dP do not cancel.
    """

    @staticmethod
    def forward(ctx: Any, signs: Any, S: Tensor, V: Tensor) -> Tensor:
        P = S.softmax(-1)
        y = (signs.operand(P)[:, None] @ V)[:, 0]
        ctx.signs, ctx.tensors = signs, (P, V, y)
        result: Tensor = signs.operand(y)
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (dy,), (P, V, y), signs = grads, ctx.tensors, ctx.signs
        dP, D = (V @ dy[..., None])[..., 0], (dy * signs.operand(y)).sum(-1, keepdim=True)
        return None, signs.operand(P * (signs.operand(dP) - D)), signs.operand(P)[..., None] * dy[:, None]
