// Shared by the kernels: scalar functions, positions in memory, and the tokens of a channel.

#include "scalars.cuh"

typedef long long i64;

constexpr int STATES = 16;      // of a channel; registers hold them all
constexpr int TILE = 32;        // channels of a tile of states in memory: [STATES, TILE]
constexpr int CHANNELS = 128;   // of a block
constexpr int WARPS = CHANNELS / 32;
constexpr int BATCH = 16;       // tokens with their B and C in shared memory
constexpr float LARGEST = 3.4028234663852886e38f;
constexpr float LN2 = 0.6931471805599453f;

__device__ __forceinline__ int minimum(int a, int b) { return a < b ? a : b; }
__device__ __forceinline__ int maximum(int a, int b) { return a > b ? a : b; }

// ---------------------------------------------------------------------------------------------------- scalar functions

// 2^x. Near 1 the hardware's errors of 1 ULP have a sign in common, which thousands of tokens would add up. So does the
// error of a polynomial: over the 1 / |x| tokens that a state lasts that of the cubic adds up to 1.2e-6, below half a
// percent of a rounding to 16 bits
__device__ __forceinline__ float power(float x) {
#if TOKEN == FP32
    float near = fmaf(fmaf(fmaf(fmaf(0.0096211380f, x, 0.055524946f), x, 0.24022650f), x, 0.69314714f), x, 1.0f);
    return fabsf(x) < 0.125f ? near : exp2_fast(x);
#else
    float near = fmaf(fmaf(fmaf(0.053863257f, x, 0.24016352f), x, 0.69314714f), x, 1.0f);
    return __float_as_int(x) <= __float_as_int(-0.125f) ? near : exp2_fast(x);  // as integers: from -0.125 to -0
#endif
}

// log2(e) A, a factor of steps that may be 0 and of gradients that are: never -inf; NaN stays NaN (see kernels/elementwise.py)
__device__ __forceinline__ float finite_rate(float A) {
    float rate = A * LOG2E;
    return rate < -LARGEST ? -LARGEST : rate;
}

// ---------------------------------------------------------------------------------------------- positions in memory

struct Channel {
    int block, group, index, column;  // of the group's blocks; among D; among padded columns
    bool valid, padded;               // is a channel; has states in memory
    int window;
    i64 states;                       // offset of its states in a state of N * width elements
};

__device__ __forceinline__ Channel channel_of_thread(int D, int G, int width) {
    int per_group = D / G, blocks = (per_group + CHANNELS - 1) / CHANNELS;
    Channel c;
    int program = blockIdx.x;
    c.window = program / (blocks * G);
    c.group = program / blocks % G;
    c.block = program % blocks;
    int inside = c.block * CHANNELS + threadIdx.x;
    c.valid = inside < per_group;
    c.padded = inside < width / G;
    c.index = c.group * per_group + inside;
    c.column = c.group * (width / G) + inside;
    c.states = (i64)(c.column / TILE) * (STATES * TILE) + c.column % TILE;
    return c;
}

struct Sequences {
    const int* offsets;
    int count, tokens;

    __device__ __forceinline__ int start(int sequence) const {
        return sequence < count ? minimum(maximum(offsets[sequence], 0), tokens) : 0;
    }
    __device__ __forceinline__ int end(int sequence) const {
        return sequence < count ? maximum(minimum(offsets[sequence + 1], tokens), start(sequence)) : 0;
    }
    // the last sequence with its start at token t or before it
    __device__ __forceinline__ int at(int t) const {
        int sequence = 0;
        for (int span = count - 1; span > 0; span /= 2) {
            int step = (span + 1) / 2;
            if (offsets[sequence + step] <= t) sequence += step;
        }
        return sequence;
    }
};

// The pieces of SIZE tokens that begin in a window, in order
struct Pieces {
    Sequences sequences;
    int begin, sequence, start, end, t, piece_end;

    __device__ __forceinline__ Pieces(Sequences pack, int window) : sequences(pack), begin(window * WINDOW) {
        sequence = pack.at(begin);
        int sequence_start = pack.start(sequence), sequence_end = pack.end(sequence);
        t = minimum(sequence_start + (maximum(begin - sequence_start, 0) + SIZE - 1) / SIZE * SIZE, sequence_end);
        if (t == sequence_end && t > sequence_start) sequence++;
        find();
    }
    __device__ __forceinline__ void find() {
        start = sequences.start(sequence);
        end = sequences.end(sequence);
        piece_end = maximum(minimum(t + SIZE, end), t);
    }
    __device__ __forceinline__ bool exists() const { return t - begin < WINDOW && sequence < sequences.count; }
    __device__ __forceinline__ void next() {
        t = piece_end;
        if (end <= piece_end) sequence++;
        find();
    }
};

// The last piece that begins in a window of SIZE tokens. No other piece there can have SIZE tokens
__device__ __forceinline__ int full_piece(Sequences sequences, int window, int& start, int& end) {
    int sequence = sequences.at(window * SIZE + SIZE - 1);
    start = sequences.start(sequence);
    end = sequences.end(sequence);
    return start + maximum(window * SIZE + SIZE - 1 - start, 0) / SIZE * SIZE;
}

__device__ __forceinline__ void load_states(float (&h)[STATES], const float* from, bool valid) {
#pragma unroll
    for (int n = 0; n < STATES; n++) h[n] = valid ? from[n * TILE] : 0.0f;
}

__device__ __forceinline__ void store_states(float* to, const float (&h)[STATES], bool valid) {
#pragma unroll
    for (int n = 0; n < STATES; n++)
        if (valid) to[n * TILE] = h[n];
}

// Four columns of B or C, fp32, 16-byte aligned
struct Keys {
    const float* column;
    i64 stride;

    // the columns of token t, if valid; otherwise x stays as it is. So x must be initialized: a stray NaN in memory would
    // survive a factor of zero
    __device__ __forceinline__ void load(float4& x, int t, bool valid) const {
        if (valid) x = *(const float4*)(column + t * stride);
    }
};

__device__ __forceinline__ float part(const float4& x, int i) { return i == 0 ? x.x : i == 1 ? x.y : i == 2 ? x.z : x.w; }

// ------------------------------------------------------------------------------------------------- tokens of a channel

constexpr int ROUND = 4;  // tokens loaded, and processed, together

// A channel's tokens from t on, a round at a time; the next one is being loaded
struct Stream {
    const token* row;
    i64 stride;
    token raw[ROUND];

    __device__ __forceinline__ Stream(const token* x, i64 stride, int t, int d, int remaining, bool valid)
        : row(x + t * stride + d), stride(stride) {
        load(remaining, valid);
    }
    __device__ __forceinline__ void load(int remaining, bool valid) {
#pragma unroll
        for (int k = 0; k < ROUND; k++) {
            raw[k] = 0;
            if (valid && k < remaining) raw[k] = row[k * stride];
        }
    }
    __device__ __forceinline__ void take(float (&x)[ROUND], int remaining, bool valid) {
#pragma unroll
        for (int k = 0; k < ROUND; k++) x[k] = widen(raw[k]);
        row += ROUND * stride;
        load(remaining - ROUND, valid);
    }
};

// Δ of a round, zero past its last token: there nothing changes
__device__ __forceinline__ void time_steps(float (&step)[ROUND], float bias, int remaining) {
#pragma unroll
    for (int k = 0; k < ROUND; k++) {
        step[k] += bias;
        if (SOFTPLUS) step[k] = softplus(step[k], exp_neg_abs(step[k]));
        if (k >= remaining) step[k] = 0.0f;
    }
}
