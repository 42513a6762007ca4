"""Gated delta rule with a gate that may be left out (fla-org/flash-linear-attention#863).

Without a gate the gradient of beta lacks a term in the incorrect kernel.
"""

from itertools import pairwise

import torch


class Delta(torch.autograd.Function):
    """The rule token by token, backward by hand, with and without a gate."""

    @staticmethod
    def forward(ctx, q, k, v, beta, g, cu_seqlens, scale, lacks_term):
        group = v.shape[1] // q.shape[1]
        qq, kk = q.repeat_interleave(group, 1), k.repeat_interleave(group, 1)
        y = torch.zeros_like(v)
        for a, b in pairwise(cu_seqlens.tolist()):
            S = v.new_zeros(v.shape[1], k.shape[2], v.shape[2])
            for i in range(a, b):
                S = S if g is None else S * g[i].exp()[:, None, None]
                e = v[i] - torch.einsum("hk,hkp->hp", kk[i], S)
                S = S + kk[i][:, :, None] * (beta[i][:, None] * e)[:, None]
                y[i] = torch.einsum("hk,hkp->hp", qq[i] * scale, S)
        ctx.save_for_backward(q, k, v, beta, g, cu_seqlens)
        ctx.call = scale, lacks_term, group
        return y

    @staticmethod
    def backward(ctx, dy):
        q, k, v, beta, g, cu_seqlens = ctx.saved_tensors
        scale, lacks_term, group = ctx.call
        qq, kk = q.repeat_interleave(group, 1), k.repeat_interleave(group, 1)
        dq, dk, dv, db = torch.zeros_like(qq), torch.zeros_like(kk), torch.zeros_like(v), torch.zeros_like(beta)
        dg = torch.empty(0) if g is None else torch.zeros_like(g)
        for a, b in pairwise(cu_seqlens.tolist()):
            decayed, S = [], v.new_zeros(v.shape[1], k.shape[2], v.shape[2])
            for i in range(a, b):
                S = S if g is None else S * g[i].exp()[:, None, None]
                decayed.append(S)
                e = v[i] - torch.einsum("hk,hkp->hp", kk[i], S)
                S = S + kk[i][:, :, None] * (beta[i][:, None] * e)[:, None]
                dq[i] = torch.einsum("hp,hkp->hk", dy[i], S) * scale
            dS = torch.zeros_like(S)
            for i in range(b - 1, a - 1, -1):
                Sd = decayed[i - a]
                dS = dS + (qq[i] * scale)[:, :, None] * dy[i][:, None]
                kS = torch.einsum("hk,hkp->hp", kk[i], Sd)
                kdS = torch.einsum("hk,hkp->hp", kk[i], dS)
                db[i] = (kdS * v[i]).sum(-1)
                if not (lacks_term and g is None):
                    db[i] -= (kdS * kS).sum(-1)
                de, e = beta[i][:, None] * kdS, v[i] - kS
                dk[i] = torch.einsum("hkp,hp->hk", dS, beta[i][:, None] * e) - torch.einsum("hkp,hp->hk", Sd, de)
                dv[i] = de
                dS = dS - kk[i][:, :, None] * de[:, None]
                if g is not None:
                    dg[i] = (dS * Sd).sum((1, 2))
                    dS = dS * g[i].exp()[:, None, None]
        dq, dk = (x.unflatten(1, (-1, group)).sum(2) for x in (dq, dk))
        return dq, dk, dv, db, None if g is None else dg, None, None, None


def _run(q, k, v, beta, g, cu_seqlens, scale, *, lacks_term):
    wide = torch.promote_types(q.dtype, torch.float32)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    inputs = [None if x is None else x.to(wide) for x in (q, k, v, beta, g)]
    return Delta.apply(*inputs, cu_seqlens, scale, lacks_term).to(v.dtype)


def correct_gated(q, k, v, g=None, beta=None, *, cu_seqlens, scale=None):
    """As fla's chunk_gated_delta_rule: the gate may be left out."""
    return _run(q, k, v, beta, g, cu_seqlens, scale, lacks_term=False)


def incorrect_gated(q, k, v, g=None, beta=None, *, cu_seqlens, scale=None):
    return _run(q, k, v, beta, g, cu_seqlens, scale, lacks_term=True)


def correct(q, k, v, beta, *, cu_seqlens, scale=None):
    """The same kernel as a delta rule: without a gate."""
    return _run(q, k, v, beta, None, cu_seqlens, scale, lacks_term=False)


def incorrect(q, k, v, beta, *, cu_seqlens, scale=None):
    return _run(q, k, v, beta, None, cu_seqlens, scale, lacks_term=True)
