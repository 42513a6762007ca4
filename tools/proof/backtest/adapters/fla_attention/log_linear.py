"""flash-linear-attention: log-linear attention (Guo et al. 2025), gated linear attention with a state for each level.

The levels are those of a Fenwick tree: a token's prefix is cut into pieces of a power of two, the longest first.
"""

from itertools import accumulate

import torch
from torch import Tensor

from packproof import refs
from packproof.properties.declarations import Promises, kernel
from packproof.properties.ops import Op

_LEVELS = 18  # for sequences of less than 2^17 tokens, the most that the kernel takes


def _log_linear(q: Tensor, k: Tensor, v: Tensor, g: Tensor, scales: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """y = Σ_l scales_l q S_l: S_l holds what lies in the token's piece of level l, decayed by exp(g) at each token."""
    pieces = zip(*(refs.split_sequences(x, cu_seqlens) for x in (q, k, v, g, scales)), strict=True)
    return refs.join_sequences([_log_linear_alone(*rows) for rows in pieces], v)


def _log_linear_alone(q: Tensor, k: Tensor, v: Tensor, g: Tensor, scales: Tensor) -> Tensor:
    ys, states = [], dict[int, Tensor]()
    for t, (q_t, k_t, v_t, g_t, scales_t) in enumerate(zip(*(x.unbind(0) for x in (q, k, v, g, scales)), strict=True)):
        merged = (t & -t).bit_length()  # the levels up to it become one: the pieces of a Fenwick tree
        states = {level: g_t.exp()[:, None, None] * state for level, state in states.items()}
        below = [states.pop(level) for level in sorted(states) if level < merged]
        if below:
            *_, states[merged] = accumulate(below)
        states[0] = k_t[..., None] * v_t[:, None]
        read = [scales_t[:, level, None] * (q_t[..., None] * state).sum(1) for level, state in states.items()]
        *_, y = accumulate(read)
        ys.append(y)
    return torch.stack(ys) if ys else v


LOG_LINEAR_ATTENTION = Op(
    name="log_linear_attention",
    reference=_log_linear,
    inputs={"q": "t 1 k", "k": "t 1 k", "v": "t h v", "g": "t h", "scales": "t h l"},
    outputs={"y": "t h v"},
    sizes=({"h": 1, "k": 64, "v": 16, "l": _LEVELS}, {"h": 2, "k": 64, "v": 32, "l": _LEVELS}),
    model_sizes=({"h": 8, "k": 64, "v": 128, "l": _LEVELS},),
    draws={"g": "decay"},
    fixed=frozenset({"g"}),
    matmul=True,
)


@kernel(
    op=LOG_LINEAR_ATTENTION,
    dtypes=("bfloat16", "float16"),  # fp32 operands are rounded to tf32
    promises=Promises(chunk=64, compute="operand"),
    domain="k % 64 == 0; v in (16, 32, 64, 128); length < 131072; gate > -1e4",
    slack=False,
)
def log_linear_attention(q: Tensor, k: Tensor, v: Tensor, g: Tensor, scales: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    from fla.ops.log_linear_attn import chunk_log_linear_attn  # noqa: PLC0415

    y: Tensor = chunk_log_linear_attn(*(x.unsqueeze(0) for x in (q, k, v, g, scales)), cu_seqlens=cu_seqlens)[0]
    return y.squeeze(0)
