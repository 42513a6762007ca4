"""The backward kernels of attention (Dao 2023, algorithm 2), of which none adds to what another one wrote.

With P = exp(s - lse) and the incoming gradients dy and dlse:
    delta = rowsum(y dy) - dlse        dv = Pᵀ dy        dP = dy vᵀ        ds = P (dP - delta)
and the gradient of a sink is -Σ exp(sink - lse) delta. A score before its cap gets (1 - tanh²) ds. One kernel walks
from queries over the keys that they see, and finds dq; another from keys over the queries that see them, one head of
the group after another, and finds dk and dv. Both compute P again.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

import triton
import triton.language as tl

from packproof.kernels.attention_fwd import (
    LOG2_E,
    NEVER_ALIGNED,
    edge,
    exact,
    raw_scores,
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
    """delta and each query's part of the gradient of the sink, both (h, t) and zero in slack."""
    head = tl.program_id(0) % H
    first = tl.program_id(0) // H * BLOCK_T
    used = tl.minimum(tl.maximum(tl.load(cu_seqlens + S), 0), T)
    column, row = tl.arange(0, BLOCK_V), first + tl.arange(0, BLOCK_T)
    own, alive = head.to(tl.int64), row < used
    found = tl.zeros((BLOCK_T,), tl.float32)
    for c in range(0, V, BLOCK_V):
        out = tile(y + own * y_head, first, used, y_stride, c + column, V, BLOCK_T, True).to(tl.float32)
        incoming = tile(dy + own * dy_head, first, used, dy_stride, c + column, V, BLOCK_T, True).to(tl.float32)
        found += tl.sum(out * incoming, 1)
    if has_dlse != 0:
        found -= tl.load(dlse + own * dlse_head + row.to(tl.int64) * dlse_row, mask=alive, other=0.0)
    at = own * T + row
    tl.store(delta + at, found, mask=row < T)
    if has_sinks != 0:
        share = tl.exp2((tl.load(sinks + head).to(tl.float32) - tl.load(lse + at, mask=alive, other=0.0)) * LOG2_E)
        tl.store(dsinks + at, tl.where(alive, -share * found, 0.0), mask=row < T)


@triton.jit
def _spread(gradient, operand, total):
    """total + gradient @ operand: of fp16 to 16 bits, since gradients of scores have the exponents of fp32."""
    if operand.dtype == tl.float16:
        total = product(gradient, operand.to(tl.float32), total, False)
    else:
        total = weigh(gradient, operand, total)
    return total


@triton.jit
def _fold_keys(
    q, dy, lse, delta, key_rows, value_rows, first, n_keys, k_stride, v_stride, k_column, v_column, K, V, low, high,
    dq, scale, cap_scale, SOFTCAP: tl.constexpr, MASKED: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """dq with what one tile of keys adds."""
    key = tile(key_rows, first, n_keys, k_stride, k_column, K, BLOCK_N, MASKED)
    value = tile(value_rows, first, n_keys, v_stride, v_column, V, BLOCK_N, MASKED)
    raw = raw_scores(exact(q, tl.trans(key)), cap_scale, SOFTCAP)
    weights = tl.exp2(raw * scale - lse[:, None])
    gradient = weights * (exact(dy, tl.trans(value)) - delta[:, None])
    if SOFTCAP:
        gradient *= 1.0 - raw * raw
    if MASKED:
        j = first + tl.arange(0, BLOCK_N)[None, :]
        gradient = tl.where((j >= low[:, None]) & (j < high[:, None]), gradient, 0.0)
    return _spread(gradient, key, dq)


@triton.jit(do_not_specialize=NEVER_ALIGNED)
def _attention_bwd_q_kernel(
    q, k, v, dy, blocks, lse, delta, dq, T, H, HK, K, V,
    q_stride, q_head, k_stride, k_head, v_stride, v_head, dy_stride, dy_head, left, right, scale, cap_scale, dq_factor,
    SOFTCAP: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """dq (t, h, k)."""
    index, head = tl.program_id(0) // H, tl.program_id(0) % H
    start, end, key_start, key_end, first = block(blocks, index)
    if first < 0:
        return
    n_queries, n_keys, first = end - start, key_end - key_start, first - start
    k_column, v_column = tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_V)
    own, head, kv_head = start.to(tl.int64), head.to(tl.int64), (head // (H // HK)).to(tl.int64)
    queries = tile(q + own * q_stride + head * q_head, first, n_queries, q_stride, k_column, K, BLOCK_M, True)
    incoming = tile(dy + own * dy_stride + head * dy_head, first, n_queries, dy_stride, v_column, V, BLOCK_M, True)
    key_rows = k + key_start.to(tl.int64) * k_stride + kv_head * k_head
    value_rows = v + key_start.to(tl.int64) * v_stride + kv_head * v_head
    query = first + tl.arange(0, BLOCK_M)
    of_query, alive = head * T + own + query, query < n_queries
    log_sum = tl.load(lse + of_query, mask=alive, other=0.0) * LOG2_E
    expected = tl.load(delta + of_query, mask=alive, other=0.0)
    low, high = visible(query, n_queries, n_keys, left, right)
    last = tl.minimum(first + BLOCK_M, n_queries) - 1
    begin, whole, whole_end, edges = tiles(first, last, n_queries, n_keys, left, right, BLOCK_N)

    acc = tl.zeros((BLOCK_M, BLOCK_K), tl.float32)
    for j in tl.range(whole, whole_end, BLOCK_N):
        acc = _fold_keys(
            queries, incoming, log_sum, expected, key_rows, value_rows, j, n_keys, k_stride, v_stride, k_column,
            v_column, K, V, low, high, acc, scale, cap_scale, SOFTCAP, False, BLOCK_N,
        )  # fmt: skip
    for at in tl.range(0, edges):
        j = edge(at, begin, whole, whole_end, BLOCK_N)
        acc = _fold_keys(
            queries, incoming, log_sum, expected, key_rows, value_rows, j, n_keys, k_stride, v_stride, k_column,
            v_column, K, V, low, high, acc, scale, cap_scale, SOFTCAP, True, BLOCK_N,
        )  # fmt: skip
    store_tile(dq + (own * H + head) * K, acc * dq_factor, first, n_queries, H * K, k_column, K, BLOCK_M)


@triton.jit
def _fold_queries(
    key, value, query_rows, incoming_rows, lse, delta, first, n_queries, q_stride, dy_stride, k_column, v_column, K, V,
    low, high, dk, dv, scale, cap_scale,
    SOFTCAP: tl.constexpr, MASKED: tl.constexpr, OFFSET: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """dk and dv with what one tile of queries adds, both 2^OFFSET times as large."""
    queries = tile(query_rows, first, n_queries, q_stride, k_column, K, BLOCK_M, MASKED)
    incoming = tile(incoming_rows, first, n_queries, dy_stride, v_column, V, BLOCK_M, MASKED)
    query = first + tl.arange(0, BLOCK_M)
    log_sum = tl.load(lse + query, mask=query < n_queries, other=0.0) * LOG2_E
    expected = tl.load(delta + query, mask=query < n_queries, other=0.0)
    raw = raw_scores(exact(key, tl.trans(queries)), cap_scale, SOFTCAP)
    weights = tl.exp2(raw * scale - (log_sum - OFFSET)[None, :])
    gradient = weights * (exact(value, tl.trans(incoming)) - expected[None, :])
    if SOFTCAP:
        gradient *= 1.0 - raw * raw
    if MASKED:
        seen = (query[None, :] >= low[:, None]) & (query[None, :] < high[:, None])
        weights, gradient = tl.where(seen, weights, 0.0), tl.where(seen, gradient, 0.0)
    return _spread(gradient, queries, dk), weigh(weights, incoming, dv)


@triton.jit(do_not_specialize=NEVER_ALIGNED)
def _attention_bwd_kv_kernel(
    q, k, v, dy, blocks, lse, delta, dk, dv, T, H, HK, K, V,
    q_stride, q_head, k_stride, k_head, v_stride, v_head, dy_stride, dy_head, left, right, scale, cap_scale,
    dk_factor, dv_factor, SOFTCAP: tl.constexpr, OFFSET: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """dk (u, hk, k) and dv (u, hk, v)."""
    index, kv_head = tl.program_id(0) // HK, (tl.program_id(0) % HK).to(tl.int64)
    key_start, key_end, start, end, first = block(blocks, index)
    if first < 0:
        return
    n_queries, n_keys, first = end - start, key_end - key_start, first - key_start
    k_column, v_column = tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_V)
    own, of_queries = key_start.to(tl.int64), start.to(tl.int64)
    keys = tile(k + own * k_stride + kv_head * k_head, first, n_keys, k_stride, k_column, K, BLOCK_N, True)
    values = tile(v + own * v_stride + kv_head * v_head, first, n_keys, v_stride, v_column, V, BLOCK_N, True)
    low, high = visible(first + tl.arange(0, BLOCK_N), n_keys, n_queries, right, left)
    last = tl.minimum(first + BLOCK_N, n_keys) - 1
    begin, whole, whole_end, edges = tiles(first, last, n_keys, n_queries, right, left, BLOCK_M)

    sum_k = tl.zeros((BLOCK_N, BLOCK_K), tl.float32)
    sum_v = tl.zeros((BLOCK_N, BLOCK_V), tl.float32)
    for head in range(kv_head * (H // HK), (kv_head + 1) * (H // HK)):
        query_rows = q + of_queries * q_stride + head * q_head
        incoming_rows = dy + of_queries * dy_stride + head * dy_head
        log_sums, expected = lse + head * T + of_queries, delta + head * T + of_queries
        for i in tl.range(whole, whole_end, BLOCK_M):
            sum_k, sum_v = _fold_queries(
                keys, values, query_rows, incoming_rows, log_sums, expected, i, n_queries, q_stride, dy_stride,
                k_column, v_column, K, V, low, high, sum_k, sum_v, scale, cap_scale, SOFTCAP, False, OFFSET, BLOCK_M,
            )  # fmt: skip
        for at in tl.range(0, edges):
            i = edge(at, begin, whole, whole_end, BLOCK_M)
            sum_k, sum_v = _fold_queries(
                keys, values, query_rows, incoming_rows, log_sums, expected, i, n_queries, q_stride, dy_stride,
                k_column, v_column, K, V, low, high, sum_k, sum_v, scale, cap_scale, SOFTCAP, True, OFFSET, BLOCK_M,
            )  # fmt: skip
    store_tile(dk + (own * HK + kv_head) * K, sum_k * dk_factor, first, n_keys, HK * K, k_column, K, BLOCK_N)
    store_tile(dv + (own * HK + kv_head) * V, sum_v * dv_factor, first, n_keys, HK * V, v_column, V, BLOCK_N)
