"""Forward of causal_conv1d in Triton: the inputs of a tile of tokens and channels, y, and the final states.

An element depends on its own window alone, and its taps are added oldest first. So its bits cannot depend on the pack.
Taps before a sequence's first token come from its initial state, in the same order.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

import triton
import triton.language as tl

from packproof.kernels.launch import widen
from packproof.kernels.sequences import bounds, locate


@triton.jit
def tap_at(x, states, row, start, sequence, alive, d, D, W, x_stride):
    """The inputs at `row` of sequences with first token `start`, before it the initial state: [rows, BLOCK_D]."""
    channels = (d < D)[None, :]
    inside = (alive & (row >= start))[:, None] & channels
    value = tl.load(x + row[:, None] * x_stride + d[None, :], mask=inside, other=0.0)
    if states is not None:
        slot = row - start + (W - 1)
        before = (alive & (row < start) & (slot >= 0))[:, None] & channels
        offset = (sequence * D * (W - 1) + slot)[:, None] + (d * (W - 1))[None, :]
        value = tl.load(states + offset, mask=before, other=value)
    return widen(value)


@triton.jit
def weight_of(weight, d, j, D, W):
    """Tap j of the channels: [1, BLOCK_D]."""
    return widen(tl.load(weight + d * W + j, mask=d < D, other=0.0))[None, :]


@triton.jit
def pre_activation(x, weight, bias, states, t, start, sequence, alive, d, D, W, x_stride, has_bias):
    """bias + Σ_j weight[:, j] x[t - (w-1) + j], oldest tap first: [BLOCK_T, BLOCK_D]."""
    offset = widen(tl.load(bias + d, mask=(d < D) & (has_bias != 0), other=0.0))
    pre = tl.broadcast_to(offset[None, :], (t.shape[0], d.shape[0]))
    for j in range(W):
        value = tap_at(x, states, t - (W - 1) + j, start, sequence, alive, d, D, W, x_stride)
        pre += value * weight_of(weight, d, j, D, W)
    return pre


@triton.jit
def tile_of_program(D, BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr):
    """This program's tile, rows and channels, in int64. Channels vary fastest, so neighbours share rows of memory."""
    blocks = tl.cdiv(D, BLOCK_D)
    tile = tl.program_id(0) // blocks
    row = tile.to(tl.int64) * BLOCK_T + tl.arange(0, BLOCK_T)
    return tile, row, (tl.program_id(0) % blocks).to(tl.int64) * BLOCK_D + tl.arange(0, BLOCK_D)


@triton.jit
def state_rows(row, cu_seqlens, S, T, W):
    """Rows of the states (s, w-1): sequence, slot, first token, end and whether there is such a row."""
    sequence = row // (W - 1)
    start, end = bounds(cu_seqlens, S, T, sequence)
    return sequence, row % (W - 1), start, end, sequence < S


@triton.jit(do_not_specialize=["cu_seqlens", "T", "S", "W", "has_bias", "silu"])
def _causal_conv1d_fwd_kernel(
    x, weight, bias, states, cu_seqlens, y, T, S, D, W, x_stride, has_bias, silu,
    BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    _, t, d = tile_of_program(D, BLOCK_T, BLOCK_D)
    sequence, start, _ = locate(cu_seqlens, S, T, t)
    alive = sequence < S
    value = pre_activation(x, weight, bias, states, t, start, sequence, alive, d, D, W, x_stride, has_bias)
    if silu != 0:
        value *= tl.sigmoid(value)
    value = tl.where(alive[:, None], value, 0.0)
    tl.store(y + t[:, None] * D + d[None, :], value.to(y.dtype.element_ty), mask=(t < T)[:, None] & (d < D)[None, :])


@triton.jit(do_not_specialize=["x", "states", "final_states", "cu_seqlens", "T", "S", "D", "W", "x_stride"])
def _causal_conv1d_fwd_states_kernel(
    x, states, cu_seqlens, final_states, T, S, D, W, x_stride, BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr
):
    _, row, d = tile_of_program(D, BLOCK_T, BLOCK_D)
    sequence, slot, start, end, alive = state_rows(row, cu_seqlens, S, T, W)
    value = tap_at(x, states, end - (W - 1) + slot, start, sequence, alive, d, D, W, x_stride)
    offset = (sequence * D * (W - 1) + slot)[:, None] + (d * (W - 1))[None, :]
    mask = alive[:, None] & (d < D)[None, :]
    tl.store(final_states + offset, value.to(final_states.dtype.element_ty), mask=mask)
