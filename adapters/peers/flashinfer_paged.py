"""FlashInfer: attention over the pages of a cache, listed by `kv_indptr`, `kv_indices` and `last_page_len`."""

from functools import cache
from typing import Any

import torch
from torch import Tensor

from packproof.adapters import OfKeys, Pages, adapt, cu_seqlens_int32
from packproof.adapters.adapter import Adapter

_CACHE = Pages(size=(16, 64))
_WORKSPACE_BYTES = 128 * 2**20  # as its documentation recommends
_LN_2 = 0.6931471805599453  # its log-sum-exp is to base 2
_WIDTHS = "k in (64, 128); k == v"  # others would be compiled too; these are enough
_PAGES = {
    "kv_indptr": OfKeys(_CACHE.kv_indptr),
    "kv_indices": OfKeys(_CACHE.kv_indices),
    "last_page_len": OfKeys(_CACHE.last_page_len),
    "page_size": OfKeys(_CACHE.page_size),
}


@cache
def _workspace(device: torch.device) -> Tensor:
    return torch.zeros(_WORKSPACE_BYTES, dtype=torch.uint8, device=device)


def _run(wrapper: Any, q: Tensor, pool: tuple[Tensor, Tensor], return_lse: bool) -> Any:
    if not return_lse:
        return wrapper.run(q, pool)
    y, lse = wrapper.run(q, pool, return_lse=True)
    return y, lse * _LN_2


def _sizes(q: Tensor, k: Tensor, page_size: int) -> tuple[int, int, int, int]:
    return q.shape[1], k.shape[2], q.shape[2], page_size


def _options(q: Tensor, softmax_scale: float | None, window_size: tuple[int, int], softcap: float) -> dict[str, Any]:
    dtypes = {"q_data_type": q.dtype, "kv_data_type": q.dtype}
    return {**dtypes, "sm_scale": softmax_scale, "window_left": window_size[0], "logits_soft_cap": softcap or None}


def _decode(
    q: Tensor, k: Tensor, v: Tensor, *, kv_indptr: Tensor, kv_indices: Tensor, last_page_len: Tensor, page_size: int,
    softmax_scale: float | None = None, window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0,
    return_lse: bool = False, causal: bool = False,  # noqa: ARG001
) -> Any:  # fmt: skip
    """One token for each sequence, the last one: causal or not is the same."""
    from flashinfer import BatchDecodeWithPagedKVCacheWrapper as Wrapper  # noqa: PLC0415

    wrapper = Wrapper(_workspace(q.device), "NHD")
    options = _options(q, softmax_scale, window_size, softcap)
    wrapper.plan(kv_indptr, kv_indices, last_page_len, *_sizes(q, k, page_size), **options)
    return _run(wrapper, q, (k, v), return_lse)


def _prefill(
    q: Tensor, k: Tensor, v: Tensor, *, cu_seqlens: Tensor, kv_indptr: Tensor, kv_indices: Tensor,
    last_page_len: Tensor, page_size: int, softmax_scale: float | None = None, causal: bool = False,
    window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0, return_lse: bool = False,
) -> Any:  # fmt: skip
    from flashinfer import BatchPrefillWithPagedKVCacheWrapper as Wrapper  # noqa: PLC0415

    wrapper = Wrapper(_workspace(q.device), "NHD")
    options = {**_options(q, softmax_scale, window_size, softcap), "causal": causal}
    wrapper.plan(cu_seqlens, kv_indptr, kv_indices, last_page_len, *_sizes(q, k, page_size), **options)
    return _run(wrapper, q, (k, v), return_lse)


def _adapt_paged(function: Any, metadata: dict[str, Any], *domain: str) -> Adapter:
    return adapt(
        function,
        op="attention",
        keys=_CACHE,
        metadata=metadata,
        domain="; ".join((_WIDTHS, "contiguous", *domain)),
        dtypes=("bfloat16", "float16"),
        gradients=False,
        slack=False,
    )


attention_decode = _adapt_paged(_decode, _PAGES, "length == 1", "length_k > 0")
attention_prefill = _adapt_paged(
    _prefill,
    {"cu_seqlens": cu_seqlens_int32, **_PAGES},
    "length <= length_k",
    "causal or window_size in ((-1, -1),)",  # windows end at the token itself
)
