"""The rounding events of attention with rounded operands of its products; for `bounds.drawn_roundings`.

    S = scale q kᵀ, capped     P = exp(S - lse)         y = P v
    dP = dy vᵀ                 D = Σ dy y - d lse       dS = P ∘ (dP - D)
    dq = scale dS k            dk = scale dSᵀ q         dv = Pᵀ dy         d sinks = -Σ exp(sinks - lse) D

Each value that a 16-bit kernel may store in 16 bits has an event of its own size and a random sign:

- q and k with the scale in them; S and its cap;
- P in the product with v and, separately, in the product with dy; the sum of P in lse;
- y as stored for D; the terms of D where it is Σ P dP; dP and dS;
- dq, dk and dv of each query head, before the heads of a group are added.

The gradient of a sink sums the errors of all queries and channels. In absolute values the sum grows with their number,
with random signs by its root.
"""

# mypy: allow-untyped-calls

import math
from collections.abc import Callable
from typing import Any

import torch
from einops import repeat
from torch import Tensor

from packproof.base.arguments import finite_scale
from packproof.properties.bounds.signs import Signs
from packproof.properties.declarations.promises import Promises
from packproof.refs.attention import attend_sequences
from packproof.refs.attention_options import reaches


def attention(_promises: Promises, signs: Signs) -> Callable[..., Any]:
    """Make attention with random-sign roundings of its operands."""

    def function(
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
        scale = finite_scale("attention", softmax_scale, q.shape[2], "softmax_scale")
        window, group = reaches(window_size, causal=causal), q.shape[1] // k.shape[1]
        sink_logits = q.new_full(q.shape[1:2], -math.inf) if sinks is None else sinks

        def attend(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
            y, lse = _Attention.apply(
                *(signs, scale, softcap, _visible_keys(len(q), len(k), window), q.transpose(0, 1)),
                *(repeat(x, "j hk c -> (hk g) j c", g=group) for x in (k, v)),
                sink_logits,
            )
            return y.transpose(0, 1), lse.T

        return attend_sequences(attend, q, k, v, **pack)

    return function


def _visible_keys(n: int, m: int, window: tuple[float, float]) -> Tensor:
    """The mask (n, m) of the keys visible to each query; the last query is aligned with the last key."""
    offset = torch.arange(-m, 0)[None] - torch.arange(-n, 0)[:, None]
    return (offset >= -window[0]) & (offset <= window[1])


class _Attention(torch.autograd.Function):
    """One sequence: q (h, i, k), k (h, j, k), v (h, j, v); y (h, i, v) and lse (h, i)."""

    @staticmethod
    def forward(
        ctx: Any, signs: Signs, scale: float, softcap: float, visible: Tensor, q: Tensor, k: Tensor, v: Tensor,
        sinks: Tensor,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        q, k = signs.operand(q), signs.operand(k)
        S = signs.operand(scale * (q @ k.mT))
        slope = None
        if softcap:
            t = (S / softcap).tanh()
            S, slope = signs.operand(softcap * t), 1 - t * t
        S = torch.where(visible, S, -math.inf)
        lse = torch.cat([S, repeat(sinks, "h -> h i 1", i=q.shape[1])], -1).logsumexp(-1)
        finite_lse = torch.where(lse.isfinite(), lse, 0)  # a query without keys has lse = -inf, and -inf - -inf is NaN
        P, sink_weights = (S - finite_lse[..., None]).exp(), (sinks[:, None] - finite_lse).exp()
        y = signs.operand(P) @ v
        ctx.signs, ctx.scale, ctx.slope = signs, scale, slope
        ctx.saved = q, k, v, P, sink_weights, y
        return y, signs.rounded(lse, P.square().sum(-1).sqrt())

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (dy, dlse), (q, k, v, P, sink_weights, y), round_operand = grads, ctx.saved, ctx.signs.operand
        dP = dy @ v.mT
        D = ctx.signs.rounded((dy * round_operand(y)).sum(-1), (P * dP).square().sum(-1).sqrt()) - dlse
        dS = round_operand(P * (round_operand(dP) - D[..., None]))
        dv = round_operand(P).mT @ dy
        dS = ctx.scale * (dS if ctx.slope is None else dS * ctx.slope)
        dq, dk, dv = (round_operand(x) for x in (dS @ k, dS.mT @ q, dv))
        return None, None, None, None, dq, dk, dv, -(sink_weights * D).sum(-1)
