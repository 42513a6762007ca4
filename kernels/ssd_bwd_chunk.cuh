// All gradients but dx of one chunk and group, from the states before and after it, head after head.
//
// With S the state before the chunk, G the gradient of the one after it, a the log-decays and L their differences as
// decays, three warpgroups share the work of a head:
//   queries  P = dy S     dC += exp(a) P        entered = exp(a) rows of P . C
//   keys     P = x G      dB += weights P       left = exp(a_last - a) rows of P . B     both: half of S . G each
//   pairs    dM = x dyt   total += L dM steps   gradients of decays and of steps, dD
// At the end dC += totalt B and dB += total C, where total is [j, i], summed over the heads: one product each. A
// warp of the pairs adds up what a token gets of all three; each waits for the others by barriers of two buffers.

constexpr int CHUNK_STAGES = STATES == 64 ? 4 : 3;
constexpr int WARPGROUPS = 3, CHUNK_CONSUMERS = 128 * WARPGROUPS, CHUNK_THREADS = CHUNK_CONSUMERS + 128;
constexpr unsigned OF_X = 0, OF_DY = TILE_BYTES, OF_S = 2 * TILE_BYTES, OF_G = OF_S + STATE_BYTES;  // in a stage
constexpr unsigned OF_DECAYS = OF_G + STATE_BYTES, CHUNK_STAGE_BYTES = OF_DECAYS + SWIZZLE_PERIOD;
constexpr unsigned OF_B = CHUNK_STAGES * CHUNK_STAGE_BYTES, OF_C = OF_B + KEYS_BYTES;  // of the item
constexpr unsigned OF_LATER = OF_C + KEYS_BYTES;                                       // [t, i]: 1 where i >= t
constexpr unsigned OF_TOTAL = OF_LATER + TILE_BYTES;                                   // large parts, small parts
constexpr unsigned OF_REMAINDER = OF_TOTAL + 2 * TILE_BYTES;  // of G, where a segment ends: what rounding took from it
constexpr unsigned OF_SUMS = OF_REMAINDER + STATE_BYTES;      // two buffers
constexpr unsigned ENTERED_SUMS = 0, LEFT_SUMS = CHUNK * 4, THROUGH = 2 * CHUNK * 4;  // in a buffer; of 8 warps
constexpr unsigned PAIR_SUMS = THROUGH + 32, LATER_SUMS = PAIR_SUMS + CHUNK * 4;      // of 4 warps
constexpr unsigned SUMS_BYTES = LATER_SUMS + 4 * CHUNK * 4;
constexpr unsigned CHUNK_HEADERS = OF_SUMS + 2 * SUMS_BYTES;
constexpr unsigned CHUNK_BARRIERS = CHUNK_HEADERS + CHUNK_STAGES * 16;
constexpr unsigned KEY_BARRIERS = CHUNK_BARRIERS + CHUNK_STAGES * 16;  // of B and C: full, empty
constexpr unsigned SUM_BARRIERS = KEY_BARRIERS + 16;                   // of buffers of sums: full, full, empty, empty
constexpr unsigned REMAINDER_BARRIERS = SUM_BARRIERS + 32;             // full, empty

typedef Ring<CHUNK_STAGES, CHUNK_STAGE_BYTES> ChunkRing;
static_assert(CHUNK_STAGE_BYTES % SWIZZLE_PERIOD == 0, "aligned tiles");

enum { LEFT = ALONE, SEGMENT_ENDS = 32 };  // a gradient of the state after the chunk; it has a remainder
enum { OF_ALL = 1, OF_PAIRS = 2 };         // named barriers

struct ChunkMaps {
    const tensor_map &x, &dy, &states, &dstates, &initial, &dfinal, &remainders;
};

// Where gradients go: dB and dC (t, g, n), ddt (t, h) in bf16, the parts of dA and of the bias's (h, t) and of dD
// (pieces, h, p) in fp32
struct ChunkOutputs {
    token *dB, *dC, *ddt;
    float *dA, *dbias, *dD;
    const float* A;
    i64 T;
    int H, G;
    bool has_D;
};

__device__ __forceinline__ void load_state_tiles(shared_address to, const tensor_map& map, shared_address full,
                                                 int row) {
    for (int n = 0; n < STATES / 64; n++) tensor_load(to + n * TILE_BYTES, map, full, 64 * n, row);
}

// The states at the edges of a chunk: rows of what maps name, times heads
struct Edges {
    int flags, before, after, remainder;

    __device__ __forceinline__ Edges(Piece chunk, i64 T, bool has_initial, bool has_final) {
        int end = chunk.end(CHUNK);
        bool is_last = end == chunk.sequence_end, has_left = !is_last || has_final;
        bool segment_ends = has_left && (is_last || (end - chunk.sequence_start) % SEGMENT == 0);
        flags =
            (chunk.begins() && !has_initial ? 0 : ENTERED) | (has_left ? LEFT : 0) | (segment_ends ? SEGMENT_ENDS : 0);
        before = chunk.begins() ? chunk.sequence : chunk.start / CHUNK;
        after = is_last ? chunk.sequence : end / CHUNK;
        remainder = (int)remainder_row(is_last ? -1 - chunk.sequence : end / SEGMENT, T);
    }
    __device__ __forceinline__ unsigned bytes() const {
        return (flags & ENTERED ? STATE_BYTES : 0) + (flags & LEFT ? STATE_BYTES : 0);
    }
};

__device__ __forceinline__ void produce_heads(ChunkRing& ring, shared_address base, unsigned& remainder_phase,
                                              const ChunkMaps& maps, const Prepared& prepared, Piece chunk, Edges edges,
                                              int item, int group, int H, int G) {
    int length = chunk.end(CHUNK) - chunk.start, per_group = H / G;
    i64 row = chunk_row(chunk.sequence, chunk.start);
    const tensor_map& before = chunk.begins() ? maps.initial : maps.states;
    const tensor_map& after = chunk.end(CHUNK) == chunk.sequence_end ? maps.dfinal : maps.dstates;
    for (int i = 0; i < per_group; i++, ring.advance()) {
        int head = group * per_group + i;
        int flags = (i == 0 ? BEGINS : 0) | (i == per_group - 1 ? ENDS : 0) | edges.flags;
        shared_address tile = ring.tile(), full = ring.full();
        ring.wait_until_empty();
        Header{chunk.start, head, item, length, flags}.store(ring.header());
        mbarrier_arrive_expect(full, 2 * TILE_BYTES + DECAYS_BYTES + edges.bytes());
        tensor_load(tile + OF_X, maps.x, full, 0, head, chunk.start);
        tensor_load(tile + OF_DY, maps.dy, full, 0, head, chunk.start);
        if (edges.flags & ENTERED) load_state_tiles(tile + OF_S, before, full, (edges.before * H + head) * CHANNELS);
        if (edges.flags & LEFT) load_state_tiles(tile + OF_G, after, full, (edges.after * H + head) * CHANNELS);
        bulk_load(tile + OF_DECAYS, prepared.decays + (row * H + head) * (CHUNK * 2), DECAYS_BYTES, full);
        if (!(edges.flags & SEGMENT_ENDS)) continue;
        full = base + REMAINDER_BARRIERS;
        mbarrier_wait(full + 8, remainder_phase ^ 1);
        remainder_phase ^= 1;
        mbarrier_arrive_expect(full, STATE_BYTES);
        load_state_tiles(base + OF_REMAINDER, maps.remainders, full, (edges.remainder * H + head) * CHANNELS);
    }
}

// Zeros in rows past the last token, which may hold anything, of a tile of `width` bytes a row. By all consumers
__device__ __forceinline__ void clear_tile_rows(shared_address tile, int length, int tiles) {
    for (int i = threadIdx.x; i < (CHUNK - length) * 8 * tiles; i += CHUNK_CONSUMERS) {
        int row = length + i / 8 % (CHUNK - length), tile_index = i / (8 * (CHUNK - length));
        store_shared(tile + tile_index * TILE_BYTES + row * ROW_BYTES + i % 8 * 16, make_uint4(0, 0, 0, 0));
    }
}

// What a warpgroup starts a head with: its tiles are there, and B and C at the first one
__device__ __forceinline__ void begin_head(shared_address base, shared_address tile, Header header,
                                           unsigned& key_phase) {
    if (header.flags & BEGINS) {
        mbarrier_wait(base + KEY_BARRIERS, key_phase);
        key_phase ^= 1;
        if (header.length < CHUNK) clear_tile_rows(base + OF_B, header.length, 2 * (STATES / 64));
    }
    if (header.length < CHUNK) {
        clear_tile_rows(tile + OF_X, header.length, 2);
        fence_async_proxy();
        named_barrier(OF_ALL, CHUNK_CONSUMERS);
    }
}

// The buffer of sums of a head: one head has the first, the next one the second
struct Sums {
    shared_address base;
    unsigned number, phase;

    __device__ __forceinline__ explicit Sums(shared_address base) : base(base), number(0), phase(0) {}
    __device__ __forceinline__ shared_address buffer() const { return base + OF_SUMS + number * SUMS_BYTES; }
    __device__ __forceinline__ shared_address full() const { return base + SUM_BARRIERS + 8 * number; }
    __device__ __forceinline__ shared_address empty() const { return base + SUM_BARRIERS + 16 + 8 * number; }
    __device__ __forceinline__ void advance() {
        number ^= 1;
        if (number == 0) phase ^= 1;
    }
};

__device__ __forceinline__ float sum_of_warp(float x) {
    for (int lanes = 16; lanes > 0; lanes /= 2) x += __shfl_xor_sync(~0u, x, lanes);
    return x;
}

__device__ __forceinline__ float sum_of_row(float x) {  // over the lanes that share a row of an accumulator
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
}

// -------------------------------------------------------------------------------------------------- queries and keys

// A thread's part of the product of two states; `thread` of 256
__device__ __forceinline__ float multiply_states(shared_address S, shared_address G, int thread) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < (int)STATE_BYTES / 16 / 256; i++) {
        uint4 s = load_shared<uint4>(S + (256 * i + thread) * 16);
        uint4 g = load_shared<uint4>(G + (256 * i + thread) * 16);
        unsigned a[4] = {s.x, s.y, s.z, s.w}, b[4] = {g.x, g.y, g.z, g.w};
#pragma unroll
        for (int k = 0; k < 4; k++)
            sum = fmaf(high_half(a[k]), high_half(b[k]), fmaf(low_half(a[k]), low_half(b[k]), sum));
    }
    return sum;
}

// part = tokens states or, if `keep`, += ; not waited for
__device__ __forceinline__ void multiply_by_states(float (&part)[STATE / 128], shared_address tokens,
                                                   shared_address states, bool keep) {
    descriptor rows = describe<128>(tokens, 16, SWIZZLE_PERIOD),
               columns = describe<128>(states, TILE_BYTES, SWIZZLE_PERIOD);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; k++)
        wgmma<STATES, BF16, false, true>(part, further(rows, k * 32), further(columns, k * 16 * ROW_BYTES),
                                         keep || k > 0);
    wgmma_commit();
}

// Rows of part . keys, in two rows of the thread, after all lanes
__device__ __forceinline__ float2 multiply_by_rows(const float (&part)[STATE / 128], shared_address keys, Thread t) {
    float2 sum = make_float2(0, 0);
    int matrix = t.lane / 8, row = 16 * t.warp + matrix % 2 * 8 + t.lane % 8;
#pragma unroll
    for (int n = 0; n < STATES / 8; n += 2) {
        unsigned k[4];
        load_matrices_x4<false>(k, swizzled(keys + n / 8 * TILE_BYTES, row, n % 8 + matrix / 2));
        const float* v = part + 4 * n;
        sum.x = fmaf(v[1], high_half(k[0]), fmaf(v[0], low_half(k[0]), sum.x));
        sum.y = fmaf(v[3], high_half(k[1]), fmaf(v[2], low_half(k[1]), sum.y));
        sum.x = fmaf(v[5], high_half(k[2]), fmaf(v[4], low_half(k[2]), sum.x));
        sum.y = fmaf(v[7], high_half(k[3]), fmaf(v[6], low_half(k[3]), sum.y));
    }
    return make_float2(sum_of_row(sum.x), sum_of_row(sum.y));
}

// sum += total C, or totalt B for dC
__device__ __forceinline__ void add_pairs(float (&sum)[STATE / 128], shared_address base, bool of_queries) {
    descriptor columns = describe<128>(base + (of_queries ? OF_B : OF_C), TILE_BYTES, SWIZZLE_PERIOD);
    descriptor rows = describe<128>(base + OF_TOTAL, of_queries ? TILE_BYTES : 16, SWIZZLE_PERIOD);
    hold(sum);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 8; k++) {  // small parts first
        unsigned part = k < 4 ? TILE_BYTES : 0, at = k % 4 * 16 * ROW_BYTES;
        if (of_queries)
            wgmma<STATES, BF16, true, true>(sum, further(rows, part + at), further(columns, at), true);
        else
            wgmma<STATES, BF16, false, true>(sum, further(rows, part + k % 4 * 32), further(columns, at), true);
    }
    wgmma_commit();
    wgmma_wait<0>();
    hold(sum);
}

__device__ __forceinline__ void store_rows(token* to, const float (&sum)[STATE / 128], i64 stride, int length,
                                           Thread t) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int row = 16 * t.warp + t.row + 8 * r;
        if (row >= length) continue;
#pragma unroll
        for (int n = 0; n < STATES / 8; n++)
            *(unsigned*)(to + row * stride + 8 * n + 2 * t.column) =
                pack<BF16>(sum[4 * n + 2 * r], sum[4 * n + 2 * r + 1]);
    }
}

// What a row of P counts with: in the sum over heads, and in the gradient of a decay
template <bool QUERIES>
__device__ __forceinline__ float2 row_factors(Decays decays, float last, int row) {
    Source source = decays.source(row);
    float decay = exp2_fast(QUERIES ? source.decay : last - source.decay);
    return make_float2(QUERIES ? decay : decay * source.step, decay);
}

// The warpgroup of dC if QUERIES, of dB otherwise
template <bool QUERIES>
__device__ __forceinline__ void gather_states(ChunkRing ring, shared_address base, const ChunkOutputs& out) {
    Thread t;
    Sums sums(base);
    float sum[STATE / 128];
    unsigned key_phase = 0, remainder_phase = 0;
    for (;; ring.advance()) {
        ring.wait_until_full();
        Header header = load_header(ring.header());
        if (header.flags & STOPS) break;
        shared_address tile = ring.tile();
        begin_head(base, tile, header, key_phase);
        if (header.flags & BEGINS) {
#pragma unroll
            for (int i = 0; i < STATE / 128; i++) sum[i] = 0;
        }
        float part[STATE / 128];
        multiply_by_states(part, tile + (QUERIES ? OF_DY : OF_X), tile + (QUERIES ? OF_S : OF_G), false);
        Decays decays = {tile + OF_DECAYS};
        float last = decays.last(), through = 0;
        bool both = (header.flags & ENTERED) && (header.flags & LEFT);
        int thread = t.index + (QUERIES ? 0 : 128);
        if (both) through = multiply_states(tile + OF_S, tile + OF_G, thread);
        int row = 16 * t.warp + t.row;
        float2 upper = row_factors<QUERIES>(decays, last, row), lower = row_factors<QUERIES>(decays, last, row + 8);
        wgmma_wait<0>();
        hold(part);
        if (header.flags & SEGMENT_ENDS) {
            mbarrier_wait(base + REMAINDER_BARRIERS, remainder_phase);
            remainder_phase ^= 1;
            if (both) through += multiply_states(tile + OF_S, base + OF_REMAINDER, thread);
            if (!QUERIES) {
                multiply_by_states(part, tile + OF_X, base + OF_REMAINDER, true);
                wgmma_wait<0>();
                hold(part);
            }
            __syncwarp();
            if (t.lane == 0) mbarrier_arrive(base + REMAINDER_BARRIERS + 8);
        }
        through = sum_of_warp(through);
        ring.release(t.lane);
        float2 of_rows = make_float2(0, 0);
        if (header.flags & (QUERIES ? ENTERED : LEFT)) {
            of_rows = multiply_by_rows(part, base + (QUERIES ? OF_C : OF_B), t);
#pragma unroll
            for (int i = 0; i < STATE / 128; i++) sum[i] = fmaf(part[i], i % 4 / 2 ? lower.x : upper.x, sum[i]);
        }
        mbarrier_wait(sums.empty(), sums.phase ^ 1);
        if (t.column == 0) {
            shared_address to = sums.buffer() + (QUERIES ? ENTERED_SUMS : LEFT_SUMS) + row * 4;
            store_shared(to, row < header.length ? of_rows.x * upper.y : 0.0f);
            store_shared(to + 32, row + 8 < header.length ? of_rows.y * lower.y : 0.0f);
        }
        if (t.lane == 0) store_shared(sums.buffer() + THROUGH + (t.warp + (QUERIES ? 0 : 4)) * 4, through);
        __syncwarp();
        if (t.lane == 0) mbarrier_arrive(sums.full());
        sums.advance();
        if (header.flags & ENDS) {
            named_barrier(OF_ALL, CHUNK_CONSUMERS);  // the total is there
            add_pairs(sum, base, QUERIES);
            __syncwarp();
            if (t.lane == 0) mbarrier_arrive(base + KEY_BARRIERS + 8);
            int group = header.head / (out.H / out.G);
            i64 stride = (i64)out.G * STATES;
            store_rows((QUERIES ? out.dC : out.dB) + header.token * stride + group * STATES, sum, stride, header.length,
                       t);
        }
    }
}

// -------------------------------------------------------------------------------------------------------------- pairs

// [64, 64] = rows of a tile . rows of another, not waited for
__device__ __forceinline__ void multiply_rows(float (&d)[32], shared_address a, shared_address b, int tiles) {
    descriptor rows = describe<128>(a, 16, SWIZZLE_PERIOD), columns = describe<128>(b, 16, SWIZZLE_PERIOD);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4 * tiles; k++) {
        unsigned at = k / 4 * TILE_BYTES + k % 4 * 32;
        wgmma<64, BF16, false, false>(d, further(rows, at), further(columns, at), k > 0);
    }
    wgmma_commit();
}

// [64, 64] = columns of a tile . columns of another, not waited for
__device__ __forceinline__ void multiply_columns(float (&d)[32], shared_address a, shared_address b) {
    descriptor rows = describe<128>(a, TILE_BYTES, SWIZZLE_PERIOD),
               columns = describe<128>(b, TILE_BYTES, SWIZZLE_PERIOD);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; k++)
        wgmma<64, BF16, true, true>(d, further(rows, k * 16 * ROW_BYTES), further(columns, k * 16 * ROW_BYTES), k > 0);
    wgmma_commit();
}

// The diagonal of an accumulator
__device__ __forceinline__ void store_diagonal(float* to, const float (&d)[32], Thread t) {
    float upper = 0, lower = 0;
#pragma unroll
    for (int w = 0; w < 4; w++) {
        if (t.warp != w) continue;
        upper = t.row % 2 ? d[8 * w + 1] : d[8 * w];
        lower = t.row % 2 ? d[8 * w + 7] : d[8 * w + 6];
    }
    if (t.column == t.row / 2) to[16 * t.warp + t.row] = upper, to[16 * t.warp + t.row + 8] = lower;
}

// From dM [j, i], zero past the last token, to the gradients of scores in total, and to products of scores and their
// gradients: rows' sums, and the products times steps as operands
__device__ __forceinline__ float2 weigh_pairs(float (&total)[32], unsigned (&large)[16], unsigned (&small)[16],
                                              const float (&dM)[32], const float (&similarity)[32], Decays decays,
                                              Thread t) {
    int row = 16 * t.warp + t.row;
    Source upper = decays.source(row), lower = decays.source(row + 8);
    float2 sums = make_float2(0, 0);
#pragma unroll
    for (int b = 0; b < 8; b++) {
        float2 a = load_shared<float2>(decays.pairs + b * 64 + t.column * 16);
        int i = 8 * b + 2 * t.column;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            Source own = r ? lower : upper;
            int j = row + 8 * r, k = 4 * b + 2 * r;
            float u = dM[k] * exp2_fast(a.x - own.decay), v = dM[k + 1] * exp2_fast(a.y - own.decay);
            u = j <= i ? u : 0.0f;  // selected, not multiplied: a decay against time may overflow
            v = j <= i + 1 ? v : 0.0f;
            total[k] = fmaf(u, own.step, total[k]);
            total[k + 1] = fmaf(v, own.step, total[k + 1]);
            u *= similarity[k], v *= similarity[k + 1];
            (r ? sums.y : sums.x) += u + v;
            split(u * own.step, v * own.step, large[2 * b + r], small[2 * b + r]);
        }
    }
    return make_float2(sum_of_row(sums.x), sum_of_row(sums.y));
}

// d = products . later, so that column t has the sum over i >= t; not waited for
__device__ __forceinline__ void sum_later(float (&d)[32], const unsigned (&large)[16], const unsigned (&small)[16],
                                          shared_address later) {
    descriptor first = describe<128>(later, 16, SWIZZLE_PERIOD);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 8; k++)  // small parts first
        wgmma<64, BF16, false>(d, (k < 4 ? small : large) + k % 4 * 4, further(first, k % 4 * 32), k > 0);
    wgmma_commit();
}

// The sums of columns over the warp's rows j < t: lane l gets those of tokens 2 l and 2 l + 1
__device__ __forceinline__ float2 sum_columns(const float (&d)[32], Thread t) {
    float v[16];
    int row = 16 * t.warp + t.row;
#pragma unroll
    for (int b = 0; b < 8; b++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            int token = 8 * b + 2 * t.column + e;
            v[2 * b + e] = (row < token ? d[4 * b + e] : 0.0f) + (row + 8 < token ? d[4 * b + 2 + e] : 0.0f);
        }
#pragma unroll
    for (int half = 8; half >= 2; half /= 2) {  // a lane keeps one half of them, and gives the other away
        bool upper = t.lane & half * 2;
#pragma unroll
        for (int i = 0; i < half; i++) {
            float kept = upper ? v[i + half] : v[i], given = upper ? v[i] : v[i + half];
            v[i] = kept + __shfl_xor_sync(~0u, given, half * 2);
        }
    }
    return make_float2(v[0], v[1]);
}

// The sums of x over later lanes, and over earlier ones
__device__ __forceinline__ float sum_after(float x, int lane) {
    float sum = __shfl_sync(~0u, x, (lane + 1) % 32);
    sum = lane < 31 ? sum : 0.0f;
    for (int lanes = 1; lanes < 32; lanes *= 2) {
        float other = __shfl_sync(~0u, sum, (lane + lanes) % 32);
        sum += lane + lanes < 32 ? other : 0.0f;
    }
    return sum;
}
__device__ __forceinline__ float sum_before(float x, int lane) {
    float sum = __shfl_sync(~0u, x, (lane + 31) % 32);
    sum = lane > 0 ? sum : 0.0f;
    for (int lanes = 1; lanes < 32; lanes *= 2) {
        float other = __shfl_sync(~0u, sum, (lane + 32 - lanes) % 32);
        sum += lane >= lanes ? other : 0.0f;
    }
    return sum;
}

// The derivative of softplus where it is `step`: 1 - exp(-step)
__device__ __forceinline__ float softplus_slope(float step) {
    float series = fmaf(fmaf(fmaf(fmaf(step, 1.0f / 120, -1.0f / 24), step, 1.0f / 6), step, -0.5f), step, 1.0f) * step;
    return step < 0.125f ? series : 1.0f - exp2_fast(-step * LOG2E);
}

// A rate that is finite, since it is a factor of zeros. NaN stays NaN
__device__ __forceinline__ float finite_rate(float rate) { return rate < -3.4028235e38f ? -3.4028235e38f : rate; }

// The gradients of the decays and of the steps of a head, by one warp, a lane for tokens 2 l and 2 l + 1. last: the
// log-decay of the chunk
__device__ __forceinline__ void finish_tokens(shared_address sums, Header header, float2 steps, float last,
                                              const ChunkOutputs& out, int lane) {
    float2 entered = load_shared<float2>(sums + ENTERED_SUMS + 8 * lane);
    float2 left = load_shared<float2>(sums + LEFT_SUMS + 8 * lane);
    float2 of_pairs = load_shared<float2>(sums + PAIR_SUMS + 8 * lane), later = make_float2(0, 0);
    float through = 0;
#pragma unroll
    for (int w = 0; w < 4; w++) {
        float2 part = load_shared<float2>(sums + LATER_SUMS + w * (CHUNK * 4) + 8 * lane);
        later.x += part.x, later.y += part.y;
        through += load_shared<float>(sums + THROUGH + 4 * w) + load_shared<float>(sums + THROUGH + 16 + 4 * w);
    }
    through *= exp2_fast(last);
    float after = sum_after(entered.x + entered.y, lane) + through;
    float weighted = left.x * steps.x, before = sum_before(weighted + left.y * steps.y, lane);
    float2 decay = make_float2(later.x + (after + (entered.x + entered.y)) + before,
                               later.y + (after + entered.y) + (before + weighted));
    float rate = finite_rate(out.A[header.head]);
    float2 step = make_float2(of_pairs.x + left.x + rate * decay.x, of_pairs.y + left.y + rate * decay.y);
    if (SOFTPLUS) step.x *= softplus_slope(steps.x), step.y *= softplus_slope(steps.y);
#pragma unroll
    for (int e = 0; e < 2; e++) {
        int row = 2 * lane + e;
        if (row >= header.length) continue;
        i64 token_row = header.token + row, at = header.head * out.T + token_row;
        float of_step = e ? step.y : step.x;
        out.ddt[token_row * out.H + header.head] = narrow(of_step);
        out.dA[at] = e ? steps.y * decay.y : steps.x * decay.x;
        out.dbias[at] = of_step;
    }
}

// total to shared memory, in two parts of bf16
__device__ __forceinline__ void store_total(shared_address tiles, const float (&total)[32], Thread t) {
    int matrix = t.lane / 8, row = 16 * t.warp + matrix % 2 * 8 + t.lane % 8;
#pragma unroll
    for (int b = 0; b < 8; b += 2) {
        unsigned large[4], small[4];
#pragma unroll
        for (int k = 0; k < 4; k++) split(total[4 * b + 2 * k], total[4 * b + 2 * k + 1], large[k], small[k]);
        shared_address to = swizzled(tiles, row, b + matrix / 2);
        store_matrices_x4<false>(to, large[0], large[1], large[2], large[3]);
        store_matrices_x4<false>(to + TILE_BYTES, small[0], small[1], small[2], small[3]);
    }
}

// The warpgroup of pairs of tokens
__device__ __forceinline__ void gather_pairs(ChunkRing ring, shared_address base, const ChunkOutputs& out) {
    Thread t;
    Sums sums(base);
    float total[32], similarity[32];
    unsigned key_phase = 0, turn = 0;
    for (;; ring.advance()) {
        ring.wait_until_full();
        Header header = load_header(ring.header());
        if (header.flags & STOPS) break;
        shared_address tile = ring.tile();
        begin_head(base, tile, header, key_phase);
        if (header.flags & BEGINS) {
            multiply_rows(similarity, base + OF_B, base + OF_C, STATES / 64);
            wgmma_wait<0>();
            hold(similarity);
#pragma unroll
            for (int k = 0; k < 32; k++) {
                int i = k / 4 * 8 + 2 * t.column + k % 2, j = 16 * t.warp + t.row + k % 4 / 2 * 8;
                if (j > i || i >= header.length) similarity[k] = 0;  // which may have overflowed
                total[k] = 0;
            }
        }
        float dM[32], products[32];
        multiply_rows(dM, tile + OF_X, tile + OF_DY, 1);
        multiply_columns(products, tile + OF_X, tile + OF_DY);
        Decays decays = {tile + OF_DECAYS};
        float2 steps = load_shared<float2>(decays.pairs + 16 * t.lane + 8);
        float last = decays.last();
        wgmma_wait<0>();
        hold(dM), hold(products);
        if (out.has_D) store_diagonal(out.dD + ((i64)header.place * out.H + header.head) * CHANNELS, products, t);
        unsigned large[16], small[16];
        float2 of_rows = weigh_pairs(total, large, small, dM, similarity, decays, t);
        ring.release(t.lane);
        hold(large), hold(small);
        sum_later(products, large, small, base + OF_LATER);
        int row = 16 * t.warp + t.row;
        if (t.column == 0) {
            store_shared(sums.buffer() + PAIR_SUMS + row * 4, of_rows.x);
            store_shared(sums.buffer() + PAIR_SUMS + row * 4 + 32, of_rows.y);
        }
        wgmma_wait<0>();
        hold(products), hold(large), hold(small);
        store_shared(sums.buffer() + LATER_SUMS + t.warp * (CHUNK * 4) + 8 * t.lane, sum_columns(products, t));
        if (header.flags & ENDS) {
            store_total(base + OF_TOTAL, total, t);
            fence_async_proxy();
            named_barrier(OF_ALL, CHUNK_CONSUMERS);
        }
        named_barrier(OF_PAIRS, 128);
        if (t.warp == turn) {  // the others go on to the next head
            mbarrier_wait(sums.full(), sums.phase);
            finish_tokens(sums.buffer(), header, steps, last, out, t.lane);
            __syncwarp();
            if (t.lane == 0) mbarrier_arrive(sums.empty());
        }
        turn = (turn + 1) % 4;
        sums.advance();
    }
}

// [t, i]: 1 where i >= t, in a swizzled tile
__device__ __forceinline__ void write_later(shared_address tile) {
    for (int index = threadIdx.x; index < CHUNK * 8; index += CHUNK_THREADS) {
        int row = index / 8, piece = index % 8;
        unsigned words[4];
        for (int k = 0; k < 4; k++) {
            int i = 8 * piece + 2 * k;
            words[k] = (i >= row ? 0x3f80u : 0u) | (i + 1 >= row ? 0x3f800000u : 0u);
        }
        store_shared(swizzled(tile, row, piece), make_uint4(words[0], words[1], words[2], words[3]));
    }
}

// states, dstates: between chunks, the one at token b in row b / CHUNK, of rows (h, p). initial: at the starts of
// sequences, dfinal at their ends, if there are any. remainders: of _ssd_bwd_scan_kernel. chunks: a list
extern "C" __global__ void __launch_bounds__(CHUNK_THREADS, 1) _ssd_bwd_chunk_kernel(
    const __grid_constant__ tensor_map x_map, const __grid_constant__ tensor_map dy_map,
    const __grid_constant__ tensor_map B_map, const __grid_constant__ tensor_map C_map,
    const __grid_constant__ tensor_map states_map, const __grid_constant__ tensor_map dstates_map,
    const __grid_constant__ tensor_map initial_map, const __grid_constant__ tensor_map dfinal_map,
    const __grid_constant__ tensor_map remainders_map, float* memory, const int* chunks, const float* A, token* dB,
    token* dC, token* ddt, float* dA, float* dbias, float* dD, i64 T, i64 rows, i64 pieces, i64 H, i64 G,
    i64 has_initial, i64 has_final, i64 has_D) {
        extern __shared__ float4 shared[];
    Prepared prepared(memory, rows, pieces, H, G);
    shared_address base = (address_of(shared) + SWIZZLE_PERIOD - 1) & ~(SWIZZLE_PERIOD - 1);
    ChunkRing ring = {base, base + CHUNK_HEADERS, base + CHUNK_BARRIERS, 0, 0};
    if (threadIdx.x == 0) {
        mbarrier_init(base + KEY_BARRIERS, 1);
        mbarrier_init(base + KEY_BARRIERS + 8, 8);
        mbarrier_init(base + REMAINDER_BARRIERS, 1);
        mbarrier_init(base + REMAINDER_BARRIERS + 8, 8);
        for (int i = 0; i < 2; i++) {
            mbarrier_init(base + SUM_BARRIERS + 8 * i, 8);
            mbarrier_init(base + SUM_BARRIERS + 16 + 8 * i, 1);
        }
        ring.init(CHUNK_CONSUMERS / 32);
    }
    write_later(base + OF_LATER);
    fence_async_proxy();
    __syncthreads();
    ChunkOutputs out = {dB, dC, ddt, dA, dbias, dD, A, T, (int)H, (int)G, has_D != 0};
    int which = threadIdx.x / 128;
    if (which == 0) {
        increase_registers<168>();
        gather_states<true>(ring, base, out);
        return;
    }
    if (which == 1) {
        increase_registers<168>();
        gather_states<false>(ring, base, out);
        return;
    }
    if (which == 2) {
        increase_registers<152>();
        gather_pairs(ring, base, out);
        return;
    }
    decrease_registers<24>();
    if (threadIdx.x != CHUNK_CONSUMERS) return;
    ChunkMaps maps = {x_map, dy_map, states_map, dstates_map, initial_map, dfinal_map, remainders_map};
    i64 items = chunks[0] * G;
    unsigned key_phase = 0, remainder_phase = 0;
    for (Queue queue(prepared.counters + CHUNKED); queue.index < items; queue.advance(), key_phase ^= 1) {
        Piece chunk = piece_of(chunks, queue.index / G);
        int group = queue.index % G;
        shared_address full = base + KEY_BARRIERS;
        mbarrier_wait(full + 8, key_phase ^ 1);
        mbarrier_arrive_expect(full, 2 * KEYS_BYTES);
        for (int n = 0; n < STATES / 64; n++) {
            tensor_load(base + OF_B + n * TILE_BYTES, B_map, full, 64 * n, group, chunk.start);
            tensor_load(base + OF_C + n * TILE_BYTES, C_map, full, 64 * n, group, chunk.start);
        }
        produce_heads(ring, base, remainder_phase, maps, prepared, chunk,
                      Edges(chunk, T, has_initial != 0, has_final != 0), queue.index / (int)G, group, H, G);
    }
    ring.stop();
}
