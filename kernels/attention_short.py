"""The kernels of attention for short sequences. They avoid tensor cores, whose tiles would be almost empty.

A program takes a block of tokens of the pack, from any sequences. It walks over the visible keys (or queries) of each
token, one at a time, in fp32. No row meets another, and products are rounded before they are summed (SHORT_OPTIONS). So
the position of a sequence in a block changes no bit. A sequence is short if it has few queries and few keys; the other
kernels skip it. Rows in slack are zeroed here too. If the pack has neither, all programs return at once.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

import triton
import triton.language as tl

from packproof.kernels.attention_fwd import LN_2, LOG2_E, NEVER_ALIGNED, visible_range
from packproof.kernels.elementwise import tanh
from packproof.kernels.sequences import bounds, locate


@triton.jit
def _load_rows(pointer, offsets, mask):
    """Rows in fp32, zero where masked."""
    return tl.load(pointer + offsets, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def _store_rows(pointer, value, offsets, mask):
    tl.store(pointer + offsets, value.to(pointer.dtype.element_ty), mask=mask)


@triton.jit
def _row_offsets(row, stride, column):
    """Offsets of the channels of rows; row: 64-bit."""
    return (row * stride)[:, None] + column[None, :]


@triton.jit
def _rows_of_program(
    cu_rows, cu_others, n_rows, n_others, S, window_left, window_right, SHORT: tl.constexpr, ROWS: tl.constexpr
):
    """The rows of this program, and the visible rows on the other side.

    Returns the rows; whether each is in a short sequence; whether it is written (short, or in slack); its first visible
    row of the other side, and their number. All are 64-bit: where Triton widens a tensor, it converts its layout, and
    here that is outside of loops.
    """
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    sequence, start, end = locate(cu_rows, S, n_rows, row)
    other_start, other_end = bounds(cu_others, S, n_others, sequence)
    length, other_length = end - start, other_end - other_start
    is_short = (sequence < S) & (length <= SHORT) & (other_length <= SHORT)
    is_written = is_short | ((sequence == S) & (row < n_rows))
    low, high = visible_range(row - start, length, other_length, window_left, window_right)
    return row, is_short, is_written, other_start.to(tl.int64) + low, tl.where(is_short, high - low, 0).to(tl.int64)


@triton.jit
def _raw_score(qk, cap_scale):
    if cap_scale > 0:
        qk = tanh(qk * cap_scale)
    return qk


@triton.jit
def _cap_derivative(raw, cap_scale):
    return tl.where(cap_scale > 0, 1.0 - raw * raw, 1.0)


@triton.jit(do_not_specialize=NEVER_ALIGNED)
def _attention_fwd_short_kernel(
    q, k, v, sinks, cu_seqlens, cu_keys, unlisted, y, lse, T, U, S, H, HK, K, V,
    q_stride, q_head, k_stride, k_head, v_stride, v_head, left, right, scale, cap_scale, has_sinks,
    SHORT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    if tl.load(unlisted) == 0:
        return
    row, is_short, is_written, first_key, n_visible = _rows_of_program(
        cu_seqlens, cu_keys, T, U, S, left, right, SHORT, ROWS
    )
    if tl.max(is_written.to(tl.int32), 0) == 0:
        return
    column, max_visible = tl.arange(0, BLOCK), tl.max(n_visible.to(tl.int32), 0)
    key_offsets, value_offsets = _row_offsets(first_key, k_stride, column), _row_offsets(first_key, v_stride, column)
    k_mask, v_mask = (column < K)[None, :], (column < V)[None, :]
    queries, row_mask = q + _row_offsets(row, q_stride, column), is_short[:, None] & k_mask
    next_query = tl.load(queries, mask=row_mask, other=0.0)
    for head in range(0, H):
        query = next_query.to(tl.float32)
        queries += q_head
        next_query = tl.load(queries, mask=row_mask & (head + 1 < H), other=0.0)
        kv_head = head // (H // HK)
        keys, values = k + kv_head * k_head.to(tl.int64), v + kv_head * v_head.to(tl.int64)
        row_max = tl.full((ROWS,), float("-inf"), tl.float32)
        if has_sinks != 0:
            row_max = tl.zeros((ROWS,), tl.float32) + tl.load(sinks + head).to(tl.float32) * LOG2_E
        row_sum = tl.full((ROWS,), 1.0, tl.float32)  # rescaled to 0 where there is no sink
        acc = tl.zeros((ROWS, BLOCK), tl.float32)
        for step in range(0, max_visible):
            alive = n_visible > step
            key = _load_rows(keys + step * k_stride.to(tl.int64), key_offsets, alive[:, None] & k_mask)
            value = _load_rows(values + step * v_stride.to(tl.int64), value_offsets, alive[:, None] & v_mask)
            logit = tl.where(alive, _raw_score(tl.sum(query * key, 1), cap_scale) * scale, float("-inf"))
            new_max = tl.maximum(row_max, logit)
            finite_max = tl.where(new_max == float("-inf"), 0.0, new_max)
            weight, rescale = tl.exp2(logit - finite_max), tl.exp2(row_max - finite_max)
            row_max, row_sum, acc = (
                new_max,
                row_sum * rescale + weight,
                acc * rescale[:, None] + weight[:, None] * value,
            )
        acc = tl.where((row_sum > 0)[:, None], acc * (1.0 / row_sum)[:, None], 0.0)
        _store_rows(y + head * V, acc, _row_offsets(row, H * V, column), is_written[:, None] & v_mask)
        tl.store(lse + T.to(tl.int64) * head + row, row_max * LN_2 + tl.log(row_sum), mask=is_short)


@triton.jit(do_not_specialize=NEVER_ALIGNED)
def _attention_bwd_q_short_kernel(
    q, k, v, dy, cu_seqlens, cu_keys, unlisted, lse, delta, dq, T, U, S, H, HK, K, V,
    q_stride, q_head, k_stride, k_head, v_stride, v_head, dy_stride, dy_head, left, right, scale, cap_scale, dq_factor,
    SHORT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    if tl.load(unlisted) == 0:
        return
    row, is_short, is_written, first_key, n_visible = _rows_of_program(
        cu_seqlens, cu_keys, T, U, S, left, right, SHORT, ROWS
    )
    if tl.max(is_written.to(tl.int32), 0) == 0:
        return
    column, max_visible = tl.arange(0, BLOCK), tl.max(n_visible.to(tl.int32), 0)
    key_offsets, value_offsets = _row_offsets(first_key, k_stride, column), _row_offsets(first_key, v_stride, column)
    k_mask, v_mask = (column < K)[None, :], (column < V)[None, :]
    for head in range(0, H):
        query = _load_rows(
            q + head * q_head.to(tl.int64), _row_offsets(row, q_stride, column), is_short[:, None] & k_mask
        )
        dy_offsets = _row_offsets(row, dy_stride, column)
        incoming = _load_rows(dy + head * dy_head.to(tl.int64), dy_offsets, is_short[:, None] & v_mask)
        offset = T.to(tl.int64) * head + row
        log_sum = tl.load(lse + offset, mask=is_short, other=0.0) * LOG2_E
        expected = tl.load(delta + offset, mask=is_short, other=0.0)
        kv_head = head // (H // HK)
        keys, values = k + kv_head * k_head.to(tl.int64), v + kv_head * v_head.to(tl.int64)
        acc = tl.zeros((ROWS, BLOCK), tl.float32)
        for step in range(0, max_visible):
            alive = n_visible > step
            key = _load_rows(keys + step * k_stride.to(tl.int64), key_offsets, alive[:, None] & k_mask)
            value = _load_rows(values + step * v_stride.to(tl.int64), value_offsets, alive[:, None] & v_mask)
            raw = _raw_score(tl.sum(query * key, 1), cap_scale)
            gradient = tl.exp2(raw * scale - log_sum) * (tl.sum(incoming * value, 1) - expected)
            gradient = tl.where(alive, gradient * _cap_derivative(raw, cap_scale), 0.0)
            acc += gradient[:, None] * key
        _store_rows(dq + head * K, acc * dq_factor, _row_offsets(row, H * K, column), is_written[:, None] & k_mask)


@triton.jit(do_not_specialize=NEVER_ALIGNED)
def _attention_bwd_kv_short_kernel(
    q, k, v, dy, cu_seqlens, cu_keys, unlisted, lse, delta, dk, dv, T, U, S, H, HK, K, V,
    q_stride, q_head, k_stride, k_head, v_stride, v_head, dy_stride, dy_head, left, right, scale, cap_scale,
    k_factor, SHORT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    if tl.load(unlisted) == 0:
        return
    row, is_short, is_written, first_query, n_visible = _rows_of_program(
        cu_keys, cu_seqlens, U, T, S, right, left, SHORT, ROWS
    )
    if tl.max(is_written.to(tl.int32), 0) == 0:
        return
    column, max_visible = tl.arange(0, BLOCK), tl.max(n_visible.to(tl.int32), 0)
    query_offsets, dy_offsets = (
        _row_offsets(first_query, q_stride, column),
        _row_offsets(first_query, dy_stride, column),
    )
    k_mask, v_mask = (column < K)[None, :], (column < V)[None, :]
    for kv_head in range(0, HK):
        key = _load_rows(
            k + kv_head * k_head.to(tl.int64), _row_offsets(row, k_stride, column), is_short[:, None] & k_mask
        )
        value = _load_rows(
            v + kv_head * v_head.to(tl.int64), _row_offsets(row, v_stride, column), is_short[:, None] & v_mask
        )
        sum_k = tl.zeros((ROWS, BLOCK), tl.float32)
        sum_v = tl.zeros((ROWS, BLOCK), tl.float32)
        for head in range(kv_head * (H // HK), (kv_head + 1) * (H // HK)):
            queries, incomings = q + head * q_head.to(tl.int64), dy + head * dy_head.to(tl.int64)
            for step in range(0, max_visible):
                alive = n_visible > step
                query = _load_rows(queries + step * q_stride.to(tl.int64), query_offsets, alive[:, None] & k_mask)
                incoming = _load_rows(incomings + step * dy_stride.to(tl.int64), dy_offsets, alive[:, None] & v_mask)
                offset = T.to(tl.int64) * head + step + first_query
                log_sum = tl.load(lse + offset, mask=alive, other=0.0) * LOG2_E
                expected = tl.load(delta + offset, mask=alive, other=0.0)
                raw = _raw_score(tl.sum(query * key, 1), cap_scale)
                weight = tl.where(alive, tl.exp2(raw * scale - log_sum), 0.0)
                gradient = weight * (tl.sum(value * incoming, 1) - expected) * _cap_derivative(raw, cap_scale)
                sum_k += tl.where(alive, gradient, 0.0)[:, None] * query
                sum_v += weight[:, None] * incoming
        _store_rows(dk + kv_head * K, sum_k * k_factor, _row_offsets(row, HK * K, column), is_written[:, None] & k_mask)
        _store_rows(dv + kv_head * V, sum_v, _row_offsets(row, HK * V, column), is_written[:, None] & v_mask)
