// What the kernels share: scalar functions, where things are in memory, and the tokens of a channel.

typedef long long i64;

constexpr int STATES = 16;      // of a channel; registers hold them all
constexpr int TILE = 32;        // channels of a tile of states in memory: [STATES, TILE]
constexpr int CHANNELS = 128;   // of a block
constexpr int WARPS = CHANNELS / 32;
constexpr int BATCH = 16;       // tokens whose B and C shared memory holds
constexpr float LOG2E = 1.4426950408889634f;
constexpr float LARGEST = 3.4028234663852886e38f;
constexpr float LN2 = 0.6931471805599453f;

__device__ __forceinline__ int least(int a, int b) { return a < b ? a : b; }
__device__ __forceinline__ int most(int a, int b) { return a > b ? a : b; }

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

// exp(-|x|), from which softplus and sigmoid are made
__device__ __forceinline__ float fading(float x) { return exp2_fast(-fabsf(x) * LOG2E); }

// log(1 + exp(x)) = max(x, 0) + log(1 + e), the latter as e times a polynomial
__device__ __forceinline__ float softplus(float x, float e) {
    float p = fmaf(-0.003244009102f, e, 0.01985139027f);
    p = fmaf(p, e, -0.05695939809f);
    p = fmaf(p, e, 0.10603640974f);
    p = fmaf(p, e, -0.15305584669f);
    p = fmaf(p, e, 0.19675935805f);
    p = fmaf(p, e, -0.24954132736f);
    p = fmaf(p, e, 0.33329963684f);
    p = fmaf(p, e, -0.49999901652f);
    p = fmaf(p, e, 1.0f);
    return fmaf(e, p, fmaxf(x, 0.0f));
}

__device__ __forceinline__ float sigmoid(float x, float e) { return (x >= 0.0f ? 1.0f : e) * reciprocal(1.0f + e); }

__device__ __forceinline__ float silu(float x) { return x * sigmoid(x, fading(x)); }

__device__ __forceinline__ float time_step(float x) {
    return SOFTPLUS ? softplus(x, fading(x)) : x;
}

// ------------------------------------------------------------------------------------------------- where things are

struct Channel {
    int block, group, index, column;  // of the group's blocks; among D; among padded columns
    bool real, padded;                // is a channel; has states in memory
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
    c.real = inside < per_group;
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
        return sequence < count ? least(most(offsets[sequence], 0), tokens) : 0;
    }
    __device__ __forceinline__ int end(int sequence) const {
        return sequence < count ? most(least(offsets[sequence + 1], tokens), start(sequence)) : 0;
    }
    // the last sequence that begins at token t or before it
    __device__ __forceinline__ int at(int t) const {
        int sequence = 0;
        for (int left = count - 1; left > 0; left /= 2) {
            int step = (left + 1) / 2;
            if (offsets[sequence + step] <= t) sequence += step;
        }
        return sequence;
    }
};

// The pieces of SIZE tokens that begin in a window, in order
struct Pieces {
    Sequences sequences;
    int begin, sequence, start, end, t, last;

    __device__ __forceinline__ Pieces(Sequences all, int window) : sequences(all), begin(window * WINDOW) {
        sequence = all.at(begin);
        int first = all.start(sequence), stop = all.end(sequence);
        t = least(first + (most(begin - first, 0) + SIZE - 1) / SIZE * SIZE, stop);
        if (t == stop && t > first) sequence++;
        find();
    }
    __device__ __forceinline__ void find() {
        start = sequences.start(sequence);
        end = sequences.end(sequence);
        last = most(least(t + SIZE, end), t);
    }
    __device__ __forceinline__ bool some() const { return t - begin < WINDOW && sequence < sequences.count; }
    __device__ __forceinline__ void next() {
        t = last;
        if (end <= last) sequence++;
        find();
    }
};

// The one piece that begins in a window of SIZE tokens and may fill SIZE tokens: the last
__device__ __forceinline__ int full_piece(Sequences sequences, int window, int& start, int& end) {
    int sequence = sequences.at(window * SIZE + SIZE - 1);
    start = sequences.start(sequence);
    end = sequences.end(sequence);
    return start + most(window * SIZE + SIZE - 1 - start, 0) / SIZE * SIZE;
}

__device__ __forceinline__ void load_states(float (&h)[STATES], const float* from, bool some) {
#pragma unroll
    for (int n = 0; n < STATES; n++) h[n] = some ? from[n * TILE] : 0.0f;
}

__device__ __forceinline__ void store_states(float* to, const float (&h)[STATES], bool some) {
#pragma unroll
    for (int n = 0; n < STATES; n++)
        if (some) to[n * TILE] = h[n];
}

// Four columns of B or C, fp32, 16-byte aligned
struct Keys {
    const float* column;
    i64 stride;

    // that of token t, if there is one; otherwise x stays as it is. No value may start as whatever lies in memory: that
    // might be NaN, which no factor of zero removes
    __device__ __forceinline__ void load(float4& x, int t, bool some) const {
        if (some) x = *(const float4*)(column + t * stride);
    }
};

__device__ __forceinline__ float part(const float4& x, int i) { return i == 0 ? x.x : i == 1 ? x.y : i == 2 ? x.z : x.w; }

// ------------------------------------------------------------------------------------------------- tokens of a channel

constexpr int ROUND = 4;  // tokens that are loaded, and stepped through, together

// A channel's tokens from t on, a round at a time; the next one is being loaded
struct Stream {
    const token* row;
    i64 stride;
    token raw[ROUND];

    __device__ __forceinline__ Stream(const token* x, i64 stride, int t, int d, int left, bool some)
        : row(x + t * stride + d), stride(stride) {
        load(left, some);
    }
    __device__ __forceinline__ void load(int left, bool some) {
#pragma unroll
        for (int k = 0; k < ROUND; k++) {
            raw[k] = 0;
            if (some && k < left) raw[k] = row[k * stride];
        }
    }
    __device__ __forceinline__ void take(float (&x)[ROUND], int left, bool some) {
#pragma unroll
        for (int k = 0; k < ROUND; k++) x[k] = widen(raw[k]);
        row += ROUND * stride;
        load(left - ROUND, some);
    }
};

// Δ of a round, zero past its last token: there nothing changes
__device__ __forceinline__ void time_steps(float (&step)[ROUND], float bias, int left) {
#pragma unroll
    for (int k = 0; k < ROUND; k++) {
        step[k] += bias;
        if (SOFTPLUS) step[k] = softplus(step[k], fading(step[k]));
        if (k >= left) step[k] = 0.0f;
    }
}
