"""The backward kernels of SSD, chunk by chunk, from the states between chunks and their gradients.

With S the state that enters a chunk, dS the gradient of the one that leaves it, a the log-decay since its start and
M = L ∘ C Bᵀ:
    dM[i, j] = dy_i · Δ_j x_j        dC_i = Σ_j (dM ∘ L)[i, j] B_j + exp(a_i) S dy_i
    d(Δx)_j = Σ_i M[i, j] dy_i + exp(a_last - a_j) dSᵀ B_j
    dB_j = Σ_i (dM ∘ L)[i, j] C_i + exp(a_last - a_j) dS Δ_j x_j
The log-decay of token t counts in every path from before t to t or later, so that its gradient is the sum over
    j < t <= i of (dM ∘ M)[i, j],  t <= i of dy_i · exp(a_i) Sᵀ C_i,  j < t of Δ_j x_j · exp(a_last - a_j) dSᵀ B_j
and exp(a_last) S · dS. Only these paths are added up: differences of row and column sums would cancel.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

import triton
import triton.language as tl

from packproof.kernels.elementwise import sigmoid, silu, silu_slope
from packproof.kernels.products import product
from packproof.kernels.ssd_forward import decay_to_end, decays, heads_of, state_at, state_tile, tile
from packproof.kernels.worklists import item


@triton.jit
def _state_or(given, stored, sequence, token, at_edge, head, H, size, CHUNK: tl.constexpr):
    """Where the state at `token` lies: at the edge of its sequence it was given, between chunks it was stored."""
    at_boundary = state_at(token // CHUNK, head, H, size)
    return tl.where(at_edge, given + state_at(sequence, head, H, size), stored + at_boundary)


@triton.jit
def _crossing(pairs, row, ROWS: tl.constexpr, EXACT: tl.constexpr):
    """Σ over j < t <= i of pairs[j, i], for each t: a product with ones adds up the columns from t on."""
    pairs = tl.where(row[:, None] < row[None, :], pairs, 0.0)
    not_before = (row[:, None] >= row[None, :]).to(tl.bfloat16)
    sums = product(pairs, not_before, tl.zeros((ROWS, ROWS), tl.float32), EXACT)
    return tl.sum(tl.where(row[:, None] < row[None, :], sums, 0.0), 0)


@triton.jit(do_not_specialize=["D", "T", "H", "G", "has_entering", "has_final", "has_D"])
def values_kernel(
    x, B, C, D, dy, dy_low, step, high, low, entering, states, dfinal, dstates, chunks, dx, dD, entered, left, passed,
    T, H, G, P, N, x_stride, x_head, B_stride, B_group, C_stride, C_group, dy_stride, dy_head,
    has_entering, has_final, has_D, GATED: tl.constexpr, EXACT: tl.constexpr,
    CHUNK: tl.constexpr, ROWS: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """dx of chunks of up to ROWS tokens, parts of dD, and what crosses their edges, for the gradient of decays:
    entered (h, t): dy_i · exp(a_i) Sᵀ C_i, left (h, t): x_j · exp(a_last - a_j) dSᵀ B_j, passed (chunks, h):
    exp(a_last) S · dS. Scores are [j, i] here.
    """
    size = (P * N).to(tl.int64)
    row = tl.arange(0, ROWS)
    for index in tl.range(tl.program_id(0), tl.load(chunks) * H, tl.num_programs(0), disable_licm=True):
        sequence, start, end, chunk, stop = item(chunks, index // H, CHUNK)
        head = index % H
        has_S = (chunk > start) | (has_entering != 0)
        has_dS = (stop < end) | (has_final != 0)
        alive = chunk + row < stop
        chunk_row = chunk.to(tl.int64)
        base = T.to(tl.int64) * head + chunk
        at = base + row
        B_here = B + chunk_row * B_stride + head // (H // G) * B_group
        C_here = C + chunk_row * C_stride + head // (H // G) * C_group
        x_here = x + chunk_row * x_stride + head * x_head
        dy_here = dy + chunk_row * dy_stride + head * dy_head
        out = (chunk_row * H + head) * P
        exponent = tl.load(high + at, mask=alive, other=0.0)
        exponent_low = tl.load(low + at, mask=alive, other=0.0) if EXACT else exponent
        delta = tl.load(step + at, mask=alive, other=0.0)
        to_end, decay = decay_to_end(high, low, base, row, alive, stop - chunk, EXACT)
        scores = tl.zeros((ROWS, ROWS), tl.float32)
        for k in range(0, N, BLOCK_K):
            n = k + tl.arange(0, BLOCK_K)
            keys, queries = tile(B_here, row, alive, B_stride, n, N), tile(C_here, row, alive, C_stride, n, N)
            scores = product(keys, tl.trans(queries), scores, EXACT)
        later = (row[:, None] <= row[None, :]) & alive[None, :]
        scores *= decays(-exponent, -exponent_low, later, EXACT) * delta[:, None]
        scores = tl.where(later, scores, 0.0)
        S_in = _state_or(entering, states, sequence, chunk, chunk <= start, head, H, size, CHUNK)
        dS_out = _state_or(dfinal, dstates, sequence, stop, stop >= end, head, H, size, CHUNK)
        came = tl.zeros((ROWS,), tl.float32)
        went = tl.zeros((ROWS,), tl.float32)
        through_all = 0.0
        for first in tl.range(0, P, BLOCK_P, disable_licm=True):
            p = first + tl.arange(0, BLOCK_P)
            gradient = tl.zeros((ROWS, BLOCK_P), tl.float32)
            if has_S | has_dS:
                seen = tl.zeros((ROWS, BLOCK_P), tl.float32)
                for k in range(0, N, BLOCK_K):
                    n = k + tl.arange(0, BLOCK_K)
                    before = state_tile(S_in, tl.where(has_S, p, P), P, n, N)
                    after = state_tile(dS_out, tl.where(has_dS, p, P), P, n, N)
                    gradient = product(tile(B_here, row, alive, B_stride, n, N), tl.trans(after), gradient, EXACT)
                    seen = product(tile(C_here, row, alive, C_stride, n, N), tl.trans(before), seen, EXACT)
                    through_all += tl.sum(tl.sum(before.to(tl.float32) * after, 1), 0)
                gradient *= to_end[:, None]
                went += tl.sum(tile(x_here, row, alive, x_stride, p, P) * gradient, 1)
                gradient *= delta[:, None]
                whole = tile(dy_here, row, alive, dy_stride, p, P).to(tl.float32)
                if GATED:
                    whole += tile(dy_low + out, row, alive, H * P, p, P)
                came += tl.sum(whole * seen, 1)
            incoming = tile(dy_here, row, alive, dy_stride, p, P)
            gradient = product(scores, incoming, gradient, EXACT)
            whole = incoming.to(tl.float32)
            if GATED:
                rest = tile(dy_low + out, row, alive, H * P, p, P)
                gradient = product(scores.to(rest.dtype), rest, gradient, EXACT)
                whole += rest
            if has_D != 0:
                gradient += whole * tl.load(D + head * P + p, mask=p < P, other=0.0)[None, :]
                values = tile(x_here, row, alive, x_stride, p, P).to(tl.float32)
                tl.store(dD + index * P.to(tl.int64) + p, tl.sum(values * whole, 0), mask=p < P)
            mask = alive[:, None] & (p < P)[None, :]
            tl.store(dx + out + row[:, None] * H * P + p[None, :], gradient.to(dx.dtype.element_ty), mask=mask)
        tl.store(entered + at, came * tl.exp2(tl.where(alive, exponent, float("-inf"))), mask=alive)
        tl.store(left + at, went, mask=alive)
        tl.store(passed + index, decay * through_all)


@triton.jit(do_not_specialize=["dt", "A", "bias", "T", "H", "G", "n_blocks", "dt_stride", "has_bias", "is_softplus"])
def steps_back_kernel(
    x, dt, A, B, C, bias, dy, dy_low, step, high, low, entered, left, passed, chunks, ddt, dA, dbias,
    dscores, T, H, G, P, N, n_blocks,
    x_stride, x_head, dt_stride, B_stride, B_group, C_stride, C_group, dy_stride, dy_head, has_bias, is_softplus,
    GATED: tl.constexpr, EXACT: tl.constexpr, CHUNK: tl.constexpr, ROWS: tl.constexpr, HEADS: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """ddt of chunks of up to ROWS tokens, HEADS heads of a group at a time, the tokens' parts of dA, dbias (h, t), and
    what these heads add to the gradient of C Bᵀ, Σ over them of dM ∘ L: (parts, t, g, chunk). Scores are [j, i] here.
    """
    row = tl.arange(0, ROWS)
    for index in tl.range(tl.program_id(0), tl.load(chunks) * n_blocks, tl.num_programs(0), disable_licm=True):
        slot = index // n_blocks
        _, _, _, chunk, stop = item(chunks, slot, CHUNK)
        group, first_head, last_head = heads_of(index % n_blocks, H, G, HEADS)
        alive = chunk + row < stop
        chunk_row = chunk.to(tl.int64)
        B_here = B + chunk_row * B_stride + group * B_group
        C_here = C + chunk_row * C_stride + group * C_group
        similarities = tl.zeros((ROWS, ROWS), tl.float32)
        for k in range(0, N, BLOCK_K):
            n = k + tl.arange(0, BLOCK_K)
            keys, queries = tile(B_here, row, alive, B_stride, n, N), tile(C_here, row, alive, C_stride, n, N)
            similarities = product(keys, tl.trans(queries), similarities, EXACT)
        later = (row[:, None] <= row[None, :]) & alive[None, :]
        similarities = tl.where(later, similarities, 0.0)  # the others may overflow
        total = tl.zeros((ROWS, ROWS), tl.float32)
        for head in tl.range(first_head, last_head, disable_licm=True):
            base = T.to(tl.int64) * head + chunk
            at = base + row
            x_here = x + chunk_row * x_stride + head * x_head
            dy_here = dy + chunk_row * dy_stride + head * dy_head
            low_here = dy_low + (chunk_row * H + head) * P
            # no loop that starts from zeros: Triton 3.7 fails to compile those for Blackwell in one process out of ten
            p = tl.arange(0, BLOCK_P)
            values, incoming = tile(x_here, row, alive, x_stride, p, P), tile(dy_here, row, alive, dy_stride, p, P)
            dM = product(values, tl.trans(incoming), tl.zeros((ROWS, ROWS), tl.float32), EXACT)
            for first in tl.range(BLOCK_P, P, BLOCK_P, disable_licm=True):
                p = first + tl.arange(0, BLOCK_P)
                values = tile(x_here, row, alive, x_stride, p, P)
                dM = product(values, tl.trans(tile(dy_here, row, alive, dy_stride, p, P)), dM, EXACT)
            if GATED:
                for first in tl.range(0, P, BLOCK_P, disable_licm=True):
                    p = first + tl.arange(0, BLOCK_P)
                    values = tile(x_here, row, alive, x_stride, p, P)
                    dM = product(values, tl.trans(tile(low_here, row, alive, H * P, p, P)), dM, EXACT)
            exponent = tl.load(high + at, mask=alive, other=0.0)
            exponent_low = tl.load(low + at, mask=alive, other=0.0) if EXACT else exponent
            delta = tl.load(step + at, mask=alive, other=0.0)
            weighted = tl.where(later, dM * decays(-exponent, -exponent_low, later, EXACT), 0.0)
            total += weighted * delta[:, None]
            pairs = weighted * similarities
            went = tl.load(left + at, mask=alive, other=0.0)
            dstep = tl.sum(pairs, 1) + went
            came = tl.load(entered + at, mask=alive, other=0.0)
            ddecay = _crossing(pairs * delta[:, None], row, ROWS, EXACT)
            ddecay += tl.sum(tl.where(row[:, None] >= row[None, :], came[:, None], (went * delta)[:, None]), 0)
            ddecay = tl.where(alive, ddecay + tl.load(passed + slot * H + head), 0.0)
            dstep += tl.load(A + head) * ddecay
            if is_softplus != 0:
                raw = tl.load(dt + (chunk_row + row) * dt_stride + head, mask=alive, other=0.0).to(tl.float32)
                if has_bias != 0:
                    raw += tl.load(bias + head)
                dstep *= sigmoid(raw)
            dstep = tl.where(alive, dstep, 0.0)
            tl.store(ddt + (chunk_row + row) * H + head, dstep.to(ddt.dtype.element_ty), mask=alive)
            tl.store(dA + at, delta * ddecay, mask=alive)
            tl.store(dbias + at, dstep, mask=alive)
        part = index % n_blocks % tl.cdiv(H // G, HEADS)
        token = ((T.to(tl.int64) * part + chunk + row) * G + group)[:, None]
        tl.store(dscores + token * CHUNK + row[None, :], total, mask=later)


@triton.jit(do_not_specialize=["T", "H", "G", "has_given", "n_parts"])
def groups_kernel(
    values, other, step, high, low, given, states, chunks, dscores, gradient, T, H, G, P, N, n_parts,
    values_stride, values_head, other_stride, other_group, has_given, OF_B: tl.constexpr, EXACT: tl.constexpr,
    CHUNK: tl.constexpr, ROWS: tl.constexpr, BLOCK_P: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """dC of chunks of up to ROWS tokens, or OF_B dB, COLUMNS states of a group: the sum over its heads, then what chunk
    mates add.

    dC: values is dy, other is B, states the entering states. dB: values is x, other is C, states the gradients of the
    leaving ones.
    """
    blocks = tl.cdiv(N, COLUMNS)
    size = (P * N).to(tl.int64)
    row = tl.arange(0, ROWS)
    for index in tl.range(tl.program_id(0), tl.load(chunks) * G * blocks, tl.num_programs(0), disable_licm=True):
        sequence, start, end, chunk, stop = item(chunks, index // (G * blocks), CHUNK)
        group = index // blocks % G
        n = index % blocks * COLUMNS + tl.arange(0, COLUMNS)
        alive = chunk + row < stop
        chunk_row = chunk.to(tl.int64)
        edge = stop if OF_B else chunk
        at_edge = stop >= end if OF_B else chunk <= start
        total = tl.zeros((ROWS, COLUMNS), tl.float32)
        if (at_edge == 0) | (has_given != 0):
            blocks_p = tl.cdiv(P, BLOCK_P)
            for k in tl.range(H // G * blocks_p, disable_licm=True):  # one loop, so that loads of the next turn overlap
                head, p = group * (H // G) + k // blocks_p, k % blocks_p * BLOCK_P + tl.arange(0, BLOCK_P)
                base = T.to(tl.int64) * head + chunk
                at = base + row
                if OF_B:
                    weight, _ = decay_to_end(high, low, base, row, alive, stop - chunk, EXACT)
                    weight *= tl.load(step + at, mask=alive, other=0.0)
                else:
                    weight = tl.exp2(tl.where(alive, tl.load(high + at, mask=alive, other=0.0), float("-inf")))
                state = _state_or(given, states, sequence, edge, at_edge, head, H, size, CHUNK)
                here = values + chunk_row * values_stride + head * values_head
                scaled = tile(here, row, alive, values_stride, p, P) * weight[:, None]
                total = product(scaled, state_tile(state, p, P, n, N), total, EXACT)
        mates = tile(other + chunk_row * other_stride + group * other_group, row, alive, other_stride, n, N)
        scores = tl.zeros((ROWS, ROWS), tl.float32)
        for part in range(n_parts):
            token = ((T.to(tl.int64) * part + chunk + row) * G + group) * CHUNK
            if OF_B:
                mask = alive[None, :] & (row[:, None] <= row[None, :])
                scores += tl.load(dscores + token[:, None] + row[None, :], mask=mask, other=0.0)
            else:
                mask = alive[:, None] & (row[:, None] >= row[None, :])
                scores += tl.load(dscores + token[None, :] + row[:, None], mask=mask, other=0.0)
        total = product(scores, mates, total, EXACT)
        out = ((chunk_row + row) * G + group)[:, None] * N + n[None, :]
        tl.store(gradient + out, total.to(gradient.dtype.element_ty), mask=alive[:, None] & (n < N)[None, :])


@triton.jit(do_not_specialize=["cu_seqlens", "T", "S", "H"])
def gate_kernel(
    y, z, dy, dz, high, low, cu_seqlens, T, S, H, P, z_stride, z_head, dy_stride, dy_head,
    BLOCK_T: tl.constexpr, BLOCK_P: tl.constexpr,
):  # fmt: skip
    """dz from the ungated outputs y, and the gradient of y: in the place of y, and in two parts of dz's dtype."""
    blocks = tl.cdiv(P, BLOCK_P)
    head = tl.program_id(0) // blocks % H
    t = (tl.program_id(0) // (H * blocks)).to(tl.int64) * BLOCK_T + tl.arange(0, BLOCK_T)
    p = tl.program_id(0) % blocks * BLOCK_P + tl.arange(0, BLOCK_P)
    mask = (t < tl.load(cu_seqlens + S))[:, None] & (p < P)[None, :]
    stored = (t < T)[:, None] & (p < P)[None, :]
    at = (t * H + head)[:, None] * P + p[None, :]
    gate = tl.load(z + t[:, None] * z_stride + head * z_head + p[None, :], mask=mask, other=0.0).to(tl.float32)
    incoming = tl.load(dy + t[:, None] * dy_stride + head * dy_head + p[None, :], mask=mask, other=0.0)
    before = tl.load(y + at, mask=mask, other=0.0)
    tl.store(dz + at, (incoming * before * silu_slope(gate)).to(dz.dtype.element_ty), mask=stored)
    gradient = incoming * silu(gate)
    rounded = gradient.to(high.dtype.element_ty)
    tl.store(y + at, gradient, mask=stored)
    tl.store(high + at, rounded, mask=stored)
    tl.store(low + at, (gradient - rounded).to(low.dtype.element_ty), mask=stored)
