"""flash-linear-attention: wall attention, softmax attention whose scores decay in each channel of a key."""

import math

from torch import Tensor

from packproof import refs
from packproof.properties.declarations import Promises, kernel
from packproof.properties.ops import Op


def _wall(q: Tensor, k: Tensor, v: Tensor, rate: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """y_i = softmax_j(Σ_n q_in k_jn exp(P_in - P_jn) / √k) v_j for j <= i, P the running sum of -rate / 2."""
    pieces = zip(*(refs.split_sequences(x, cu_seqlens) for x in (q, k, v, rate)), strict=True)
    return refs.join_sequences([_wall_alone(*rows) for rows in pieces], q[..., :1].expand(-1, -1, v.shape[-1]))


def _wall_alone(q: Tensor, k: Tensor, v: Tensor, rate: Tensor) -> Tensor:
    n = len(q)
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    sums = -(rate / 2).cumsum(0)
    later = _is_later(n, q)
    distance = (sums[:, None] - sums[None]).masked_fill(later[..., None, None], -math.inf)  # (i, j, h, k)
    scores: Tensor = (q[:, None] * k[None] * distance.exp()).sum(-1) / math.sqrt(q.shape[-1])
    weights = scores.masked_fill(later[..., None], -math.inf).permute(2, 0, 1).softmax(-1)
    return (weights @ v.transpose(0, 1)).transpose(0, 1)


def _is_later(n: int, like: Tensor) -> Tensor:
    """(n, n): whether a key comes after the query."""
    return like.new_ones(n, n).triu(1).bool()


WALL_ATTENTION = Op(
    name="wall_attention",
    reference=_wall,
    inputs={"q": "t hq k", "k": "t hk k", "v": "t hk v", "rate": "t hq k"},
    outputs={"y": "t hq v"},
    sizes=({"hq": 2, "hk": 1, "k": 16, "v": 16}, {"hq": 2, "hk": 2, "k": 8, "v": 16}),
    where=("hq % hk == 0",),
    model_sizes=({"hq": 2, "hk": 1, "k": 64, "v": 64},),
    draws={"rate": "share"},  # weak enough that no exponent within a block is cut off
    fixed=frozenset({"rate"}),
    matmul=True,
)


@kernel(op=WALL_ATTENTION, promises=Promises(chunk=128, compute="operand"), domain="k <= 256", slack=False)
def wall_attention(q: Tensor, k: Tensor, v: Tensor, rate: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    from fla.ops.wall_attn import parallel_wall_attn  # noqa: PLC0415

    y: Tensor = parallel_wall_attn(*(x.unsqueeze(0) for x in (q, k, v, -rate / 2)), cu_seqlens=cu_seqlens)
    return y.squeeze(0)
