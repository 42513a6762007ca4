"""FlashAttention-4: attention of packed sequences in CuTe, for Hopper and Blackwell."""

from typing import Any

from torch import Tensor

from packproof.adapters import cu_seqlens_int32, max_seqlen, once
from packproof.properties.declarations import Promises, kernel


@kernel(
    op="attention",
    dtypes=("bfloat16", "float16"),
    promises=Promises(compute="operand"),
    domain="8 <= k <= 256; 8 <= v <= 256; k % 8 == 0; v % 8 == 0",
    slack=False,
)
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sinks: Tensor | None = None,
    *,
    cu_seqlens: Tensor,
    cu_seqlens_k: Tensor | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softmax_scale: float | None = None,
    softcap: float = 0.0,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Its log-sum-exp is (hq, t). An unlimited side of the window is None."""
    from flash_attn.cute import flash_attn_varlen_func as attend  # noqa: PLC0415

    keys = cu_seqlens if cu_seqlens_k is None else cu_seqlens_k
    y, lse = attend(
        q,
        k,
        v,
        cu_seqlens_q=_int32(cu_seqlens, len(q)),
        cu_seqlens_k=_int32(keys, len(k)),
        max_seqlen_q=_longest(cu_seqlens, len(q)),
        max_seqlen_k=_longest(keys, len(k)),
        softmax_scale=softmax_scale,
        causal=causal,
        window_size=tuple(None if reach < 0 else reach for reach in window_size),
        learnable_sink=sinks,
        softcap=softcap,
        return_lse=return_lse,
    )
    return (y, lse.T) if return_lse else y


def _int32(offsets: Tensor, tokens: int) -> Any:
    return once("int32", lambda: cu_seqlens_int32(offsets, tokens), offsets)


def _longest(offsets: Tensor, tokens: int) -> int:
    return once("longest", lambda: max_seqlen(offsets, tokens), offsets)
