"""flash-linear-attention's MesaNet (von Oswald et al. 2025, arXiv:2506.05233, eq. 5).

H_t = exp(g) H_{t-1} + β k kᵀ and S_t = exp(g) S_{t-1} + β k vᵀ. A query is solved for before it reads:
y = Sᵀ (H + diag(λ))⁻¹ q. As in its layer, g = log σ(a) and λ = softplus(λ') + 1/4.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from packproof import refs
from packproof.properties.bounds import Roundings
from packproof.properties.declarations import Promises, kernel
from packproof.properties.ops import Op
from packproof.refs.delta_rule import L2_EPSILON

Function = Callable[[Tensor], Tensor]
_SMALLEST_LAMBDA = 0.25


def _mesa_net(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    beta: Tensor,
    lamb: Tensor,
    *,
    cu_seqlens: Tensor,
    qk_l2norm: bool = False,
    rounded: Function = lambda x: x,
    decayed: Callable[[Tensor, Tensor], Tensor] = lambda state, _sum_of_gates: state,
) -> Tensor:
    if qk_l2norm:
        q, k = (rounded(x / (rounded(x).square().sum(-1, keepdim=True) + L2_EPSILON).sqrt()) for x in (q, k))
    pieces = zip(*(refs.split_sequences(x, cu_seqlens) for x in (q, k, v, functional.logsigmoid(a), beta)), strict=True)
    positive = _positive(lamb)
    ys = [_solve_and_read(*piece, lamb=positive, rounded=rounded, decayed=decayed) for piece in pieces]
    return refs.join_sequences(ys, v)


def _positive(lamb: Tensor) -> Tensor:
    return functional.softplus(lamb) + _SMALLEST_LAMBDA


def _solve_and_read(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, *, lamb: Tensor, rounded: Function,
    decayed: Callable[[Tensor, Tensor], Tensor],
) -> Tensor:  # fmt: skip
    """One sequence: q, k and v (t, h, k), g and beta (t, h), lamb (h, k)."""
    if not len(q):
        return v
    H = S = k.new_zeros(*k.shape[1:], k.shape[2])
    sums, H_of_tokens, S_of_tokens = rounded(g.cumsum(0)), [], []
    for i in range(len(q)):
        decay = (sums[i] - sums[i - 1] if i else sums[i]).exp()[:, None, None]
        written = rounded(beta[i, :, None] * rounded(k[i]))[..., None]
        H = rounded(decay * H + written * rounded(k[i])[:, None])
        S = rounded(decay * S + written * rounded(v[i])[:, None])
        H_of_tokens.append(decayed(H, sums[i]))
        S_of_tokens.append(decayed(S, sums[i]))
    systems = rounded(torch.stack(H_of_tokens)) + torch.diag_embed(rounded(lamb))
    queries = rounded(_solve(systems, rounded(q)[..., None]))
    return rounded((rounded(torch.stack(S_of_tokens)).mT @ queries)[..., 0])


def _solve(systems: Tensor, x: Tensor) -> Tensor:
    """Gauss-Jordan elimination; positive definite systems need no pivots."""
    rows = torch.cat([systems, x], -1)
    for i in range(systems.shape[-1]):
        pivot = rows[..., i : i + 1, :] / rows[..., i : i + 1, i : i + 1]
        is_pivot = (torch.arange(rows.shape[-2], device=rows.device) == i)[:, None]
        rows = torch.where(is_pivot, pivot, rows - rows[..., i : i + 1] * pivot)
    return rows[..., -1:]


def _with_roundings(_promises: Promises, signs: Any) -> Callable[..., Any]:
    decayed = partial(_GateGradient.apply, signs)
    return lambda **arguments: _mesa_net(**arguments, rounded=signs.noisy, decayed=decayed)


class _GateGradient(torch.autograd.Function):
    """A state (h, k, k), of which a kernel finds the gradient of a sum of gates (h,) as dH · H.

    It subtracts the same of the keys, with other roundings. The difference is small, or 0 at a token of its own.
    """

    @staticmethod
    def forward(ctx: Any, signs: Any, H: Tensor, sum_of_gates: Tensor) -> Tensor:
        ctx.signs, ctx.H = signs, H
        return H.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (dH,) = grads
        terms = (dH * ctx.H).square().sum((-2, -1)).sqrt()
        return None, dH, ctx.signs.rounded(torch.zeros_like(terms), terms)


MESA_NET = Op(
    name="mesa_net",
    reference=_mesa_net,
    roundings=Roundings(_with_roundings, heads=("h",), state=("h", "k"), width=64),
    inputs={"q": "t h k", "k": "t h k", "v": "t h k", "a": "t h", "beta": "t h", "lamb": "h k"},
    outputs={"y": "t h k"},
    options={"qk_l2norm": (False, True)},
    sizes=({"h": 1, "k": 16}, {"h": 2, "k": 16}, {"h": 2, "k": 32}),
    model_sizes=({"h": 2, "k": 64},),
    draws={"k": "direction|qk_l2norm", "beta": "share"},
    fixed=frozenset({"a", "beta", "lamb"}),  # as its layer passes them
    matmul=True,
)

_DECLARATION: dict[str, Any] = {
    "op": MESA_NET,
    "dtypes": ("bfloat16", "float16"),
    "promises": Promises(chunk=64, compute="operand"),
    "slack": False,
}


@kernel(**_DECLARATION)
def mesa_net(q: Tensor, k: Tensor, v: Tensor, a: Tensor, beta: Tensor, lamb: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """With vectors of length 1, as the op demanded before it could norm them."""
    return mesa_net_with_norm(q, k, v, a, beta, lamb, cu_seqlens=cu_seqlens)


@kernel(**_DECLARATION)
def mesa_net_with_norm(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    beta: Tensor,
    lamb: Tensor,
    *,
    cu_seqlens: Tensor,
    qk_l2norm: bool = False,
) -> Tensor:
    from fla.ops.mesa_net import chunk_mesa_net  # noqa: PLC0415

    tokens = (x.unsqueeze(0) for x in (q, k, v, functional.logsigmoid(a), beta))
    norm = {"use_qk_l2norm_in_kernel": True} if qk_l2norm else {}
    y, *_ = chunk_mesa_net(*tokens, _positive(lamb), cu_seqlens=cu_seqlens, **norm)
    result: Tensor = y.squeeze(0)
    return result
