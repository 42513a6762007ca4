"""The forward kernels of the selective scan, and functions shared with its backward.

A thread owns a channel and keeps its states in registers: a tile is [BLOCK_N, BLOCK_D], channels last. States in
memory, and A, have tiles [BLOCK_N, TILE] (see tile_offsets). A sequence is cut into pieces of SIZE tokens from its
first token on. The state between two pieces crosses at a *boundary*. Any SIZE tokens of the pack have at most one
boundary, so the one at token b owns row b // SIZE - 1 of a table. With L = log2(e) A, a piece maps the state h to 2^(L
Σ Δ) h + (its end state from a zero state). So the pieces of a long sequence exchange only this end state and the sum of
Δ. A first kernel finds both (the chunk states). A second kernel combines them along each sequence (state passing). Then
every piece can be computed alone.

A program owns a window of the pack and takes all pieces with their first token in it. Its work is bounded by WINDOW +
SIZE tokens.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import triton
import triton.language as tl

from packproof.kernels.elementwise import clamp_rate, silu, softplus
from packproof.kernels.sequences import bounds

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def channel_block(program, D, G, width, CHANNELS: tl.constexpr):
    """A block of channels of one group.

    Its number in the group, the group, its first channel, the group's end, and its column in rows of `width` columns.
    There groups are padded to whole tiles.
    """
    per_group = D // G
    blocks = tl.cdiv(per_group, CHANNELS)
    group = program % (blocks * G) // blocks
    block = program % blocks
    first_in_group = block * CHANNELS
    return (
        block,
        group,
        group * per_group + first_in_group,
        (group + 1) * per_group,
        group * (width // G) + first_in_group,
    )


@triton.jit
def tile_offsets(BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, TILE: tl.constexpr):
    """Offsets of the states of BLOCK_D channels from the first one: [BLOCK_N, BLOCK_D], constants."""
    n, j = tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_D)
    return (n * TILE)[:, None] + (j // TILE * (BLOCK_N * TILE) + j % TILE)[None, :]


@triton.jit
def sequence_at(cu_seqlens, S, t):
    """The last sequence with its start at token t or before it."""
    sequence = 0
    span = S - 1
    while span > 0:
        step = (span + 1) // 2
        sequence = tl.where(tl.load(cu_seqlens + sequence + step) <= t, sequence + step, sequence)
        span = span // 2
    return sequence


@triton.jit
def first_piece(cu_seqlens, S, T, t, SIZE: tl.constexpr):
    """The first piece with its start at token t or later: its sequence and its first token."""
    sequence = sequence_at(cu_seqlens, S, t)
    start, end = bounds(cu_seqlens, S, T, sequence)
    begin = tl.minimum(start + tl.cdiv(tl.maximum(t - start, 0), SIZE) * SIZE, end)
    return sequence + ((begin == end) & (begin > start)).to(tl.int32), begin


@triton.jit
def load_row(x, stride, t, d, mask):
    """x[t] of the channels d, in its dtype. Loops load the rows of the next token before they use the current ones."""
    return tl.load(x + t * stride + d, mask=mask, other=0.0)


@triton.jit
def load_states(B, stride, t, n):
    """B[t]: [BLOCK_N, 1]."""
    return tl.load(B + t * stride + n)[:, None]


@triton.jit
def time_step(delta, bias, use_softplus):
    x = delta + bias
    return tl.where(use_softplus != 0, softplus(x), x)


@triton.jit
def accurate_exp2(x):
    """2^x.

    Near 1 the hardware's errors of 1 ULP have a common sign, and thousands of tokens would add them up. There a
    polynomial is used, rounded at its end, within 1.3e-7 of the exponent.
    """
    near = 1.0 + x * (0.69314714 + x * (0.24022650 + x * (0.055524946 + x * 0.0096211380)))
    return tl.where(tl.abs(x) < 0.125, near, tl.exp2(x))


@triton.jit
def entering_state(boundaries, initial, sequence, start, t, size, at, mask, has_initial, SIZE: tl.constexpr):
    """The state before the piece at t: [BLOCK_N, BLOCK_D].

    at: its offsets in a state of `size` elements.
    """
    h = tl.load(initial + sequence * size + at, mask=mask & (has_initial != 0) & (t == start), other=0.0)
    return tl.load(boundaries + (t // SIZE - 1) * size + at, mask=mask & (t > start), other=h)


@triton.jit(
    do_not_specialize=[
        "u", "delta", "A", "bias", "cu_seqlens", "ends", "sums", "T", "S", "D", "G", "N", "width",
        "u_stride", "delta_stride", "has_bias", "use_softplus", "keep_final",
    ]
)  # fmt: skip
def _selective_scan_fwd_chunk_state_kernel(
    u, delta, A, B, bias, cu_seqlens, ends, sums, T, S, D, G, N, width, n0, u_stride, delta_stride, B_stride, B_group,
    has_bias, use_softplus, keep_final, SIZE: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_N: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """The end state of each piece from a zero state, and its sum of Δ.

    Only for pieces before another piece, and for whole last pieces if final states are kept.
    """
    _, group, first_channel, end_of_group, column = channel_block(tl.program_id(0), D, G, width, BLOCK_D)
    d, n = first_channel + tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_N)
    channels = d < end_of_group
    window = tl.program_id(0) // (G * tl.cdiv(D // G, BLOCK_D))
    # of the pieces that begin in a window of SIZE tokens, only the last may have SIZE tokens
    sequence = sequence_at(cu_seqlens, S, window * SIZE + SIZE - 1)
    start, end = bounds(cu_seqlens, S, T, sequence)
    B += group * B_group + n0
    u_stride, delta_stride, B_stride = u_stride.to(tl.int64), delta_stride.to(tl.int64), B_stride.to(tl.int64)
    t = start + tl.maximum(window * SIZE + SIZE - 1 - start, 0) // SIZE * SIZE
    if (t >= window * SIZE) & ((t + SIZE < end) | ((t + SIZE == end) & (keep_final != 0))):
        at, columns = tile_offsets(BLOCK_N, BLOCK_D, TILE), column + tl.arange(0, BLOCK_D)
        tile, padded = n0 * width + column * BLOCK_N, columns < (group + 1) * (width // G)
        mask = padded[None, :]
        decay = clamp_rate(tl.load(A + tile + at, mask=mask, other=0.0) * LOG2E)
        offset = tl.load(bias + d, mask=channels & (has_bias != 0), other=0.0)
        h, total = tl.zeros((BLOCK_N, BLOCK_D), tl.float32), tl.zeros((BLOCK_D,), tl.float32)
        u_row, delta_row = load_row(u, u_stride, t, d, channels), load_row(delta, delta_stride, t, d, channels)
        for i in range(t, t + SIZE):
            B_row, next_t = load_states(B, B_stride, i, n), tl.minimum(i + 1, t + SIZE - 1)
            next_u, next_delta = (
                load_row(u, u_stride, next_t, d, channels),
                load_row(delta, delta_stride, next_t, d, channels),
            )
            step = time_step(delta_row, offset, use_softplus)
            h = accurate_exp2(decay * step[None, :]) * h + B_row * (step * u_row)[None, :]
            total += step
            u_row, delta_row = next_u, next_delta
        row = window.to(tl.int64)
        tl.store(ends + (row * N * width + tile) + at, h, mask=mask)
        tl.store(sums + row * width + columns, total, mask=padded)


@triton.jit
def state_elements(N, width, BLOCK: tl.constexpr, BLOCK_N: tl.constexpr, TILE: tl.constexpr):
    """BLOCK elements of the state of a sequence.

    The sequence, the elements, their columns, whether they exist, and the size of a state.
    """
    blocks = tl.cdiv(N * width, BLOCK)
    element = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    column = element // (BLOCK_N * TILE) % (width // TILE) * TILE + element % TILE
    return tl.program_id(0) // blocks, element, column, element < N * width, (N * width).to(tl.int64)


@triton.jit(
    do_not_specialize=[
        "A", "initial", "cu_seqlens", "ends", "sums", "final_states", "T", "S", "N", "width", "has_initial",
        "keep_final",
    ]
)  # fmt: skip
def _selective_scan_fwd_state_passing_kernel(
    A, initial, cu_seqlens, ends, sums, final_states, T, S, N, width, has_initial, keep_final, SIZE: tl.constexpr,
    BLOCK: tl.constexpr, BLOCK_N: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """End states become the states at the boundaries. The last one is the final state of a sequence of whole pieces."""
    sequence, element, column, mask, size = state_elements(N, width, BLOCK, BLOCK_N, TILE)
    start, end = bounds(cu_seqlens, S, T, sequence)
    is_multiple = (end - start) % SIZE == 0
    pieces = (end - start) // SIZE - (is_multiple & (end > start) & (keep_final == 0)).to(tl.int32)
    if (pieces > 0) | (is_multiple & (keep_final != 0)):
        decay = clamp_rate(tl.load(A + element, mask=mask, other=0.0) * LOG2E)
        h = tl.load(initial + sequence * size + element, mask=mask & (has_initial != 0), other=0.0)
        for i in range(0, pieces):
            row = (start // SIZE + i).to(tl.int64)
            total = tl.load(sums + row * width + column, mask=mask, other=0.0)
            h = accurate_exp2(decay * total) * h + tl.load(ends + row * size + element, mask=mask, other=0.0)
            tl.store(ends + row * size + element, h, mask=mask)
        if is_multiple & (keep_final != 0):
            tl.store(final_states + sequence * size + element, h, mask=mask)


@triton.jit(
    do_not_specialize=[
        "u", "delta", "A", "skip", "z", "bias", "initial", "boundaries", "cu_seqlens", "y", "partial", "final_states",
        "kept", "T", "S", "D", "G", "N", "width", "u_stride", "delta_stride", "z_stride", "has_skip", "has_z",
        "has_bias", "has_initial", "use_softplus", "keep_final", "keep_states",
    ]
)  # fmt: skip
def _selective_scan_fwd_kernel(
    u, delta, A, B, C, skip, z, bias, initial, boundaries, cu_seqlens, y, partial, final_states, kept, T, S, D, G, N,
    width, n0, u_stride, delta_stride, B_stride, B_group, C_stride, C_group, z_stride, has_skip, has_z, has_bias,
    has_initial, use_softplus, keep_final, keep_states, WINDOW: tl.constexpr, SIZE: tl.constexpr, KEEP: tl.constexpr,
    SPLIT: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """y of the states from n0 on. If BLOCK_N do not hold all, `partial` has the sum over the earlier ones.

    keep_states: store the state at every KEEP tokens of a sequence in `kept`, for backward.
    """
    _, group, first_channel, end_of_group, column = channel_block(tl.program_id(0), D, G, width, BLOCK_D)
    d, n = first_channel + tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_N)
    channels = d < end_of_group
    at, size, tile = tile_offsets(BLOCK_N, BLOCK_D, TILE), (N * width).to(tl.int64), n0 * width + column * BLOCK_N
    mask = (column + tl.arange(0, BLOCK_D) < (group + 1) * (width // G))[None, :]
    decay = clamp_rate(tl.load(A + tile + at, mask=mask, other=0.0) * LOG2E)
    direct = tl.load(skip + d, mask=channels & (has_skip != 0), other=0.0)
    offset = tl.load(bias + d, mask=channels & (has_bias != 0), other=0.0)
    B += group * B_group + n0
    C += group * C_group + n0
    u_stride, delta_stride, z_stride = u_stride.to(tl.int64), delta_stride.to(tl.int64), z_stride.to(tl.int64)
    B_stride, C_stride, y_stride = B_stride.to(tl.int64), C_stride.to(tl.int64), D.to(tl.int64)
    initial, boundaries, final_states, kept = initial + tile, boundaries + tile, final_states + tile, kept + tile
    gated = (has_z != 0) & (n0 + BLOCK_N >= N)
    begin = tl.program_id(0) // (G * tl.cdiv(D // G, BLOCK_D)) * WINDOW
    sequence, t = first_piece(cu_seqlens, S, T, begin, SIZE)
    while (t - begin < WINDOW) & (sequence < S):
        start, end = bounds(cu_seqlens, S, T, sequence)
        piece_end = tl.maximum(tl.minimum(t + SIZE, end), t)
        h = entering_state(boundaries, initial, sequence, start, t, size, at, mask, has_initial, SIZE)
        row = t.to(tl.int64)
        u_at, delta_at, z_at = u + row * u_stride + d, delta + row * delta_stride + d, z + row * z_stride + d
        y_at, partial_at = y + row * y_stride + d, partial + row * y_stride + d
        B_at, C_at = B + row * B_stride, C + row * C_stride
        load_mask = channels & (piece_end > t)
        u_row, delta_row = tl.load(u_at, mask=load_mask, other=0.0), tl.load(delta_at, mask=load_mask, other=0.0)
        z_row = tl.load(z_at, mask=load_mask & gated, other=0.0)
        for stretch_start in range(t, piece_end, KEEP):
            kept_pointers = kept + (stretch_start // KEEP - 1) * size + at
            tl.store(kept_pointers, h, mask=mask & (keep_states != 0) & (stretch_start > start))
            for i in range(stretch_start, tl.minimum(stretch_start + KEEP, piece_end)):
                B_row, C_row = tl.load(B_at + n)[:, None], tl.load(C_at + n)[:, None]
                u_at, delta_at, z_at = u_at + u_stride, delta_at + delta_stride, z_at + z_stride
                B_at, C_at = B_at + B_stride, C_at + C_stride
                next_mask = channels & (i + 1 < piece_end)
                next_u = tl.load(u_at, mask=next_mask, other=0.0)
                next_delta = tl.load(delta_at, mask=next_mask, other=0.0)
                next_z = tl.load(z_at, mask=next_mask & gated, other=0.0)
                step, u_here = time_step(delta_row, offset, use_softplus), u_row.to(tl.float32)
                h = accurate_exp2(decay * step[None, :]) * h + B_row * (step * u_here)[None, :]
                value = tl.sum(h * C_row, 0)
                if SPLIT:
                    value += tl.load(partial_at, mask=channels & (n0 > 0), other=0.0)
                    tl.store(partial_at, value, mask=channels & (n0 + BLOCK_N < N))
                    partial_at += y_stride
                value += direct * u_here
                value = tl.where(has_z != 0, value * silu(z_row.to(tl.float32)), value)
                tl.store(y_at, value.to(y.dtype.element_ty), mask=channels & (n0 + BLOCK_N >= N))
                y_at += y_stride
                u_row, delta_row, z_row = next_u, next_delta, next_z
        # a sequence of whole pieces gets its final state from state passing
        ends = (piece_end == end) & ((end - start) % SIZE != 0) & (piece_end > t) & (keep_final != 0)
        tl.store(final_states + sequence * size + at, h, mask=mask & ends)
        t = piece_end
        sequence += (end <= piece_end).to(tl.int32)
