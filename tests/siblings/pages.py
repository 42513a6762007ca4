"""Decode attention over the pages of a cache, of 1 to 256 rows: the rows past the keys hold NaN, pages lie anywhere."""

from itertools import pairwise

import torch

from packproof.adapters import OfKeys, Pages, adapt, cu_seqlens_int32, lengths

CACHE = Pages(size=(1, 16, 256))


def _attend(q, keys, values, used):
    """One request: q (n, hq, k), keys and values of whole pages (m, hk, k). used: the keys among them."""
    wide = torch.promote_types(q.dtype, torch.float32)
    keys, values = (x.to(wide).repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (keys, values))
    scores = torch.einsum("ihk,jhk->ihj", q.to(wide), keys) * max(q.shape[2], 1) ** -0.5
    scores = torch.where(torch.arange(len(keys)) < used, scores, -torch.inf)
    weights = scores.softmax(-1) if used else torch.zeros_like(scores)
    return torch.einsum("ihj,jhv->ihv", weights, values).to(q.dtype)


def _by_tables(q, k_cache, v_cache, cu_seqlens_q, block_table, seqused_k, bug=""):
    """q: (t, hq, k). k_cache, v_cache: (pages, size, hk, k). block_table: (s, pages)."""
    y, size = torch.zeros(len(q), q.shape[1], v_cache.shape[-1], dtype=q.dtype), k_cache.shape[1]
    for j, (start, end) in enumerate(pairwise(cu_seqlens_q.tolist())):
        used = int(seqused_k[j])
        pages = block_table[0 if bug == "first row" else j][: -(-used // size)].long()
        if bug == "neighbours":  # two pages are read at once, from the first of them on
            pages = torch.stack([pages[::2], (pages[::2] + 1).clamp(max=len(k_cache) - 1)], 1).flatten()[: len(pages)]
        keys, values = (cache[pages].flatten(0, 1) for cache in (k_cache, v_cache))
        if bug != "score mask alone":
            keys, values = keys[:used], values[:used]
        y[start:end] = _attend(q[start:end], keys, values, used)
    return y


def _by_lists(q, k_cache, v_cache, qo_indptr, kv_indptr, kv_indices, last_page_len, bug=""):
    """The same with the pages of all requests in one list."""
    y, size = torch.zeros(len(q), q.shape[1], v_cache.shape[-1], dtype=q.dtype), k_cache.shape[1]
    for j, (start, end) in enumerate(pairwise(qo_indptr.tolist())):
        pages = kv_indices[int(kv_indptr[j]) : int(kv_indptr[j + 1])].long()
        last = int(last_page_len[j])
        used = max(len(pages) - 1, 0) * size + (last % size if bug == "full page is empty" else last)
        keys, values = (cache[pages].flatten(0, 1)[:used] for cache in (k_cache, v_cache))
        y[start:end] = _attend(q[start:end], keys, values, used)
    return y


def _adapted(function, bug="", **metadata):
    return adapt(
        function,
        op="attention",
        keys=CACHE,
        names={"k": "k_cache", "v": "v_cache"},
        metadata=metadata,
        given={"bug": bug},
        gradients=False,
        slack=False,
        domain=["length == 1"],
    )


def _tables(bug=""):
    tables, used = OfKeys(CACHE.block_tables), OfKeys(lengths)
    return _adapted(_by_tables, bug, cu_seqlens_q=cu_seqlens_int32, block_table=tables, seqused_k=used)


def _lists(bug=""):
    lists = {name: OfKeys(getattr(CACHE, name)) for name in ("kv_indptr", "kv_indices", "last_page_len")}
    return _adapted(_by_lists, bug, qo_indptr=cu_seqlens_int32, **lists)


correct_tables, correct_lists = _tables(), _lists()
incorrect_tail = _tables("score mask alone")  # vllm-project/vllm#47305, flashinfer-ai/flashinfer#941
incorrect_neighbours = _tables("neighbours")  # hw-native-sys/pypto#470
incorrect_row = _tables("first row")  # quic/efficient-transformers#1209
incorrect_last_page = _lists("full page is empty")
