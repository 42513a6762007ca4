// The gradients of states at the starts of segments, from zero.

__device__ __forceinline__ void produce_segment_chunk(StateRing ring, const tensor_map& dy, const tensor_map& C,
                                                      const float* decays, Piece segment, int token, Pair pair, int H) {
    int length = min(CHUNK, segment.end(SEGMENT) - token), start = segment.start;
    int place = segment.begins() ? -1 - segment.sequence : start / SEGMENT;
    bool is_last = token + length == segment.end(SEGMENT);
    int flags = (token == start ? BEGINS : 0) | (is_last ? ENDS : 0) | (pair.count < HEADS ? ALONE : 0);
    shared_address tile = ring.tile(), full = ring.full();
    ring.wait_until_empty();
    Header{token, pair.head, place, length, flags}.store(ring.header());
    mbarrier_arrive_expect(full, KEYS_BYTES + pair.count * (TILE_BYTES + DECAYS_BYTES));
    for (int n = 0; n < STATES / 64; n++) tensor_load(tile + n * TILE_BYTES, C, full, 64 * n, pair.group, token);
    const float* of_chunk = decays + (chunk_row(segment.sequence, token) * H + pair.head) * (CHUNK * 2);
    bulk_load(tile + STATE_DECAYS, of_chunk, pair.count * DECAYS_BYTES, full);
    for (int i = 0; i < pair.count; i++)
        tensor_load(tile + STATE_X + i * TILE_BYTES, dy, full, 0, pair.head + i, token);
}

// dends: (rows, h, p, n), that of a segment which starts at token b in row b / SEGMENT; dinitial: (s, h, p, n), of those
// where a sequence starts, if keep_initial. segments: a list
extern "C" __global__ void __launch_bounds__(THREADS, 1) _ssd_bwd_segment_kernel(
    const __grid_constant__ tensor_map dy_map, const __grid_constant__ tensor_map C_map, float* memory,
    const int* segments, float* dends, float* dinitial, i64 rows, i64 pieces, i64 H, i64 G, i64 keep_initial) {
    extern __shared__ float4 shared[];
    Prepared prepared(memory, rows, pieces, H, G);
    shared_address base = (address_of(shared) + SWIZZLE_PERIOD - 1) & ~(SWIZZLE_PERIOD - 1);
    StateRing ring = {base, base + STATE_HEADERS, base + STATE_BARRIERS, 0, 0};
    if (threadIdx.x == 0) ring.init(CONSUMERS / 32);
    __syncthreads();
    int which = threadIdx.x / 128;
    if (which < HEADS) {
        increase_registers<232>();
        consume_state_chunks<true>(ring, base + STATE_ROWS, dends, dinitial, H, which);
        return;
    }
    decrease_registers<40>();
    if (threadIdx.x != CONSUMERS) return;
    int pairs = G * pairs_of_group(H, G);
    i64 items = (i64)segments[0] * pairs;
    for (Queue queue(prepared.counters + SEGMENTS); queue.index < items; queue.advance()) {
        Piece segment = piece_of(segments, queue.index / pairs);
        if (segment.begins() && !keep_initial) continue;
        Pair pair = pair_of(queue.index % pairs, H, G);
        for (int token = segment.start; token < segment.end(SEGMENT); token += CHUNK, ring.advance())
            produce_segment_chunk(ring, dy_map, C_map, prepared.decays, segment, token, pair, H);
    }
    ring.stop();
}
