"""The magnitude op of attention: as in `magnitude`, where scores enter through a softcap, a softmax and its sum."""

import math
from functools import partial
from typing import Any

import torch
from einops import einsum, repeat
from torch import Tensor

from packproof import refs
from packproof.properties.bounds.magnitude_ops import UNDERFLOW, magnitude
from packproof.properties.bounds.with_derivative import with_derivative
from packproof.refs.attention import attend_sequences


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sinks: Tensor | None = None,
    *,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softmax_scale: float | None = None,
    softcap: float = 0.0,
    **pack: Any,
) -> Any:
    """Magnitude op of `refs.attention`; `pack` are its offsets and `return_lse`. A sink is a key of value 0."""
    mask = {"causal": causal, "window_size": window_size}
    scale = max(q.shape[-1], 1) ** -0.5 if softmax_scale is None else softmax_scale
    group = q.shape[1] // k.shape[1]
    run = partial(refs.attention, softmax_scale=softmax_scale, softcap=softcap, return_lse=True, **mask)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        n, m = len(q), len(k)
        identity = torch.eye(m, dtype=v.dtype, device=v.device)[:, None].expand(m, k.shape[1], m)
        offsets = partial(torch.tensor, device=q.device)
        metadata = {"cu_seqlens": offsets([0, n]), "cu_seqlens_k": offsets([0, m])}
        with torch.no_grad():  # with v = 1 the reference returns its weights
            p, lse = run(q, k, identity, sinks, **metadata)
        k, v = (repeat(x, "j hk c -> j (hk g) c", g=group) for x in (k, v))
        signed_scores = einsum(q.detach(), k.detach(), "i h c, j h c -> i h j") * scale
        scores = einsum(magnitude(q), magnitude(k), "i h c, j h c -> i h j") * abs(scale)
        scores = _softcap(signed_scores, scores, softcap) if softcap else scores
        if sinks is not None:
            p = torch.cat([p, (sinks - lse).exp()[..., None]], -1)
            scores = torch.cat([scores, magnitude(sinks)[:, None].expand(*lse.shape, 1)], -1)
        y = einsum(_softmax(p, scores)[..., :m], magnitude(v), "i h j, j h c -> i h c")
        return y, _lse(lse, p, scores)

    return attend_sequences(attend, q, k, v, **pack)


def _softmax(p: Tensor, S: Tensor) -> Tensor:
    """The magnitude op of softmax: p the weights, S the absolute terms of the scores, both (..., i, j).

    An error ε_ij S_ij of the scores changes p_ij by p_ij (ε_ij S_ij - Σ_k p_ik ε_ik S_ik), hence the value
    P_ij = p_ij (1 + S_ij + Σ_k p_ik S_ik). The gradient of a score is p_ij (g_ij - Σ_k p_ik g_ik); in absolute terms,
    with the error of one weight, then of the other: P_ij g_ij + P_ij Σ_k p_ik g_ik + p_ij Σ_k P_ik g_ik.
    """
    p = torch.where(p > 0, p + UNDERFLOW, 0)
    s = S.detach()
    P = p * (1 + s + (p * s).sum(-1, keepdim=True))
    # the transpose of that map of g, applied to S
    gradient_path = P * S + p * (P * S).sum(-1, keepdim=True) + P * (p * S).sum(-1, keepdim=True)
    return with_derivative(P, gradient_path)


def _lse(lse: Tensor, p: Tensor, S: Tensor) -> Tensor:
    """The magnitude op of logsumexp over n scores: lse its value, p the weights, S the absolute terms of the scores.

    logsumexp is a maximum plus the logarithm of a sum, |log| <= log n. The error of the sum is relative, so the
    logarithm has an error of 1 in units of roundoff. Errors of the scores enter with their weights. The gradient of a
    score is p_ij, bounded by P_ij as in `_softmax`.
    """
    p = torch.where(p > 0, p + UNDERFLOW, 0)
    s = S.detach()
    weighted_score = (p * s).sum(-1)
    P = p * (1 + s + weighted_score[..., None])
    return with_derivative(lse.abs() + 2 * math.log(max(p.shape[-1], 1)) + 1 + weighted_score, (P * S).sum(-1))


def _softcap(x: Tensor, X: Tensor, softcap: float) -> Tensor:
    """The magnitude op of softcap tanh(x / softcap), with t the tanh and X the absolute terms of x.

    The value is softcap |t| + (1 - t²) X. Its slope 1 - t² is computed as a difference with terms 1 + t². An error of x
    changes the slope by 2 |t| (1 - t²) / softcap.
    """
    t = (x / softcap).tanh().abs()
    slope, curvature = 1 - t * t, 2 * t * (1 - t * t) / softcap
    return with_derivative(softcap * t + slope * X, (1 + t * t + curvature * X.detach()) * X)
