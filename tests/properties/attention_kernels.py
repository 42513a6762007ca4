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

from packproof.properties.declarations.promises import Promises

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
BUGS_OF_KEYS = (
    "the offsets of the keys for the queries",
    "the offsets of the queries for the keys",
    "causal from the top left",
    "no earlier keys where there is more than one query",
    "a window counted from the first query",
    "NaN where there are no keys",
)
PROMISES = Promises(compute="fp32")


class Attention(torch.autograd.Function):
    """q [t, h, k], k [u, h, k], v [u, h, v], sinks [h] and the mask [t, u] to [t, h, v] and [t, h]."""

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
    cu_seqlens_k: Tensor | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softmax_scale: float | None = None,
    softcap: float = 0.0,
    return_lse: bool = False,
    bug: str = "",
) -> Any:
    """Op `attention`, computing in fp32 (fp64 for fp64), with the named bug."""
    acc = torch.float64 if q.dtype == torch.float64 else torch.float32
    group = q.shape[1] // k.shape[1]
    keys = cu_seqlens if cu_seqlens_k is None else cu_seqlens_k
    if bug == "the offsets of the queries for the keys":
        keys = cu_seqlens.clamp(max=len(k))
    if bug == "the offsets of the keys for the queries":
        cu_seqlens = keys.clamp(max=len(q))
    seq, place, real = located(cu_seqlens, len(q), bug)
    seq_k, place_k, real_k = located(keys, len(k), bug)
    left, right = (len(q) + len(k) if reach < 0 else reach for reach in window_size)
    left, ahead = left + (bug == "a window off by one"), place_k - place[:, None]
    distance = ahead
    if bug == "a window counted from the first query":
        distance = from_the_start(keys, seq_k, place_k) - from_the_start(cu_seqlens, seq, place)[:, None]
    visible = (seq_k == seq[:, None]) & (distance >= -left) & (ahead <= (0 if causal else right)) & real_k
    if bug == "no earlier keys where there is more than one query":
        counts = torch.cat([cu_seqlens.diff(), cu_seqlens.new_zeros(1)])[seq][:, None]
        visible &= (counts < 2) | (place_k >= -counts)
    none = q.new_full(q.shape[1:2], -torch.inf, dtype=acc)
    of_heads = none if sinks is None else sinks.to(acc)
    if bug == "a sink for each key head":
        of_heads = of_heads[torch.arange(q.shape[1]) // group]
    q_ = torch.where(real[:, None, None], q, 0).to(acc)
    k_, v_ = (torch.where(real_k[:, None, None], x, 0).to(acc).repeat_interleave(group, 1) for x in (k, v))
    scale = max(q.shape[2], 1) ** -0.5 if softmax_scale is None else softmax_scale
    y, lse = Attention.apply(q_, k_, v_, of_heads, visible, scale, softcap, bug)
    if bug == "NaN where there are no keys":
        y = torch.where(visible.any(-1)[:, None, None], y, torch.nan)
    y = torch.where(real[:, None, None], y.to(q.dtype), 0)
    return (y, torch.where(real[:, None], lse, 0)) if return_lse else y


def located(cu_seqlens: Tensor, rows: int, bug: str) -> tuple[Tensor, Tensor, Tensor]:
    """The sequence of each row, its place counted from the end of the sequence, and whether it is in one."""
    row, cu = torch.arange(rows), torch.cat([cu_seqlens.long(), torch.tensor([rows])])
    seq = torch.searchsorted(cu[1:-1].contiguous(), row, right=True)
    return seq, row - cu[seq if bug == "causal from the top left" else seq + 1], row < cu_seqlens[-1]


def from_the_start(cu_seqlens: Tensor, seq: Tensor, place: Tensor) -> Tensor:
    """The place of each row counted from the start of its sequence."""
    return place + torch.cat([cu_seqlens.diff(), cu_seqlens.new_zeros(1)])[seq]


def planted(bug: str) -> Callable[..., Any]:
    """The kernel with this bug, "" for the correct one."""
    return partial(attention, bug=bug)
