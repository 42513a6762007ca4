// Shared by the kernels: sizes, the pieces of a pack, the ring of tiles that a producer fills, and steps of a chunk.

#include "scalars.cuh"

typedef long long i64;

constexpr int CHUNK = 64;            // tokens
constexpr int CHANNELS = 64;         // of a head
constexpr int SHORT = 32;            // tokens of a sequence for _ssd_fwd_short_kernel, at most
constexpr int HEADS = 2;             // of a block, of one group: a warpgroup each
constexpr int CONSUMERS = 128 * HEADS, THREADS = CONSUMERS + 128;
constexpr int STATE = CHANNELS * STATES;                     // elements of a state
constexpr int OPERAND = STATE / 256;                         // words of a thread that hold a state in 16 bits
constexpr int TRIANGLE = 36 * 32;                            // pairs of C Bt: blocks of 8 x 8 on and below the diagonal
constexpr unsigned ROW_BYTES = 128;                          // of 64 elements of 16 bits
constexpr unsigned TILE_BYTES = CHUNK * ROW_BYTES;           // 64 x 64
constexpr unsigned KEYS_BYTES = CHUNK * STATES * 2;          // B or C of a chunk: tiles of 64 states
constexpr unsigned TRIANGLE_BYTES = TRIANGLE * 8;
constexpr unsigned SCALES_BYTES = CHUNK * 4 + 16;            // exponents of the rows of C; of the largest element of B
constexpr int SIMILARITIES = TRIANGLE * 2 + SCALES_BYTES / 4, QUERIES = KEYS_BYTES / 4;  // in words, of a group in a chunk
constexpr unsigned DECAYS_BYTES = CHUNK * 8;                 // log-decays and steps of a head
constexpr unsigned SWIZZLE_PERIOD = 1024;                    // 8 rows: tiles are aligned to it

// ---------------------------------------------------------------------------------------------- pieces of a pack

// A pack as the host gives it: a GPU does not check offsets
struct Pack {
    const int* offsets;
    int T, S;

    __device__ __forceinline__ int start(int sequence) const { return min(max(offsets[sequence], 0), T); }
    __device__ __forceinline__ int end(int sequence) const {
        return max(min(offsets[sequence + 1], T), start(sequence));
    }
};

// A piece of a sequence, from `start` on: a chunk, a segment, all of it
struct Piece {
    int sequence, sequence_start, sequence_end, start;

    __device__ __forceinline__ bool begins() const { return start == sequence_start; }
    __device__ __forceinline__ int length() const { return sequence_end - sequence_start; }
    // of up to `size` tokens
    __device__ __forceinline__ int end(int size) const { return min(start + size, sequence_end); }
};

__device__ __forceinline__ Piece sequence_of(const Pack& pack, int sequence) {
    int start = pack.start(sequence);
    return {sequence, start, pack.end(sequence), start};
}

// Where a chunk has its results of _ssd_fwd_prepare_kernel. A row more for each sequence before it, since the chunks of
// two sequences may start in one window of CHUNK tokens
__device__ __forceinline__ i64 chunk_row(int sequence, int start) { return (i64)(start / CHUNK) + sequence; }

// The chunk of a row. A row that has none begins at the end of a sequence or after it
__device__ __forceinline__ Piece chunk_at(const Pack& pack, i64 row) {
    int sequence = 0;
    for (int span = pack.S - 1; span > 0; span /= 2) {  // the last sequence whose first row is at or before this one
        int next = sequence + (span + 1) / 2;
        if (chunk_row(next, pack.start(next)) <= row) sequence = next;
    }
    Piece chunk = sequence_of(pack, sequence);
    i64 number = row - chunk_row(sequence, chunk.start);
    chunk.start += number > 0 ? (int)number * CHUNK : 0;
    return chunk;
}

// A list of pieces: their number, and a row of 16 bytes for each
__device__ __forceinline__ Piece piece_of(const int* list, i64 index) {
    int4 row = ((const int4*)list)[index + 1];
    return {row.x, row.y, row.z, row.w};
}

// What _ssd_fwd_prepare_kernel makes of a pack, one part of memory after another. The host knows bounds: `rows` of
// chunks, `pieces` of a list
struct Prepared {
    float *similarities, *queries;  // (rows, g, 36, 32, 2) and scales; (rows, g, 64, n) of fp16 in tiles
    float *decays, *weights;        // (rows, h, 32, 4); (rows, h), log2 of their sum
    int *scanned, *summed, *passed;  // segments to scan, those whose state is needed, sequences of passed states
    int* counters;                   // four, of items that kernels took from lists

    __device__ __forceinline__ Prepared(float* memory, i64 rows, i64 pieces, i64 H, i64 G)
        : similarities(memory), queries(similarities + rows * G * SIMILARITIES), decays(queries + rows * G * QUERIES),
          weights(decays + rows * H * (CHUNK * 2)), scanned((int*)(weights + (rows * H + 3) / 4 * 4)), summed(scanned + 4 * (1 + pieces)),
          passed(summed + 4 * (1 + pieces)), counters(passed + 4 * (1 + pieces)) {}
};

// The state of a head at a place: a row of `ends` if it is not negative, otherwise row -1 - place of `others`
template <class T>
__device__ __forceinline__ T* state_at(T* ends, T* others, int place, int head, int H) {
    T* states = place < 0 ? others : ends;
    return states + ((i64)(place < 0 ? -1 - place : place) * H + head) * STATE;
}

// Where a block of 8 x 8 of C Bt lies among the 36: warp w of _ssd_fwd_scan_kernel has rows 7 - w and w of blocks, the
// first of these but for its last block, the second, then the last blocks of both, which are on the diagonal
__device__ __forceinline__ int block_place(int row, int column) {
    bool is_first = row < 4;
    int warp = is_first ? row : 7 - row;
    return 9 * warp + (column == row ? 7 + is_first : column + (is_first ? 7 - row : 0));
}

// Pairs of heads of one group, group after group; the second head may be missing
struct Pair {
    int group, head, count;
};

__device__ __forceinline__ int pairs_of_group(int H, int G) { return (H / G + HEADS - 1) / HEADS; }

__device__ __forceinline__ Pair pair_of(int index, int H, int G) {
    int per_group = H / G, pairs = pairs_of_group(H, G), first = index % pairs * HEADS;
    return {index / pairs, index / pairs * per_group + first, min(HEADS, per_group - first)};
}

// ------------------------------------------------------------------------------------------------ the ring of tiles

// the first chunk of a piece; a state enters it; its last; the second head is missing; no more chunks
enum { BEGINS = 1, ENTERED = 2, ENDS = 4, ALONE = 8, STOPS = 16 };

// What a stage of the ring holds, for the consumers
struct Header {
    int token, head, place;  // its first token and head; of the state that enters or leaves the piece
    int length, flags;

    __device__ __forceinline__ void store(shared_address to) const {
        store_shared(to, make_int4(token, head, place, length << 6 | flags));
    }
};

__device__ __forceinline__ Header load_header(shared_address from) {
    int4 words = load_shared<int4>(from);
    return {words.x, words.y, words.z, words.w >> 6, words.w & 63};
}

// Stages in shared memory with a barrier for "full" and one for "empty" each
template <int STAGES, unsigned STAGE_BYTES>
struct Ring {
    shared_address tiles, headers, barriers;
    int stage;
    unsigned phase;

    // `consumers`: warps that release a stage. By one thread
    __device__ __forceinline__ void init(int consumers) const {
        for (int i = 0; i < STAGES; i++) {
            mbarrier_init(barriers + 8 * i, 1);
            mbarrier_init(barriers + 8 * (STAGES + i), consumers);
        }
        fence_mbarrier_init();
    }
    __device__ __forceinline__ shared_address tile() const { return tiles + stage * STAGE_BYTES; }
    __device__ __forceinline__ shared_address header() const { return headers + 16 * stage; }
    __device__ __forceinline__ shared_address full() const { return barriers + 8 * stage; }
    __device__ __forceinline__ shared_address empty() const { return barriers + 8 * (STAGES + stage); }
    __device__ __forceinline__ void wait_until_full() const { mbarrier_wait(full(), phase); }
    __device__ __forceinline__ void wait_until_empty() const { mbarrier_wait(empty(), phase ^ 1); }
    // by all lanes of a warp that is done with the stage
    __device__ __forceinline__ void release(int lane) const {
        __syncwarp();
        if (lane == 0) mbarrier_arrive(empty());
    }
    __device__ __forceinline__ void advance() {
        if (++stage == STAGES) stage = 0, phase ^= 1;
    }
    // by the producer, after its last stage: consumers end
    __device__ __forceinline__ void stop() const {
        wait_until_empty();
        Header{0, 0, 0, 0, STOPS}.store(header());
        mbarrier_arrive(full());
    }
};

// Items of a list, shared out to blocks by a counter. The one after the next is being claimed, so none is waited for
struct Queue {
    int* counter;
    int index, next;

    __device__ __forceinline__ explicit Queue(int* counter) : counter(counter) {
        index = atomicAdd(counter, 1);
        next = atomicAdd(counter, 1);
    }
    __device__ __forceinline__ void advance() {
        index = next;
        next = atomicAdd(counter, 1);
    }
};

// --------------------------------------------------------------------------------------------- steps of a consumer

// A thread's place in its warpgroup. An accumulator of 64 rows has rows 16 warp + row + {0, 8} in a thread, and columns
// 8 b + 2 column + {0, 1} of its blocks b of 8
struct Thread {
    int index, warp, lane, row, column;

    __device__ __forceinline__ Thread()
        : index(threadIdx.x % 128), warp(index / 32), lane(index % 32), row(lane / 4), column(lane % 4) {}
};

// two numbers as pairs of 16 bits: cut to bf16, and the remainder, rounded. The sum has 16 bits or more
__device__ __forceinline__ void split(float low, float high, unsigned& large, unsigned& small) {
    unsigned a = __float_as_uint(low), b = __float_as_uint(high);
    large = __byte_perm(a, b, 0x7632);
    small = pack<BF16>(low - __uint_as_float(a & 0xffff0000u), high - __uint_as_float(b & 0xffff0000u));
}

__device__ __forceinline__ float low_half(unsigned x) { return __uint_as_float(x << 16); }
__device__ __forceinline__ float high_half(unsigned x) { return __uint_as_float(x & 0xffff0000u); }

// 16 bytes of a row of 64 elements in a swizzled tile
__device__ __forceinline__ shared_address swizzled(shared_address tile, int row, int piece) {
    return tile + row * ROW_BYTES + ((piece ^ (row % 8)) * 16);
}

// Tokens of a tile [64 tokens, 64 channels], transposed: the operand [the warp's 16 channels, 16 tokens] number k
__device__ __forceinline__ void load_transposed(unsigned* operand, shared_address tile, int k, Thread t) {
    int matrix = t.lane / 8;
    load_matrices_x4<true>(operand, swizzled(tile, 16 * k + matrix / 2 * 8 + t.lane % 8, 2 * t.warp + matrix % 2));
}

// x of a chunk, transposed; zero where there is no token
__device__ __forceinline__ void load_x(unsigned (&x)[16], shared_address tile, int length, Thread t) {
#pragma unroll
    for (int k = 0; k < 4; k++) load_transposed(x + 4 * k, tile, k, t);
    if (length < CHUNK) {
#pragma unroll
        for (int i = 0; i < 16; i++) {
            int token = i / 4 * 16 + i % 4 / 2 * 8 + 2 * t.column;
            x[i] = (token < length ? x[i] & 0xffffu : 0u) | (token + 1 < length ? x[i] & 0xffff0000u : 0u);
        }
    }
}

__device__ __forceinline__ void widen_x(float (&values)[32], const unsigned (&x)[16]) {
#pragma unroll
    for (int i = 0; i < 16; i++) values[2 * i] = low_half(x[i]), values[2 * i + 1] = high_half(x[i]);
}

// A token for later ones: its log-decay, summed from the start of the chunk, and its step. If STEPS_IN_EXPONENT, `step`
// is the log-decay less the logarithm of the step, which needs no product
struct Source {
    float decay, step;

    // its part of what a token of log-decay `a` has of it
    __device__ __forceinline__ float share(float a) const {
        return STEPS_IN_EXPONENT ? exp2_fast(a - step) : exp2_fast(a - decay) * step;
    }
};

struct Sources {  // two tokens
    float4 numbers;

    __device__ __forceinline__ Source first() const { return {numbers.x, numbers.z}; }
    __device__ __forceinline__ Source second() const { return {numbers.y, numbers.w}; }
};

// Those of a head in a chunk: {decay, decay', step, step'} for each pair of tokens
struct Decays {
    shared_address pairs;

    __device__ __forceinline__ Sources pair(int offset) const {
        if (!STEPS_IN_EXPONENT) return {load_shared<float4>(pairs + offset)};
        float2 steps = load_shared<float2>(pairs + offset + 8);
        return {make_float4(0, 0, steps.x, steps.y)};
    }
    __device__ __forceinline__ float of(int token) const {
        return load_shared<float>(pairs + token / 2 * 16 + token % 2 * 4);
    }
    __device__ __forceinline__ Source source_at(int offset) const {
        shared_address at = pairs + offset;
        return {STEPS_IN_EXPONENT ? 0.0f : load_shared<float>(at), load_shared<float>(at + 8)};
    }
    __device__ __forceinline__ Source source(int token) const { return source_at(token / 2 * 16 + token % 2 * 4); }
    __device__ __forceinline__ float last() const { return of(CHUNK - 1); }
};

// Where factors of tokens lie in shared memory, so that a thread reads those of its tokens, 16 k + 2 column + {0, 1, 8, 9},
// as one vector
__device__ __forceinline__ int place_of_token(int token) {
    return (token & 48) | (token & 6) << 1 | (token & 8) >> 2 | (token & 1);
}

__device__ __forceinline__ float4 factors(shared_address of_tokens, int k, Thread t) {
    return load_shared<float4>(of_tokens + (16 * k + 4 * t.column) * 4);
}

// x times the weights of its tokens, as operands number k
__device__ __forceinline__ void weigh(unsigned* large, unsigned* small, const float* x, float4 weights) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float low = x[2 * i] * (i < 2 ? weights.x : weights.z), high = x[2 * i + 1] * (i < 2 ? weights.y : weights.w);
        split(low, high, large[i], small[i]);
    }
}

// The descriptor of what is `bytes` further in shared memory: one addition
__device__ __forceinline__ descriptor further(descriptor matrix, unsigned bytes) {
    return (matrix & 0xffffffff00000000ull) | (unsigned)((unsigned)matrix + bytes / 16);
}

// state += (weights x)t B, not waited for
__device__ __forceinline__ void add_to_state(float (&state)[STATE / 128], const unsigned (&large)[16],
                                             const unsigned (&small)[16], shared_address B) {
    descriptor first = describe<128>(B, TILE_BYTES, SWIZZLE_PERIOD);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; k++) {
        descriptor keys = further(first, k * 16 * ROW_BYTES);
        wgmma<STATES, BF16, true>(state, small + 4 * k, keys, true);
        wgmma<STATES, BF16, true>(state, large + 4 * k, keys, true);
    }
    wgmma_commit();
}
