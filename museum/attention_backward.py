"""Attention with a backward pass of its own, as kernels have it, and five bugs in it.

With P = softmax(s q kᵀ) and the incoming gradient dO: dv = Pᵀ dO, dS = P (dO vᵀ - Δ), Δ = rowsum(O dO), dq = s dS k,
dk = s dSᵀ q.
"""

from typing import Any

import torch
from torch import Tensor, einsum
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from packproof.museum.memory import as_contiguous
from packproof.museum.rows import sequence_of_rows
from packproof.museum.variants import kernel_lookup

WIDTH = 4


class Attention(torch.autograd.Function):
    """q [t, h, k], k [t, g, k], v [t, g, v] and the mask [t, t] to [t, h, v]."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, visible: Tensor, scale: float, bug: str) -> Tensor:
        groups = q.shape[1] // k.shape[1]
        k, v = (x.repeat_interleave(groups, 1) for x in (k, v))
        scores = torch.where(visible, einsum("ihk,jhk->hij", q, k) * scale, -torch.inf)
        P = torch.where(visible.any(-1, keepdim=True), scores.softmax(-1), 0)
        O = einsum("hij,jhv->ihv", P, v)  # noqa: E741
        ctx.save_for_backward(q, k, v, P, O)
        ctx.scale, ctx.groups, ctx.bug = scale, groups, bug
        return O

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dO: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, P, O = ctx.saved_tensors  # noqa: E741
        out = read_with_strides_of(O, dO) if ctx.bug == "output_by_gradient_strides" and O.numel() else O
        delta = (out * dO).sum(-1).T[..., None]
        dS = P * (einsum("ihv,jhv->hij", dO, v) - delta) * ctx.scale
        dq, dk, dv = einsum("hij,jhk->ihk", dS, k), einsum("hij,ihk->jhk", dS, q), einsum("hij,ihv->jhv", P, dO)
        if ctx.bug == "tiles_overwrite" and v.shape[2] > WIDTH:  # the second tile of v overwrites the first's result
            tile = slice(WIDTH, None)
            dP = einsum("ihv,jhv->hij", dO[..., tile], v[..., tile])
            dS = P * (dP - (O * dO)[..., tile].sum(-1).T[..., None]) * ctx.scale
            dq, dk = einsum("hij,jhk->ihk", dS, k), einsum("hij,ihk->jhk", dS, q)
        if ctx.bug == "accumulators_padded_apart":
            dq = reread_with_wider_rows(dq)
        if ctx.bug == "values_as_wide_as_queries" and v.shape[2] > q.shape[2]:
            dv = torch.cat([dv[..., : q.shape[2]], torch.empty_like(dv[..., q.shape[2] :])], -1)
        return dq, sum_over_group(dk, ctx), sum_over_group(dv, ctx), None, None, None


def sum_over_group(d: Tensor, ctx: Any) -> Tensor:
    """Sum the gradients of the query heads of each key head: [t, g, c]."""
    t, h, c = d.shape
    if ctx.bug == "heads_divided_by_groups":  # head i is added to key i % g; correct: i // (h / g)
        return d.reshape(t, ctx.groups, h // ctx.groups, c).sum(1)
    return d.reshape(t, h // ctx.groups, ctx.groups, c).sum(2)


def reread_with_wider_rows(d: Tensor) -> Tensor:
    """Store rows padded to a multiple of WIDTH, and read them as if padded to a multiple of 2 WIDTH."""
    rows = d.reshape(-1, d.shape[2])
    stored_width, read_width = (-(-d.shape[2] // multiple) * multiple for multiple in (WIDTH, 2 * WIDTH))
    flat = pad(pad(rows, (0, stored_width - d.shape[2])).flatten(), (0, len(rows) * (read_width - stored_width)))
    return flat.view(-1, read_width)[:, : d.shape[2]].reshape(d.shape)


def read_with_strides_of(x: Tensor, like: Tensor) -> Tensor:
    """Read a contiguous x with the strides of another tensor; past the end, its last element."""
    places = sum(
        torch.arange(n, device=x.device).view(-1, *(1,) * (x.ndim - 1 - axis)) * like.stride(axis)
        for axis, n in enumerate(x.shape)
    )
    assert isinstance(places, Tensor)
    return as_contiguous(x).reshape(-1)[places.clamp(max=x.numel() - 1)]


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    cu_seqlens: Tensor,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softmax_scale: float | None = None,
    bug: str = "",
) -> Tensor:
    """Op `attention`, computing in fp32 (fp64 for fp64), with the named bug."""
    acc = torch.float64 if q.dtype == torch.float64 else torch.float32
    row = torch.arange(len(q), device=q.device)
    seq = sequence_of_rows(cu_seqlens.long(), row)
    token_mask = row < cu_seqlens[-1]
    left_reach, right_reach = (len(q) if reach < 0 else reach for reach in window_size)
    key_distance = row - row[:, None]
    visible = (
        (seq == seq[:, None])
        & (key_distance >= -left_reach)
        & (key_distance <= (0 if causal else right_reach))
        & token_mask
    )
    q32, k32, v32 = (torch.where(token_mask[:, None, None], x, 0).to(acc) for x in (q, k, v))
    scale = max(q.shape[2], 1) ** -0.5 if softmax_scale is None else softmax_scale
    y = Attention.apply(q32, k32, v32, visible, scale, bug)  # type: ignore[no-untyped-call]
    return torch.where(token_mask[:, None, None], y.to(q.dtype), 0)


BUGS = (
    "output_by_gradient_strides",
    "tiles_overwrite",
    "values_as_wide_as_queries",
    "heads_divided_by_groups",
    "accumulators_padded_apart",
)
__getattr__ = kernel_lookup(attention, {"correct": {}}, BUGS)
