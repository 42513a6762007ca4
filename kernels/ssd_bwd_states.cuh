// The states between chunks again, in bf16, from those between segments: segment by segment, with the states of two
// heads in registers, as _ssd_fwd_scan_kernel carries them.

constexpr int AGAIN_STAGES = 4;
constexpr unsigned AGAIN_X = KEYS_BYTES, AGAIN_DECAYS = AGAIN_X + HEADS * TILE_BYTES;  // in a stage, after B
constexpr unsigned AGAIN_STAGE_BYTES = AGAIN_DECAYS + SWIZZLE_PERIOD;
constexpr unsigned AGAIN_STATES = AGAIN_STAGES * AGAIN_STAGE_BYTES;         // of each head two buffers
constexpr unsigned AGAIN_WEIGHTS = AGAIN_STATES + HEADS * 2 * STATE_BYTES;  // of each head two buffers
constexpr unsigned AGAIN_HEADERS = AGAIN_WEIGHTS + HEADS * 2 * CHUNK * 4;
constexpr unsigned AGAIN_BARRIERS = AGAIN_HEADERS + AGAIN_STAGES * 16;

typedef Ring<AGAIN_STAGES, AGAIN_STAGE_BYTES> AgainRing;
static_assert(AGAIN_STAGE_BYTES % SWIZZLE_PERIOD == 0, "aligned tiles");

// The last chunk of a segment adds to no state here
__device__ __forceinline__ void produce_again_chunk(AgainRing ring, const tensor_map& x, const tensor_map& B,
                                                    const float* decays, Piece segment, int token, Pair pair, int H,
                                                    bool has_initial) {
    bool is_last = token + CHUNK >= segment.end(SEGMENT);
    int place = segment.begins() ? -1 - segment.sequence : segment.start / SEGMENT;
    int entered = segment.begins() && !has_initial ? 0 : ENTERED;
    int flags =
        (token == segment.start ? BEGINS | entered : 0) | (is_last ? ENDS : 0) | (pair.count < HEADS ? ALONE : 0);
    shared_address tile = ring.tile(), full = ring.full();
    ring.wait_until_empty();
    Header{token, pair.head, place, CHUNK, flags}.store(ring.header());
    if (is_last) {
        mbarrier_arrive(full);
        return;
    }
    mbarrier_arrive_expect(full, KEYS_BYTES + pair.count * (TILE_BYTES + DECAYS_BYTES));
    for (int n = 0; n < STATES / 64; n++) tensor_load(tile + n * TILE_BYTES, B, full, 64 * n, pair.group, token);
    const float* of_chunk = decays + (chunk_row(segment.sequence, token) * H + pair.head) * (CHUNK * 2);
    bulk_load(tile + AGAIN_DECAYS, of_chunk, pair.count * DECAYS_BYTES, full);
    for (int i = 0; i < pair.count; i++) tensor_load(tile + AGAIN_X + i * TILE_BYTES, x, full, 0, pair.head + i, token);
}

// state = decay * state + (weights x)t B
__device__ __forceinline__ void advance_state(float (&state)[STATE / 128], shared_address tile, shared_address x_tile,
                                              shared_address weights, float last, Thread t) {
    unsigned x[16], heavy[16], light[16];
    float values[32], decay = exp2_fast(last);
    load_x(x, x_tile, CHUNK, t);
    widen_x(values, x);
#pragma unroll
    for (int k = 0; k < 4; k++) weigh(heavy + 4 * k, light + 4 * k, values + 8 * k, factors(weights, k, t));
#pragma unroll
    for (int i = 0; i < STATE / 128; i++) state[i] *= decay;
    hold(state), hold(heavy), hold(light);
    add_to_state(state, heavy, light, tile);
    wgmma_wait<0>();
    hold(state), hold(heavy), hold(light);
}

__device__ __forceinline__ void find_states_again(AgainRing ring, shared_address base, const float* initial,
                                                  const float* ends, const tensor_map& states_map, int H, int which) {
    Thread t;
    shared_address states = base + AGAIN_STATES + which * 2 * STATE_BYTES;
    shared_address weights = base + AGAIN_WEIGHTS + which * 2 * CHUNK * 4;
    float state[STATE / 128];
    unsigned turn = 0;
    for (;; ring.advance(), turn ^= 1) {
        ring.wait_until_full();
        Header header = load_header(ring.header());
        if (header.flags & STOPS) break;
        bool valid = which == 0 || !(header.flags & ALONE), is_last = header.flags & ENDS;
        bool is_kept = valid && !((header.flags & BEGINS) && header.place < 0);  // not at the start of a sequence
        int head = header.head + (valid ? which : 0);
        if (header.flags & BEGINS)
            load_state(state, state_at(ends, initial, header.place, head, H), header.flags & ENTERED, t);
        shared_address tile = ring.tile(), to = states + turn * STATE_BYTES, weight = weights + turn * CHUNK * 4;
        Decays decays = {tile + AGAIN_DECAYS + which * DECAYS_BYTES};
        float last = is_last ? 0.0f : decays.last();
        if (is_kept) {
            unsigned packed[OPERAND];
            pack_state(packed, state);
            store_state_tiles(to, packed, t);
        }
        if (t.index < CHUNK && !is_last)
            store_shared(weight + place_of_token(t.index) * 4, decays.source(t.index).share(last));
        if (t.index == 0) wait_for_bulk_reads<0>();  // the state before has left its tiles, for the next one
        fence_async_proxy();
        named_barrier(1 + which, 128);
        if (t.index == 0 && is_kept) {
            store_state_rows(states_map, to, header.token, head, H);
            group_bulk_stores();
        }
        if (!is_last) advance_state(state, tile, tile + AGAIN_X + which * TILE_BYTES, weight, last, t);
        ring.release(t.lane);
    }
    if (t.index == 0) wait_for_bulk_stores<0>();
}

// initial and ends: states at the starts of sequences, if has_initial, and between segments. states: between chunks,
// the one at token b in row b / CHUNK of rows (h, p). segments: a list
extern "C" __global__ void __launch_bounds__(THREADS, 1) _ssd_bwd_state_kernel(
    const __grid_constant__ tensor_map x_map, const __grid_constant__ tensor_map B_map,
    const __grid_constant__ tensor_map states_map, float* memory, const int* segments, const float* initial,
    const float* ends, i64 rows, i64 pieces, i64 H, i64 G, i64 has_initial) {
    extern __shared__ float4 shared[];
    Prepared prepared(memory, rows, pieces, H, G);
    shared_address base = (address_of(shared) + SWIZZLE_PERIOD - 1) & ~(SWIZZLE_PERIOD - 1);
    AgainRing ring = {base, base + AGAIN_HEADERS, base + AGAIN_BARRIERS, 0, 0};
    if (threadIdx.x == 0) ring.init(CONSUMERS / 32);
    __syncthreads();
    int which = threadIdx.x / 128;
    if (which < HEADS) {
        increase_registers<232>();
        find_states_again(ring, base, initial, ends, states_map, H, which);
        return;
    }
    decrease_registers<40>();
    if (threadIdx.x != CONSUMERS) return;
    int pairs = G * pairs_of_group(H, G);
    i64 items = (i64)segments[0] * pairs;
    for (Queue queue(prepared.counters + SUMMED); queue.index < items; queue.advance()) {
        Piece segment = piece_of(segments, queue.index / pairs);
        Pair pair = pair_of(queue.index % pairs, H, G);
        for (int token = segment.start; token < segment.end(SEGMENT); token += CHUNK, ring.advance())
            produce_again_chunk(ring, x_map, B_map, prepared.decays, segment, token, pair, H, has_initial != 0);
    }
    ring.stop();
}
