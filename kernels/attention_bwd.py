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
    add_weighted_values,
    dot_transposed,
    edge_tile_start,
    load_tile,
    raw_scores,
    rows_of_head,
    store_tile,
    tile_range,
    visible_range,
)
from packproof.kernels.blocks import load_block
from packproof.kernels.products import product


@triton.jit(do_not_specialize=[*NEVER_ALIGNED, "dlse_head", "dlse_row", "has_dlse"])
def _attention_bwd_delta_kernel(
    y, dy, dlse, lse, sinks, cu_seqlens, delta, dsinks, T, S, H, V, y_stride, y_head, dy_stride, dy_head,
    dlse_head, dlse_row, has_dlse, has_sinks, BLOCK_T: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """delta and the gradient of the sink by query, both (h, t) and zero in slack."""
    head = tl.program_id(0) % H
    first_row = tl.program_id(0) // H * BLOCK_T
    packed_end = tl.minimum(tl.maximum(tl.load(cu_seqlens + S), 0), T)
    row = first_row + tl.arange(0, BLOCK_T)
    alive, offset = row < packed_end, head.to(tl.int64) * T + row
    rows = rows_of_head(y, packed_end * 0, packed_end, head, y_stride, y_head, V)
    incoming_rows = rows_of_head(dy, packed_end * 0, packed_end, head, dy_stride, dy_head, V)
    row_delta = tl.zeros((BLOCK_T,), tl.float32)
    for channel in range(0, V, BLOCK_V):
        outputs = load_tile(rows, None, first_row, channel, BLOCK_T, BLOCK_V, True).to(tl.float32)
        incoming = load_tile(incoming_rows, None, first_row, channel, BLOCK_T, BLOCK_V, True).to(tl.float32)
        row_delta += tl.sum(outputs * incoming, 1)
    if has_dlse != 0:
        row_delta -= tl.load(dlse + head.to(tl.int64) * dlse_head + row.to(tl.int64) * dlse_row, mask=alive, other=0.0)
    tl.store(delta + offset, row_delta, mask=row < T)
    if has_sinks != 0:
        sink_weight = tl.exp2(
            (tl.load(sinks + head).to(tl.float32) - tl.load(lse + offset, mask=alive, other=0.0)) * LOG2_E
        )
        tl.store(dsinks + offset, tl.where(alive, -sink_weight * row_delta, 0.0), mask=row < T)


@triton.jit
def _add_gradient_product(gradient, operand, total):
    """total + gradient @ operand. fp16 uses 16 bits of the gradient: gradients of scores need the exponents of fp32."""
    if operand.dtype == tl.float16:
        total = product(gradient, operand.to(tl.float32), total, False)
    else:
        total = add_weighted_values(gradient, operand, total)
    return total


@triton.jit
def _fold_keys(
    q, dy, query_rows, incoming_rows, query, lse, delta, k_tiles, v_tiles, key_rows, value_rows, key, low, high,
    dq, scale, cap_scale,
    SOFTCAP: tl.constexpr, MASKED: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """dq plus the contribution of one tile of keys."""
    keys = load_tile(key_rows, k_tiles, key, 0, BLOCK_N, BLOCK_K, MASKED)
    values = load_tile(value_rows, v_tiles, key, 0, BLOCK_N, BLOCK_V, MASKED)
    raw = raw_scores(dot_transposed(q, query_rows, query, keys, key_rows, key, BLOCK_K, CHANNELS), cap_scale, SOFTCAP)
    weights = tl.exp2(raw * scale - lse[:, None])
    gradient = dot_transposed(dy, incoming_rows, query, values, value_rows, key, BLOCK_V, CHANNELS)
    gradient = weights * (gradient - delta[:, None])
    if SOFTCAP:
        gradient *= 1.0 - raw * raw
    if MASKED:
        j = key + tl.arange(0, BLOCK_N)[None, :]
        gradient = tl.where((j >= low[:, None]) & (j < high[:, None]), gradient, 0.0)
    return _add_gradient_product(gradient, keys, dq)


@triton.jit(do_not_specialize=NEVER_ALIGNED)
def _attention_bwd_q_kernel(
    q, k, v, dy, k_tiles, v_tiles, blocks, lse, delta, dq, T, H, HK, K, V,
    q_stride, q_head, k_stride, k_head, v_stride, v_head, dy_stride, dy_head, left, right, scale, cap_scale, dq_factor,
    SOFTCAP: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """dq (t, h, k)."""
    index, head = tl.program_id(0) // H, tl.program_id(0) % H
    start, end, key_start, key_end, first_row = load_block(blocks, index)
    if first_row < 0:
        return
    n_queries, n_keys, first_row = end - start, key_end - key_start, first_row - start
    query_rows = rows_of_head(q, start, n_queries, head, q_stride, q_head, K)
    incoming_rows = rows_of_head(dy, start, n_queries, head, dy_stride, dy_head, V)
    key_rows = rows_of_head(k, key_start, n_keys, head // (H // HK), k_stride, k_head, K)
    value_rows = rows_of_head(v, key_start, n_keys, head // (H // HK), v_stride, v_head, V)
    queries = load_tile(query_rows, None, first_row, 0, BLOCK_M, BLOCK_K, True)
    incoming = load_tile(incoming_rows, None, first_row, 0, BLOCK_M, BLOCK_V, True)
    query = first_row + tl.arange(0, BLOCK_M)
    query_offset, alive = head.to(tl.int64) * T + start + query, query < n_queries
    log_sum = tl.load(lse + query_offset, mask=alive, other=0.0) * LOG2_E
    expected = tl.load(delta + query_offset, mask=alive, other=0.0)
    low, high = visible_range(query, n_queries, n_keys, left, right)
    last_row = tl.minimum(first_row + BLOCK_M, n_queries) - 1
    begin, whole_start, whole_end, edges = tile_range(first_row, last_row, n_queries, n_keys, left, right, BLOCK_N)

    acc = tl.zeros((BLOCK_M, BLOCK_K), tl.float32)
    for key in tl.range(whole_start, whole_end, BLOCK_N):
        acc = _fold_keys(
            queries, incoming, query_rows, incoming_rows, first_row, log_sum, expected, k_tiles, v_tiles, key_rows,
            value_rows, key, low, high, acc, scale, cap_scale, SOFTCAP, False, BLOCK_N, BLOCK_K, BLOCK_V, CHANNELS,
        )  # fmt: skip
    for edge_index in tl.range(0, edges):
        key = edge_tile_start(edge_index, begin, whole_start, whole_end, BLOCK_N)
        acc = _fold_keys(
            queries, incoming, query_rows, incoming_rows, first_row, log_sum, expected, k_tiles, v_tiles, key_rows,
            value_rows, key, low, high, acc, scale, cap_scale, SOFTCAP, True, BLOCK_N, BLOCK_K, BLOCK_V, CHANNELS,
        )  # fmt: skip
    store_tile(rows_of_head(dq, start, n_queries, head, H * K, K, K), first_row, acc * dq_factor, BLOCK_M, BLOCK_K)


@triton.jit
def _fold_queries(
    k, v, key_rows, value_rows, key, q_tiles, dy_tiles, query_rows, incoming_rows, lse, delta, query, n_queries,
    low, high, dk, dv, scale, cap_scale, SOFTCAP: tl.constexpr, MASKED: tl.constexpr, OFFSET: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """dk and dv plus the contribution of one tile of queries, both 2^OFFSET times as large."""
    queries = load_tile(query_rows, q_tiles, query, 0, BLOCK_M, BLOCK_K, MASKED)
    incoming = load_tile(incoming_rows, dy_tiles, query, 0, BLOCK_M, BLOCK_V, MASKED)
    i = query + tl.arange(0, BLOCK_M)
    log_sum = tl.load(lse + i, mask=i < n_queries, other=0.0) * LOG2_E
    expected = tl.load(delta + i, mask=i < n_queries, other=0.0)
    raw = raw_scores(
        dot_transposed(k, key_rows, key, queries, query_rows, query, BLOCK_K, CHANNELS), cap_scale, SOFTCAP
    )
    weights = tl.exp2(raw * scale - (log_sum - OFFSET)[None, :])
    gradient = dot_transposed(v, value_rows, key, incoming, incoming_rows, query, BLOCK_V, CHANNELS)
    gradient = weights * (gradient - expected[None, :])
    if SOFTCAP:
        gradient *= 1.0 - raw * raw
    if MASKED:
        is_visible = (i[None, :] >= low[:, None]) & (i[None, :] < high[:, None])
        weights, gradient = tl.where(is_visible, weights, 0.0), tl.where(is_visible, gradient, 0.0)
    return _add_gradient_product(gradient, queries, dk), add_weighted_values(weights, incoming, dv)


@triton.jit(do_not_specialize=NEVER_ALIGNED)
def _attention_bwd_kv_kernel(
    q, k, v, dy, q_tiles, dy_tiles, blocks, lse, delta, dk, dv, T, H, HK, K, V,
    q_stride, q_head, k_stride, k_head, v_stride, v_head, dy_stride, dy_head, left, right, scale, cap_scale,
    dk_factor, dv_factor, SOFTCAP: tl.constexpr, OFFSET: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """dk (u, hk, k) and dv (u, hk, v)."""
    index, kv_head = tl.program_id(0) // HK, tl.program_id(0) % HK
    key_start, key_end, start, end, first_row = load_block(blocks, index)
    if first_row < 0:
        return
    n_queries, n_keys, first_row = end - start, key_end - key_start, first_row - key_start
    key_rows = rows_of_head(k, key_start, n_keys, kv_head, k_stride, k_head, K)
    value_rows = rows_of_head(v, key_start, n_keys, kv_head, v_stride, v_head, V)
    keys = load_tile(key_rows, None, first_row, 0, BLOCK_N, BLOCK_K, True)
    values = load_tile(value_rows, None, first_row, 0, BLOCK_N, BLOCK_V, True)
    low, high = visible_range(first_row + tl.arange(0, BLOCK_N), n_keys, n_queries, right, left)
    last_row = tl.minimum(first_row + BLOCK_N, n_keys) - 1
    begin, whole_start, whole_end, edges = tile_range(first_row, last_row, n_keys, n_queries, right, left, BLOCK_M)

    sum_k = tl.zeros((BLOCK_N, BLOCK_K), tl.float32)
    sum_v = tl.zeros((BLOCK_N, BLOCK_V), tl.float32)
    for member in range(0, H // HK):
        head = kv_head * (H // HK) + member
        query_rows = rows_of_head(q, start, n_queries, head, q_stride, q_head, K)
        incoming_rows = rows_of_head(dy, start, n_queries, head, dy_stride, dy_head, V)
        query_offset = head.to(tl.int64) * T + start
        for query in tl.range(whole_start, whole_end, BLOCK_M):
            sum_k, sum_v = _fold_queries(
                keys, values, key_rows, value_rows, first_row, q_tiles, dy_tiles, query_rows, incoming_rows,
                lse + query_offset, delta + query_offset, query, n_queries, low, high, sum_k, sum_v, scale, cap_scale,
                SOFTCAP, False, OFFSET, BLOCK_M, BLOCK_K, BLOCK_V, CHANNELS,
            )  # fmt: skip
        for edge_index in tl.range(0, edges):
            query = edge_tile_start(edge_index, begin, whole_start, whole_end, BLOCK_M)
            sum_k, sum_v = _fold_queries(
                keys, values, key_rows, value_rows, first_row, q_tiles, dy_tiles, query_rows, incoming_rows,
                lse + query_offset, delta + query_offset, query, n_queries, low, high, sum_k, sum_v, scale, cap_scale,
                SOFTCAP, True, OFFSET, BLOCK_M, BLOCK_K, BLOCK_V, CHANNELS,
            )  # fmt: skip
    dk_rows = rows_of_head(dk, key_start, n_keys, kv_head, HK * K, K, K)
    dv_rows = rows_of_head(dv, key_start, n_keys, kv_head, HK * V, V, V)
    store_tile(dk_rows, first_row, sum_k * dk_factor, BLOCK_N, BLOCK_K)
    store_tile(dv_rows, first_row, sum_v * dv_factor, BLOCK_N, BLOCK_V)
