"""The forward kernel of attention: an online softmax over the keys of one sequence (Dao 2023, algorithm 1).

A program takes a block of queries of one sequence and one head, and walks over their visible keys. Blocks of queries
and of keys start where the sequence starts, so no bit of it depends on the pack. Only tiles at the edges of the visible
range are masked, by selecting. Rows outside of the sequence are never read: a tile across its end is loaded row by row,
never by the tensor memory accelerator.

Scores are raw products q·k, or tanh(q·k / cap') under a softcap. Times `scale` they are logits in base 2. Weights of
fp16 are 2^15 times larger than usual before the division by their sum, so small weights are not lost.

Rounding y to bf16 has a relative error of 2^-7 / sqrt(12) times the root mean square of 1 / mantissa, 1.65e-3. Rounding
each weight adds as much, 2.3e-3 in all, except that the largest weight is 1, and exact. y is largest where queries see
few keys each. For such blocks of queries the tiles also add the remainders of rounded weights.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

import triton
import triton.language as tl

from packproof.kernels.blocks import block_count, load_block
from packproof.kernels.elementwise import tanh
from packproof.kernels.products import product

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit
def rows_of_head(tensor, first_row, n_rows, head, stride, head_stride, width):
    """The rows of one head of a sequence, for `load_tile`.

    A pointer to row 0, the number of rows, their stride and width; and the row and column of row 0 in a descriptor of
    the tensor.
    """
    pointer = tensor + (first_row.to(tl.int64) * stride + head.to(tl.int64) * head_stride)
    return pointer, n_rows, stride, width, first_row, (head * head_stride).to(tl.int32)


@triton.jit
def load_tile(rows, descriptor, first_row, channel, SIZE: tl.constexpr, WIDTH: tl.constexpr, RAGGED: tl.constexpr):
    """SIZE rows from `first_row` on, WIDTH channels from `channel` on; zero past the width, and past the last row if
    RAGGED.

    descriptor: for the tensor memory accelerator, or None. Other sequences follow the last row, so it reads whole tiles
    only.
    """
    pointer, n_rows, stride, width, token, head_column = rows
    if RAGGED or descriptor is None:
        row, column = tl.arange(0, SIZE), channel + tl.arange(0, WIDTH)
        mask = tl.broadcast_to((column < width)[None, :], (SIZE, WIDTH))
        if RAGGED:
            mask &= (first_row + row < n_rows)[:, None]
        base = pointer + stride.to(tl.int64) * first_row
        values = tl.load(base + (row[:, None] * stride + column[None, :]), mask=mask, other=0.0)
    else:
        values = descriptor.load([token + first_row, head_column])
    return values


@triton.jit
def store_tile(rows, first_row, value, SIZE: tl.constexpr, WIDTH: tl.constexpr):
    pointer, n_rows, stride, width, _, _ = rows
    row, column = tl.arange(0, SIZE), tl.arange(0, WIDTH)
    mask = (first_row + row < n_rows)[:, None] & (column < width)[None, :]
    base = pointer + stride.to(tl.int64) * first_row
    tl.store(base + (row[:, None] * stride + column[None, :]), value.to(pointer.dtype.element_ty), mask=mask)


@triton.jit
def add_weighted_values(weights, values, total):
    """total + weights @ values, with fp32 weights rounded to the dtype of the values. fp32 values keep 24 bits."""
    if values.dtype == tl.float32:
        total = product(weights, values, total, True)
    else:
        total = tl.dot(weights.to(values.dtype), values, total)
    return total


@triton.jit
def dot_transposed(a, a_rows, a_start, b, b_rows, b_start, WIDTH: tl.constexpr, CHANNELS: tl.constexpr):
    """a @ bᵀ, of tiles of rows.

    fp32 rows are loaded again, CHANNELS at a time: split into bf16 parts, whole tiles would take too many registers.
    """
    A_SIZE: tl.constexpr = a.shape[0]
    B_SIZE: tl.constexpr = b.shape[0]
    total = tl.zeros((A_SIZE, B_SIZE), tl.float32)
    if a.dtype == tl.float32:
        for channel in range(0, WIDTH, CHANNELS):
            a_part = load_tile(a_rows, None, a_start, channel, A_SIZE, CHANNELS, True)
            b_part = load_tile(b_rows, None, b_start, channel, B_SIZE, CHANNELS, True)
            total = product(a_part, tl.trans(b_part), total, True)
    else:
        total = tl.dot(a, tl.trans(b), total)
    return total


@triton.jit
def raw_scores(qk, cap_scale, SOFTCAP: tl.constexpr):
    return tanh(qk * cap_scale) if SOFTCAP else qk


@triton.jit
def visible_range(row, n_rows, n_others, window_left, window_right):
    """The range of keys visible to a query, by position in their sequence: first, and one past the last.

    The last query stands at the last key.
    window_left, window_right: how far a query sees, below 0 for no limit. Swapped, they give the range of queries that
    see a key.
    """
    position = row.to(tl.int64) + (n_others - n_rows)
    low = tl.where(window_left < 0, 0, position - window_left)
    high = tl.where(window_right < 0, n_others, position + window_right + 1)
    low, high = tl.minimum(tl.maximum(low, 0), n_others), tl.minimum(tl.maximum(high, 0), n_others)
    return low.to(tl.int32), high.to(tl.int32)


@triton.jit
def tile_range(first_row, last_row, n_rows, n_others, window_left, window_right, SIZE: tl.constexpr):
    """The tiles of keys visible to rows from `first_row` to `last_row` (or of queries that see these keys).

    Returns the start of the first tile, the start and end of tiles visible to all of these rows, and the number of
    tiles at both edges.
    """
    low, whole_end = visible_range(first_row, n_rows, n_others, window_left, window_right)
    whole_start, end = visible_range(last_row, n_rows, n_others, window_left, window_right)
    begin, whole_start = low // SIZE * SIZE, tl.minimum(tl.cdiv(whole_start, SIZE) * SIZE, end)
    whole_end = tl.maximum(whole_end // SIZE * SIZE, whole_start)
    return begin, whole_start, whole_end, tl.cdiv(whole_start - begin, SIZE) + tl.cdiv(end - whole_end, SIZE)


@triton.jit
def edge_tile_start(index, begin, whole_start, whole_end, SIZE: tl.constexpr):
    """The start of a tile at an edge."""
    start = begin + index * SIZE
    return tl.where(start < whole_start, start, start + (whole_end - whole_start))


@triton.jit
def _fold_keys(
    q, query_rows, query, k_tiles, v_tiles, key_rows, value_rows, key, low, high, is_masked, row_max, row_sum, acc,
    scale, cap_scale, SOFTCAP: tl.constexpr, RAGGED: tl.constexpr, OFFSET: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """The running maximum of logits, sum of weights and sum of weighted values, after one more tile of keys.

    is_masked: whether some query does not see the whole tile.
    RAGGED: whether it may go past the end of the sequence. Then the remainders of rounded weights are added too.
    """
    keys = load_tile(key_rows, k_tiles, key, 0, BLOCK_N, BLOCK_K, RAGGED)
    values = load_tile(value_rows, v_tiles, key, 0, BLOCK_N, BLOCK_V, RAGGED)
    raw = raw_scores(dot_transposed(q, query_rows, query, keys, key_rows, key, BLOCK_K, CHANNELS), cap_scale, SOFTCAP)
    if is_masked:
        j = key + tl.arange(0, BLOCK_N)[None, :]
        raw = tl.where((j >= low[:, None]) & (j < high[:, None]), raw, float("-inf"))
    new_max = tl.maximum(row_max, tl.max(raw, 1) * scale)
    finite_max = tl.where(new_max == float("-inf"), 0.0, new_max)
    weights = tl.exp2(raw * scale - (finite_max - OFFSET)[:, None])
    rescale = tl.exp2(row_max - finite_max)
    acc = add_weighted_values(weights, values, acc * rescale[:, None])
    if RAGGED and values.dtype != tl.float32:
        acc = add_weighted_values(weights - weights.to(values.dtype), values, acc)
    return new_max, row_sum * rescale + tl.sum(weights, 1), acc


NEVER_ALIGNED = [
    *("sinks", "dlse", "cu_seqlens", "cu_keys", "unlisted"),
    *("T", "U", "S", "H", "HK", "left", "right", "few", "has_sinks"),
]


@triton.jit
def _attend_block(
    index, head, q, k, v, k_tiles, v_tiles, sinks, blocks, y, lse, T, H, HK, K, V,
    q_stride, q_head, k_stride, k_head, v_stride, v_head, window_left, window_right, few, scale, cap_scale, has_sinks,
    SOFTCAP: tl.constexpr, OFFSET: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """y and lse of one block of queries of one head.

    Tiles of keys come in two loops: whole ones, then those that may go past the end of the sequence (ragged).

    few: with up to so many visible keys for each query all tiles are in the second loop, for its exact weights.
    """
    start, end, key_start, key_end, first_row = load_block(blocks, index)
    n_queries, n_keys, first_row = end - start, key_end - key_start, first_row - start
    query_rows = rows_of_head(q, start, n_queries, head, q_stride, q_head, K)
    key_rows = rows_of_head(k, key_start, n_keys, head // (H // HK), k_stride, k_head, K)
    value_rows = rows_of_head(v, key_start, n_keys, head // (H // HK), v_stride, v_head, V)
    queries = load_tile(query_rows, None, first_row, 0, BLOCK_M, BLOCK_K, True)
    query = first_row + tl.arange(0, BLOCK_M)
    low, high = visible_range(query, n_queries, n_keys, window_left, window_right)
    last_row = tl.minimum(first_row + BLOCK_M, n_queries) - 1
    begin, whole_start, whole_end, n_edge_tiles = tile_range(
        first_row, last_row, n_queries, n_keys, window_left, window_right, BLOCK_N
    )
    # one past the last tile: tiles from whole_start to whole_end need no mask, those at the edges do
    key_stop = begin + n_edge_tiles * BLOCK_N + (whole_end - whole_start)
    ragged_start = tl.where(tl.max(high - low, 0) <= few, begin, tl.minimum(key_stop, n_keys // BLOCK_N * BLOCK_N))

    row_max = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    if has_sinks != 0:  # a key of value 0
        row_max = tl.zeros((BLOCK_M,), tl.float32) + tl.load(sinks + head).to(tl.float32) * LOG2_E
    row_sum = tl.exp2(tl.zeros((BLOCK_M,), tl.float32) + OFFSET)  # rescaled to 0 where there is no sink
    acc = tl.zeros((BLOCK_M, BLOCK_V), tl.float32)
    for key in tl.range(begin, ragged_start, BLOCK_N):
        is_masked = (key < whole_start) | (key >= whole_end)
        row_max, row_sum, acc = _fold_keys(
            queries, query_rows, first_row, k_tiles, v_tiles, key_rows, value_rows, key, low, high, is_masked, row_max,
            row_sum, acc, scale, cap_scale, SOFTCAP, False, OFFSET, BLOCK_N, BLOCK_K, BLOCK_V, CHANNELS,
        )  # fmt: skip
    for key in tl.range(ragged_start, key_stop, BLOCK_N):
        row_max, row_sum, acc = _fold_keys(
            queries, query_rows, first_row, k_tiles, v_tiles, key_rows, value_rows, key, low, high, True, row_max,
            row_sum, acc, scale, cap_scale, SOFTCAP, True, OFFSET, BLOCK_N, BLOCK_K, BLOCK_V, CHANNELS,
        )  # fmt: skip
    acc = tl.where((row_sum > 0)[:, None], acc * (1.0 / row_sum)[:, None], 0.0)
    store_tile(rows_of_head(y, start, n_queries, head, H * V, V, V), first_row, acc, BLOCK_M, BLOCK_V)
    query_offset = head.to(tl.int64) * T + start + query
    tl.store(lse + query_offset, (row_max - OFFSET) * LN_2 + tl.log(row_sum), mask=query < n_queries)


@triton.jit(do_not_specialize=NEVER_ALIGNED)
def _attention_fwd_kernel(
    q, k, v, k_tiles, v_tiles, sinks, blocks, y, lse, T, H, HK, K, V,
    q_stride, q_head, k_stride, k_head, v_stride, v_head, left, right, few, scale, cap_scale, has_sinks,
    SEVERAL: tl.constexpr, SOFTCAP: tl.constexpr, OFFSET: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """y (t, h, v), and lse (h, t), natural.

    SEVERAL: a program takes blocks one after another, otherwise at most one.
    """
    item = tl.program_id(0)
    n_items = block_count(blocks, item // H) * H
    if SEVERAL:
        for work_item in tl.range(item, n_items, tl.num_programs(0), disable_licm=True):
            _attend_block(
                work_item // H, work_item % H, q, k, v, k_tiles, v_tiles, sinks, blocks, y, lse, T, H, HK, K, V,
                q_stride, q_head, k_stride, k_head, v_stride, v_head, left, right, few, scale, cap_scale, has_sinks,
                SOFTCAP, OFFSET, BLOCK_M, BLOCK_N, BLOCK_K, BLOCK_V, CHANNELS,
            )  # fmt: skip
    elif item < n_items:
        _attend_block(
            item // H, item % H, q, k, v, k_tiles, v_tiles, sinks, blocks, y, lse, T, H, HK, K, V,
            q_stride, q_head, k_stride, k_head, v_stride, v_head, left, right, few, scale, cap_scale, has_sinks,
            SOFTCAP, OFFSET, BLOCK_M, BLOCK_N, BLOCK_K, BLOCK_V, CHANNELS,
        )  # fmt: skip
