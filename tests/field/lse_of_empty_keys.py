"""Attention with sinks, whose log-sum-exp is returned (Dao-AILab/flash-attention#2706).

A row that sees no key but the sink has an lse of NaN in the incorrect kernel.
"""

from itertools import pairwise

import torch

import packproof


def _attention(q, k, v, sinks, cu_q, cu_k, *, causal, guarded):
    group, wide = q.shape[1] // k.shape[1], torch.promote_types(q.dtype, torch.float32)
    y = q.new_zeros(len(q), q.shape[1], v.shape[2])
    lse = q.new_zeros(len(q), q.shape[1], dtype=wide)
    sinks = None if sinks is None else sinks.to(wide)
    for (a, b), (c, d) in zip(pairwise(cu_q.tolist()), pairwise(cu_k.tolist()), strict=True):
        ks, vs = (x[c:d].repeat_interleave(group, 1).to(wide) for x in (k, v))
        s = torch.einsum("ihc,jhc->ihj", q[a:b].to(wide), ks) * q.shape[-1] ** -0.5
        if causal:
            seen = torch.arange(d - c, device=q.device) <= torch.arange(b - a, device=q.device)[:, None] + (d - c) - (
                b - a
            )
            s = torch.where(seen[:, None], s, -torch.inf)
        m = s.amax(-1) if d > c else s.new_full(s.shape[:2], -torch.inf)
        if sinks is not None:
            with_sink = torch.maximum(m, sinks)
            m = with_sink if guarded else torch.where(m > -torch.inf, with_sink, m)
        top = torch.where(m > -torch.inf, m, 0)
        p = (s - top[..., None]).exp()
        from_keys = p.sum(-1)
        total = from_keys
        if sinks is not None:
            total = from_keys + (sinks - m).exp()  # exp(sink + inf) where no key is seen and m lacks the sink
            top = m
        p = p / torch.where(total > 0, total, 1)[..., None]
        y[a:b] = torch.where((from_keys > 0)[..., None], torch.einsum("ihj,jhc->ihc", p, vs), 0).to(q.dtype)
        lse[a:b] = torch.where(total > 0, top + total.log(), -torch.inf)
    return y, lse


@packproof.kernel(op="attention", slack=False, gradients=False)
def correct(q, k, v, sinks=None, *, cu_seqlens, cu_seqlens_k=None, causal=False, return_lse=False):
    cu_k = cu_seqlens if cu_seqlens_k is None else cu_seqlens_k
    y, lse = _attention(q, k, v, sinks, cu_seqlens, cu_k, causal=causal, guarded=True)
    return (y, lse) if return_lse else y


@packproof.kernel(op="attention", slack=False, gradients=False)
def incorrect(q, k, v, sinks=None, *, cu_seqlens, cu_seqlens_k=None, causal=False, return_lse=False):
    cu_k = cu_seqlens if cu_seqlens_k is None else cu_seqlens_k
    y, lse = _attention(q, k, v, sinks, cu_seqlens, cu_k, causal=causal, guarded=False)
    return (y, lse) if return_lse else y
