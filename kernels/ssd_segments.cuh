// The states at the ends of segments from zero, and their gradients at the starts, with those of two heads in registers.
//
// A segment is read from its last chunk to its first, for gradients the other way, so that the weight of a token is one
// exponential and the sum is not decayed on its way. A product runs while the rows of the next chunk are weighted: in
// shared memory, in two parts of bf16, in the buffer that the product before it is done with.

constexpr int STATE_STAGES = 4;
constexpr unsigned STATE_X = KEYS_BYTES, STATE_DECAYS = STATE_X + HEADS * TILE_BYTES;  // in a stage, after B
constexpr unsigned STATE_STAGE_BYTES = STATE_DECAYS + SWIZZLE_PERIOD;
constexpr unsigned STATE_ROWS = STATE_STAGES * STATE_STAGE_BYTES;  // of each head two buffers: large parts, small parts
constexpr unsigned STATE_HEADERS = STATE_ROWS + HEADS * 4 * TILE_BYTES;
constexpr unsigned STATE_BARRIERS = STATE_HEADERS + STATE_STAGES * 16;

typedef Ring<STATE_STAGES, STATE_STAGE_BYTES> StateRing;

__device__ __forceinline__ void store_state(float* to, const float (&state)[STATE / 128], Thread t) {
    to += (16 * t.warp + t.row) * STATES + 2 * t.column;
#pragma unroll
    for (int n = 0; n < STATES / 8; n++) {
        *(float2*)(to + 8 * n) = make_float2(state[4 * n], state[4 * n + 1]);
        *(float2*)(to + 8 * n + 8 * STATES) = make_float2(state[4 * n + 2], state[4 * n + 3]);
    }
}

// Rows of x times the weights of their tokens at log-decay `last`, or of dy if BACK, where the log-decay up to the chunk
// is `last`; zero where there is no token, as two parts of bf16
template <bool BACK>
__device__ __forceinline__ void weigh_rows(shared_address to, shared_address x, Decays decays, float last, int length,
                                           Thread t) {
    int first = t.index / 8, from = first / 2 * 16 + first % 2 * 4;
    shared_address place = swizzled(0, first, t.index % 8);
    x += place, to += place;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint4 piece = load_shared<uint4>(x + i * 16 * ROW_BYTES);
        Source source = decays.source_at(from + i * 128);
        float weight = BACK ? exp2_fast(last + source.decay) : source.share(last);
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

// To the state at the end of each segment, or if BACK to its gradient at the start, from zero
template <bool BACK>
__device__ __forceinline__ void consume_state_chunks(StateRing ring, shared_address rows, float* ends, float* finals,
                                                     int H, int which) {
    Thread t;
    float state[STATE / 128], between;  // the log-decay of the chunks so far
    unsigned buffer = 0;
    rows += which * 4 * TILE_BYTES;
    for (;;) {
        ring.wait_until_full();
        Header header = load_header(ring.header());
        if (header.flags & STOPS) break;
        StateRing previous = ring;
        between = 0;
        for (;;) {  // in which nothing but products has the state
            shared_address tile = ring.tile();
            Decays decays = {tile + STATE_DECAYS + which * DECAYS_BYTES};
            if (!BACK) between += decays.last();
            weigh_rows<BACK>(rows + buffer, tile + STATE_X + which * TILE_BYTES, decays, between, header.length, t);
            if (BACK) between += decays.last();
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
