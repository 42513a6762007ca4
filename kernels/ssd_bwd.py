"""The backward kernels of SSD, chunk by chunk, from the states between chunks and their gradients.

With S (p, n) the state before a chunk, dS the gradient of the state after it, a the log-decay since its start, M = L ∘
C Bᵀ, and a scale of 1:
    dM[i, j] = dy_i · Δ_j x_j        dC_i = Σ_j (dM ∘ L)[i, j] B_j + exp(a_i) Sᵀ dy_i
    d(Δx)_j = Σ_i M[i, j] dy_i + exp(a_last - a_j) dS B_j
    dB_j = Σ_i (dM ∘ L)[i, j] C_i + exp(a_last - a_j) dSᵀ Δ_j x_j
The log-decay of token t counts in every path from before t to t or later. So its gradient is the sum over
    j < t <= i of (dM ∘ M)[i, j],  t <= i of dy_i · exp(a_i) S C_i,  j < t of Δ_j x_j · exp(a_last - a_j) dS B_j
and exp(a_last) S · dS. Only these paths are added up: differences of row and column sums would cancel.

`_ssd_bwd_x_kernel` finds dx. If registers hold a block of dS, `_ssd_bwd_fused_x_kernel` does, and carries dS itself.
`_ssd_bwd_inter_chunk_kernel` finds the contributions of S and dS to the other gradients. `_ssd_bwd_intra_chunk_kernel`
finds the contributions inside a chunk, and sums both.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

import triton
import triton.language as tl

from packproof.kernels.elementwise import clamp_rate, sigmoid, silu, silu_derivative
from packproof.kernels.products import product
from packproof.kernels.ssd_fwd import (
    decay_to_end,
    decays,
    head_range,
    load_state,
    load_tile,
    similarities,
    state_offset,
    store_state,
)
from packproof.kernels.worklists import load_item


@triton.jit
def _state_pointer(edge_states, boundary_states, sequence, token, at_edge, head, H, size, CHUNK: tl.constexpr):
    """A pointer to the state at `token`: in edge_states at the edge of a sequence, else in boundary_states."""
    at_boundary = state_offset(token // CHUNK, head, H, size)
    return tl.where(at_edge, edge_states + state_offset(sequence, head, H, size), boundary_states + at_boundary)


@triton.jit
def _add_pair_products(
    values, incoming, incoming_low, dM, dD, p, P, has_D, GATED: tl.constexpr, EXACT: tl.constexpr, BLOCK_P: tl.constexpr
):
    """dM plus the contribution of BLOCK_P more channels. Stores their dD too.

    dD is the diagonal of a matrix product, with fewer instructions than a sum of its own.
    """
    if GATED:
        dM = product(values, tl.trans(incoming_low), dM, EXACT)
    if has_D != 0:
        products = product(tl.trans(values), incoming, tl.zeros((BLOCK_P, BLOCK_P), tl.float32), EXACT)
        if GATED:
            products = product(tl.trans(values), incoming_low, products, EXACT)
        tl.store(dD + p, tl.sum(tl.where(p[:, None] == p[None, :], products, 0.0), 1), mask=p < P)
    return product(values, tl.trans(incoming), dM, EXACT)


@triton.jit
def _decay_gradients(pairs, from_entering, to_leaving, delta, row, ROWS: tl.constexpr, EXACT: tl.constexpr):
    """For each token t, the sum of the paths from before t to t or later with an end in the chunk.

    pairs[j, i], i >= j: from j to i.
    from_entering: from the state before the chunk to i.
    to_leaving: from j to the state after the chunk.
    """
    not_before = (row[:, None] <= row[None, :]).to(tl.bfloat16)
    pairs = tl.trans(pairs * delta[:, None])
    inside = product(not_before, pairs, tl.zeros((ROWS, ROWS), tl.float32), EXACT)  # [t, j]
    leaving, entering = tl.trans((to_leaving * delta)[:, None]), tl.trans(from_entering[:, None])
    return tl.sum(tl.where(row[:, None] > row[None, :], inside + leaving, entering), 1)


@triton.jit
def head_x_gradient(
    shared, B, D, dy, step, high, low, scale, dS, dx, chunk, stop, head, row, alive, p, T, H, P, N,
    B_stride, dy_stride, dy_head, has_D, LEFT: tl.constexpr, EXACT: tl.constexpr, ROWS: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """dx of one head in a chunk. B points to its rows.

    shared: B Cᵀ.
    LEFT: whether the state after the chunk has a gradient, at dS.
    """
    chunk_row = chunk.to(tl.int64)
    base = T.to(tl.int64) * head + chunk
    exponent = tl.load(high + base + row, mask=alive, other=0.0)
    exponent_low = tl.load(low + base + row, mask=alive, other=0.0) if EXACT else exponent
    delta = tl.load(step + base + row, mask=alive, other=0.0)
    incoming = load_tile(dy + chunk_row * dy_stride + head * dy_head, row, alive, dy_stride, p, P)
    gradient = tl.zeros((ROWS, BLOCK_P), tl.float32)
    if LEFT:
        for k in range(0, N, BLOCK_K):
            n = k + tl.arange(0, BLOCK_K)
            keys = load_tile(B, row, alive, B_stride, n, N)
            gradient = product(keys, tl.trans(load_state(dS, p, P, n, N)), gradient, EXACT)
        to_end, _ = decay_to_end(high, low, base, row, alive, stop - chunk, EXACT)
        gradient *= (to_end * delta)[:, None]
    scores = shared * decays(-exponent, -exponent_low, EXACT) * (scale * delta)[:, None]
    scores = tl.where((row[:, None] <= row[None, :]) & alive[None, :], scores, 0.0)
    gradient = product(scores, incoming, gradient, EXACT)
    if has_D != 0:
        gradient += incoming * tl.load(D + head * P + p, mask=p < P, other=0.0)[None, :]
    out = dx + (chunk_row * H + head) * P
    mask = alive[:, None] & (p < P)[None, :]
    tl.store(out + row[:, None] * H * P + p[None, :], gradient.to(dx.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["D", "scale", "T", "H", "G", "n_blocks", "has_final", "has_D"])
def _ssd_bwd_x_kernel(
    B, C, D, dy, step, high, low, scale, dfinal, dstates, chunks, dx, T, H, G, P, N, n_blocks,
    B_stride, B_group, C_stride, C_group, dy_stride, dy_head, has_final, has_D, EXACT: tl.constexpr,
    CHUNK: tl.constexpr, ROWS: tl.constexpr, HEADS: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """dx of chunks of up to ROWS tokens, HEADS heads of a group at a time. Scores are [j, i] here."""
    blocks = tl.cdiv(P, BLOCK_P)
    size = (P * N).to(tl.int64)
    row = tl.arange(0, ROWS)
    for index in tl.range(tl.program_id(0), tl.load(chunks) * n_blocks * blocks, tl.num_programs(0), disable_licm=True):
        sequence, _, end, chunk, stop = load_item(chunks, index // (n_blocks * blocks), CHUNK)
        group, first_head, last_head = head_range(index // blocks % n_blocks, H, G, HEADS)
        p = index % blocks * BLOCK_P + tl.arange(0, BLOCK_P)
        alive = chunk + row < stop
        chunk_row = chunk.to(tl.int64)
        B_here, C_here = B + chunk_row * B_stride + group * B_group, C + chunk_row * C_stride + group * C_group
        shared = similarities(B_here, C_here, B_stride, C_stride, row, alive, N, EXACT, ROWS, BLOCK_K)
        if (stop < end) | (has_final != 0):
            for head in tl.range(first_head, last_head, disable_licm=True):
                dS = _state_pointer(dfinal, dstates, sequence, stop, stop >= end, head, H, size, CHUNK)
                head_x_gradient(
                    shared, B_here, D, dy, step, high, low, scale, dS, dx, chunk, stop, head, row, alive, p, T, H, P,
                    N, B_stride, dy_stride, dy_head, has_D, True, EXACT, ROWS, BLOCK_P, BLOCK_K,
                )  # fmt: skip
        else:  # without an inner loop, so that loads are pipelined
            for head in tl.range(first_head, last_head, disable_licm=True):
                head_x_gradient(
                    shared, B_here, D, dy, step, high, low, scale, dstates, dx, chunk, stop, head, row, alive, p, T, H,
                    P, N, B_stride, dy_stride, dy_head, has_D, False, EXACT, ROWS, BLOCK_P, BLOCK_K,
                )  # fmt: skip


@triton.jit(do_not_specialize=["D", "scale", "T", "H", "G", "has_final", "has_D"])
def _ssd_bwd_fused_x_kernel(
    B, C, D, dy, step, high, scale, dfinal, dends, dstates, segments, dx, T, H, G, P, N,
    B_stride, B_group, C_stride, C_group, dy_stride, dy_head, has_final, has_D,
    CHUNK: tl.constexpr, CHUNKS: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """dx of segments of bf16 tokens, from the last chunk to the first.

    A block of the gradient of the state stays in registers, with all N states. Its value at each boundary b between
    chunks is stored in dstates[b // CHUNK]. dx is transposed, [p, j], so the gradient of the state multiplies B
    directly from its registers.
    """
    SEGMENT: tl.constexpr = CHUNK * CHUNKS
    blocks = tl.cdiv(P, BLOCK_P)
    size = (P * N).to(tl.int64)
    row = tl.arange(0, CHUNK)
    all_rows = row < CHUNK
    n = tl.arange(0, BLOCK_N)
    for index in tl.range(tl.program_id(0), tl.load(segments) * H * blocks, tl.num_programs(0), disable_licm=True):
        sequence, _, end, segment_start, segment_end = load_item(segments, index // (H * blocks), SEGMENT)
        head = index // blocks % H
        p = index % blocks * BLOCK_P + tl.arange(0, BLOCK_P)
        at_end = segment_end >= end
        valid_p = tl.where((at_end == 0) | (has_final != 0), p, P)
        inside = dends + state_offset(segment_end // SEGMENT, head, H, size)
        dstate = load_state(tl.where(at_end, dfinal + state_offset(sequence, head, H, size), inside), valid_p, P, n, N)
        dy_0 = dy + head * dy_head
        B_0 = B + head // (H // G) * B_group
        C_0 = C + head // (H // G) * C_group
        n_chunks = tl.cdiv(segment_end - segment_start, CHUNK)
        for k in tl.range(n_chunks, disable_licm=True):
            chunk = segment_start + (n_chunks - 1 - k) * CHUNK
            stop = tl.minimum(chunk + CHUNK, segment_end)
            if stop < end:
                store_state(dstates + state_offset(stop // CHUNK, head, H, size), dstate, p, P, n, N)
            alive = chunk + row < segment_end
            # rows past the last repeat it, since masks would take registers
            clamped_row = tl.minimum(row, segment_end - 1 - chunk)
            chunk_row = chunk.to(tl.int64)
            at = T.to(tl.int64) * head + chunk
            total = tl.load(high + at + stop - chunk - 1)
            keys = tl.trans(load_tile(B_0 + chunk_row * B_stride, clamped_row, all_rows, B_stride, n, N))
            queries = load_tile(C_0 + chunk_row * C_stride, clamped_row, all_rows, C_stride, n, N)
            incoming = load_tile(dy_0 + chunk_row * dy_stride, clamped_row, all_rows, dy_stride, p, P)
            result = product(dstate.to(tl.bfloat16), keys, tl.zeros((BLOCK_P, CHUNK), tl.float32), False)
            scores = product(queries, keys, tl.zeros((CHUNK, CHUNK), tl.float32), False)
            exponent, delta = tl.load(high + at + clamped_row), tl.load(step + at + clamped_row)
            result *= (tl.exp2(total - exponent) * delta)[None, :]
            scores *= decays(exponent, exponent, False) * (scale * delta)[None, :]
            earlier = (row[:, None] >= row[None, :]) & alive[:, None]
            scores = tl.where(earlier, scores, 0.0)
            result = tl.trans(product(tl.trans(incoming), scores, result, False))
            if has_D != 0:
                result += incoming * tl.load(D + head * P + p, mask=p < P, other=0.0)[None, :]
            out = dx + (chunk_row * H + head) * P
            mask = alive[:, None] & (p < P)[None, :]
            tl.store(out + row[:, None] * H * P + p[None, :], result.to(dx.dtype.element_ty), mask=mask)
            weight = scale * tl.exp2(tl.where(alive, exponent, float("-inf")))
            dstate = product(tl.trans(incoming * weight[:, None]), queries, dstate * tl.exp2(total), False)


@triton.jit(do_not_specialize=["scale", "T", "H", "G", "has_entering", "has_final"])
def _ssd_bwd_inter_chunk_kernel(
    x, B, C, dy, step, high, low, scale, entering, states, dfinal, dstates, chunks, entered, left, dB, dC,
    T, H, G, P, N, x_stride, x_head, B_stride, B_group, C_stride, C_group, dy_stride, dy_head, has_entering, has_final,
    EXACT: tl.constexpr, WHOLE: tl.constexpr, ENDS: tl.constexpr,
    CHUNK: tl.constexpr, CHUNKS: tl.constexpr, ROWS: tl.constexpr, BLOCK_P: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The contributions of the states at the edges of chunks of up to ROWS tokens, for COLUMNS states of a group.

    dB, dC: summed over the heads of the group, in fp32 (t, g, n).
    entered (parts, h, t): dy_i · exp(a_i) S C_i, at the last token plus exp(a_last) S · dS; left: x_j · exp(a_last -
    a_j) dS B_j. Both are contributions to gradients of decays, one part per COLUMNS states. A chunk without states at
    its edges is skipped.
    ENDS: only chunks at the end of a segment, with a dS in `dfinal` or in `dstates` at b // SEGMENT. It is fp32, as its
    contribution is as large as all contributions inside the chunk. Otherwise all other chunks.
    WHOLE: BLOCK_P holds all channels of a head.
    """
    SEGMENT: tl.constexpr = CHUNK * CHUNKS
    SPACING: tl.constexpr = SEGMENT if ENDS else CHUNK
    blocks = tl.cdiv(N, COLUMNS)
    size = (P * N).to(tl.int64)
    row = tl.arange(0, ROWS)
    for index in tl.range(tl.program_id(0), tl.load(chunks) * G * blocks, tl.num_programs(0), disable_licm=True):
        sequence, start, end, chunk, stop = load_item(chunks, index // (G * blocks), CHUNK)
        has_S, has_dS = (chunk > start) | (has_entering != 0), (stop < end) | (has_final != 0)
        at_end = has_dS & ((stop >= end) | ((stop - start) % SEGMENT == 0))
        if (has_S | has_dS) & (at_end == ENDS):
            group, block = index // blocks % G, index % blocks
            n = block * COLUMNS + tl.arange(0, COLUMNS)
            alive = chunk + row < stop
            chunk_row = chunk.to(tl.int64)
            keys = load_tile(B + chunk_row * B_stride + group * B_group, row, alive, B_stride, n, N)
            queries = load_tile(C + chunk_row * C_stride + group * C_group, row, alive, C_stride, n, N)
            of_B = tl.zeros((ROWS, COLUMNS), tl.float32)
            of_C = tl.zeros((ROWS, COLUMNS), tl.float32)
            for head in tl.range(group * (H // G), (group + 1) * (H // G), disable_licm=True):
                base = T.to(tl.int64) * head + chunk
                S_pointer = _state_pointer(entering, states, sequence, chunk, chunk <= start, head, H, size, CHUNK)
                dS_pointer = _state_pointer(dfinal, dstates, sequence, stop, stop >= end, head, H, size, SPACING)
                x_here = x + chunk_row * x_stride + head * x_head
                dy_here = dy + chunk_row * dy_stride + head * dy_head
                p = tl.arange(0, BLOCK_P)
                exponent = tl.load(high + base + row, mask=alive, other=0.0)
                since = scale * tl.exp2(tl.where(alive, exponent, float("-inf")))
                to_end, decay = decay_to_end(high, low, base, row, alive, stop - chunk, EXACT)
                delta = tl.load(step + base + row, mask=alive, other=0.0)
                S = load_state(S_pointer, tl.where(has_S, p, P), P, n, N)
                dS = load_state(dS_pointer, tl.where(has_dS, p, P), P, n, N)
                through_all = tl.sum(tl.sum(S.to(tl.float32) * dS, 1), 0)
                incoming = load_tile(dy_here, row, alive, dy_stride, p, P)
                incoming_S = product(incoming, S, tl.zeros((ROWS, COLUMNS), tl.float32), EXACT)
                if not WHOLE:
                    for first_channel in tl.range(BLOCK_P, P, BLOCK_P, disable_licm=True):
                        p = first_channel + tl.arange(0, BLOCK_P)
                        S_block = load_state(S_pointer, tl.where(has_S, p, P), P, n, N)
                        incoming_S = product(
                            load_tile(dy_here, row, alive, dy_stride, p, P), S_block, incoming_S, EXACT
                        )
                of_C += incoming_S * since[:, None]
                from_entering = since * tl.sum(incoming_S * queries, 1)
                p = tl.arange(0, BLOCK_P)
                values = load_tile(x_here, row, alive, x_stride, p, P)
                values_dS = product(values, dS, tl.zeros((ROWS, COLUMNS), tl.float32), EXACT)
                if not WHOLE:
                    for first_channel in tl.range(BLOCK_P, P, BLOCK_P, disable_licm=True):
                        p = first_channel + tl.arange(0, BLOCK_P)
                        dS = load_state(dS_pointer, tl.where(has_dS, p, P), P, n, N)
                        values_dS = product(load_tile(x_here, row, alive, x_stride, p, P), dS, values_dS, EXACT)
                        S = load_state(S_pointer, tl.where(has_S, p, P), P, n, N)
                        through_all += tl.sum(tl.sum(S.to(tl.float32) * dS, 1), 0)
                of_B += values_dS * (to_end * delta)[:, None]
                to_leaving = to_end * tl.sum(values_dS * keys, 1)
                from_entering += tl.where(chunk + row == stop - 1, decay * through_all, 0.0)
                at = block * H.to(tl.int64) * T + base + row
                tl.store(entered + at, from_entering, mask=alive)
                tl.store(left + at, to_leaving, mask=alive)
            out = ((chunk_row + row) * G + group)[:, None] * N + n[None, :]
            mask = alive[:, None] & (n < N)[None, :]
            tl.store(dB + out, of_B, mask=mask)
            tl.store(dC + out, of_C, mask=mask)


@triton.jit(
    do_not_specialize=["dt", "A", "bias", "scale", "T", "H", "G", "dt_stride", "has_entering", "has_final", "has_bias",
                       "is_softplus", "has_D", "dbias"]
)  # fmt: skip
def _ssd_bwd_intra_chunk_kernel(
    x, dt, A, B, C, bias, dy, dy_low, step, high, low, scale, entered, left, of_B, of_C, chunks, ddt, dA, dbias, dB, dC,
    dD,
    T, H, G, P, N, x_stride, x_head, dt_stride, B_stride, B_group, C_stride, C_group, dy_stride, dy_head,
    has_entering, has_final, has_bias, is_softplus, has_D, GATED: tl.constexpr, EXACT: tl.constexpr,
    WHOLE: tl.constexpr, CHUNK: tl.constexpr, ROWS: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_K: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """ddt, dB and dC of chunks of up to ROWS tokens, and parts of dA, dbias (h, t) and dD (chunks, h, p), head after
    head.

    Each is the contribution inside the chunk plus the result of `_ssd_bwd_inter_chunk_kernel`. Scores are [j, i] here.
    """
    row = tl.arange(0, ROWS)
    for index in tl.range(tl.program_id(0), tl.load(chunks) * G, tl.num_programs(0), disable_licm=True):
        _, start, end, chunk, stop = load_item(chunks, index // G, CHUNK)
        group = index % G
        crossed = (chunk > start) | (has_entering != 0) | (stop < end) | (has_final != 0)
        alive = chunk + row < stop
        chunk_row = chunk.to(tl.int64)
        B_here = B + chunk_row * B_stride + group * B_group
        C_here = C + chunk_row * C_stride + group * C_group
        shared = similarities(B_here, C_here, B_stride, C_stride, row, alive, N, EXACT, ROWS, BLOCK_K)
        later = (row[:, None] <= row[None, :]) & alive[None, :]
        shared = tl.where(later, scale * shared, 0.0)  # the other scores may overflow
        total = tl.zeros((ROWS, ROWS), tl.float32)
        for head in tl.range(group * (H // G), (group + 1) * (H // G), disable_licm=True):
            at = T.to(tl.int64) * head + chunk + row
            x_here = x + chunk_row * x_stride + head * x_head
            dy_here = dy + chunk_row * dy_stride + head * dy_head
            exponent = tl.load(high + at, mask=alive, other=0.0)
            exponent_low = tl.load(low + at, mask=alive, other=0.0) if EXACT else exponent
            delta = tl.load(step + at, mask=alive, other=0.0)
            from_entering = tl.load(entered + at, mask=alive & crossed, other=0.0)
            to_leaving = tl.load(left + at, mask=alive & crossed, other=0.0)
            has_raw = alive & (is_softplus != 0)
            raw = tl.load(dt + (chunk_row + row) * dt_stride + head, mask=has_raw, other=0.0).to(tl.float32)
            if has_bias != 0:
                raw += tl.load(bias + head)
            rate = clamp_rate(tl.load(A + head))
            low_here = dy_low + (chunk_row * H + head) * P
            dD_pointer = dD + (index // G * H + head) * P.to(tl.int64)
            # no loop that starts from zeros: Triton 3.7 fails to compile those for Blackwell in one process out of ten
            p = tl.arange(0, BLOCK_P)
            values, incoming = (
                load_tile(x_here, row, alive, x_stride, p, P),
                load_tile(dy_here, row, alive, dy_stride, p, P),
            )
            incoming_low = load_tile(low_here, row, alive, H * P, p, P) if GATED else incoming
            dM = tl.zeros((ROWS, ROWS), tl.float32)
            dM = _add_pair_products(values, incoming, incoming_low, dM, dD_pointer, p, P, has_D, GATED, EXACT, BLOCK_P)
            if not WHOLE:
                # not pipelined: Triton may refill a buffer before a branch reads it (triton-lang/triton#8139)
                for first_channel in tl.range(BLOCK_P, P, BLOCK_P, num_stages=1, disable_licm=True):
                    p = first_channel + tl.arange(0, BLOCK_P)
                    values = load_tile(x_here, row, alive, x_stride, p, P)
                    incoming = load_tile(dy_here, row, alive, dy_stride, p, P)
                    incoming_low = load_tile(low_here, row, alive, H * P, p, P) if GATED else incoming
                    dM = _add_pair_products(
                        values, incoming, incoming_low, dM, dD_pointer, p, P, has_D, GATED, EXACT, BLOCK_P
                    )
            weighted = tl.where(later, dM * decays(-exponent, -exponent_low, EXACT), 0.0)
            total += weighted * (scale * delta)[:, None]
            pairs = weighted * shared
            ddecay = _decay_gradients(pairs, from_entering, to_leaving, delta, row, ROWS, EXACT)
            dstep = tl.sum(pairs, 1) + to_leaving + rate * ddecay
            if is_softplus != 0:
                dstep *= sigmoid(raw)
            tl.store(ddt + (chunk_row + row) * H + head, dstep.to(ddt.dtype.element_ty), mask=alive)
            tl.store(dA + at, delta * ddecay, mask=alive)
            tl.store(dbias + at, dstep, mask=alive)
        for first_state in tl.range(0, N, COLUMNS, disable_licm=True):
            n = first_state + tl.arange(0, COLUMNS)
            out = ((chunk_row + row) * G + group)[:, None] * N + n[None, :]
            mask = alive[:, None] & (n < N)[None, :]
            keys, queries = load_tile(B_here, row, alive, B_stride, n, N), load_tile(C_here, row, alive, C_stride, n, N)
            gradient = tl.load(of_B + out, mask=mask & crossed, other=0.0)
            gradient = product(total, queries, gradient, EXACT)
            tl.store(dB + out, gradient.to(dB.dtype.element_ty), mask=mask)
            gradient = tl.load(of_C + out, mask=mask & crossed, other=0.0)
            gradient = product(tl.trans(total), keys, gradient, EXACT)
            tl.store(dC + out, gradient.to(dC.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["cu_seqlens", "T", "S", "H"])
def _ssd_bwd_gate_kernel(
    y, z, dy, dz, high, low, cu_seqlens, T, S, H, P, z_stride, z_head, dy_stride, dy_head,
    BLOCK_T: tl.constexpr, BLOCK_P: tl.constexpr,
):  # fmt: skip
    """dz from the ungated outputs y, and the gradient of y: in place of y, and in two parts of dz's dtype."""
    blocks = tl.cdiv(P, BLOCK_P)
    head = tl.program_id(0) // blocks % H
    t = (tl.program_id(0) // (H * blocks)).to(tl.int64) * BLOCK_T + tl.arange(0, BLOCK_T)
    p = tl.program_id(0) % blocks * BLOCK_P + tl.arange(0, BLOCK_P)
    inside = (t >= tl.load(cu_seqlens)) & (t < tl.load(cu_seqlens + S))
    mask = inside[:, None] & (p < P)[None, :]
    stored = (t < T)[:, None] & (p < P)[None, :]
    at = (t * H + head)[:, None] * P + p[None, :]
    gate = tl.load(z + t[:, None] * z_stride + head * z_head + p[None, :], mask=mask, other=0.0).to(tl.float32)
    incoming = tl.load(dy + t[:, None] * dy_stride + head * dy_head + p[None, :], mask=mask, other=0.0)
    before = tl.load(y + at, mask=mask, other=0.0)
    tl.store(dz + at, (incoming * before * silu_derivative(gate)).to(dz.dtype.element_ty), mask=stored)
    gradient = incoming * silu(gate)
    rounded = gradient.to(high.dtype.element_ty)
    tl.store(y + at, gradient, mask=stored)
    tl.store(high + at, rounded, mask=stored)
    tl.store(low + at, (gradient - rounded).to(low.dtype.element_ty), mask=stored)
