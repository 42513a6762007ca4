"""Causal attention aligned bottom right, with keys of their own lengths (ROCm/rocm-libraries#10999, review).

The incorrect kernel takes the diagonal's offset from max_seqlen_q and max_seqlen_k, for every sequence.
"""

from itertools import pairwise

import torch

from packproof.adapters import OfKeys, adapt, cu_seqlens_int32, max_seqlen


def _varlen(q, k, v, cu_q, cu_k, scale, causal, offset):
    """offset(queries, keys of the sequence): how far the diagonal lies to the right."""
    group = q.shape[1] // k.shape[1]
    wide = torch.promote_types(q.dtype, torch.float32)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    ys = [q.new_zeros(0, q.shape[1], v.shape[2])]
    for (a, b), (c, d) in zip(pairwise(cu_q.tolist()), pairwise(cu_k.tolist()), strict=True):
        qs, ks, vs = q[a:b].to(wide), *(x[c:d].repeat_interleave(group, 1).to(wide) for x in (k, v))
        s = torch.einsum("ihc,jhc->hij", qs, ks) * scale
        if causal:
            seen = torch.arange(d - c, device=q.device) <= torch.arange(b - a, device=q.device)[:, None] + offset(
                b - a, d - c
            )
            s = torch.where(seen, s, -1e30)
            p = torch.where(seen, s.softmax(-1), 0) if d > c else s
        else:
            p = s.softmax(-1) if d > c else s
        ys.append(torch.einsum("hij,jhc->ihc", p, vs).to(q.dtype))
    return torch.cat(ys)


def _of_the_sequence(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, *, scale=None, causal=False):
    return _varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, scale, causal, lambda n, m: m - n)


def _of_the_maxima(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, *, scale=None, causal=False):
    return _varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, scale, causal, lambda n, m: max_seqlen_k - max_seqlen_q)


def _adapted(function):
    return adapt(
        function,
        op="attention",
        slack=False,
        names={"softmax_scale": "scale"},
        metadata={
            "cu_seqlens_q": cu_seqlens_int32,
            "cu_seqlens_k": OfKeys(cu_seqlens_int32),
            "max_seqlen_q": max_seqlen,
            "max_seqlen_k": OfKeys(max_seqlen),
        },
    )


correct = _adapted(_of_the_sequence)
incorrect = _adapted(_of_the_maxima)
