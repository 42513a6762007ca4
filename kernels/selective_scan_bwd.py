"""The backward kernels of the selective scan.

With dh the gradient of a token's state, λ the gradient of the state before it, and g = dy silu(z), from the last token
to the first:
    dh = λ(next) + g C,   λ = a dh,   a = 2^(Δ L),   w = λ h(before)
    dC = Σ_d g h,   dB = Σ_d Δ u dh,   dΔ = Σ_n (u B dh + A w),   du = Δ Σ_n B dh + D g,   dA = Σ_t Δ w
A first kernel finds the contribution of a piece to λ at its start, Σ_t (a_first ... a_t) g_t C_t (the chunk states). A
second kernel carries λ along the sequences (state passing). Then every piece can be computed alone, in stretches from
the last to the first. Forward kept the state before each stretch; the states inside are recomputed from there. A few of
them are kept in scratch, those of the last few tokens in registers. The sums over channels leave as one part per block
of channels, the sums over tokens as one part per window.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, disable-error-code="assignment"

import triton
import triton.language as tl

from packproof.kernels.elementwise import clamp_rate, sigmoid, silu, silu_derivative
from packproof.kernels.selective_scan_fwd import (
    LOG2E,
    accurate_exp2,
    channel_block,
    entering_state,
    first_piece,
    load_row,
    load_states,
    sequence_at,
    state_elements,
    tile_offsets,
    time_step,
)
from packproof.kernels.sequences import bounds

LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def _gradient_before_gate(dy, z, has_z):
    """The gradient before the gate."""
    dy = dy.to(tl.float32)
    return tl.where(has_z != 0, dy * silu(z.to(tl.float32)), dy)


@triton.jit(
    do_not_specialize=[
        "delta", "A", "z", "bias", "dy", "cu_seqlens", "backs", "sums", "T", "S", "D", "G", "N", "width",
        "delta_stride", "z_stride", "dy_stride", "has_z", "has_bias", "use_softplus",
    ]
)  # fmt: skip
def _selective_scan_bwd_chunk_state_kernel(
    delta, A, C, z, bias, dy, cu_seqlens, backs, sums, T, S, D, G, N, width, n0, delta_stride, C_stride, C_group,
    z_stride, dy_stride, has_z, has_bias, use_softplus,
    SIZE: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """λ before each piece after the first one, from a λ of zero after it, and the sum of Δ of the piece."""
    _, group, first_channel, end_of_group, column = channel_block(tl.program_id(0), D, G, width, BLOCK_D)
    d, n = first_channel + tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_N)
    channels = d < end_of_group
    row = tl.program_id(0) // (G * tl.cdiv(D // G, BLOCK_D))
    # the boundary of a row, if any, is at (row + 1) * SIZE or later, in the sequence of the token before that
    start, end = bounds(cu_seqlens, S, T, sequence_at(cu_seqlens, S, row * SIZE + SIZE - 1))
    t = start + tl.cdiv(row * SIZE + SIZE - start, SIZE) * SIZE
    C += group * C_group + n0
    delta_stride, z_stride = delta_stride.to(tl.int64), z_stride.to(tl.int64)
    C_stride, dy_stride = C_stride.to(tl.int64), dy_stride.to(tl.int64)
    if t < end:
        at, columns = tile_offsets(BLOCK_N, BLOCK_D, TILE), column + tl.arange(0, BLOCK_D)
        tile, padded = n0 * width + column * BLOCK_N, columns < (group + 1) * (width // G)
        mask, gated = padded[None, :], channels & (has_z != 0)
        decay = clamp_rate(tl.load(A + tile + at, mask=mask, other=0.0) * LOG2E)
        offset = tl.load(bias + d, mask=channels & (has_bias != 0), other=0.0)
        back, total = tl.zeros((BLOCK_N, BLOCK_D), tl.float32), tl.zeros((BLOCK_D,), tl.float32)
        piece_end = tl.minimum(t + SIZE, end)
        delta_row, z_row = load_row(delta, delta_stride, t, d, channels), load_row(z, z_stride, t, d, gated)
        dy_row = load_row(dy, dy_stride, t, d, channels)
        for i in range(t, piece_end):
            C_row, next_t = load_states(C, C_stride, i, n), tl.minimum(i + 1, piece_end - 1)
            next_delta = load_row(delta, delta_stride, next_t, d, channels)
            next_z, next_dy = load_row(z, z_stride, next_t, d, gated), load_row(dy, dy_stride, next_t, d, channels)
            total += time_step(delta_row, offset, use_softplus)
            g = _gradient_before_gate(dy_row, z_row, has_z)
            back += tl.exp2(decay * total[None, :]) * (C_row * g[None, :])
            delta_row, z_row, dy_row = next_delta, next_z, next_dy
        tl.store(backs + (row.to(tl.int64) * N * width + tile) + at, back, mask=mask)
        tl.store(sums + row.to(tl.int64) * width + columns, total, mask=padded)


@triton.jit(
    do_not_specialize=[
        "A", "dfinal", "cu_seqlens", "backs", "sums", "dinitial", "T", "S", "N", "width", "has_final", "has_initial",
    ]
)  # fmt: skip
def _selective_scan_bwd_state_passing_kernel(
    A, dfinal, cu_seqlens, backs, sums, dinitial, T, S, N, width, has_final, has_initial,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, BLOCK_N: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """λ of each piece alone becomes the gradient of the state before it, from the last piece to the first.

    An empty sequence has no piece, so the gradient of its state passes through.
    """
    sequence, element, column, mask, size = state_elements(N, width, BLOCK, BLOCK_N, TILE)
    start, end = bounds(cu_seqlens, S, T, sequence)
    boundaries = tl.maximum(end - start - 1, 0) // SIZE
    empty = (start == end) & (has_initial != 0)
    if (boundaries > 0) | empty:
        decay = clamp_rate(tl.load(A + element, mask=mask, other=0.0) * LOG2E)
        h = tl.load(dfinal + sequence * size + element, mask=mask & (has_final != 0), other=0.0)
        for i in range(0, boundaries):
            row = (start // SIZE + boundaries - 1 - i).to(tl.int64)
            total = tl.load(sums + row * width + column, mask=mask, other=0.0)
            h = accurate_exp2(decay * total) * h + tl.load(backs + row * size + element, mask=mask, other=0.0)
            tl.store(backs + row * size + element, h, mask=mask)
        tl.store(dinitial + sequence * size + element, h, mask=mask & empty)


@triton.jit
def _sum_channels(x):
    """Σ over the channels of [rows, channels]. Each halving moves rows to other threads for their sum."""
    for _ in tl.static_range(10):
        if x.shape[1] > 1:
            even, odd = tl.split(tl.reshape(x, (x.shape[0], x.shape[1] // 2, 2)))
            x = even + odd
    return tl.reshape(x, (x.shape[0],))


@triton.jit
def _load_rows(x, stride, t, end, d, mask, TOKENS: tl.constexpr):
    """Rows of TOKENS tokens. Past the end the last row is repeated."""
    rows = ()
    for k in tl.static_range(TOKENS):
        rows += (load_row(x, stride, tl.minimum(t + k, end - 1), d, mask),)
    return rows


@triton.jit
def _leaving_gradient(boundaries, dfinal, sequence, piece_end, end, size, at, mask, has_final, SIZE: tl.constexpr):
    """The gradient of the state after the piece with its end at `piece_end`: [BLOCK_N, BLOCK_D]. See entering_state."""
    back = tl.load(dfinal + sequence * size + at, mask=mask & (has_final != 0) & (piece_end == end), other=0.0)
    return tl.load(boundaries + (piece_end // SIZE - 1) * size + at, mask=mask & (piece_end < end), other=back)


@triton.jit
def _keep_states(
    h, scratch, u, delta, B, t, end, groups, u_stride, delta_stride, B_stride, d, channels, n, at, decay, bias,
    use_softplus, TOKENS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Keep the state before each group of TOKENS tokens."""
    load_mask = channels & (end > t)
    u_row, delta_row = load_row(u, u_stride, t, d, load_mask), load_row(delta, delta_stride, t, d, load_mask)
    for j in range(0, groups):
        tl.store(scratch + j * (BLOCK_N * BLOCK_D) + at, h)
        for k in tl.static_range(TOKENS):
            B_row = load_states(B, B_stride, tl.minimum(t + j * TOKENS + k, end - 1), n)
            next_t = tl.minimum(t + j * TOKENS + k + 1, end - 1)
            next_u, next_delta = (
                load_row(u, u_stride, next_t, d, channels),
                load_row(delta, delta_stride, next_t, d, channels),
            )
            step = time_step(delta_row, bias, use_softplus)
            h = tl.exp2(decay * step[None, :]) * h + B_row * (step * u_row)[None, :]
            u_row, delta_row = next_u, next_delta


@triton.jit
def _back_group(
    back, dA, dD, dbias, h, us, deltas, zs, dys, B, C, parts, partial, du, ddelta, dz, t, end, row_stride,
    part_stride, N, n0, B_stride, C_stride, d, channels, n, decay, skip, bias, has_z, use_softplus,
    TOKENS: tl.constexpr, SPLIT: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """The gradients of TOKENS tokens, last to first. Returns λ before them, and the sums dA, dD and dbias with theirs.

    The names are those of the formulas in this module. A launch has the states from n0 to n0 + BLOCK_N.

    back: λ, the gradient of the state after them: [BLOCK_N, BLOCK_D].
    h: the state before them: [BLOCK_N, BLOCK_D].
    us, deltas, zs, dys: a row [BLOCK_D] for each token.
    parts: dB and dC of this block of channels, stored in pairs.
    partial: sums over the states of earlier launches (t, 3, d), if SPLIT.
    """
    # forward: the states after each token, from the state before the first
    states, factors, steps = (h,), (), ()
    for k in tl.static_range(TOKENS):
        step = tl.where(t + k < end, time_step(deltas[k], bias, use_softplus), 0.0)
        a = tl.exp2(decay * step[None, :])
        B_row = load_states(B, B_stride, tl.minimum(t + k, end - 1), n)
        h = a * h + B_row * (step * us[k])[None, :]
        states += (h,)
        factors += (a,)
        steps += (step,)
    # backward; past the end the last row is read again, with a gradient of 0, and not stored
    for k in tl.static_range(TOKENS - 1, -1, -1):
        inside, row = t + k < end, tl.minimum(t + k, end - 1)
        part = parts + row * part_stride + tl.arange(0, 2 * BLOCK_N)
        B_row, C_row = load_states(B, B_stride, row, n), load_states(C, C_stride, row, n)
        step, u_here, z_here = steps[k], us[k].to(tl.float32), zs[k].to(tl.float32)
        g = tl.where(inside, _gradient_before_gate(dys[k], z_here, has_z), 0.0)
        dh = back + C_row * g[None, :]
        C_dot_h, B_dot_dh = tl.sum(states[k + 1] * C_row, 0), tl.sum(dh * B_row, 0)
        back = dh * factors[k]
        w = back * states[k]
        dA += w * step[None, :]
        A_dot_w = tl.sum(w * decay, 0) * LN2
        dB_dC = tl.join(dh * (step * u_here)[None, :], states[k + 1] * g[None, :])
        dB_dC = _sum_channels(tl.reshape(tl.permute(dB_dC, (0, 2, 1)), (2 * BLOCK_N, BLOCK_D)))
        tl.store(part, dB_dC, mask=inside)

        token_offsets, stored = row * row_stride + d, channels & inside
        load_mask, pass_mask, final_mask = stored & (n0 > 0), stored & (n0 + BLOCK_N < N), stored & (n0 + BLOCK_N >= N)
        if SPLIT:  # add the sums of earlier launches, and pass the new ones on to the next
            sums = partial + row * 3 * row_stride + d
            C_dot_h += tl.load(sums, mask=load_mask, other=0.0)
            B_dot_dh += tl.load(sums + row_stride, mask=load_mask, other=0.0)
            A_dot_w += tl.load(sums + 2 * row_stride, mask=load_mask, other=0.0)
            tl.store(sums, C_dot_h, mask=pass_mask)
            tl.store(sums + row_stride, B_dot_dh, mask=pass_mask)
            tl.store(sums + 2 * row_stride, A_dot_w, mask=pass_mask)
        dstep = B_dot_dh * u_here + A_dot_w
        dstep = tl.where(use_softplus != 0, dstep * sigmoid(deltas[k] + bias), dstep)
        dz_here = dys[k] * (C_dot_h + skip * u_here) * silu_derivative(z_here)
        tl.store(du + token_offsets, (B_dot_dh * step + skip * g).to(du.dtype.element_ty), mask=final_mask)
        tl.store(ddelta + token_offsets, dstep.to(ddelta.dtype.element_ty), mask=final_mask)
        tl.store(dz + token_offsets, dz_here.to(dz.dtype.element_ty), mask=final_mask & (has_z != 0))
        dD += g * u_here
        dbias += tl.where(inside, dstep, 0.0)
    return back, dA, dD, dbias


@triton.jit(
    do_not_specialize=[
        "u", "delta", "A", "skip", "z", "bias", "initial", "dy", "dfinal", "cu_seqlens", "ends", "backs", "kept",
        "parts", "partial", "du", "ddelta", "dz", "dA", "dD", "dbias", "dinitial", "T", "S", "D", "G", "N", "width",
        "u_stride", "delta_stride", "z_stride", "dy_stride", "has_skip", "has_z", "has_bias", "has_initial",
        "has_final", "use_softplus",
    ]
)  # fmt: skip
def _selective_scan_bwd_kernel(
    u, delta, A, B, C, skip, z, bias, initial, dy, dfinal, cu_seqlens, ends, backs, kept, parts, partial, du, ddelta,
    dz, dA, dD, dbias, dinitial, T, S, D, G, N, width, n0, u_stride, delta_stride, B_stride, B_group, C_stride,
    C_group, z_stride, dy_stride, has_skip, has_z, has_bias, has_initial, has_final, use_softplus,
    WINDOW: tl.constexpr, SIZE: tl.constexpr, KEEP: tl.constexpr, TOKENS: tl.constexpr,
    SPLIT: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """All gradients of the tokens in a block of channels.

    A piece is processed from its last stretch of KEEP tokens to its first; `ends` has the kept state before each.
    """
    block, group, first_channel, end_of_group, column = channel_block(tl.program_id(0), D, G, width, BLOCK_D)
    window = tl.program_id(0) // (G * tl.cdiv(D // G, BLOCK_D))
    begin, size = window * WINDOW, (N * width).to(tl.int64)
    n, at = tl.arange(0, BLOCK_N), tile_offsets(BLOCK_N, BLOCK_D, TILE)
    kept += tl.program_id(0).to(tl.int64) * (KEEP // TOKENS * BLOCK_N * BLOCK_D)
    parts += ((block * T.to(tl.int64) * G + group) * N + n0) * 2
    B += group * B_group + n0
    C += group * C_group + n0
    u_stride, delta_stride, z_stride = u_stride.to(tl.int64), delta_stride.to(tl.int64), z_stride.to(tl.int64)
    B_stride, C_stride, dy_stride = B_stride.to(tl.int64), C_stride.to(tl.int64), dy_stride.to(tl.int64)
    row_stride, part_stride = D.to(tl.int64), (G * N * 2).to(tl.int64)
    d = first_channel + tl.arange(0, BLOCK_D)
    channels = d < end_of_group
    gated = channels & (has_z != 0)
    tile, columns = n0 * width + column * BLOCK_N, column + tl.arange(0, BLOCK_D)
    mask = (columns < (group + 1) * (width // G))[None, :]
    decay = clamp_rate(tl.load(A + tile + at, mask=mask, other=0.0) * LOG2E)
    direct = tl.load(skip + d, mask=channels & (has_skip != 0), other=0.0)
    offset = tl.load(bias + d, mask=channels & (has_bias != 0), other=0.0)
    sum_D, sum_bias = tl.zeros((BLOCK_D,), tl.float32), tl.zeros((BLOCK_D,), tl.float32)
    sum_A = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
    sequence, t = first_piece(cu_seqlens, S, T, begin, SIZE)
    while (t - begin < WINDOW) & (sequence < S):
        start, end = bounds(cu_seqlens, S, T, sequence)
        piece_end = tl.maximum(tl.minimum(t + SIZE, end), t)
        back = _leaving_gradient(backs + tile, dfinal + tile, sequence, piece_end, end, size, at, mask, has_final, SIZE)
        stretches = tl.cdiv(piece_end - t, KEEP)
        for stretch in tl.range(0, stretches, disable_licm=True):
            front = t + (stretches - 1 - stretch) * KEEP
            stop = tl.minimum(front + KEEP, piece_end)
            groups = tl.cdiv(stop - front, TOKENS)
            h = entering_state(ends + tile, initial + tile, sequence, start, front, size, at, mask, has_initial, KEEP)
            tl.debug_barrier()
            _keep_states(
                h, kept, u, delta, B, front, stop, groups, u_stride, delta_stride, B_stride, d, channels, n, at,
                decay, offset, use_softplus, TOKENS, BLOCK_N, BLOCK_D,
            )  # fmt: skip
            tl.debug_barrier()
            i = front + (groups - 1) * TOKENS
            zs = _load_rows(z, z_stride, i, stop, d, gated, TOKENS)
            dys = _load_rows(dy, dy_stride, i, stop, d, channels, TOKENS)
            for j in range(0, groups):
                i = front + (groups - 1 - j) * TOKENS
                next_i = tl.maximum(i - TOKENS, front)
                h = tl.load(kept + (groups - 1 - j) * (BLOCK_N * BLOCK_D) + at)
                us = _load_rows(u, u_stride, i, stop, d, channels, TOKENS)  # in cache since the states were recomputed
                deltas = _load_rows(delta, delta_stride, i, stop, d, channels, TOKENS)
                next_zs = _load_rows(z, z_stride, next_i, stop, d, gated, TOKENS)
                next_dys = _load_rows(dy, dy_stride, next_i, stop, d, channels, TOKENS)
                back, sum_A, sum_D, sum_bias = _back_group(
                    back, sum_A, sum_D, sum_bias, h, us, deltas, zs, dys, B, C, parts, partial, du, ddelta, dz, i,
                    stop, row_stride, part_stride, N, n0, B_stride, C_stride, d, channels, n, decay, direct, offset,
                    has_z, use_softplus, TOKENS, SPLIT, BLOCK_N, BLOCK_D,
                )  # fmt: skip
                zs, dys = next_zs, next_dys
        begins = mask & (t == start) & (piece_end > t) & (has_initial != 0)
        tl.store(dinitial + (sequence * size + tile) + at, back, mask=begins)
        t = piece_end
        sequence += (end <= piece_end).to(tl.int32)
    row = window.to(tl.int64)
    tl.store(dA + (row * size + tile) + at, sum_A, mask=mask)
    tl.store(dD + row * D + d, sum_D, mask=channels & (n0 == 0))
    tl.store(dbias + row * D + d, sum_bias, mask=channels & (n0 + BLOCK_N >= N))


@triton.jit(do_not_specialize=["parts", "dB", "dC", "cu_seqlens", "T", "S", "n_parts", "width"])
def _selective_scan_bwd_reduce_kernel(parts, dB, dC, cu_seqlens, T, S, n_parts, width, BLOCK: tl.constexpr):
    """dB and dC (t, width): the sum of the parts, in the order of the channels; zero outside the sequences."""
    size = T.to(tl.int64) * width
    element = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    row = element // width
    in_sequence = (row >= tl.load(cu_seqlens)) & (row < tl.load(cu_seqlens + S))
    both = element[:, None] * 2 + tl.arange(0, 2)[None, :]
    total = tl.zeros((BLOCK, 2), tl.float32)
    for i in range(0, n_parts):
        total += tl.load(parts + i * size * 2 + both, mask=in_sequence[:, None], other=0.0)
    of_B, of_C = tl.split(total)
    tl.store(dB + element, of_B.to(dB.dtype.element_ty), mask=element < size)
    tl.store(dC + element, of_C.to(dC.dtype.element_ty), mask=element < size)
