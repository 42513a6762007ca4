"""FlashAttention-4 as it was at a commit: packed, padded, with dense keys, and with keys in pages.

Widths are those that its header lists, and tiles have about 128 tokens. The log-sum-exp is left out: it had no gradient
at first, and no argument that asks for it before.
"""

import inspect
from typing import Any

from torch import Tensor

from packproof.adapters import (
    OfKeys,
    Padded,
    Pages,
    adapt,
    cu_seqlens_int32,
    lengths,
    max_seqlen,
)
from packproof.adapters.adapter import Adapter
from packproof.properties.declarations import Promises

_PACKED_KEYS = {"cu_seqlens_k": OfKeys(cu_seqlens_int32), "max_seqlen_k": OfKeys(max_seqlen)}
_PACKED_QUERIES = {"cu_seqlens_q": cu_seqlens_int32, "max_seqlen_q": max_seqlen}
_CACHE = Pages(size=16)


def _attend(q: Tensor, k: Tensor, v: Tensor, window_size: tuple[int, int], **arguments: Any) -> Tensor:
    """An unlimited side of the window is None. Arguments that the function lacks at this commit are left out."""
    from flash_attn.cute.interface import flash_attn_varlen_func  # noqa: PLC0415

    names = inspect.signature(flash_attn_varlen_func).parameters
    window = tuple(None if reach < 0 else reach for reach in window_size)
    known_arguments = {name: value for name, value in arguments.items() if name in names}
    y = flash_attn_varlen_func(q, k, v, window_size=window, **known_arguments)
    return y[0] if isinstance(y, tuple) else y  # type: ignore[no-any-return]


def _packed(
    q: Tensor, k: Tensor, v: Tensor, *, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int,
    max_seqlen_k: int, causal: bool = False, window_size: tuple[int, int] = (-1, -1),
) -> Tensor:  # fmt: skip
    offsets = {"cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k}
    longest = {"max_seqlen_q": max_seqlen_q, "max_seqlen_k": max_seqlen_k}
    return _attend(q, k, v, window_size, causal=causal, **offsets, **longest)


def _padded(
    q: Tensor, k: Tensor, v: Tensor, *, seqused_q: Tensor, seqused_k: Tensor, causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
) -> Tensor:  # fmt: skip
    return _attend(q, k, v, window_size, causal=causal, seqused_q=seqused_q, seqused_k=seqused_k)


def _dense_keys(
    q: Tensor, k: Tensor, v: Tensor, *, cu_seqlens_q: Tensor, max_seqlen_q: int, max_seqlen_k: int,
    causal: bool = False, window_size: tuple[int, int] = (-1, -1),
) -> Tensor:  # fmt: skip
    """The keys of every sequence are a row of a batch, as those of an encoder: all are of one length."""
    longest = {"max_seqlen_q": max_seqlen_q, "max_seqlen_k": max_seqlen_k}
    return _attend(q, k, v, window_size, causal=causal, cu_seqlens_q=cu_seqlens_q, **longest)


def _paged_keys(
    q: Tensor, k: Tensor, v: Tensor, *, cu_seqlens_q: Tensor, max_seqlen_q: int, page_table: Tensor,
    seqused_k: Tensor, max_seqlen_k: int, causal: bool = False, window_size: tuple[int, int] = (-1, -1),
) -> Tensor:  # fmt: skip
    queries = {"cu_seqlens_q": cu_seqlens_q, "max_seqlen_q": max_seqlen_q}
    keys = {"page_table": page_table, "seqused_k": seqused_k, "max_seqlen_k": max_seqlen_k}
    return _attend(q, k, v, window_size, causal=causal, **queries, **keys)


def _adapted(function: Any, metadata: dict[str, Any], *domain: str, **conventions: Any) -> Adapter:
    return adapt(
        function,
        op="attention",
        metadata=metadata,
        domain="; ".join(("k in (64, 96, 128)", "k == v", *domain)),
        dtypes=("bfloat16", "float16"),
        promises=Promises(chunk=128, compute="operand"),
        slack=False,
        **conventions,
    )


packed = _adapted(_packed, {**_PACKED_QUERIES, **_PACKED_KEYS})
packed_forward = _adapted(_packed, {**_PACKED_QUERIES, **_PACKED_KEYS}, gradients=False)
padded = _adapted(_padded, {"seqused_q": lengths, "seqused_k": OfKeys(lengths)}, tokens=Padded(), keys=Padded())
dense_keys = _adapted(
    _dense_keys, {**_PACKED_QUERIES, "max_seqlen_k": OfKeys(max_seqlen)}, "length_k == longest_k", keys=Padded()
)
paged_keys = _adapted(
    _paged_keys,
    {
        **_PACKED_QUERIES,
        "page_table": OfKeys(_CACHE.block_tables),
        "seqused_k": OfKeys(lengths),
        "max_seqlen_k": OfKeys(max_seqlen),
    },
    "contiguous",
    gradients=False,
    keys=_CACHE,
)
