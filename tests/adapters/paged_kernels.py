"""Attention over the pages of a cache, by block tables and by lists of pages: correct, and with bugs of engines."""

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from packproof.adapters import OfKeys, Pages, adapt, cu_seqlens_int32, lengths
from packproof.adapters.adapter import Adapter

CACHE = Pages(size=(1, 3, 16, 256))
BUGS_OF_SHARED_PAGES = ("a page has one owner", "pages are scaled in place")

BUGS = (
    "a partial last page is left out",
    "the last page is read to its end",
    "pages are read in the order of the cache",
    "a full last page counts as empty",
    "the pages of the next request",
    "page 0 is padding",
    "tables have as many columns as pages",
)


def _attend(q: Tensor, keys: Tensor, values: Tensor, scale: float, *, causal: bool) -> Tensor:
    """One request: q (n, hq, k), keys and values (m, hk, k)."""
    n, m, wide = len(q), len(keys), torch.promote_types(q.dtype, torch.float32)
    keys, values = (x.to(wide).repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (keys, values))
    scores = torch.einsum("ihc,jhc->hij", q.to(wide), keys) * scale
    rows, columns = torch.arange(n)[:, None] + m - n, torch.arange(m)
    seen = columns <= rows if causal else columns >= 0
    weights = torch.where(seen.any(-1, keepdim=True), scores.masked_fill(~seen, -torch.inf).softmax(-1), 0)
    return torch.einsum("hij,jhc->ihc", weights, values).to(q.dtype)


def by_tables(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    cu_seqlens_q: Tensor,
    block_table: Tensor,
    seqused_k: Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
    bug: str = "",
) -> Tensor:
    """q: (t, hq, k). k_cache, v_cache: (pages, size, hk, k). block_table: (s, pages). seqused_k: (s,)."""
    y, size = torch.zeros(len(q), q.shape[1], v_cache.shape[-1], dtype=q.dtype), k_cache.shape[1]
    tables = block_table.flatten()
    owners = {page: j for j, row in enumerate(block_table.tolist()) for page in row[: -(-int(seqused_k[j]) // size)]}
    columns = block_table.shape[1] - (bug == "tables have as many columns as pages")
    for j, (start, end) in enumerate(pairwise(cu_seqlens_q.tolist())):
        row = (j + 1) % len(block_table) if bug == "the pages of the next request" else j
        m = int(seqused_k[j])
        if bug == "a partial last page is left out":
            m = max(m // size * size, min(m, size))
        pages = tables[row * columns :][: -(-m // size)].long()
        if bug == "pages are read in the order of the cache":
            pages = pages.sort()[0]
        if bug == "page 0 is padding":
            pages = pages[pages > 0]
        if bug == "pages are scaled in place":  # once for each request that has them
            k_cache[pages] *= softmax_scale or q.shape[-1] ** -0.5
        end_of_keys = len(pages) * size if bug == "the last page is read to its end" else m
        keys, values = (cache[pages].flatten(0, 1)[:end_of_keys] for cache in (k_cache, v_cache))
        if bug == "a page has one owner":
            is_owner = torch.tensor([owners[page] == j for page in pages.tolist()], dtype=torch.bool)
            visible = is_owner.repeat_interleave(size)[:end_of_keys]
            keys, values = keys[visible], values[visible]
        scale = 1.0 if bug == "pages are scaled in place" else softmax_scale or q.shape[-1] ** -0.5
        y[start:end] = _attend(q[start:end], keys, values, scale, causal=causal)
    return y


def by_lists(
    q: Tensor,
    kv_cache: tuple[Tensor, Tensor],
    qo_indptr: Tensor,
    kv_indptr: Tensor,
    kv_indices: Tensor,
    last_page_len: Tensor,
    page_size: int,
    sm_scale: float | None = None,
    causal: bool = False,
    bug: str = "",
) -> Tensor:
    """The same with the pages of all requests in one list, heads first in a page: (pages, hk, size, k)."""
    y = torch.zeros(len(q), q.shape[1], kv_cache[1].shape[-1], dtype=q.dtype)
    for j, (start, end) in enumerate(pairwise(qo_indptr.tolist())):
        pages = kv_indices[int(kv_indptr[j]) : int(kv_indptr[j + 1])].long()
        last = int(last_page_len[j])
        if bug == "a full last page counts as empty":
            last %= page_size
        m = max(len(pages) - 1, 0) * page_size + last
        keys, values = (cache.movedim(2, 1)[pages].flatten(0, 1)[:m] for cache in kv_cache)
        y[start:end] = _attend(q[start:end], keys, values, sm_scale or q.shape[-1] ** -0.5, causal=causal)
    return y


def paged(bug: str = "", cache: Pages = CACHE) -> Adapter:
    """The kernel with block tables."""
    return adapt(
        by_tables,
        op="attention",
        keys=cache,
        names={"k": "k_cache", "v": "v_cache"},
        metadata={
            "cu_seqlens_q": cu_seqlens_int32,
            "block_table": OfKeys(cache.block_tables),
            "seqused_k": OfKeys(lengths),
        },
        given={"bug": bug},
        gradients=False,
        slack=False,
    )


def listed(bug: str = "") -> Adapter:
    """The kernel with lists of pages."""
    cache = Pages(size=(1, 3, 16, 256), axis=2)

    def kernel(q: Tensor, k_cache: Tensor, v_cache: Tensor, causal: bool = False, **others: Any) -> Tensor:
        return by_lists(q, (k_cache, v_cache), causal=causal, **others)

    return adapt(
        kernel,
        op="attention",
        keys=cache,
        names={"k": "k_cache", "v": "v_cache", "softmax_scale": "sm_scale"},
        metadata={
            "qo_indptr": cu_seqlens_int32,
            "kv_indptr": OfKeys(cache.kv_indptr),
            "kv_indices": OfKeys(cache.kv_indices),
            "last_page_len": OfKeys(cache.last_page_len),
            "page_size": OfKeys(cache.page_size),
        },
        given={"bug": bug},
        gradients=False,
        slack=False,
    )
