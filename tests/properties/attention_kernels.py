"""Attention with a backward pass of its own, as kernels have it, and bugs that can be planted into it.

With P = exp(s - lse) and the incoming gradients dO and dlse: dv = Pᵀ dO, ds = P (dO vᵀ - Δ), Δ = rowsum(O dO) - dlse,
the gradient of a sink -Σ exp(sink - lse) Δ, and that of a score before its cap (1 - tanh²) ds.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, einsum
from torch.autograd.function import once_differentiable

from packproof.properties.promises import Promises

BUGS = (
    "sink missing from the gradient of the denominator",
    "a sink for each key head",
    "no gradient of the sinks",
    "no slope of the softcap",
    "a softcap before the scale",
    "lse without the scale",
    "lse in base 2",
    "lse without the sink",
    "no gradient through lse",
    "a window off by one",
)
PROMISES = Promises(compute="fp32")


class Attention(torch.autograd.Function):
    """q [t, h, k], k [t, h, k], v [t, h, v], sinks [h] and the mask [t, t] to [t, h, v] and [t, h]."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, visible: Tensor, scale: float, cap: float, bug: str
    ) -> tuple[Tensor, Tensor]:
        x = einsum("ihk,jhk->hij", q, k) * (1 if bug == "a softcap before the scale" and cap else scale)
        slope = 1 - (x / cap).tanh() ** 2 if cap else torch.ones_like(x)
        s = cap * (x / cap).tanh() if cap else x
        s = s * scale if bug == "a softcap before the scale" and cap else s
        s = torch.where(visible, s, -torch.inf)
        lse = torch.logaddexp(s.logsumexp(-1), sinks[:, None])
        P = torch.where(visible, (s - torch.where(lse.isfinite(), lse, 0)[..., None]).exp(), 0)
        y = einsum("hij,jhv->ihv", P, v)
        backward_P = P
        if bug == "sink missing from the gradient of the denominator":
            backward_P = torch.where(visible.any(-1, keepdim=True), s.softmax(-1), 0)
        ctx.save_for_backward(q, k, v, sinks, backward_P, y, lse, torch.ones_like(x) if "no slope" in bug else slope)
        ctx.scale, ctx.bug = scale, bug
        shown = lse
        if bug == "lse without the scale":
            shown = torch.where(visible, s / scale, -torch.inf).logsumexp(-1)
        if bug == "lse without the sink":
            shown = s.logsumexp(-1)
        return y, (shown / torch.log(torch.tensor(2.0)) if bug == "lse in base 2" else shown).T.contiguous()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dO: Tensor, dlse: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, sinks, P, y, lse, slope = ctx.saved_tensors
        dlse = torch.zeros_like(dlse) if ctx.bug == "no gradient through lse" else dlse
        delta = ((y * dO).sum(-1) - dlse).T
        ds = P * (einsum("ihv,jhv->hij", dO, v) - delta[..., None]) * slope * ctx.scale
        share = torch.where(lse.isfinite(), (sinks[:, None] - lse).exp(), 0)
        dsinks = torch.zeros_like(sinks) if ctx.bug == "no gradient of the sinks" else -(share * delta).sum(-1)
        dq, dk = einsum("hij,jhk->ihk", ds, k), einsum("hij,ihk->jhk", ds, q)
        return dq, dk, einsum("hij,ihv->jhv", P, dO), dsinks, None, None, None, None


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sinks: Tensor | None = None,
    *,
    cu_seqlens: Tensor,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softmax_scale: float | None = None,
    softcap: float = 0.0,
    return_lse: bool = False,
    bug: str = "",
) -> Any:
    """Op `attention`, computing in fp32 (fp64 for fp64), with the named bug."""
    acc = torch.float64 if q.dtype == torch.float64 else torch.float32
    row, group = torch.arange(len(q)), q.shape[1] // k.shape[1]
    seq = torch.searchsorted(cu_seqlens[1:].long(), row, right=True)
    real = row < cu_seqlens[-1]
    left, right = (len(q) if reach < 0 else reach for reach in window_size)
    left, ahead = left + (bug == "a window off by one"), row - row[:, None]
    visible = (seq == seq[:, None]) & (ahead >= -left) & (ahead <= (0 if causal else right)) & real
    none = q.new_full(q.shape[1:2], -torch.inf, dtype=acc)
    of_heads = none if sinks is None else sinks.to(acc)
    if bug == "a sink for each key head":
        of_heads = of_heads[torch.arange(q.shape[1]) // group]
    q_, k_, v_ = (torch.where(real[:, None, None], x, 0).to(acc) for x in (q, k, v))
    k_, v_ = (x.repeat_interleave(group, 1) for x in (k_, v_))
    scale = max(q.shape[2], 1) ** -0.5 if softmax_scale is None else softmax_scale
    y, lse = Attention.apply(q_, k_, v_, of_heads, visible, scale, softcap, bug)  # type: ignore[no-untyped-call]
    y = torch.where(real[:, None, None], y.to(q.dtype), 0)
    return (y, torch.where(real[:, None], lse, 0)) if return_lse else y


def planted(bug: str) -> Callable[..., Any]:
    """The kernel with this bug, "" for the correct one."""
    return partial(attention, bug=bug)
