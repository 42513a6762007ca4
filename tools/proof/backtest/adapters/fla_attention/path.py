"""flash-linear-attention's PaTH attention (Yang et al. 2025, arXiv:2505.16381, eq. 4), with a forget gate.

Between a key and its query each token reflects: H = I - β w wᵀ. The logit of query i and key j is
scale · (k_jᵀ H_{j+1} ... H_i q_i + Σ_{j<s≤i} g_s): the project scales gates, too, in kernels and in its reference.
"""

import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from packproof import refs
from packproof.proof.backtest.adapters.fla_attention.constexpr_parameters import let_specialize
from packproof.proof.backtest.adapters.fla_attention.drawn_attention import DrawnAttention
from packproof.properties.bounds import Roundings
from packproof.properties.declarations import Promises, kernel
from packproof.properties.ops import Op

Function = Callable[[Tensor], Tensor]


def _path_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    w: Tensor,
    beta: Tensor,
    g: Tensor | None = None,
    *,
    cu_seqlens: Tensor,
    scale: float | None = None,
    rounded: Function = lambda x: x,
    weigh: Callable[[Tensor, Tensor], Tensor] = lambda S, v: (S.softmax(-1)[:, None] @ v)[:, 0],
) -> Tensor:
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    group = q.shape[1] // k.shape[1]
    gate = q.new_zeros(q.shape[:2]) if g is None else g
    tokens = (q, *(x.repeat_interleave(group, 1) for x in (k, v, w, beta)), gate)
    pieces = zip(*(refs.split_sequences(x, cu_seqlens) for x in tokens), strict=True)
    ys = [_attend(*piece, scale=factor, rounded=rounded, weigh=weigh) for piece in pieces]
    return refs.join_sequences(ys, v.repeat_interleave(group, 1))


def _attend(
    q: Tensor, k: Tensor, v: Tensor, w: Tensor, beta: Tensor, g: Tensor, *, scale: float, rounded: Function,
    weigh: Callable[[Tensor, Tensor], Tensor],
) -> Tensor:  # fmt: skip
    """One sequence: q, k and w (t, h, k), v (t, h, v), beta and g (t, h)."""
    keys, sums = k.new_zeros(k.shape[1], 0, k.shape[2]), rounded(g.cumsum(0)).T  # [h, t]
    ys = []
    for i in range(len(q)):
        w_i = rounded(w[i])[..., None]  # [h, k, 1]
        removed = rounded(beta[i, :, None] * rounded((keys @ w_i)[..., 0]))  # [h, j]
        keys = torch.cat([rounded(keys - removed[..., None] * w_i.mT), k[i][:, None]], 1)
        products = rounded((rounded(keys) @ rounded(q[i])[..., None])[..., 0])  # [h, j]
        logits = scale * rounded(products + (sums[:, i, None] - sums[:, : i + 1]))
        ys.append(weigh(logits, rounded(v[: i + 1].transpose(0, 1))))
    return torch.stack(ys) if ys else v


def _with_roundings(_promises: Promises, signs: Any) -> Callable[..., Any]:
    weigh = partial(DrawnAttention.apply, signs)
    return lambda **arguments: _path_attention(**arguments, rounded=signs.noisy, weigh=weigh)


PATH_ATTENTION = Op(
    name="path_attention",
    reference=_path_attention,
    roundings=Roundings(_with_roundings, heads=("h", "hq"), state=("hq", "k"), width=64),
    inputs={"q": "t hq k", "k": "t h k", "v": "t h v", "w": "t h k", "beta": "t h", "g": "t hq?"},
    outputs={"y": "t hq v"},
    options={"scale": (None, 0.3)},
    sizes=(
        {"hq": 1, "h": 1, "k": 16, "v": 16},
        {"hq": 2, "h": 1, "k": 16, "v": 16},
        {"hq": 2, "h": 2, "k": 32, "v": 32},
    ),
    model_sizes=({"hq": 2, "h": 1, "k": 64, "v": 64},),
    where=("hq % h == 0",),
    draws={"w": "direction", "beta": "share", "g": "gate"},
    fixed=frozenset({"g"}),
    matmul=True,
)


# Its products are rounded to the dtype of the tokens; sums of gates are differences of a running sum.
_DECLARATION: dict[str, Any] = {
    "op": PATH_ATTENTION,
    "dtypes": ("bfloat16", "float16"),
    "promises": Promises(chunk=64, compute="operand"),
    "domain": "gate > -1e4",
    "slack": False,
}


@kernel(**_DECLARATION)
def path_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    w: Tensor,
    beta: Tensor,
    g: Tensor | None = None,
    *,
    cu_seqlens: Tensor,
    scale: float | None = None,
) -> Tensor:
    from fla.ops import path_attn  # noqa: PLC0415
    from fla.ops.path_attn import parallel  # noqa: PLC0415

    let_specialize(path_attn)
    attend = getattr(parallel, "parallel_path_attn", None) or parallel.parallel_path_attention
    tokens = (x.unsqueeze(0) for x in (q, k, v, w, beta))
    y, _ = attend(*tokens, g=None if g is None else g.unsqueeze(0), scale=scale, cu_seqlens=cu_seqlens)
    result: Tensor = y.squeeze(0)
    return result


@kernel(**{**_DECLARATION, "promises": replace(_DECLARATION["promises"], segment=512)})
def path_attention_without_gate(
    q: Tensor, k: Tensor, v: Tensor, w: Tensor, beta: Tensor, *, cu_seqlens: Tensor, scale: float | None = None
) -> Tensor:
    """As the paper has it. Its backward pass transforms queries once for each 512 tokens."""
    return path_attention(q, k, v, w, beta, cu_seqlens=cu_seqlens, scale=scale)


@kernel(**_DECLARATION)
def path_attention_of_its_layer(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    w: Tensor,
    beta: Tensor,
    g: Tensor | None = None,
    *,
    cu_seqlens: Tensor,
    scale: float | None = None,
) -> Tensor:
    """Directions, β and gates as the layer passes them: in fp32 where the op demands it."""
    from fla.ops.path_attn import parallel  # noqa: PLC0415

    if "w, beta should be float32" in inspect.getsource(parallel):
        w, beta, g = w.float(), beta.float(), None if g is None else g.float()
    return path_attention(q, k, v, w, beta, g, cu_seqlens=cu_seqlens, scale=scale)
