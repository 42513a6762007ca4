"""flash-attn: its rotary embedding in Triton, out of place, and its attention of packed sequences."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from packproof.adapters import OfKeys, adapt, cu_seqlens, cu_seqlens_int32, max_seqlen
from packproof.properties.declaration import kernel
from packproof.properties.promises import Promises

_TOO_WIDE = ("Only support headdim <= 256",)

rope = adapt(
    "flash_attn.layers.rotary:apply_rotary_emb",
    op="rope",
    metadata={"cu_seqlens": cu_seqlens, "max_seqlen": max_seqlen},
    refuses=_TOO_WIDE,
    slack=False,
)


@kernel(op="rope_qk", refuses=_TOO_WIDE, slack=False)
def rope_qk(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *, cu_seqlens: Tensor, interleaved: bool = False
) -> tuple[Tensor, Tensor]:
    """Two calls of its rotary embedding."""
    y_q, y_k = (rope(x, cos, sin, cu_seqlens=cu_seqlens, interleaved=interleaved) for x in (q, k))
    return y_q, y_k


def _several_widths(arguments: Mapping[str, Any]) -> str | None:
    return None if arguments["q"].shape[-1] == arguments["v"].shape[-1] else "one head dim for q, k and v"


attention = adapt(
    "flash_attn:flash_attn_varlen_func",
    op="attention",
    metadata={
        "cu_seqlens_q": cu_seqlens_int32,
        "cu_seqlens_k": OfKeys(cu_seqlens_int32),
        "max_seqlen_q": max_seqlen,
        "max_seqlen_k": OfKeys(max_seqlen),
    },
    declines=_several_widths,
    refuses=("only supports head dimension",),
    dtypes=("bfloat16", "float16"),
    promises=Promises(compute="operand"),
    slack=False,
)
