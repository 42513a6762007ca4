// Shared by the kernels of the backward pass: states between chunks, to and from memory.

constexpr unsigned STATE_BYTES = STATE * 2;  // in bf16: tiles of 64 channels x 64 states
enum { SCANNED, SUMMED, CHUNKED, SEGMENTS };           // counters of Prepared

__device__ __forceinline__ void pack_state(unsigned (&packed)[OPERAND], const float (&state)[STATE / 128]) {
#pragma unroll
    for (int i = 0; i < OPERAND; i++) packed[i] = pack<BF16>(state[2 * i], state[2 * i + 1]);
    hold(packed);
}

// A state in bf16, two numbers a word as an accumulator has them, to tiles in shared memory
__device__ __forceinline__ void store_state_tiles(shared_address tiles, const unsigned (&state)[OPERAND], Thread t) {
    int matrix = t.lane / 8, row = 16 * t.warp + matrix % 2 * 8 + t.lane % 8;
#pragma unroll
    for (int n = 0; n < STATES / 8; n += 2) {
        const unsigned* v = state + 2 * n;
        shared_address tile = tiles + n / 8 * TILE_BYTES;
        store_matrices_x4<false>(swizzled(tile, row, n % 8 + matrix / 2), v[0], v[1], v[2], v[3]);
    }
}

// The tiles to `map`, all states between chunks as rows of channels. By one thread
__device__ __forceinline__ void store_state_rows(const tensor_map& map, shared_address tiles, int boundary, int head,
                                                 int H) {
    int row = ((boundary / CHUNK) * H + head) * CHANNELS;
    for (int n = 0; n < STATES / 64; n++) tensor_store(map, tiles + n * TILE_BYTES, 64 * n, row);
}

// Where the remainder of a gradient of a state lies, a place as for state_at
__device__ __forceinline__ i64 remainder_row(int place, i64 T) {
    i64 segments = T > SEGMENT ? T / SEGMENT + 1 : 0;
    return place < 0 ? segments + (-1 - place) : place;
}
