// y of segments, chunk after chunk, with the states of two heads in registers.
//
// All is transposed, so that the state, an accumulator [channels, states], is the operand of its own product: y is
// [channels, tokens], scores are [token i, token j] in shared memory. A chunk of a head:
//   y = state Ct, in fp16                             scores = C Bt * decays * steps on and below the diagonal
//   y = y * decays + xt scorest                       weighted rows of x
//   state = decay * state + (weights x)t B            y, through shared memory and the copy engine

constexpr int SCAN_STAGES = 3;
constexpr unsigned SCAN_C = KEYS_BYTES, SCAN_X = SCAN_C + KEYS_BYTES;  // in a stage, after B
constexpr unsigned SCAN_SIMILARITIES = SCAN_X + HEADS * TILE_BYTES;
constexpr unsigned SCAN_DECAYS = SCAN_SIMILARITIES + TRIANGLE_BYTES;
constexpr unsigned SCAN_STAGE_BYTES = SCAN_DECAYS + HEADS * DECAYS_BYTES;
constexpr unsigned SCAN_SCORES = SCAN_STAGES * SCAN_STAGE_BYTES;           // of each head: large parts, small parts
constexpr unsigned SCAN_Y = SCAN_SCORES + HEADS * 2 * TILE_BYTES;          // of each head; before it the gate
constexpr unsigned SCAN_FACTORS = SCAN_Y + HEADS * TILE_BYTES;             // of each head: weights, shares
constexpr unsigned SCAN_HEADERS = SCAN_FACTORS + HEADS * 2 * CHUNK * 4;
constexpr unsigned SCAN_BARRIERS = SCAN_HEADERS + SCAN_STAGES * 16;
constexpr unsigned GATE_BARRIERS = SCAN_BARRIERS + SCAN_STAGES * 16;       // of each head
constexpr unsigned SCAN_WEIGHTS = GATE_BARRIERS + HEADS * 8;               // of each stage: log2 of the sum for each head
constexpr unsigned SCAN_SCALES = SCAN_WEIGHTS + SCAN_STAGES * 16;          // of each stage

typedef Ring<SCAN_STAGES, SCAN_STAGE_BYTES> ScanRing;
static_assert(SCAN_STAGE_BYTES % SWIZZLE_PERIOD == 0 && SCAN_SIMILARITIES % 16 == 0, "aligned tiles");

__device__ __forceinline__ void produce_scan_chunk(ScanRing ring, shared_address base, const tensor_map& x,
                                                   const tensor_map& B, const Prepared& prepared, Piece segment,
                                                   int token, Pair pair, int H, int G, bool has_initial) {
    int length = min(CHUNK, segment.end(SEGMENT) - token);
    int place = segment.begins() ? -1 - segment.sequence : segment.start / SEGMENT;
    int entered = segment.begins() && !has_initial ? 0 : ENTERED;
    int flags = (token == segment.start ? BEGINS | entered : 0) | (pair.count < HEADS ? ALONE : 0);
    shared_address tile = ring.tile(), full = ring.full(), scales = base + SCAN_SCALES + ring.stage * SCALES_BYTES;
    i64 row = chunk_row(segment.sequence, token), of_group = row * G + pair.group, of_head = row * H + pair.head;
    float2 weights = make_float2(prepared.weights[of_head], prepared.weights[of_head + pair.count - 1]);
    ring.wait_until_empty();
    Header{token, pair.head, place, length, flags}.store(ring.header());
    store_shared(base + SCAN_WEIGHTS + ring.stage * 16, weights);
    unsigned of_all = 2 * KEYS_BYTES + TRIANGLE_BYTES + SCALES_BYTES;
    mbarrier_arrive_expect(full, of_all + pair.count * (TILE_BYTES + DECAYS_BYTES));
    for (int n = 0; n < STATES / 64; n++) tensor_load(tile + n * TILE_BYTES, B, full, 64 * n, pair.group, token);
    bulk_load(tile + SCAN_C, prepared.queries + of_group * QUERIES, KEYS_BYTES, full);
    bulk_load(tile + SCAN_SIMILARITIES, prepared.similarities + of_group * SIMILARITIES, TRIANGLE_BYTES, full);
    bulk_load(scales, prepared.similarities + of_group * SIMILARITIES + TRIANGLE * 2, SCALES_BYTES, full);
    bulk_load(tile + SCAN_DECAYS, prepared.decays + of_head * (CHUNK * 2), pair.count * DECAYS_BYTES, full);
    for (int i = 0; i < pair.count; i++)
        tensor_load(tile + SCAN_X + i * TILE_BYTES, x, full, 0, pair.head + i, token);
}

// The unit of a warp's part of a state, 16 channels, in which it is at most 2^14: a power of two. It follows a bound, so
// that no chunk needs the largest element
struct Unit {
    float bound, exponent;  // log2

    // below, the state loses its last bits, but weights divided by the unit do not overflow
    static constexpr float LOWEST = -66.0f;

    __device__ __forceinline__ void follow(float bound_now) {
        bound = fmaxf(bound_now, LOWEST);
        exponent = ceilf(bound) - 14.0f;
    }
    // of a state that was loaded, which is divided by its unit
    __device__ __forceinline__ void find(float (&state)[STATE / 128]) {
        float largest = 0;
#pragma unroll
        for (int i = 0; i < STATE / 128; i++) largest = fmaxf(largest, fabsf(state[i]));
        follow(log2_fast(__uint_as_float(__reduce_max_sync(~0u, __float_as_uint(largest)))) + 0.01f);
        float inverse = exp2_fast(-exponent);
#pragma unroll
        for (int i = 0; i < STATE / 128; i++) state[i] *= inverse;
    }
    // of the state after a chunk: it, decayed, and at most weights * largest x * largest B
    __device__ __forceinline__ void advance(float last, float weights, unsigned largest_x, float largest_B) {
        float old = bound + last, added = log2_fast(__uint_as_float(largest_x << 16)) + weights + largest_B;
        float larger = fmaxf(old, added);
        follow(larger + log2_fast(1.0f + exp2_fast(fminf(old, added) - larger)) + 0.01f);
    }
};

// The largest magnitude of x in a warp, as bits of bf16
__device__ __forceinline__ unsigned largest_of(const unsigned (&x)[16]) {
    unsigned largest = 0;
#pragma unroll
    for (int i = 0; i < 16; i++) largest = max_of_halves(largest, x[i] & 0x7fff7fffu);
    return __reduce_max_sync(~0u, max(largest & 0xffffu, largest >> 16));
}

__device__ __forceinline__ void multiply(float4& v, float factor) {
    v.x *= factor, v.y *= factor, v.z *= factor, v.w *= factor;
}

// y = state Ct in fp16, not waited for
__device__ __forceinline__ void multiply_by_queries(float (&y)[32], const unsigned (&state)[OPERAND], shared_address C) {
    descriptor first = describe<128>(C, 16, SWIZZLE_PERIOD);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < STATES / 16; k++)
        wgmma<64, FP16, false>(y, state + 4 * k, further(first, k / 4 * TILE_BYTES + k % 4 * 32), k > 0);
    wgmma_commit();
}

// y += xt scorest, not waited for
__device__ __forceinline__ void multiply_by_scores(float (&y)[32], const unsigned (&x)[16], shared_address scores) {
    descriptor first = describe<128>(scores, 16, SWIZZLE_PERIOD);
    wgmma_fence();
#pragma unroll
    for (int part = 1; part >= 0; part--)
#pragma unroll
        for (int k = 0; k < 4; k++)
            wgmma<64, BF16, false>(y, x + 4 * k, further(first, part * TILE_BYTES + k * 32), true);
    wgmma_commit();
}

// Factors of a thread's token: of its row of x for the state at the end of the chunk, and of the state for its output,
// times the power of two of its row of C
__device__ __forceinline__ void find_factors(shared_address factors, Decays decays, shared_address scales, float last,
                                             Thread t) {
    int token = t.index % CHUNK;
    float factor = t.index < CHUNK ? decays.source(token).share(last)
                                   : exp2_fast(decays.of(token) + load_shared<float>(scales + token * 4));
    store_shared(factors + (t.index & CHUNK) * 4 + place_of_token(token) * 4, factor);
}

// y times silu(z), z from a tile
__device__ __forceinline__ void apply_gate(float (&y)[32], shared_address z, Thread t) {
#pragma unroll
    for (int k = 0; k < 4; k++) {
        unsigned gate[4];
        load_transposed(gate, z, k, t);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            y[8 * k + 2 * i] *= silu(low_half(gate[i]));
            y[8 * k + 2 * i + 1] *= silu(high_half(gate[i]));
        }
    }
}

// A head's part of shared memory
struct Places {
    shared_address scores, y, factors, gate_barrier;

    __device__ __forceinline__ Places(shared_address base, int which)
        : scores(base + SCAN_SCORES + which * 2 * TILE_BYTES), y(base + SCAN_Y + which * TILE_BYTES),
          factors(base + SCAN_FACTORS + which * 2 * CHUNK * 4), gate_barrier(base + GATE_BARRIERS + 8 * which) {}
};

struct Outputs {
    const tensor_map &z_map, &y_map;
    const float* D;
    token* y;
    int H, G;
    bool has_D;
};

// One chunk of a head. weights: log2 of their sum. D: of the head; of two channels if D_OF_CHANNELS
__device__ __forceinline__ void scan_chunk(float (&state)[STATE / 128], Unit& unit, shared_address tile,
                                           shared_address scales, float weights_sum, Header header, int which, int head, bool valid, float2 D, unsigned gate_phase, const Places& places,
                                           const Outputs& out, Thread t) {
    Decays decays = {tile + SCAN_DECAYS + which * DECAYS_BYTES};
    float last = decays.last(), y[32];
    unsigned half[OPERAND];
#pragma unroll
    for (int i = 0; i < OPERAND; i++) half[i] = pack<FP16>(state[2 * i], state[2 * i + 1]);
    hold(half);
    multiply_by_queries(y, half, tile + SCAN_C);
    find_factors(places.factors, decays, scales, last, t);
    find_scores(places.scores, tile + SCAN_SIMILARITIES, decays, D_OF_CHANNELS ? 0.0f : D.x, t);
    if (t.index == 0) wait_for_bulk_reads<0>();  // y of the chunk before has left its tile
    fence_async_proxy();
    named_barrier(1 + which, 128);
    if (GATED && t.index == 0) {
        mbarrier_arrive_expect(places.gate_barrier, TILE_BYTES);
        tensor_load(places.y, out.z_map, places.gate_barrier, 0, head, header.token);
    }

    unsigned x[16];
    float values[32];
    float4 shares[4], weights[4];
    load_x(x, tile + SCAN_X + which * TILE_BYTES, header.length, t);
#pragma unroll
    for (int k = 0; k < 4; k++) shares[k] = factors(places.factors + CHUNK * 4, k, t);
    float before = unit.exponent, size = exp2_fast(before);
    unit.advance(last, weights_sum, largest_of(x), load_shared<float>(scales + CHUNK * 4));
#pragma unroll
    for (int k = 0; k < 4; k++) multiply(shares[k], size);
    wgmma_wait<0>();
    hold(y), hold(half);
#pragma unroll
    for (int i = 0; i < 32; i++) {
        float4 share = shares[i / 8];
        y[i] *= i % 8 / 4 == 0 ? (i % 2 ? share.y : share.x) : i % 2 ? share.w : share.z;
    }
    widen_x(values, x);  // before the product: until it ends, its operands may not be read
    if (D_OF_CHANNELS) {
#pragma unroll
        for (int i = 0; i < 32; i++) y[i] = fmaf(i % 4 / 2 ? D.y : D.x, values[i], y[i]);
    }
    float inverse = exp2_fast(-unit.exponent);
#pragma unroll
    for (int k = 0; k < 4; k++) weights[k] = factors(places.factors, k, t), multiply(weights[k], inverse);
    hold(values), hold(y), hold(x);
    multiply_by_scores(y, x, places.scores);

    unsigned heavy[16], light[16];
#pragma unroll
    for (int k = 0; k < 4; k++) weigh(heavy + 4 * k, light + 4 * k, values + 8 * k, weights[k]);
    float decay = exp2_fast(last + before - unit.exponent);
#pragma unroll
    for (int i = 0; i < STATE / 128; i++) state[i] *= decay;
    hold(state), hold(heavy), hold(light);
    add_to_state(state, heavy, light, tile);

    wgmma_wait<1>();
    hold(y), hold(x);
    if (GATED) {
        mbarrier_wait(places.gate_barrier, gate_phase);
        apply_gate(y, places.y, t);
        __syncwarp();
    }
    store_transposed(places.y, y, t);
    fence_async_proxy();
    named_barrier(1 + which, 128);
    if (valid) store_y(out.y_map, out.y, places.y, header.token, header.length, head, out.H, t);
    wgmma_wait<0>();
    hold(state), hold(heavy), hold(light);
}

__device__ __forceinline__ void scan_chunks(ScanRing ring, shared_address base, const float* initial,
                                            const float* ends, const Outputs& out, int which) {
    Thread t;
    Places places(base, which);
    float state[STATE / 128];
    float2 D = make_float2(0, 0);
    Unit unit = {0, 0};
    unsigned gate_phase = 0;
    for (;; ring.advance(), gate_phase ^= 1) {
        ring.wait_until_full();
        Header header = load_header(ring.header());
        if (header.flags & STOPS) break;
        int head = header.head + which;
        bool valid = which == 0 || !(header.flags & ALONE);
        if (!valid) head = header.head;  // there is no second head: the first one again, for nothing
        if (header.flags & BEGINS) {
            load_state(state, state_at(ends, initial, header.place, head, out.H), header.flags & ENTERED, t);
            unit.find(state);
            if (D_OF_CHANNELS) {
                const float* of_head = out.D + head * CHANNELS + 16 * t.warp + t.row;
                D = make_float2(of_head[0], of_head[8]);
            } else {
                D.x = out.has_D ? out.D[head] : 0.0f;
            }
        }
        shared_address scales = base + SCAN_SCALES + ring.stage * SCALES_BYTES;
        float weights = load_shared<float>(base + SCAN_WEIGHTS + ring.stage * 16 + (valid ? which : 0) * 4);
        scan_chunk(state, unit, ring.tile(), scales, weights, header, which, head, valid, D, gate_phase, places, out, t);
        ring.release(t.lane);
    }
    if (t.index == 0) wait_for_bulk_stores<0>();
}

// D: (h,), (h, p) if D_OF_CHANNELS. y: (t, h, p). initial and ends: states at the starts of sequences and between segments
extern "C" __global__ void __launch_bounds__(THREADS, 1) _ssd_fwd_scan_kernel(
    const __grid_constant__ tensor_map x_map, const __grid_constant__ tensor_map B_map,
    const __grid_constant__ tensor_map z_map, const __grid_constant__ tensor_map y_map, float* memory, const float* D,
    const float* initial, const float* ends, token* y, i64 rows, i64 pieces, i64 H, i64 G, i64 has_initial, i64 has_D) {
    extern __shared__ float4 shared[];
    Prepared prepared(memory, rows, pieces, H, G);
    shared_address base = (address_of(shared) + SWIZZLE_PERIOD - 1) & ~(SWIZZLE_PERIOD - 1);
    ScanRing ring = {base, base + SCAN_HEADERS, base + SCAN_BARRIERS, 0, 0};
    if (threadIdx.x == 0) {
        for (int i = 0; i < HEADS; i++) mbarrier_init(base + GATE_BARRIERS + 8 * i, 1);
        ring.init(CONSUMERS / 32);
    }
    for (unsigned i = threadIdx.x * 16; i < HEADS * 2 * TILE_BYTES; i += THREADS * 16)
        store_shared(base + SCAN_SCORES + i, make_uint4(0, 0, 0, 0));
    fence_async_proxy();
    __syncthreads();
    int which = threadIdx.x / 128;
    if (which < HEADS) {
        increase_registers<232>();
        scan_chunks(ring, base, initial, ends, Outputs{z_map, y_map, D, y, (int)H, (int)G, has_D != 0}, which);
        return;
    }
    decrease_registers<40>();
    if (threadIdx.x != CONSUMERS) return;
    int pairs = G * pairs_of_group(H, G);
    i64 items = (i64)prepared.scanned[0] * pairs;
    for (Queue queue(prepared.counters + 1); queue.index < items; queue.advance()) {
        Piece segment = piece_of(prepared.scanned, queue.index / pairs);
        Pair pair = pair_of(queue.index % pairs, H, G);
        for (int token = segment.start; token < segment.end(SEGMENT); token += CHUNK, ring.advance())
            produce_scan_chunk(ring, base, x_map, B_map, prepared, segment, token, pair, H, G, has_initial != 0);
    }
    ring.stop();
}
