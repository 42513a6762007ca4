// The states between segments, from those at the ends of segments from a zero state, and the final states.

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
        consume_state_chunks<false>(ring, base + STATE_ROWS, ends, finals, H, which);
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
