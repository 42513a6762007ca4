"""flash-attn: its rotary embedding in Triton, out of place, and its attention of packed sequences."""

from torch import Tensor

from packproof.adapters import OfKeys, adapt, cu_seqlens_int32, max_seqlen, once
from packproof.adapters.peers.start_positions import with_nonnegative_starts
from packproof.properties.declarations import Promises, kernel

_TABLES = ("cos", "sin")  # it converts them to fp32


@kernel(op="rope", domain="k <= 256", float32=_TABLES, slack=False)
def rope(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    offsets: Tensor | None = None,
    *,
    cu_seqlens: Tensor,
    interleaved: bool = False,
) -> Tensor:
    """The tables get rows for positions below 0, where flash-attn would read memory before them."""
    from flash_attn.layers.rotary import apply_rotary_emb  # noqa: PLC0415

    cos, sin, starts = with_nonnegative_starts(cos, sin, offsets, cu_seqlens)
    longest = once("longest", lambda: max_seqlen(cu_seqlens, len(x)), cu_seqlens)
    rotated: Tensor = apply_rotary_emb(
        x, cos, sin, interleaved=interleaved, seqlen_offsets=starts, cu_seqlens=cu_seqlens, max_seqlen=longest
    )
    return rotated


@kernel(op="rope_qk", domain="k <= 256", float32=_TABLES, slack=False)
def rope_qk(
    q: Tensor,
    k: Tensor,
    cos: Tensor,
    sin: Tensor,
    offsets: Tensor | None = None,
    *,
    cu_seqlens: Tensor,
    interleaved: bool = False,
) -> tuple[Tensor, Tensor]:
    """Two calls of its rotary embedding."""
    y_q, y_k = (rope(x, cos, sin, offsets, cu_seqlens=cu_seqlens, interleaved=interleaved) for x in (q, k))
    return y_q, y_k


attention = adapt(
    "flash_attn:flash_attn_varlen_func",
    op="attention",
    metadata={
        "cu_seqlens_q": cu_seqlens_int32,
        "cu_seqlens_k": OfKeys(cu_seqlens_int32),
        "max_seqlen_q": max_seqlen,
        "max_seqlen_k": OfKeys(max_seqlen),
    },
    domain="k == v; k % 8 == 0; k <= 256",
    dtypes=("bfloat16", "float16"),
    promises=Promises(compute="operand"),
    slack=False,
)
