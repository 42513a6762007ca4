// dx of segments, from their last chunk to the first, with the gradients of states of two heads in registers.
//
// As _ssd_fwd_scan_kernel in reverse: with G the gradient of the state after a chunk, all transposed, a chunk of a
// head is
//   dx = G Bt                                         scores = C Bt * decays * steps on and below the diagonal
//   dx = dx * weights + dyt scores                    G goes to memory in bf16, unless the sequence ends there
//   G = decay * G + (decays dy)t C                    dx, through shared memory and the copy engine

constexpr int BACK_STAGES = STATES == 64 ? 3 : 2;
constexpr unsigned BACK_B = KEYS_BYTES, BACK_DY = BACK_B + KEYS_BYTES;  // in a stage, after C
constexpr unsigned BACK_SIMILARITIES = BACK_DY + HEADS * TILE_BYTES;
constexpr unsigned BACK_DECAYS = BACK_SIMILARITIES + TRIANGLE_BYTES;
constexpr unsigned BACK_STAGE_BYTES = BACK_DECAYS + HEADS * DECAYS_BYTES;
constexpr unsigned BACK_SCORES = BACK_STAGES * BACK_STAGE_BYTES;      // of each head: large parts, small parts
constexpr unsigned BACK_DX = BACK_SCORES + HEADS * 2 * TILE_BYTES;    // of each head
constexpr unsigned BACK_STATES = BACK_DX + HEADS * TILE_BYTES;        // of each head: G in bf16
constexpr unsigned BACK_FACTORS = BACK_STATES + HEADS * STATE_BYTES;  // of each head: weights, decays
constexpr unsigned BACK_HEADERS = BACK_FACTORS + HEADS * 2 * CHUNK * 4;
constexpr unsigned BACK_BARRIERS = BACK_HEADERS + BACK_STAGES * 16;
constexpr unsigned BACK_BYTES = BACK_BARRIERS + BACK_STAGES * 16;

typedef Ring<BACK_STAGES, BACK_STAGE_BYTES> BackRing;
static_assert(BACK_STAGE_BYTES % SWIZZLE_PERIOD == 0 && BACK_SIMILARITIES % 16 == 0, "aligned tiles");

__device__ __forceinline__ void produce_back_chunk(BackRing ring, const tensor_map& dy, const tensor_map& B,
                                                   const tensor_map& C, const Prepared& prepared, Piece segment,
                                                   int token, Pair pair, int H, int G, bool has_final) {
    int end = segment.end(SEGMENT), length = min(CHUNK, end - token);
    bool is_last = end == segment.sequence_end;
    int place = is_last ? -1 - segment.sequence : end / SEGMENT;
    int flags = (token + length == end ? BEGINS | (is_last && !has_final ? 0 : ENTERED) : 0) |
                (token + length < segment.sequence_end ? ENDS : 0) | (pair.count < HEADS ? ALONE : 0);
    shared_address tile = ring.tile(), full = ring.full();
    i64 row = chunk_row(segment.sequence, token);
    ring.wait_until_empty();
    Header{token, pair.head, place, length, flags}.store(ring.header());
    mbarrier_arrive_expect(full, 2 * KEYS_BYTES + TRIANGLE_BYTES + pair.count * (TILE_BYTES + DECAYS_BYTES));
    for (int n = 0; n < STATES / 64; n++) {
        tensor_load(tile + BACK_B + n * TILE_BYTES, B, full, 64 * n, pair.group, token);
        tensor_load(tile + n * TILE_BYTES, C, full, 64 * n, pair.group, token);
    }
    bulk_load(tile + BACK_SIMILARITIES, prepared.similarities + (row * G + pair.group) * SIMILARITIES, TRIANGLE_BYTES,
              full);
    bulk_load(tile + BACK_DECAYS, prepared.decays + (row * H + pair.head) * (CHUNK * 2), pair.count * DECAYS_BYTES,
              full);
    for (int i = 0; i < pair.count; i++)
        tensor_load(tile + BACK_DY + i * TILE_BYTES, dy, full, 0, pair.head + i, token);
}

// dx = G Bt, not waited for
__device__ __forceinline__ void multiply_by_keys(float (&dx)[32], const unsigned (&state)[OPERAND], shared_address B) {
    descriptor first = describe<128>(B, 16, SWIZZLE_PERIOD);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < STATES / 16; k++)
        wgmma<64, BF16, false>(dx, state + 4 * k, further(first, k / 4 * TILE_BYTES + k % 4 * 32), k > 0);
    wgmma_commit();
}

// dx += dyt scores, not waited for
__device__ __forceinline__ void multiply_by_transposed_scores(float (&dx)[32], const unsigned (&dy)[16],
                                                              shared_address scores) {
    descriptor first = describe<128>(scores, TILE_BYTES, SWIZZLE_PERIOD);
    wgmma_fence();
#pragma unroll
    for (int part = 1; part >= 0; part--)
#pragma unroll
        for (int k = 0; k < 4; k++)
            wgmma<64, BF16, true>(dx, dy + 4 * k, further(first, part * TILE_BYTES + k * 16 * ROW_BYTES), true);
    wgmma_commit();
}

// Factors of a thread's token: of what G adds to its dx, and of its row of dy for G before the chunk
__device__ __forceinline__ void find_back_factors(shared_address factors, Decays decays, float last, Thread t) {
    int token = t.index % CHUNK;
    float factor = t.index < CHUNK ? decays.source(token).share(last) : exp2_fast(decays.of(token));
    store_shared(factors + (t.index & CHUNK) * 4 + place_of_token(token) * 4, factor);
}

// A head's part of shared memory
struct BackPlaces {
    shared_address scores, dx, states, factors;

    __device__ __forceinline__ BackPlaces(shared_address base, int which)
        : scores(base + BACK_SCORES + which * 2 * TILE_BYTES), dx(base + BACK_DX + which * TILE_BYTES),
          states(base + BACK_STATES + which * STATE_BYTES), factors(base + BACK_FACTORS + which * 2 * CHUNK * 4) {}
};

struct BackOutputs {
    const tensor_map &dx_map, &dstates_map;
    token* dx;
    i64 T;
    int H;
};

// What rounding to bf16 takes from the gradient of a state between segments or at the end of a sequence: for the chunk
// before it
__device__ __forceinline__ void store_remainder(token* to, const float (&state)[STATE / 128], Thread t) {
    to += (16 * t.warp + t.row) * STATES + 2 * t.column;
#pragma unroll
    for (int n = 0; n < STATES / 8; n++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float low = state[4 * n + 2 * r], high = state[4 * n + 2 * r + 1];
            unsigned rounded = pack<BF16>(low, high);
            *(unsigned*)(to + 8 * n + 8 * r * STATES) = pack<BF16>(low - low_half(rounded), high - high_half(rounded));
        }
}

// One chunk of a head. D: of the head; of two channels if D_OF_CHANNELS
__device__ __forceinline__ void scan_chunk_back(float (&state)[STATE / 128], shared_address tile, Header header,
                                                int which, int head, bool valid, float2 D, const BackPlaces& places,
                                                const BackOutputs& out, Thread t) {
    Decays decays = {tile + BACK_DECAYS + which * DECAYS_BYTES};
    float last = decays.last(), dx[32];
    unsigned half[OPERAND];
    pack_state(half, state);
    multiply_by_keys(dx, half, tile + BACK_B);
    find_back_factors(places.factors, decays, last, t);
    find_scores(places.scores, tile + BACK_SIMILARITIES, decays, D_OF_CHANNELS ? 0.0f : D.x, t);
    if (header.length < CHUNK) clear_rows(tile, header.length);
    if (t.index == 0) wait_for_bulk_reads<0>();  // dx and G of the chunk before have left their tiles
    fence_async_proxy();
    named_barrier(1 + which, 128);

    unsigned dy[16];
    float values[32];
    load_x(dy, tile + BACK_DY + which * TILE_BYTES, header.length, t);
    widen_x(values, dy);
    wgmma_wait<0>();
    hold(dx), hold(half);
    if (header.flags & ENDS) store_state_tiles(places.states, half, t);
#pragma unroll
    for (int k = 0; k < 4; k++) {
        float4 weight = factors(places.factors, k, t);
#pragma unroll
        for (int i = 8 * k; i < 8 * k + 8; i++)
            dx[i] *= i % 8 / 4 == 0 ? (i % 2 ? weight.y : weight.x) : i % 2 ? weight.w : weight.z;
    }
    if (D_OF_CHANNELS) {
#pragma unroll
        for (int i = 0; i < 32; i++) dx[i] = fmaf(i % 4 / 2 ? D.y : D.x, values[i], dx[i]);
    }
    hold(values), hold(dx), hold(dy);
    multiply_by_transposed_scores(dx, dy, places.scores);

    unsigned heavy[16], light[16];
#pragma unroll
    for (int k = 0; k < 4; k++)
        weigh(heavy + 4 * k, light + 4 * k, values + 8 * k, factors(places.factors + CHUNK * 4, k, t));
    float decay = exp2_fast(last);
#pragma unroll
    for (int i = 0; i < STATE / 128; i++) state[i] *= decay;
    hold(state), hold(heavy), hold(light);
    add_to_state(state, heavy, light, tile);

    wgmma_wait<1>();
    hold(dx), hold(dy);
    store_transposed(places.dx, dx, t);
    fence_async_proxy();
    named_barrier(1 + which, 128);
    if (valid) {
        store_y(out.dx_map, out.dx, places.dx, header.token, header.length, head, out.H, t);
        if (t.index == 0 && header.flags & ENDS) {
            store_state_rows(out.dstates_map, places.states, header.token + header.length, head, out.H);
            group_bulk_stores();
        }
    }
    wgmma_wait<0>();
    hold(state), hold(heavy), hold(light);
}

__device__ __forceinline__ void scan_chunks_back(BackRing ring, shared_address base, const float* dfinal,
                                                 const float* dends, token* remainders, const float* of_D, bool has_D,
                                                 const BackOutputs& out, int which) {
    Thread t;
    BackPlaces places(base, which);
    float state[STATE / 128];
    float2 D = make_float2(0, 0);
    for (;; ring.advance()) {
        ring.wait_until_full();
        Header header = load_header(ring.header());
        if (header.flags & STOPS) break;
        int head = header.head + which;
        bool valid = which == 0 || !(header.flags & ALONE);
        if (!valid) head = header.head;  // there is no second head: the first one again, for nothing
        if (header.flags & BEGINS) {
            load_state(state, state_at(dends, dfinal, header.place, head, out.H), header.flags & ENTERED, t);
            if (header.flags & ENTERED && valid)
                store_remainder(remainders + (remainder_row(header.place, out.T) * out.H + head) * STATE, state, t);
            if (D_OF_CHANNELS) {
                const float* of_head = of_D + head * CHANNELS + 16 * t.warp + t.row;
                D = make_float2(of_head[0], of_head[8]);
            } else {
                D.x = has_D ? of_D[head] : 0.0f;
            }
        }
        scan_chunk_back(state, ring.tile(), header, which, head, valid, D, places, out, t);
        ring.release(t.lane);
    }
    if (t.index == 0) wait_for_bulk_stores<0>();
}

// D: (h,), (h, p) if D_OF_CHANNELS. dx: (t, h, p). dfinal and dends: gradients of states at the ends of sequences and
// between segments. dstates: of those between chunks, the one at token b in row b / CHUNK. remainders: see
// store_remainder; rows of those between segments, then of sequences. segments: a list
extern "C" __global__ void __launch_bounds__(THREADS, 1) _ssd_bwd_scan_kernel(
    const __grid_constant__ tensor_map dy_map, const __grid_constant__ tensor_map B_map,
    const __grid_constant__ tensor_map C_map, const __grid_constant__ tensor_map dx_map,
    const __grid_constant__ tensor_map dstates_map, float* memory, const int* segments, const float* D,
    const float* dfinal, const float* dends, token* remainders, token* dx, i64 T, i64 rows, i64 pieces, i64 H, i64 G,
    i64 has_final, i64 has_D) {
    extern __shared__ float4 shared[];
    Prepared prepared(memory, rows, pieces, H, G);
    shared_address base = (address_of(shared) + SWIZZLE_PERIOD - 1) & ~(SWIZZLE_PERIOD - 1);
    BackRing ring = {base, base + BACK_HEADERS, base + BACK_BARRIERS, 0, 0};
    if (threadIdx.x == 0) ring.init(CONSUMERS / 32);
    for (unsigned i = threadIdx.x * 16; i < HEADS * 2 * TILE_BYTES; i += THREADS * 16)
        store_shared(base + BACK_SCORES + i, make_uint4(0, 0, 0, 0));
    fence_async_proxy();
    __syncthreads();
    int which = threadIdx.x / 128;
    if (which < HEADS) {
        increase_registers<232>();
        scan_chunks_back(ring, base, dfinal, dends, remainders, D, has_D != 0,
                         BackOutputs{dx_map, dstates_map, dx, T, (int)H}, which);
        return;
    }
    decrease_registers<40>();
    if (threadIdx.x != CONSUMERS) return;
    int pairs = G * pairs_of_group(H, G);
    i64 items = (i64)segments[0] * pairs;
    for (Queue queue(prepared.counters + SCANNED); queue.index < items; queue.advance()) {
        Piece segment = piece_of(segments, queue.index / pairs);
        Pair pair = pair_of(queue.index % pairs, H, G);
        int last = segment.start + (segment.end(SEGMENT) - 1 - segment.start) / CHUNK * CHUNK;
        for (int token = last; token >= segment.start; token -= CHUNK, ring.advance())
            produce_back_chunk(ring, dy_map, B_map, C_map, prepared, segment, token, pair, H, G, has_final != 0);
    }
    ring.stop();
}
