"""The forward kernels of SSD: time steps, states, outputs.

A sequence is cut into chunks, and into segments of several chunks, both counted from its own start. Inside a chunk SSD
is masked attention, y = (L ∘ C Bᵀ)(Δ x) with L[i, j] = exp(a_i - a_j), a the cumulative sum of Δ A. Between chunks it
is the recurrence of a state, carried through a segment on chip by one program (Dao & Gu 2024, section 6). From segment
to segment the state passes through memory:
    entering[k + 1] = exp(Σ Δ A) entering[k] + local[k]
local[k] is the state at the end of segment k from a zero state. Only sequences of several segments need this.

The kernels are named after the steps of Mamba-2. `_ssd_fwd_chunk_cumsum_kernel` finds Δ and its cumulative sum in a
chunk, `_ssd_fwd_chunk_state_kernel` local[k], `_ssd_fwd_state_passing_kernel` the recurrence above. If registers hold a
block of a state next to the outputs of a chunk, `_ssd_fwd_fused_chunk_scan_kernel` finds y and carries the state
itself, and no other state reaches memory. Otherwise `_ssd_fwd_chunk_state_kernel` runs again and stores the states
between chunks, and `_ssd_fwd_chunk_scan_kernel` reads them, chunk by chunk.

Linear attention is the same with values x, keys B, queries C, a step of 1 and a log-decay of its own. Its `scale`
multiplies C wherever C is read, in fp32. SSD's is 1.

Log-decays are in base 2: the sum of Δ A / log 2 from the start of the chunk, in fp64, kept in two fp32 parts. So their
differences have the precision of fp32. The magnitude of a summand is limited (see `elementwise`).
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

import triton
import triton.language as tl

from packproof.kernels.elementwise import clamp_log_decay, silu, softplus
from packproof.kernels.products import product
from packproof.kernels.sequences import locate
from packproof.kernels.worklists import load_item

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def load_tile(pointer, row, alive, stride, column, width):
    """Rows of a token tensor from `pointer` on, as an operand; zero where there is no token: [rows, columns]."""
    mask = alive[:, None] & (column < width)[None, :]
    return tl.load(pointer + row[:, None] * stride + column[None, :], mask=mask, other=0.0)


@triton.jit
def load_state(pointer, p, P, n, N):
    """A state: [rows p, columns n]."""
    return tl.load(pointer + p[:, None] * N + n[None, :], mask=(p < P)[:, None] & (n < N)[None, :], other=0.0)


@triton.jit
def store_state(pointer, value, p, P, n, N):
    mask = (p < P)[:, None] & (n < N)[None, :]
    tl.store(pointer + p[:, None] * N + n[None, :], value.to(pointer.dtype.element_ty), mask=mask)


@triton.jit
def state_offset(sequence_or_boundary, head, H, size):
    """The offset of the state of a sequence, or at a boundary between chunks or segments."""
    return (sequence_or_boundary.to(tl.int64) * H + head) * size


@triton.jit
def entering_pointer(entering, ends, sequence, start, segment_start, head, H, size, SEGMENT: tl.constexpr):
    """A pointer to the state before a segment: in `entering` at the start of a sequence, elsewhere in `ends`."""
    inside = ends + state_offset(segment_start // SEGMENT, head, H, size)
    return tl.where(segment_start > start, inside, entering + state_offset(sequence, head, H, size))


@triton.jit
def head_range(block, H, G, HEADS: tl.constexpr):
    """A block of up to HEADS heads: its group, its first head and the one after its last."""
    per_group = H // G
    blocks_in_group = tl.cdiv(per_group, HEADS)
    group = block // blocks_in_group
    first_head = group * per_group + block % blocks_in_group * HEADS
    return group, first_head, tl.minimum(first_head + HEADS, (group + 1) * per_group)


@triton.jit
def decays(high, low, EXACT: tl.constexpr):
    """L[i, j] for j <= i: the remaining share of token j at token i. Arbitrary for j > i."""
    gap = high[:, None] - high[None, :]
    if EXACT:
        gap += low[:, None] - low[None, :]
    return tl.exp2(gap)


@triton.jit
def decay_to_end(high, low, base, row, alive, n_rows, EXACT: tl.constexpr):
    """exp(a_last - a_j) of the n_rows tokens of a chunk, with log-decays from `base` on; and exp(a_last)."""
    total = tl.load(high + base + n_rows - 1)
    gap = total - tl.load(high + base + row, mask=alive, other=0.0)
    if EXACT:
        gap += tl.load(low + base + n_rows - 1) - tl.load(low + base + row, mask=alive, other=0.0)
    return tl.exp2(tl.where(alive, gap, float("-inf"))), tl.exp2(total)


@triton.jit
def segment_decay(high, segment_start, segment_end, CHUNK: tl.constexpr, CHUNKS: tl.constexpr):
    """The decay over a segment, from the log-decays of one head at the ends of its chunks."""
    start = segment_start + tl.arange(0, CHUNKS) * CHUNK
    end = tl.minimum(start + CHUNK, segment_end)
    return tl.exp2(tl.sum(tl.load(high + end - 1, mask=start < segment_end, other=0.0), 0))


@triton.jit(do_not_specialize=["dt", "A", "bias", "T", "H", "dt_stride", "has_bias", "is_softplus", "unit_steps"])
def _ssd_fwd_chunk_cumsum_kernel(
    dt, A, bias, chunks, step, high, low, T, H, dt_stride, has_bias, is_softplus, unit_steps,
    ROWS: tl.constexpr, BLOCK_H: tl.constexpr,
):  # fmt: skip
    """The time steps Δ and the log-decays since the start of the chunk, of up to ROWS tokens, head by head: (h, t).

    unit_steps: the steps are 1, and dt A is the log-decay alone.
    """
    blocks = tl.cdiv(H, BLOCK_H)
    for index in tl.range(tl.program_id(0), tl.load(chunks) * blocks, tl.num_programs(0), disable_licm=True):
        _, _, _, chunk_start, chunk_end = load_item(chunks, index // blocks, ROWS)
        t = chunk_start.to(tl.int64) + tl.arange(0, ROWS)
        h = index % blocks * BLOCK_H + tl.arange(0, BLOCK_H)
        mask = (t < chunk_end)[:, None] & (h < H)[None, :]
        value = tl.load(dt + t[:, None] * dt_stride + h[None, :], mask=mask, other=0.0).to(tl.float32)
        if has_bias != 0:
            value += tl.load(bias + h, mask=h < H, other=0.0)[None, :]
        if is_softplus != 0:
            value = softplus(value)
        value = tl.where(mask, value, 0.0)
        rate = tl.load(A + h, mask=h < H, other=0.0).to(tl.float64) * LOG2_E
        decay = tl.cumsum(clamp_log_decay(value * rate[None, :]), 0)
        rounded = decay.to(tl.float32)
        at = h.to(tl.int64)[None, :] * T + t[:, None]
        tl.store(step + at, tl.where(unit_steps != 0, 1.0, value), mask=mask)
        tl.store(high + at, rounded, mask=mask)
        tl.store(low + at, decay - rounded, mask=mask)


@triton.jit(do_not_specialize=["scale", "T", "H", "G", "has_entering", "keep_final"])
def _ssd_fwd_chunk_state_kernel(
    x, B, step, high, low, scale, entering, segments, ends, finals, states, T, H, G, P, N,
    x_stride, x_head, B_stride, B_group, has_entering, keep_final,
    STORE_ALL: tl.constexpr, REVERSE: tl.constexpr, EXACT: tl.constexpr,
    CHUNK: tl.constexpr, CHUNKS: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Carry a block of a state through a segment: h = exp(Σ Δ A) h + Σ_j exp(a_last - a_j) Δ_j x_j B_jᵀ, by chunks.

    REVERSE: carry the gradient of a state from the last chunk to the first. x is dy, B is C, and the weight of a row is
    scale exp(a_i). `entering` (s, h, p, n) is then the gradient of the state at the end of the sequence.
    STORE_ALL: start from the state before the segment (in `ends`, after state passing) and store the state at each
    boundary b between chunks in states[b // CHUNK]. Otherwise start from zero and store the state at the end of the
    segment in ends[b // SEGMENT]. At the end of a sequence it goes to `finals` (s, h, p, n) instead; state passing
    completes it if there are several segments.
    """
    SEGMENT: tl.constexpr = CHUNK * CHUNKS
    blocks_n = tl.cdiv(N, BLOCK_N)
    blocks = tl.cdiv(P, BLOCK_P) * blocks_n
    size = (P * N).to(tl.int64)
    row = tl.arange(0, CHUNK)
    for index in tl.range(tl.program_id(0), tl.load(segments) * H * blocks, tl.num_programs(0), disable_licm=True):
        sequence, start, end, segment_start, segment_end = load_item(segments, index // (H * blocks), SEGMENT)
        head, block = index // blocks % H, index % blocks
        begins = segment_end >= end if REVERSE else segment_start <= start
        finishes = segment_start <= start if REVERSE else segment_end >= end
        p = block // blocks_n * BLOCK_P + tl.arange(0, BLOCK_P)
        n = block % blocks_n * BLOCK_N + tl.arange(0, BLOCK_N)
        at_end = state_offset(sequence, head, H, size)
        state = tl.zeros((BLOCK_P, BLOCK_N), tl.float32)
        n_chunks = tl.cdiv(segment_end - segment_start, CHUNK)
        if STORE_ALL:
            inside = ends + state_offset((segment_end if REVERSE else segment_start) // SEGMENT, head, H, size)
            valid_p = tl.where((begins == 0) | (has_entering != 0), p, P)
            state = load_state(tl.where(begins, entering + at_end, inside), valid_p, P, n, N)
        else:
            n_chunks = tl.where(finishes & (keep_final == 0), 0, n_chunks)
        at_head = T.to(tl.int64) * head
        x_head_0 = x + head * x_head
        B_head_0 = B + head // (H // G) * B_group
        for k in tl.range(n_chunks, disable_licm=True):
            chunk = segment_start + (n_chunks - 1 - k if REVERSE else k) * CHUNK
            stop = tl.minimum(chunk + CHUNK, segment_end)
            if STORE_ALL:
                boundary = stop if REVERSE else chunk
                if (boundary > start) & (boundary < end):
                    store_state(states + state_offset(boundary // CHUNK, head, H, size), state, p, P, n, N)
            alive = chunk + row < stop
            at = at_head + chunk + row
            weight, decay = decay_to_end(high, low, at_head + chunk, row, alive, stop - chunk, EXACT)
            if REVERSE:
                weight = scale * tl.exp2(tl.where(alive, tl.load(high + at, mask=alive, other=0.0), float("-inf")))
            else:
                weight *= tl.load(step + at, mask=alive, other=0.0)
            chunk_row = chunk.to(tl.int64)
            values = load_tile(x_head_0 + chunk_row * x_stride, row, alive, x_stride, p, P)
            keys = load_tile(B_head_0 + chunk_row * B_stride, row, alive, B_stride, n, N)
            state = product(tl.trans(values * weight[:, None]), keys, state * decay, EXACT)
        if not STORE_ALL:
            if not finishes:
                boundary = segment_start if REVERSE else segment_end
                store_state(ends + state_offset(boundary // SEGMENT, head, H, size), state, p, P, n, N)
            elif keep_final != 0:
                if begins & (has_entering != 0):
                    decay = segment_decay(high + at_head, segment_start, segment_end, CHUNK, CHUNKS)
                    state = tl.fma(tl.zeros_like(state) + decay, load_state(entering + at_end, p, P, n, N), state)
                store_state(finals + at_end, state, p, P, n, N)


@triton.jit(do_not_specialize=["cu_seqlens", "T", "S", "H", "size", "has_entering", "keep_final", "keep_ends"])
def _ssd_fwd_state_passing_kernel(
    high, entering, cu_seqlens, ends, finals, T, S, H, size, has_entering, keep_final, keep_ends,
    REVERSE: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Turn the states at the ends of segments from zero (`ends`) into the states between segments, and complete
    `finals`.

    keep_ends: store the former. One program per row of `ends`, head and block of the state. The program of a sequence's
    first boundary handles all boundaries of the sequence.
    """
    SEGMENT: tl.constexpr = CHUNK * CHUNKS
    blocks = tl.cdiv(size, BLOCK)
    slot, head = tl.program_id(0) // (H * blocks), tl.program_id(0) // blocks % H
    sequence, start, end = locate(cu_seqlens, S, T, tl.full((1,), slot * SEGMENT, tl.int64))
    sequence, start, end = tl.sum(sequence, 0), tl.sum(start, 0), tl.sum(end, 0)
    if (sequence == S) | ((start + SEGMENT) // SEGMENT != slot) | (start + SEGMENT >= end):
        return
    high += head.to(tl.int64) * T
    e = (tl.program_id(0) % blocks).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = e < size
    at_end = state_offset(sequence, head, H, size) + e
    state = tl.load(entering + at_end, mask=mask & (has_entering != 0), other=0.0)
    n_segments = tl.cdiv(end - start, SEGMENT)
    for index in range(n_segments):
        segment_start = start + (n_segments - 1 - index if REVERSE else index) * SEGMENT
        segment_end = tl.minimum(segment_start + SEGMENT, end)
        decay = tl.zeros((BLOCK,), tl.float32) + segment_decay(high, segment_start, segment_end, CHUNK, CHUNKS)
        if index + 1 < n_segments:
            at = state_offset((segment_start if REVERSE else segment_end) // SEGMENT, head, H, size) + e
            state = tl.fma(decay, state, tl.load(ends + at, mask=mask, other=0.0))
            tl.store(ends + at, state, mask=mask & (keep_ends != 0))
        elif keep_final != 0:
            state = tl.fma(decay, state, tl.load(finals + at_end, mask=mask, other=0.0))
            tl.store(finals + at_end, state, mask=mask)


@triton.jit
def scores_of(similarities, exponent, exponent_low, delta, earlier, EXACT: tl.constexpr):
    """L ∘ C Bᵀ with the time steps: y = scores @ x inside a chunk."""
    weighted = similarities * decays(exponent, exponent_low, EXACT) * delta[None, :]
    return tl.where(earlier, weighted, 0.0)


@triton.jit(do_not_specialize=["D", "scale", "T", "H", "G", "has_entering", "has_D", "has_z"])
def _ssd_fwd_fused_chunk_scan_kernel(
    x, B, C, D, z, step, high, scale, entering, ends, segments, y, T, H, G, P, N,
    x_stride, x_head, B_stride, B_group, C_stride, C_group, z_stride, z_head, has_entering, has_D, has_z,
    CHUNK: tl.constexpr, CHUNKS: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """y of segments of bf16 tokens, chunk after chunk, with a block of the state in registers, all N of it.

    Outputs and scores are transposed, [p, i] and [j, i], so the state multiplies C directly from its registers.
    """
    SEGMENT: tl.constexpr = CHUNK * CHUNKS
    blocks = tl.cdiv(P, BLOCK_P)
    size = (P * N).to(tl.int64)
    row = tl.arange(0, CHUNK)
    all_rows = row < CHUNK
    n = tl.arange(0, BLOCK_N)
    for index in tl.range(tl.program_id(0), tl.load(segments) * H * blocks, tl.num_programs(0), disable_licm=True):
        sequence, start, _, segment_start, segment_end = load_item(segments, index // (H * blocks), SEGMENT)
        head = index // blocks % H
        p = index % blocks * BLOCK_P + tl.arange(0, BLOCK_P)
        valid_p = tl.where((segment_start > start) | (has_entering != 0), p, P)
        state = entering_pointer(entering, ends, sequence, start, segment_start, head, H, size, SEGMENT)
        state = load_state(state, valid_p, P, n, N)
        x_0 = x + head * x_head
        B_0 = B + head // (H // G) * B_group
        C_0 = C + head // (H // G) * C_group
        for k in tl.range(tl.cdiv(segment_end - segment_start, CHUNK), disable_licm=True):
            chunk = segment_start + k * CHUNK
            alive = chunk + row < segment_end
            # rows past the last repeat it, since masks would take registers
            clamped_row = tl.minimum(row, segment_end - 1 - chunk)
            chunk_row = chunk.to(tl.int64)
            at = T.to(tl.int64) * head + chunk
            queries = tl.trans(load_tile(C_0 + chunk_row * C_stride, clamped_row, all_rows, C_stride, n, N))
            keys = load_tile(B_0 + chunk_row * B_stride, clamped_row, all_rows, B_stride, n, N)
            result = product(state, queries, tl.zeros((BLOCK_P, CHUNK), tl.float32), False)
            scores = product(keys, queries, tl.zeros((CHUNK, CHUNK), tl.float32), False)
            values = load_tile(x_0 + chunk_row * x_stride, clamped_row, all_rows, x_stride, p, P)
            exponent = tl.load(high + at + clamped_row)
            delta = tl.load(step + at + clamped_row)
            result *= (scale * tl.exp2(exponent))[None, :]
            scores *= decays(-exponent, -exponent, False) * (scale * delta)[:, None]
            scores = tl.where(row[:, None] <= row[None, :], scores, 0.0)
            result = tl.trans(product(tl.trans(values), scores, result, False))
            if has_D != 0:
                result += values * tl.load(D + head * P + p, mask=p < P, other=0.0)[None, :]
            if has_z != 0:
                gate = load_tile(z + chunk_row * z_stride + head * z_head, clamped_row, all_rows, z_stride, p, P)
                result *= silu(gate.to(tl.float32))
            out = y + (chunk_row * H + head) * P
            mask = alive[:, None] & (p < P)[None, :]
            tl.store(out + row[:, None] * H * P + p[None, :], result.to(y.dtype.element_ty), mask=mask)
            total = tl.load(high + at + tl.minimum(CHUNK, segment_end - chunk) - 1)
            weight = tl.exp2(tl.where(alive, total - exponent, float("-inf"))) * delta
            state = product(tl.trans(values * weight[:, None]), keys, state * tl.exp2(total), False)


@triton.jit
def similarities(
    C, B, C_stride, B_stride, row, alive, N, EXACT: tl.constexpr, ROWS: tl.constexpr, BLOCK_K: tl.constexpr
):
    """C Bᵀ inside a chunk."""
    total = tl.zeros((ROWS, ROWS), tl.float32)
    for k in range(0, N, BLOCK_K):
        n = k + tl.arange(0, BLOCK_K)
        keys = load_tile(B, row, alive, B_stride, n, N)
        total = product(load_tile(C, row, alive, C_stride, n, N), tl.trans(keys), total, EXACT)
    return total


@triton.jit
def head_chunk_scan(
    shared, x, C, D, z, step, high, low, scale, entering, ends, states, y, sequence, start, chunk, head, row,
    alive, p, T, H, P, N, x_stride, x_head, C_stride, z_stride, z_head, has_D, has_z,
    ENTERED: tl.constexpr, EXACT: tl.constexpr, CHUNK: tl.constexpr, SEGMENT: tl.constexpr, ROWS: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """y of one head in a chunk, where C points to its rows. shared: C Bᵀ. ENTERED: a state precedes the chunk."""
    size = (P * N).to(tl.int64)
    chunk_row = chunk.to(tl.int64)
    at = T.to(tl.int64) * head + chunk + row
    exponent = tl.load(high + at, mask=alive, other=0.0)
    exponent_low = tl.load(low + at, mask=alive, other=0.0) if EXACT else exponent
    delta = tl.load(step + at, mask=alive, other=0.0)
    result = tl.zeros((ROWS, BLOCK_P), tl.float32)
    if ENTERED:
        if (chunk - start) % SEGMENT != 0:
            at_state = state_offset(chunk // CHUNK, head, H, size)
            for k in range(0, N, BLOCK_K):
                n = k + tl.arange(0, BLOCK_K)
                queries = load_tile(C, row, alive, C_stride, n, N)
                result = product(queries, tl.trans(load_state(states + at_state, p, P, n, N)), result, EXACT)
        else:
            state_pointer = entering_pointer(entering, ends, sequence, start, chunk, head, H, size, SEGMENT)
            for k in range(0, N, BLOCK_K):
                n = k + tl.arange(0, BLOCK_K)
                queries = load_tile(C, row, alive, C_stride, n, N)
                result = product(queries, tl.trans(load_state(state_pointer, p, P, n, N)), result, EXACT)
        result *= (scale * tl.exp2(tl.where(alive, exponent, float("-inf"))))[:, None]
    earlier = (row[:, None] >= row[None, :]) & alive[:, None]
    scores = scores_of(shared, exponent, exponent_low, scale * delta, earlier, EXACT)
    values = load_tile(x + chunk_row * x_stride + head * x_head, row, alive, x_stride, p, P)
    result = product(scores, values, result, EXACT)
    if has_D != 0:
        result += values.to(tl.float32) * tl.load(D + head * P + p, mask=p < P, other=0.0)[None, :]
    if has_z != 0:
        gate = load_tile(z + chunk_row * z_stride + head * z_head, row, alive, z_stride, p, P)
        result *= silu(gate.to(tl.float32))
    out = y + (chunk_row * H + head) * P
    mask = alive[:, None] & (p < P)[None, :]
    tl.store(out + row[:, None] * H * P + p[None, :], result.to(y.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["D", "scale", "T", "H", "G", "n_blocks", "has_entering", "has_D", "has_z"])
def _ssd_fwd_chunk_scan_kernel(
    x, B, C, D, z, step, high, low, scale, entering, ends, states, chunks, y, T, H, G, P, N, n_blocks,
    x_stride, x_head, B_stride, B_group, C_stride, C_group, z_stride, z_head, has_entering, has_D, has_z,
    EXACT: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr, ROWS: tl.constexpr, HEADS: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """y of chunks of up to ROWS tokens, HEADS heads of a group at a time: from its tokens and the state before it.

    This state is in `entering` (s, h, p, n) at the start of a sequence, in `ends` at the start of another segment, else
    in `states`.
    """
    SEGMENT: tl.constexpr = CHUNK * CHUNKS
    blocks = tl.cdiv(P, BLOCK_P)
    row = tl.arange(0, ROWS)
    for index in tl.range(tl.program_id(0), tl.load(chunks) * n_blocks * blocks, tl.num_programs(0), disable_licm=True):
        sequence, start, _, chunk, stop = load_item(chunks, index // (n_blocks * blocks), CHUNK)
        group, first_head, last_head = head_range(index // blocks % n_blocks, H, G, HEADS)
        p = index % blocks * BLOCK_P + tl.arange(0, BLOCK_P)
        alive = chunk + row < stop
        chunk_row = chunk.to(tl.int64)
        B_here, C_here = B + chunk_row * B_stride + group * B_group, C + chunk_row * C_stride + group * C_group
        shared = similarities(C_here, B_here, C_stride, B_stride, row, alive, N, EXACT, ROWS, BLOCK_K)
        if (chunk > start) | (has_entering != 0):
            for head in tl.range(first_head, last_head, disable_licm=True):
                head_chunk_scan(
                    shared, x, C_here, D, z, step, high, low, scale, entering, ends, states, y, sequence, start, chunk,
                    head, row, alive, p, T, H, P, N, x_stride, x_head, C_stride, z_stride, z_head, has_D, has_z, True,
                    EXACT, CHUNK, SEGMENT, ROWS, BLOCK_P, BLOCK_K,
                )  # fmt: skip
        else:  # without an inner loop, so that loads are pipelined
            for head in tl.range(first_head, last_head, disable_licm=True):
                head_chunk_scan(
                    shared, x, C_here, D, z, step, high, low, scale, entering, ends, states, y, sequence, start, chunk,
                    head, row, alive, p, T, H, P, N, x_stride, x_head, C_stride, z_stride, z_head, has_D, has_z, False,
                    EXACT, CHUNK, SEGMENT, ROWS, BLOCK_P, BLOCK_K,
                )  # fmt: skip
