"""The kernels of attention for short sequences. They avoid tensor cores, whose tiles would be almost empty.

A program takes a block of tokens of the pack, from any sequences. It walks over the visible keys (or queries) of each
token, one at a time, in fp32. No row meets another, and products are rounded before they are summed (SHORT_OPTIONS). So
the position of a sequence in a block changes no bit. A sequence is short if it has few queries and few keys; the other
kernels skip it. Rows in slack are zeroed here too. If the pack has neither, all programs return at once.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

import triton
import triton.language as tl

from packproof.kernels.attention_fwd import LN_2, LOG2_E, NEVER_ALIGNED, visible
from packproof.kernels.elementwise import tanh
from packproof.kernels.sequences import bounds, locate


@triton.jit
def _rows(pointer, place, alive):
    """Rows in fp32, zero where masked."""
    return tl.load(pointer + place, mask=alive, other=0.0).to(tl.float32)


@triton.jit
def _store_rows(pointer, value, place, alive):
    tl.store(pointer + place, value.to(pointer.dtype.element_ty), mask=alive)


@triton.jit
def _places(row, stride, column):
    """Offsets of the channels of rows; row: 64-bit."""
    return (row * stride)[:, None] + column[None, :]


@triton.jit
def _range(cu_rows, cu_others, n_rows, n_others, S, before, after, SHORT: tl.constexpr, ROWS: tl.constexpr):
    """The rows of this program, and the visible rows on the other side.

    Returns the rows; whether each is in a short sequence; whether it is written (short, or in slack); its first visible
    row of the other side, and their number. All are 64-bit: where Triton widens a tensor, it converts its layout, and
    here that is outside of loops.
    """
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    sequence, start, end = locate(cu_rows, S, n_rows, row)
    other_start, other_end = bounds(cu_others, S, n_others, sequence)
    length, other_length = end - start, other_end - other_start
    short = (sequence < S) & (length <= SHORT) & (other_length <= SHORT)
    own = short | ((sequence == S) & (row < n_rows))
    low, high = visible(row - start, length, other_length, before, after)
    return row, short, own, other_start.to(tl.int64) + low, tl.where(short, high - low, 0).to(tl.int64)


@triton.jit
def _raw(product, cap_scale):
    if cap_scale > 0:
        product = tanh(product * cap_scale)
    return product


@triton.jit
def _slope(raw, cap_scale):
    return tl.where(cap_scale > 0, 1.0 - raw * raw, 1.0)


@triton.jit(do_not_specialize=NEVER_ALIGNED)
def _attention_fwd_short_kernel(
    q, k, v, sinks, cu_seqlens, cu_keys, unlisted, y, lse, T, U, S, H, HK, K, V,
    q_stride, q_head, k_stride, k_head, v_stride, v_head, left, right, scale, cap_scale, has_sinks,
    SHORT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    if tl.load(unlisted) == 0:
        return
    row, short, own, first, count = _range(cu_seqlens, cu_keys, T, U, S, left, right, SHORT, ROWS)
    if tl.max(own.to(tl.int32), 0) == 0:
        return
    column, most = tl.arange(0, BLOCK), tl.max(count.to(tl.int32), 0)
    of_key, of_value = _places(first, k_stride, column), _places(first, v_stride, column)
    of_k, of_v = (column < K)[None, :], (column < V)[None, :]
    queries, of_row = q + _places(row, q_stride, column), short[:, None] & of_k
    ahead = tl.load(queries, mask=of_row, other=0.0)
    for head in range(0, H):
        query = ahead.to(tl.float32)
        queries += q_head
        ahead = tl.load(queries, mask=of_row & (head + 1 < H), other=0.0)
        kv_head = head // (H // HK)
        keys, values = k + kv_head * k_head.to(tl.int64), v + kv_head * v_head.to(tl.int64)
        top = tl.full((ROWS,), float("-inf"), tl.float32)
        if has_sinks != 0:
            top = tl.zeros((ROWS,), tl.float32) + tl.load(sinks + head).to(tl.float32) * LOG2_E
        total = tl.full((ROWS,), 1.0, tl.float32)  # rescaled to 0 where there is no sink
        acc = tl.zeros((ROWS, BLOCK), tl.float32)
        for step in range(0, most):
            alive = count > step
            key = _rows(keys + step * k_stride.to(tl.int64), of_key, alive[:, None] & of_k)
            value = _rows(values + step * v_stride.to(tl.int64), of_value, alive[:, None] & of_v)
            logit = tl.where(alive, _raw(tl.sum(query * key, 1), cap_scale) * scale, float("-inf"))
            new = tl.maximum(top, logit)
            shown = tl.where(new == float("-inf"), 0.0, new)
            weight, fade = tl.exp2(logit - shown), tl.exp2(top - shown)
            top, total, acc = new, total * fade + weight, acc * fade[:, None] + weight[:, None] * value
        acc = tl.where((total > 0)[:, None], acc * (1.0 / total)[:, None], 0.0)
        _store_rows(y + head * V, acc, _places(row, H * V, column), own[:, None] & of_v)
        tl.store(lse + T.to(tl.int64) * head + row, top * LN_2 + tl.log(total), mask=short)


@triton.jit(do_not_specialize=NEVER_ALIGNED)
def _attention_bwd_q_short_kernel(
    q, k, v, dy, cu_seqlens, cu_keys, unlisted, lse, delta, dq, T, U, S, H, HK, K, V,
    q_stride, q_head, k_stride, k_head, v_stride, v_head, dy_stride, dy_head, left, right, scale, cap_scale, dq_factor,
    SHORT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    if tl.load(unlisted) == 0:
        return
    row, short, own, first, count = _range(cu_seqlens, cu_keys, T, U, S, left, right, SHORT, ROWS)
    if tl.max(own.to(tl.int32), 0) == 0:
        return
    column, most = tl.arange(0, BLOCK), tl.max(count.to(tl.int32), 0)
    of_key, of_value = _places(first, k_stride, column), _places(first, v_stride, column)
    of_k, of_v = (column < K)[None, :], (column < V)[None, :]
    for head in range(0, H):
        query = _rows(q + head * q_head.to(tl.int64), _places(row, q_stride, column), short[:, None] & of_k)
        of_incoming = _places(row, dy_stride, column)
        incoming = _rows(dy + head * dy_head.to(tl.int64), of_incoming, short[:, None] & of_v)
        at = T.to(tl.int64) * head + row
        log_sum = tl.load(lse + at, mask=short, other=0.0) * LOG2_E
        expected = tl.load(delta + at, mask=short, other=0.0)
        kv_head = head // (H // HK)
        keys, values = k + kv_head * k_head.to(tl.int64), v + kv_head * v_head.to(tl.int64)
        acc = tl.zeros((ROWS, BLOCK), tl.float32)
        for step in range(0, most):
            alive = count > step
            key = _rows(keys + step * k_stride.to(tl.int64), of_key, alive[:, None] & of_k)
            value = _rows(values + step * v_stride.to(tl.int64), of_value, alive[:, None] & of_v)
            raw = _raw(tl.sum(query * key, 1), cap_scale)
            gradient = tl.exp2(raw * scale - log_sum) * (tl.sum(incoming * value, 1) - expected)
            gradient = tl.where(alive, gradient * _slope(raw, cap_scale), 0.0)
            acc += gradient[:, None] * key
        _store_rows(dq + head * K, acc * dq_factor, _places(row, H * K, column), own[:, None] & of_k)


@triton.jit(do_not_specialize=NEVER_ALIGNED)
def _attention_bwd_kv_short_kernel(
    q, k, v, dy, cu_seqlens, cu_keys, unlisted, lse, delta, dk, dv, T, U, S, H, HK, K, V,
    q_stride, q_head, k_stride, k_head, v_stride, v_head, dy_stride, dy_head, left, right, scale, cap_scale,
    k_factor, SHORT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    if tl.load(unlisted) == 0:
        return
    row, short, own, first, count = _range(cu_keys, cu_seqlens, U, T, S, right, left, SHORT, ROWS)
    if tl.max(own.to(tl.int32), 0) == 0:
        return
    column, most = tl.arange(0, BLOCK), tl.max(count.to(tl.int32), 0)
    of_query, of_incoming = _places(first, q_stride, column), _places(first, dy_stride, column)
    of_k, of_v = (column < K)[None, :], (column < V)[None, :]
    for kv_head in range(0, HK):
        key = _rows(k + kv_head * k_head.to(tl.int64), _places(row, k_stride, column), short[:, None] & of_k)
        value = _rows(v + kv_head * v_head.to(tl.int64), _places(row, v_stride, column), short[:, None] & of_v)
        sum_k = tl.zeros((ROWS, BLOCK), tl.float32)
        sum_v = tl.zeros((ROWS, BLOCK), tl.float32)
        for head in range(kv_head * (H // HK), (kv_head + 1) * (H // HK)):
            queries, incomings = q + head * q_head.to(tl.int64), dy + head * dy_head.to(tl.int64)
            for step in range(0, most):
                alive = count > step
                query = _rows(queries + step * q_stride.to(tl.int64), of_query, alive[:, None] & of_k)
                incoming = _rows(incomings + step * dy_stride.to(tl.int64), of_incoming, alive[:, None] & of_v)
                at = T.to(tl.int64) * head + step + first
                log_sum = tl.load(lse + at, mask=alive, other=0.0) * LOG2_E
                expected = tl.load(delta + at, mask=alive, other=0.0)
                raw = _raw(tl.sum(query * key, 1), cap_scale)
                weight = tl.where(alive, tl.exp2(raw * scale - log_sum), 0.0)
                gradient = weight * (tl.sum(value * incoming, 1) - expected) * _slope(raw, cap_scale)
                sum_k += tl.where(alive, gradient, 0.0)[:, None] * query
                sum_v += weight[:, None] * incoming
        _store_rows(dk + kv_head * K, sum_k * k_factor, _places(row, HK * K, column), own[:, None] & of_k)
        _store_rows(dv + kv_head * V, sum_v, _places(row, HK * V, column), own[:, None] & of_v)
