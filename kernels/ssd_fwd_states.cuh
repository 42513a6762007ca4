// The states between segments, from those at the ends of segments from a zero state, and the final states.

//
// A segment is read from its last chunk to its first, so that the weight of a token is one exponential and the sum is
// not decayed on its way. A product runs while the rows of the next chunk are weighted: in shared memory, in two parts
// of bf16, in the buffer that the product before it is done with.

constexpr int STATE_STAGES = 4;
constexpr unsigned STATE_X = KEYS_BYTES, STATE_DECAYS = STATE_X + HEADS * TILE_BYTES;  // in a stage, after B
constexpr unsigned STATE_STAGE_BYTES = STATE_DECAYS + SWIZZLE_PERIOD;
constexpr unsigned STATE_ROWS = STATE_STAGES * STATE_STAGE_BYTES;  // of each head two buffers: large parts, small parts
constexpr unsigned STATE_HEADERS = STATE_ROWS + HEADS * 4 * TILE_BYTES;
constexpr unsigned STATE_BARRIERS = STATE_HEADERS + STATE_STAGES * 16;

typedef Ring<STATE_STAGES, STATE_STAGE_BYTES> StateRing;

__device__ __forceinline__ void produce_state_chunk(StateRing ring, const tensor_map& x, const tensor_map& B,
                                                    const float* decays, Piece segment, int token, Pair pair, int H) {
    int length = min(CHUNK, segment.end(SEGMENT) - token), end = segment.end(SEGMENT);
    int place = end < segment.sequence_end ? end / SEGMENT : -1 - segment.sequence;
    int flags = (token + length == end ? BEGINS : 0) | (token == segment.start ? ENDS : 0) | (pair.count < HEADS ? ALONE : 0);
    shared_address tile = ring.tile(), full = ring.full();
    ring.wait_until_empty();
    Header{token, pair.head, place, length, flags}.store(ring.header());
    mbarrier_arrive_expect(full, KEYS_BYTES + pair.count * (TILE_BYTES + DECAYS_BYTES));
    for (int n = 0; n < STATES / 64; n++) tensor_load(tile + n * TILE_BYTES, B, full, 64 * n, pair.group, token);
    const float* of_chunk = decays + (chunk_row(segment.sequence, token) * H + pair.head) * (CHUNK * 2);
    bulk_load(tile + STATE_DECAYS, of_chunk, pair.count * DECAYS_BYTES, full);
    for (int i = 0; i < pair.count; i++)
        tensor_load(tile + STATE_X + i * TILE_BYTES, x, full, 0, pair.head + i, token);
}

__device__ __forceinline__ void store_state(float* to, const float (&state)[STATE / 128], Thread t) {
    to += (16 * t.warp + t.row) * STATES + 2 * t.column;
#pragma unroll
    for (int n = 0; n < STATES / 8; n++) {
        *(float2*)(to + 8 * n) = make_float2(state[4 * n], state[4 * n + 1]);
        *(float2*)(to + 8 * n + 8 * STATES) = make_float2(state[4 * n + 2], state[4 * n + 3]);
    }
}

// Rows of x times the weights of their tokens at log-decay `last`, zero where there is no token, as two parts of bf16
__device__ __forceinline__ void weigh_rows(shared_address to, shared_address x, Decays decays, float last, int length,
                                           Thread t) {
    int first = t.index / 8, from = first / 2 * 16 + first % 2 * 4;
    shared_address place = swizzled(0, first, t.index % 8);
    x += place, to += place;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint4 piece = load_shared<uint4>(x + i * 16 * ROW_BYTES);
        float weight = decays.source_at(from + i * 128).share(last);
        if (first + 16 * i >= length) piece = make_uint4(0, 0, 0, 0), weight = 0;  // there may be NaN
        unsigned words[4] = {piece.x, piece.y, piece.z, piece.w}, large[4], small[4];
#pragma unroll
        for (int k = 0; k < 4; k++) split(low_half(words[k]) * weight, high_half(words[k]) * weight, large[k], small[k]);
        store_shared(to + i * 16 * ROW_BYTES, make_uint4(large[0], large[1], large[2], large[3]));
        store_shared(to + TILE_BYTES + i * 16 * ROW_BYTES, make_uint4(small[0], small[1], small[2], small[3]));
    }
}

// state += rowst B or, if not `keep`, = ; not waited for
__device__ __forceinline__ void add_rows(float (&state)[STATE / 128], shared_address rows, shared_address B, bool keep) {
    descriptor first_rows = describe<128>(rows, TILE_BYTES, SWIZZLE_PERIOD);
    descriptor first_keys = describe<128>(B, TILE_BYTES, SWIZZLE_PERIOD);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 8; k++) {  // small parts first
        unsigned at = k % 4 * 16 * ROW_BYTES;
        wgmma<STATES, BF16, true, true>(state, further(first_rows, (k < 4 ? TILE_BYTES : 0) + at), further(first_keys, at),
                                        keep || k > 0);
    }
    wgmma_commit();
}

__device__ __forceinline__ void consume_state_chunks(StateRing ring, shared_address rows, float* ends, float* finals,
                                                     int H, int which) {
    Thread t;
    float state[STATE / 128], after;  // log-decay up to the end of the segment
    unsigned buffer = 0;
    rows += which * 4 * TILE_BYTES;
    for (;;) {
        ring.wait_until_full();
        Header header = load_header(ring.header());
        if (header.flags & STOPS) break;
        StateRing previous = ring;
        after = 0;
        for (;;) {  // in which nothing but products has the state
            shared_address tile = ring.tile();
            Decays decays = {tile + STATE_DECAYS + which * DECAYS_BYTES};
            after += decays.last();
            weigh_rows(rows + buffer, tile + STATE_X + which * TILE_BYTES, decays, after, header.length, t);
            if (header.length < CHUNK) clear_rows(tile, header.length);
            fence_async_proxy();
            wgmma_wait<0>();
            if (!(header.flags & BEGINS)) previous.release(t.lane);
            named_barrier(1 + which, 128);
            add_rows(state, rows + buffer, tile, !(header.flags & BEGINS));
            buffer ^= 2 * TILE_BYTES;
            previous = ring;
            ring.advance();
            if (header.flags & ENDS) break;
            ring.wait_until_full();
            header = load_header(ring.header());
        }
        wgmma_wait<0>();
        hold(state);
        previous.release(t.lane);
        if (which == 0 || !(header.flags & ALONE))
            store_state(state_at(ends, finals, header.place, header.head + which, H), state, t);
    }
}

// The state at the end of each segment, starting from zero: in row b / SEGMENT of `ends` (rows, h, p, n) for a boundary at
// token b, in `finals` (s, h, p, n) at the end of a sequence if keep_final
extern "C" __global__ void __launch_bounds__(THREADS, 1) _ssd_fwd_segment_state_kernel(
    const __grid_constant__ tensor_map x_map, const __grid_constant__ tensor_map B_map, float* memory, float* ends,
    float* finals, i64 rows, i64 pieces, i64 H, i64 G) {
    extern __shared__ float4 shared[];
    Prepared prepared(memory, rows, pieces, H, G);
    shared_address base = (address_of(shared) + SWIZZLE_PERIOD - 1) & ~(SWIZZLE_PERIOD - 1);
    StateRing ring = {base, base + STATE_HEADERS, base + STATE_BARRIERS, 0, 0};
    if (threadIdx.x == 0) ring.init(CONSUMERS / 32);
    __syncthreads();
    int which = threadIdx.x / 128;
    if (which < HEADS) {
        increase_registers<232>();
        consume_state_chunks(ring, base + STATE_ROWS, ends, finals, H, which);
        return;
    }
    decrease_registers<40>();
    if (threadIdx.x != CONSUMERS) return;
    int pairs = G * pairs_of_group(H, G);
    i64 items = (i64)prepared.summed[0] * pairs;
    for (Queue queue(prepared.counters); queue.index < items; queue.advance()) {
        Piece segment = piece_of(prepared.summed, queue.index / pairs);
        Pair pair = pair_of(queue.index % pairs, H, G);
        int last = segment.start + (segment.end(SEGMENT) - 1 - segment.start) / CHUNK * CHUNK;
        for (int token = last; token >= segment.start; token -= CHUNK, ring.advance())
            produce_state_chunk(ring, x_map, B_map, prepared.decays, segment, token, pair, H);
    }
    ring.stop();
}

// ------------------------------------------------------------------------------------------------------------ passing

constexpr int PASSING_THREADS = 256, PASSING_BLOCKS = STATE / 4 / PASSING_THREADS;  // of a state
constexpr int CHUNKS = SEGMENT / CHUNK;

// The decay over a segment. By a warp, each lane of which has a chunk
__device__ __forceinline__ float segment_decay(const float* decays, int sequence, int start, int end, int head, int H) {
    int token = start + threadIdx.x % 32 * CHUNK;
    static_assert(CHUNKS <= 32, "a warp has a lane for each chunk of a segment");
    float sum = 0;
    if (threadIdx.x % 32 < CHUNKS && token < end)
        sum = decays[(chunk_row(sequence, token) * H + head) * (CHUNK * 2) + (CHUNK / 2 - 1) * 4 + 1];
    for (int lanes = 16; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(~0u, sum, lanes);
    return exp2_fast(sum);
}

__device__ __forceinline__ float4 decay_and_add(float decay, float4 state, float4 added) {
    return make_float4(fmaf(decay, state.x, added.x), fmaf(decay, state.y, added.y), fmaf(decay, state.z, added.z),
                       fmaf(decay, state.w, added.w));
}

// Turns the states at the ends of segments from zero into the states between segments, and completes the final states.
// A block takes a part of one head's state through sequences. The final state of a sequence of one segment that no state
// enters is the one from zero
extern "C" __global__ void __launch_bounds__(PASSING_THREADS) _ssd_fwd_state_passing_kernel(
    float* memory, const float* initial, float* ends, float* finals, i64 rows, i64 pieces, i64 H, i64 G,
    i64 has_initial, i64 keep_final) {
    Prepared prepared(memory, rows, pieces, H, G);
    int part = blockIdx.x % PASSING_BLOCKS, head = blockIdx.x / PASSING_BLOCKS % H, count = prepared.passed[0];
    int element = (part * PASSING_THREADS + threadIdx.x) * 4, stride = gridDim.x / (PASSING_BLOCKS * H);
    for (int index = blockIdx.x / (PASSING_BLOCKS * H); index < count; index += stride) {
        Piece s = piece_of(prepared.passed, index);
        float4 state = make_float4(0, 0, 0, 0);
        if (has_initial) state = *(const float4*)(state_at(initial, initial, s.sequence, head, (int)H) + element);
        for (; s.start < s.sequence_end && is_needed(s, keep_final != 0); s.start += SEGMENT) {
            int end = s.end(SEGMENT), place = end < s.sequence_end ? end / SEGMENT : -1 - s.sequence;
            float4* at = (float4*)(state_at(ends, finals, place, head, (int)H) + element);
            state = decay_and_add(segment_decay(prepared.decays, s.sequence, s.start, end, head, H), state, *at);
            *at = state;
        }
        if (s.length() == 0) *(float4*)(state_at(ends, finals, -1 - s.sequence, head, (int)H) + element) = state;
    }
}
