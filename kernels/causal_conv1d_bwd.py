"""Backward of causal_conv1d in Triton.

With pre = bias + Σ_j weight[:, j] x[t - (w-1) + j] and g = dy act'(pre), for the positions q of a sequence and the
w-1 positions of its initial state before it:
    dx[q] = Σ_k g[q + k] weight[:, w-1-k]  (+ the gradient of the final state, where it holds q)
    dweight[:, j] = Σ_t g[t] x[t - (w-1) + j],   dbias = Σ_t g[t]
The sums over tokens are taken per tile and then over tiles, both in fixed order.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

import triton
import triton.language as tl

from packproof.kernels.causal_conv1d_fwd import pre_activation, state_rows, tap_at, tile_of_program, weight_of
from packproof.kernels.sequences import locate


@triton.jit
def _input_gradient(g, weight, dfinal, q, start, end, sequence, alive, d, D, W, g_stride, has_final):
    """dx at position q, possibly in the initial state: [rows, BLOCK_D]."""
    channels = (d < D)[None, :]
    dtype: tl.constexpr = tl.float64 if weight.dtype.element_ty == tl.float64 else tl.float32
    dx = tl.zeros((q.shape[0], d.shape[0]), dtype)
    for k in range(W):
        row = q + k
        inside = (alive & (row >= start) & (row < end))[:, None] & channels
        value = tl.load(g + row[:, None] * g_stride + d[None, :], mask=inside, other=0.0)
        dx += value.to(dtype) * weight_of(weight, d, W - 1 - k, D, W)
    if has_final != 0:
        slot = q - end + (W - 1)
        in_final_state = (alive & (slot >= 0))[:, None] & channels
        offset = (sequence * D * (W - 1) + slot)[:, None] + (d * (W - 1))[None, :]
        dx += tl.load(dfinal + offset, mask=in_final_state, other=0.0).to(dtype)
    return dx


@triton.jit(do_not_specialize=["cu_seqlens", "T", "S", "W", "has_bias", "silu"])
def _causal_conv1d_bwd_pre_activation_kernel(
    x, weight, bias, states, cu_seqlens, dy, g, partial, T, S, D, W, x_stride, dy_stride, has_bias, silu,
    BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """g = dy act'(pre), and this tile's part of dweight and dbias: partial (tiles, w+1, d), the bias last."""
    tile, t, d = tile_of_program(D, BLOCK_T, BLOCK_D)
    sequence, start, _ = locate(cu_seqlens, S, T, t)
    alive = sequence < S
    mask = alive[:, None] & (d < D)[None, :]
    value = tl.load(dy + t[:, None] * dy_stride + d[None, :], mask=mask, other=0.0).to(partial.dtype.element_ty)
    if silu != 0:
        pre = pre_activation(x, weight, bias, states, t, start, sequence, alive, d, D, W, x_stride, has_bias)
        gate = tl.sigmoid(pre)
        value = tl.where(mask, value * (gate * (1.0 + pre * (1.0 - gate))), 0.0)
        tl.store(g + t[:, None] * D + d[None, :], value, mask=mask)
    partial_pointers = partial + tile.to(tl.int64) * (W + 1) * D + d
    tl.store(partial_pointers + W * D, tl.sum(value, 0), mask=d < D)
    for j in range(W):
        tap = tap_at(x, states, t - (W - 1) + j, start, sequence, alive, d, D, W, x_stride)
        tl.store(partial_pointers + j * D, tl.sum(value * tap, 0), mask=d < D)


@triton.jit(do_not_specialize=["partial", "dweight", "dbias", "n_tiles", "D", "W"])
def _causal_conv1d_bwd_weight_kernel(
    partial, dweight, dbias, n_tiles, D, W, BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr
):
    """Sum the tiles' parts. Only their number decides the order."""
    tap, _, d = tile_of_program(D, 1, BLOCK_D)
    total = tl.zeros((BLOCK_T, BLOCK_D), partial.dtype.element_ty)
    for first_tile in range(0, n_tiles, BLOCK_T):
        tile = first_tile + tl.arange(0, BLOCK_T)
        partial_pointers = partial + (tile.to(tl.int64)[:, None] * (W + 1) + tap) * D + d[None, :]
        total += tl.load(partial_pointers, mask=(tile < n_tiles)[:, None] & (d < D)[None, :], other=0.0)
    value = tl.sum(total, 0)
    if tap < W:
        tl.store(dweight + d * W + tap, value.to(dweight.dtype.element_ty), mask=d < D)
    else:
        tl.store(dbias + d, value.to(dbias.dtype.element_ty), mask=d < D)


@triton.jit(do_not_specialize=["cu_seqlens", "T", "S", "W", "has_final"])
def _causal_conv1d_bwd_x_kernel(
    g, weight, dfinal, cu_seqlens, dx, T, S, D, W, g_stride, has_final, BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr
):
    _, t, d = tile_of_program(D, BLOCK_T, BLOCK_D)
    sequence, start, end = locate(cu_seqlens, S, T, t)
    value = _input_gradient(g, weight, dfinal, t, start, end, sequence, sequence < S, d, D, W, g_stride, has_final)
    tl.store(dx + t[:, None] * D + d[None, :], value.to(dx.dtype.element_ty), mask=(t < T)[:, None] & (d < D)[None, :])


@triton.jit(
    do_not_specialize=["g", "weight", "dfinal", "cu_seqlens", "dstates", "T", "S", "D", "W", "g_stride", "has_final"]
)
def _causal_conv1d_bwd_states_kernel(
    g, weight, dfinal, cu_seqlens, dstates, T, S, D, W, g_stride, has_final,
    BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    _, row, d = tile_of_program(D, BLOCK_T, BLOCK_D)
    sequence, slot, start, end, alive = state_rows(row, cu_seqlens, S, T, W)
    q = start - (W - 1) + slot
    value = _input_gradient(g, weight, dfinal, q, start, end, sequence, alive, d, D, W, g_stride, has_final)
    offset = (sequence * D * (W - 1) + slot)[:, None] + (d * (W - 1))[None, :]
    tl.store(dstates + offset, value.to(dstates.dtype.element_ty), mask=alive[:, None] & (d < D)[None, :])
