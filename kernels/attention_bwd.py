"""The backward kernels of attention (Dao 2023, algorithm 2). No kernel adds to the result of another one.

With P = exp(s - lse) and the incoming gradients dy and dlse:
    delta = rowsum(y dy) - dlse        dv = Pᵀ dy        dP = dy vᵀ        ds = P (dP - delta)
and the gradient of a sink is -Σ exp(sink - lse) delta. A score before its cap gets (1 - tanh²) ds. One kernel walks
from queries over their visible keys and finds dq. Another walks from keys over the queries that see them, one head of
the group after another, and finds dk and dv. Both recompute P.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

import triton
import triton.language as tl

from packproof.kernels.attention_fwd import (
    LOG2_E,
    NEVER_ALIGNED,
    against,
    edge,
    raw_scores,
    rows_of,
    store_tile,
    tile,
    tiles,
    visible,
    weigh,
)
from packproof.kernels.blocks import block
from packproof.kernels.products import product


@triton.jit(do_not_specialize=[*NEVER_ALIGNED, "dlse_head", "dlse_row", "has_dlse"])
def _attention_bwd_delta_kernel(
    y, dy, dlse, lse, sinks, cu_seqlens, delta, dsinks, T, S, H, V, y_stride, y_head, dy_stride, dy_head,
    dlse_head, dlse_row, has_dlse, has_sinks, BLOCK_T: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """delta and the gradient of the sink by query, both (h, t) and zero in slack."""
    head = tl.program_id(0) % H
    first = tl.program_id(0) // H * BLOCK_T
    used = tl.minimum(tl.maximum(tl.load(cu_seqlens + S), 0), T)
    row = first + tl.arange(0, BLOCK_T)
    alive, at = row < used, head.to(tl.int64) * T + row
    rows = rows_of(y, used * 0, used, head, y_stride, y_head, V)
    incoming_rows = rows_of(dy, used * 0, used, head, dy_stride, dy_head, V)
    found = tl.zeros((BLOCK_T,), tl.float32)
    for channel in range(0, V, BLOCK_V):
        out = tile(rows, None, first, channel, BLOCK_T, BLOCK_V, True).to(tl.float32)
        incoming = tile(incoming_rows, None, first, channel, BLOCK_T, BLOCK_V, True).to(tl.float32)
        found += tl.sum(out * incoming, 1)
    if has_dlse != 0:
        found -= tl.load(dlse + head.to(tl.int64) * dlse_head + row.to(tl.int64) * dlse_row, mask=alive, other=0.0)
    tl.store(delta + at, found, mask=row < T)
    if has_sinks != 0:
        share = tl.exp2((tl.load(sinks + head).to(tl.float32) - tl.load(lse + at, mask=alive, other=0.0)) * LOG2_E)
        tl.store(dsinks + at, tl.where(alive, -share * found, 0.0), mask=row < T)


@triton.jit
def _spread(gradient, operand, total):
    """total + gradient @ operand. fp16 uses 16 bits of the gradient: gradients of scores need the exponents of fp32."""
    if operand.dtype == tl.float16:
        total = product(gradient, operand.to(tl.float32), total, False)
    else:
        total = weigh(gradient, operand, total)
    return total


@triton.jit
def _fold_keys(
    q, dy, query_rows, incoming_rows, query, lse, delta, k_tiles, v_tiles, key_rows, value_rows, key, low, high,
    dq, scale, cap_scale,
    SOFTCAP: tl.constexpr, MASKED: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """dq plus the contribution of one tile of keys."""
    keys = tile(key_rows, k_tiles, key, 0, BLOCK_N, BLOCK_K, MASKED)
    values = tile(value_rows, v_tiles, key, 0, BLOCK_N, BLOCK_V, MASKED)
    raw = raw_scores(against(q, query_rows, query, keys, key_rows, key, BLOCK_K, CHANNELS), cap_scale, SOFTCAP)
    weights = tl.exp2(raw * scale - lse[:, None])
    gradient = against(dy, incoming_rows, query, values, value_rows, key, BLOCK_V, CHANNELS)
    gradient = weights * (gradient - delta[:, None])
    if SOFTCAP:
        gradient *= 1.0 - raw * raw
    if MASKED:
        j = key + tl.arange(0, BLOCK_N)[None, :]
        gradient = tl.where((j >= low[:, None]) & (j < high[:, None]), gradient, 0.0)
    return _spread(gradient, keys, dq)


@triton.jit(do_not_specialize=NEVER_ALIGNED)
def _attention_bwd_q_kernel(
    q, k, v, dy, k_tiles, v_tiles, blocks, lse, delta, dq, T, H, HK, K, V,
    q_stride, q_head, k_stride, k_head, v_stride, v_head, dy_stride, dy_head, left, right, scale, cap_scale, dq_factor,
    SOFTCAP: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """dq (t, h, k)."""
    index, head = tl.program_id(0) // H, tl.program_id(0) % H
    start, end, key_start, key_end, first = block(blocks, index)
    if first < 0:
        return
    n_queries, n_keys, first = end - start, key_end - key_start, first - start
    query_rows = rows_of(q, start, n_queries, head, q_stride, q_head, K)
    incoming_rows = rows_of(dy, start, n_queries, head, dy_stride, dy_head, V)
    key_rows = rows_of(k, key_start, n_keys, head // (H // HK), k_stride, k_head, K)
    value_rows = rows_of(v, key_start, n_keys, head // (H // HK), v_stride, v_head, V)
    queries = tile(query_rows, None, first, 0, BLOCK_M, BLOCK_K, True)
    incoming = tile(incoming_rows, None, first, 0, BLOCK_M, BLOCK_V, True)
    query = first + tl.arange(0, BLOCK_M)
    of_query, alive = head.to(tl.int64) * T + start + query, query < n_queries
    log_sum = tl.load(lse + of_query, mask=alive, other=0.0) * LOG2_E
    expected = tl.load(delta + of_query, mask=alive, other=0.0)
    low, high = visible(query, n_queries, n_keys, left, right)
    last = tl.minimum(first + BLOCK_M, n_queries) - 1
    begin, whole, whole_end, edges = tiles(first, last, n_queries, n_keys, left, right, BLOCK_N)

    acc = tl.zeros((BLOCK_M, BLOCK_K), tl.float32)
    for key in tl.range(whole, whole_end, BLOCK_N):
        acc = _fold_keys(
            queries, incoming, query_rows, incoming_rows, first, log_sum, expected, k_tiles, v_tiles, key_rows,
            value_rows, key, low, high, acc, scale, cap_scale, SOFTCAP, False, BLOCK_N, BLOCK_K, BLOCK_V, CHANNELS,
        )  # fmt: skip
    for at in tl.range(0, edges):
        key = edge(at, begin, whole, whole_end, BLOCK_N)
        acc = _fold_keys(
            queries, incoming, query_rows, incoming_rows, first, log_sum, expected, k_tiles, v_tiles, key_rows,
            value_rows, key, low, high, acc, scale, cap_scale, SOFTCAP, True, BLOCK_N, BLOCK_K, BLOCK_V, CHANNELS,
        )  # fmt: skip
    store_tile(rows_of(dq, start, n_queries, head, H * K, K, K), first, acc * dq_factor, BLOCK_M, BLOCK_K)


@triton.jit
def _fold_queries(
    k, v, key_rows, value_rows, key, q_tiles, dy_tiles, query_rows, incoming_rows, lse, delta, query, n_queries,
    low, high, dk, dv, scale, cap_scale, SOFTCAP: tl.constexpr, MASKED: tl.constexpr, OFFSET: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """dk and dv plus the contribution of one tile of queries, both 2^OFFSET times as large."""
    queries = tile(query_rows, q_tiles, query, 0, BLOCK_M, BLOCK_K, MASKED)
    incoming = tile(incoming_rows, dy_tiles, query, 0, BLOCK_M, BLOCK_V, MASKED)
    i = query + tl.arange(0, BLOCK_M)
    log_sum = tl.load(lse + i, mask=i < n_queries, other=0.0) * LOG2_E
    expected = tl.load(delta + i, mask=i < n_queries, other=0.0)
    raw = raw_scores(against(k, key_rows, key, queries, query_rows, query, BLOCK_K, CHANNELS), cap_scale, SOFTCAP)
    weights = tl.exp2(raw * scale - (log_sum - OFFSET)[None, :])
    gradient = against(v, value_rows, key, incoming, incoming_rows, query, BLOCK_V, CHANNELS)
    gradient = weights * (gradient - expected[None, :])
    if SOFTCAP:
        gradient *= 1.0 - raw * raw
    if MASKED:
        seen = (i[None, :] >= low[:, None]) & (i[None, :] < high[:, None])
        weights, gradient = tl.where(seen, weights, 0.0), tl.where(seen, gradient, 0.0)
    return _spread(gradient, queries, dk), weigh(weights, incoming, dv)


@triton.jit(do_not_specialize=NEVER_ALIGNED)
def _attention_bwd_kv_kernel(
    q, k, v, dy, q_tiles, dy_tiles, blocks, lse, delta, dk, dv, T, H, HK, K, V,
    q_stride, q_head, k_stride, k_head, v_stride, v_head, dy_stride, dy_head, left, right, scale, cap_scale,
    dk_factor, dv_factor, SOFTCAP: tl.constexpr, OFFSET: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """dk (u, hk, k) and dv (u, hk, v)."""
    index, kv_head = tl.program_id(0) // HK, tl.program_id(0) % HK
    key_start, key_end, start, end, first = block(blocks, index)
    if first < 0:
        return
    n_queries, n_keys, first = end - start, key_end - key_start, first - key_start
    key_rows = rows_of(k, key_start, n_keys, kv_head, k_stride, k_head, K)
    value_rows = rows_of(v, key_start, n_keys, kv_head, v_stride, v_head, V)
    keys = tile(key_rows, None, first, 0, BLOCK_N, BLOCK_K, True)
    values = tile(value_rows, None, first, 0, BLOCK_N, BLOCK_V, True)
    low, high = visible(first + tl.arange(0, BLOCK_N), n_keys, n_queries, right, left)
    last = tl.minimum(first + BLOCK_N, n_keys) - 1
    begin, whole, whole_end, edges = tiles(first, last, n_keys, n_queries, right, left, BLOCK_M)

    sum_k = tl.zeros((BLOCK_N, BLOCK_K), tl.float32)
    sum_v = tl.zeros((BLOCK_N, BLOCK_V), tl.float32)
    for member in range(0, H // HK):
        head = kv_head * (H // HK) + member
        query_rows = rows_of(q, start, n_queries, head, q_stride, q_head, K)
        incoming_rows = rows_of(dy, start, n_queries, head, dy_stride, dy_head, V)
        of_queries = head.to(tl.int64) * T + start
        for query in tl.range(whole, whole_end, BLOCK_M):
            sum_k, sum_v = _fold_queries(
                keys, values, key_rows, value_rows, first, q_tiles, dy_tiles, query_rows, incoming_rows,
                lse + of_queries, delta + of_queries, query, n_queries, low, high, sum_k, sum_v, scale, cap_scale,
                SOFTCAP, False, OFFSET, BLOCK_M, BLOCK_K, BLOCK_V, CHANNELS,
            )  # fmt: skip
        for at in tl.range(0, edges):
            query = edge(at, begin, whole, whole_end, BLOCK_M)
            sum_k, sum_v = _fold_queries(
                keys, values, key_rows, value_rows, first, q_tiles, dy_tiles, query_rows, incoming_rows,
                lse + of_queries, delta + of_queries, query, n_queries, low, high, sum_k, sum_v, scale, cap_scale,
                SOFTCAP, True, OFFSET, BLOCK_M, BLOCK_K, BLOCK_V, CHANNELS,
            )  # fmt: skip
    own_keys = rows_of(dk, key_start, n_keys, kv_head, HK * K, K, K)
    own_values = rows_of(dv, key_start, n_keys, kv_head, HK * V, V, V)
    store_tile(own_keys, first, sum_k * dk_factor, BLOCK_N, BLOCK_K)
    store_tile(own_values, first, sum_v * dv_factor, BLOCK_N, BLOCK_V)
