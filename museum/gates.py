"""Linear attention with a gate as running sum, and a backward pass by hand: 1 correct, 2 with bugs in gradients."""

from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, einsum
from torch.autograd.function import once_differentiable

_LEAST_LOG = {torch.float32: -110.0, torch.float64: -750.0}  # exp of less is 0


class _GatedAttention(torch.autograd.Function):
    """One sequence, heads first: q, k (h, t, k), v (h, t, p), g (h, t) or None."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, g: Tensor | None, scale: float, bug: str) -> Tensor:
        total = torch.zeros_like(q[..., 0]) if g is None else g.clamp(min=_LEAST_LOG[g.dtype]).cumsum(-1)
        visible = torch.ones(q.shape[1], q.shape[1], dtype=torch.bool, device=q.device).tril()
        decay = torch.where(visible, total[:, :, None] - total[:, None], -torch.inf).exp() * scale
        ctx.save_for_backward(q, k, v, decay)
        ctx.has_gate, ctx.scale, ctx.bug = g is not None, scale, bug
        return (einsum("hik,hjk->hij", q, k) * decay) @ v

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *incoming: Tensor) -> tuple[Tensor | None, ...]:
        (dy,) = incoming
        q, k, v, decay = ctx.saved_tensors
        scores = einsum("hik,hjk->hij", q, k) * decay
        d_scores = dy @ v.transpose(1, 2)
        dv = scores.transpose(1, 2) @ dy
        if ctx.bug == "scale_lost_without_gate" and not ctx.has_gate:
            dv = dv / ctx.scale
        dq, dk = (d_scores * decay) @ k, (d_scores * decay).transpose(1, 2) @ q
        return dq, dk, dv, _gate_gradient(scores * d_scores, ctx.bug) if ctx.has_gate else None, None, None


def _gate_gradient(products: Tensor, bug: str) -> Tensor:
    """(h, t): token t's gate has a part in all pairs (i, j) with j < t <= i, so that rows and columns cancel."""
    transposed = products.transpose(1, 2)
    if bug == "transposed_in_16_bits":
        transposed = transposed.bfloat16().to(products)
    differences = (products - transposed).sum(-1)
    return differences.flip(-1).cumsum(-1).flip(-1)


def simple_gla(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor | None = None, *, cu_seqlens: Tensor, scale: Any = None, bug: str = ""
) -> Tensor:
    """Op `simple_gla` without states; the gate may be omitted."""
    wide, heads = torch.promote_types(q.dtype, torch.float32), v.shape[1]
    scale = max(q.shape[2], 1) ** -0.5 if scale is None else scale
    q, k = (x.to(wide).repeat_interleave(heads // x.shape[1], 1) for x in (q, k))
    heads_first = [None if x is None else x.to(wide).transpose(0, 1) for x in (q, k, v, g)]
    ys = [v.new_zeros(0, *v.shape[1:], dtype=wide)]
    for start, end in pairwise(cu_seqlens.tolist()):
        rows = [None if x is None else x[:, start:end] for x in heads_first]
        y: Tensor = _GatedAttention.apply(*rows, scale, bug)  # type: ignore[no-untyped-call]
        ys.append(y.transpose(0, 1))
    ys.append(v.new_zeros(len(v) - int(cu_seqlens[-1]), *v.shape[1:], dtype=wide))
    return torch.cat(ys).to(v.dtype)


transposed_in_16_bits = partial(simple_gla, bug="transposed_in_16_bits")
scale_lost_without_gate = partial(simple_gla, bug="scale_lost_without_gate")
