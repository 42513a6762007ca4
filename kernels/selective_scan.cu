#include "hardware.cuh"

typedef long long i64;

constexpr int STATES = 16;      // of a channel; registers hold them all
constexpr int TILE = 32;        // channels of a tile of states in memory: [STATES, TILE]
constexpr int CHANNELS = 128;   // of a block
constexpr int WARPS = CHANNELS / 32;
constexpr int BATCH = 16;       // tokens whose B and C shared memory holds
constexpr float LOG2E = 1.4426950408889634f;
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

    // that of token t, if there is one; otherwise what there was. Nothing may begin as what lies in memory: that might be
    // NaN, which no factor of zero takes away
    __device__ __forceinline__ void load(float4& x, int t, bool some) const {
        if (some) x = *(const float4*)(column + t * stride);
    }
};

__device__ __forceinline__ float part(const float4& x, int i) { return i == 0 ? x.x : i == 1 ? x.y : i == 2 ? x.z : x.w; }

// ------------------------------------------------------------------------------------------------------------- forward

constexpr int ROUND = 4;  // tokens that are loaded, and stepped through, together

// A channel's tokens from t on, a round at a time, the next one under way
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

// Δ of a round, zero behind its last token: there nothing changes
__device__ __forceinline__ void time_steps(float (&step)[ROUND], float bias, int left) {
#pragma unroll
    for (int k = 0; k < ROUND; k++) {
        step[k] += bias;
        if (SOFTPLUS) step[k] = softplus(step[k], fading(step[k]));
        if (k >= left) step[k] = 0.0f;
    }
}

extern "C" __global__ void __launch_bounds__(CHANNELS, ENDS_BLOCKS) scan_ends_kernel(
    const token* u, const token* delta, const float* A, const float* B, const float* bias, const int* cu_seqlens,
    float* ends, float* sums, i64 T, i64 S, i64 D, i64 G, i64 N, i64 width, i64 u_stride, i64 delta_stride,
    i64 B_stride, i64 B_group, i64 has_bias, i64 keep_final) {
    __shared__ float4 rows[2][BATCH][STATES / 4];
    Channel c = channel_of_thread(D, G, width);
    int start, end;
    int t = full_piece({cu_seqlens, (int)S, (int)T}, c.window, start, end);
    bool wanted = t + SIZE < end || (t + SIZE == end && keep_final);
    if (t < c.window * SIZE || !wanted) return;
    int token_of_thread = threadIdx.x / 4, quarter = threadIdx.x % 4;
    bool fetches = token_of_thread < BATCH;
    Keys keys{B + c.group * B_group + 4 * quarter, B_stride};
    float decay[STATES], h[STATES], total = 0.0f;
    load_states(decay, A + c.states, c.padded);
#pragma unroll
    for (int n = 0; n < STATES; n++) decay[n] *= LOG2E, h[n] = 0.0f;
    float offset = c.real && has_bias ? bias[c.index] : 0.0f;
    // from the last token back: what is left of each at the end takes one exponential, whose error does not add up
    int last = t + SIZE - 1;
    Stream us(u, -u_stride, -last, c.index, SIZE, c.real), deltas(delta, -delta_stride, -last, c.index, SIZE, c.real);
    float4 fetched = {};
    keys.load(fetched, last - token_of_thread, fetches);
#pragma unroll 1
    for (int i = 0; i < SIZE; i += BATCH) {
        float4(&now)[BATCH][STATES / 4] = rows[i / BATCH % 2];
        if (fetches) now[token_of_thread][quarter] = fetched;
        __syncthreads();
        keys.load(fetched, last - i - BATCH - token_of_thread, fetches && i + BATCH < SIZE);
#pragma unroll 1
        for (int k0 = 0; k0 < BATCH; k0 += ROUND) {
            float step[ROUND], here[ROUND];
            deltas.take(step, SIZE - i - k0, c.real);
            us.take(here, SIZE - i - k0, c.real);
            time_steps(step, offset, ROUND);
#pragma unroll
            for (int k = 0; k < ROUND; k++) {
                float from_u = step[k] * here[k];
#pragma unroll
                for (int n = 0; n < STATES; n++)
                    h[n] = fmaf(exp2_fast(decay[n] * total), part(now[k0 + k][n / 4], n % 4) * from_u, h[n]);
                total += step[k];
            }
        }
    }
    store_states(ends + (i64)c.window * N * width + c.states, h, c.padded);
    if (c.padded) sums[(i64)c.window * width + c.column] = total;
}

extern "C" __global__ void __launch_bounds__(CHANNELS, FORWARD_BLOCKS) scan_kernel(
    const token* u, const token* delta, const float* A, const float* B, const float* C, const float* skip,
    const token* z, const float* bias, const float* initial, const float* boundaries, const int* cu_seqlens, token* y,
    float* final_states, float* kept, i64 T, i64 S, i64 D, i64 G, i64 N, i64 width, i64 u_stride, i64 delta_stride,
    i64 B_stride, i64 B_group, i64 C_stride, i64 C_group, i64 z_stride, i64 has_skip, i64 has_bias,
    i64 has_initial, i64 keep_final, i64 keep_states) {
    __shared__ float4 rows[2][BATCH][STATES / 2];
    Channel c = channel_of_thread(D, G, width);
    i64 size = N * width;
    float decay[STATES], h[STATES];
    load_states(decay, A + c.states, c.padded);
#pragma unroll
    for (int n = 0; n < STATES; n++) decay[n] *= LOG2E;
    float offset = c.real && has_bias ? bias[c.index] : 0.0f, direct = c.real && has_skip ? skip[c.index] : 0.0f;
    int token_of_thread = threadIdx.x / 8, quarter = threadIdx.x % 4;
    Keys keys = threadIdx.x % 8 < 4 ? Keys{B + c.group * B_group + 4 * quarter, B_stride}
                                    : Keys{C + c.group * C_group + 4 * quarter, C_stride};
    int buffer = 0;
    for (Pieces p({cu_seqlens, (int)S, (int)T}, c.window); p.some(); p.next()) {
        int t = p.t, count = p.last - t;
        if (t > p.start)
            load_states(h, boundaries + (i64)(t / SIZE - 1) * size + c.states, c.padded);
        else
            load_states(h, initial + p.sequence * size + c.states, c.padded && has_initial);
        Stream us(u, u_stride, t, c.index, count, c.real), deltas(delta, delta_stride, t, c.index, count, c.real);
        Stream zs(z, z_stride, t, c.index, count, c.real && GATED);
        token* out = y + t * D + c.index;
        float4 fetched = {};
        keys.load(fetched, t + token_of_thread, token_of_thread < count);
#pragma unroll 1
        for (int i = 0; i < count; i += BATCH, buffer ^= 1) {
            float4(&now)[BATCH][STATES / 2] = rows[buffer];
            now[token_of_thread][threadIdx.x % 8] = fetched;
            __syncthreads();
            int ahead = i + BATCH + token_of_thread;
            keys.load(fetched, t + ahead, ahead < count);
            if (keep_states && i % KEEP == 0 && t + i > p.start)
                store_states(kept + (i64)((t + i) / KEEP - 1) * size + c.states, h, c.padded);
#pragma unroll 1
            for (int k0 = 0; k0 < least(BATCH, count - i); k0 += ROUND) {
                float step[ROUND], here[ROUND], gate[ROUND];
                int left = count - i - k0;
                deltas.take(step, left, c.real);
                us.take(here, left, c.real);
                time_steps(step, offset, left);
                if (GATED) {
                    zs.take(gate, left, c.real);
#pragma unroll
                    for (int k = 0; k < ROUND; k++) gate[k] = silu(gate[k]);
                }
#pragma unroll
                for (int k = 0; k < ROUND; k++) {
                    float from_u = step[k] * here[k], value[4] = {};
#pragma unroll
                    for (int n = 0; n < STATES; n++) {
                        h[n] = fmaf(power(decay[n] * step[k]), h[n], part(now[k0 + k][n / 4], n % 4) * from_u);
                        value[n % 4] = fmaf(h[n], part(now[k0 + k][4 + n / 4], n % 4), value[n % 4]);
                    }
                    float sum = fmaf(direct, here[k], (value[0] + value[1]) + (value[2] + value[3]));
                    if (GATED) sum *= gate[k];
                    if (c.real && k < left) *out = narrow(sum);
                    out += D;
                }
            }
        }
        // a sequence of whole pieces has its final state from the carry
        bool ends = p.last == p.end && (p.end - p.start) % SIZE != 0 && count > 0 && keep_final;
        store_states(final_states + p.sequence * size + c.states, h, c.padded && ends);
    }
}

// ------------------------------------------------------------------------------------------------------------ backward

// λ in front of each piece that another one precedes, from zero behind it, and the piece's sum of Δ
extern "C" __global__ void __launch_bounds__(CHANNELS, ENDS_BLOCKS) scan_back_ends_kernel(
    const token* delta, const float* A, const float* C, const token* z, const float* bias, const token* dy,
    const int* cu_seqlens, float* backs, float* sums, i64 T, i64 S, i64 D, i64 G, i64 N, i64 width, i64 delta_stride,
    i64 C_stride, i64 C_group, i64 z_stride, i64 dy_stride, i64 has_bias) {
    __shared__ float4 rows[2][BATCH][STATES / 4];
    Channel c = channel_of_thread(D, G, width);
    // the boundary of a row, if there is one, lies in the sequence of the token in front of the row's window
    Sequences sequences{cu_seqlens, (int)S, (int)T};
    int sequence = sequences.at(c.window * SIZE + SIZE - 1);
    int start = sequences.start(sequence), end = sequences.end(sequence);
    int t = start + (c.window * SIZE + SIZE - start + SIZE - 1) / SIZE * SIZE;
    if (t >= end) return;
    int count = least(SIZE, end - t);
    int token_of_thread = threadIdx.x / 4, quarter = threadIdx.x % 4;
    bool fetches = token_of_thread < BATCH;
    Keys keys{C + c.group * C_group + 4 * quarter, C_stride};
    float decay[STATES], back[STATES], total = 0.0f;
    load_states(decay, A + c.states, c.padded);
#pragma unroll
    for (int n = 0; n < STATES; n++) decay[n] *= LOG2E, back[n] = 0.0f;
    float offset = c.real && has_bias ? bias[c.index] : 0.0f;
    Stream deltas(delta, delta_stride, t, c.index, count, c.real), dys(dy, dy_stride, t, c.index, count, c.real);
    Stream zs(z, z_stride, t, c.index, count, c.real && GATED);
    float4 fetched = {};
    keys.load(fetched, t + token_of_thread, fetches && token_of_thread < count);
#pragma unroll 1
    for (int i = 0; i < count; i += BATCH) {
        float4(&now)[BATCH][STATES / 4] = rows[i / BATCH % 2];
        if (fetches) now[token_of_thread][quarter] = fetched;
        __syncthreads();
        int ahead = i + BATCH + token_of_thread;
        keys.load(fetched, t + ahead, fetches && ahead < count);
#pragma unroll 1
        for (int k0 = 0; k0 < least(BATCH, count - i); k0 += ROUND) {
            float step[ROUND], g[ROUND], gate[ROUND];
            int left = count - i - k0;
            deltas.take(step, left, c.real);
            dys.take(g, left, c.real);
            time_steps(step, offset, left);
            if (GATED) {
                zs.take(gate, left, c.real);
#pragma unroll
                for (int k = 0; k < ROUND; k++) g[k] *= silu(gate[k]);
            }
#pragma unroll
            for (int k = 0; k < ROUND; k++) {
                total += step[k];
                if (k < left)
#pragma unroll
                    for (int n = 0; n < STATES; n++)
                        back[n] = fmaf(exp2_fast(decay[n] * total), part(now[k0 + k][n / 4], n % 4) * g[k], back[n]);
            }
        }
    }
    store_states(backs + (i64)c.window * N * width + c.states, back, c.padded);
    if (c.padded) sums[(i64)c.window * width + c.column] = total;
}

// The gradients. A lane owns a channel, for all that has no states, and shares the states of four channels with three
// other lanes: of each it holds 4. The k-th of its channels is that of lane ^ k, so that one exchange takes what a
// channel's owner knows to the four lanes, and one takes what they have summed up back to it.

constexpr int QUADS = STATES / 4;
constexpr int PAIR = 2;              // tokens whose states registers hold
constexpr int PAIRS = BATCH / PAIR;  // states in front of which shared memory holds

typedef float Tile[4][4];  // [channel, state]

__device__ __forceinline__ int tile_offset(int k, int j) {
    int lane = threadIdx.x % 32;
    return (4 * (lane & 3) + j) * TILE + (lane ^ k);
}

__device__ __forceinline__ void load_tile(Tile& x, const float* from, bool some) {
#pragma unroll
    for (int k = 0; k < 4; k++)
#pragma unroll
        for (int j = 0; j < 4; j++) x[k][j] = some ? from[tile_offset(k, j)] : 0.0f;
}

__device__ __forceinline__ void store_tile(float* to, const Tile& x, bool some) {
#pragma unroll
    for (int k = 0; k < 4; k++)
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (some) to[tile_offset(k, j)] = x[k][j];
}

__device__ __forceinline__ float exchange(float x, int with) { return with ? __shfl_xor_sync(~0u, x, with) : x; }

// Σ over the warp's channels for B and for C: each lane gets one of 32 rows. Halves are exchanged, then quarters, eighths
__device__ __forceinline__ float sum_channels(const float (&of_B)[4], const float (&of_C)[4]) {
    bool C = threadIdx.x & 16, high = threadIdx.x & 8, odd = threadIdx.x & 4;
    float a[4], b[2];
#pragma unroll
    for (int j = 0; j < 4; j++) a[j] = (C ? of_C[j] : of_B[j]) + exchange(C ? of_B[j] : of_C[j], 16);
#pragma unroll
    for (int j = 0; j < 2; j++) b[j] = (high ? a[j + 2] : a[j]) + exchange(high ? a[j] : a[j + 2], 8);
    return (odd ? b[1] : b[0]) + exchange(odd ? b[0] : b[1], 4);
}

// where sum_channels leaves row (state, B or C)
__device__ __forceinline__ int row_of_lane(int lane) { return 2 * (4 * (lane & 3) + (lane >> 2 & 3)) + (lane >> 4); }

// A channel's tokens in pairs
struct Row {
    const token* at;
    i64 stride;

    __device__ __forceinline__ Row(const token* x, i64 stride, int t, int d) : at(x + t * stride + d), stride(stride) {}
    __device__ __forceinline__ void load(token (&x)[PAIR], int left, bool some) const {
#pragma unroll
        for (int m = 0; m < PAIR; m++) x[m] = some && m < left ? at[m * stride] : token(0);
    }
    __device__ __forceinline__ void forth() { at += PAIR * stride; }
    __device__ __forceinline__ void back() { at -= PAIR * stride; }
};

extern "C" __global__ void __launch_bounds__(CHANNELS, BACK_BLOCKS) scan_back_kernel(
    const token* u, const token* delta, const float* A, const float* B, const float* C, const float* skip,
    const token* z, const float* bias, const float* initial, const token* dy, const float* dfinal,
    const int* cu_seqlens, const float* ends, const float* backs, float* parts, token* du, token* ddelta, token* dz,
    float* dA, float* dD, float* dbias, float* dinitial, i64 T, i64 S, i64 D, i64 G, i64 N, i64 width, i64 u_stride,
    i64 delta_stride, i64 B_stride, i64 B_group, i64 C_stride, i64 C_group, i64 z_stride, i64 dy_stride, i64 has_skip,
    i64 has_bias, i64 has_initial, i64 has_final) {
    extern __shared__ float4 shared[];
    auto& rows = *(float4(*)[KEEP][2 * QUADS])shared;
    auto& states = *(float4(*)[WARPS][PAIRS][4][32])(shared + KEEP * 2 * QUADS);
    Channel c = channel_of_thread(D, G, width);
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int token_of_thread = threadIdx.x / (2 * QUADS), quad = threadIdx.x % (2 * QUADS);
    Keys keys = quad < QUADS ? Keys{B + c.group * B_group + 4 * quad, B_stride}
                             : Keys{C + c.group * C_group + 4 * (quad - QUADS), C_stride};
    i64 size = N * width, tile = c.states - lane;
    float offset = c.real && has_bias ? bias[c.index] : 0.0f, direct = c.real && has_skip ? skip[c.index] : 0.0f;
    float sum_D = 0.0f, sum_bias = 0.0f;
    Tile decay, sum_A = {};
    load_tile(decay, A + tile, c.padded);
#pragma unroll
    for (int k = 0; k < 4; k++)
#pragma unroll
        for (int j = 0; j < 4; j++) decay[k][j] *= LOG2E;
    parts += ((i64)c.block * T * G + c.group) * (2 * STATES) + row_of_lane(lane);
    for (Pieces p({cu_seqlens, (int)S, (int)T}, c.window); p.some(); p.next()) {
        Tile back;
        if (p.last < p.end)
            load_tile(back, backs + (i64)(p.last / SIZE - 1) * size + tile, c.padded);
        else
            load_tile(back, dfinal + p.sequence * size + tile, c.padded && has_final);
#pragma unroll 1
        for (int front = p.t + (p.last - p.t - 1 + KEEP) / KEEP * KEEP - KEEP; front >= p.t; front -= KEEP) {
            int stop = least(front + KEEP, p.last);
            __syncthreads();
            for (int row = token_of_thread; row < KEEP; row += CHANNELS / (2 * QUADS)) {
                float4 fetched = {};
                keys.load(fetched, front + row, row < stop - front);
                rows[row][quad] = fetched;
            }
            __syncthreads();
#pragma unroll 1
            for (int first = front + (stop - front - 1) / BATCH * BATCH; first >= front; first -= BATCH) {
                int last = least(first + BATCH, stop), pairs = (last - first + PAIR - 1) / PAIR;
                token raw_u[PAIR], raw_delta[PAIR], raw_z[PAIR], raw_dy[PAIR];
                Row us(u, u_stride, front, c.index), deltas(delta, delta_stride, front, c.index);
                {
                    Tile h;
                    if (front > p.start)
                        load_tile(h, ends + (i64)(front / KEEP - 1) * size + tile, c.padded);
                    else
                        load_tile(h, initial + p.sequence * size + tile, c.padded && has_initial);
                    us.load(raw_u, last - front, c.real), deltas.load(raw_delta, last - front, c.real);
                    int i = (front - first) / PAIR;  // pairs in front of `first` are only passed
#pragma unroll 1
                    for (int row = 0;; i++, row += PAIR) {
                        if (i >= 0)
#pragma unroll
                            for (int k = 0; k < 4; k++)
                                states[warp][i][k][lane] = make_float4(h[k][0], h[k][1], h[k][2], h[k][3]);
                        if (i + 1 >= pairs) break;
                        float here[PAIR], step[PAIR];
#pragma unroll
                        for (int m = 0; m < PAIR; m++) {
                            here[m] = widen(raw_u[m]);
                            step[m] = time_step(widen(raw_delta[m]) + offset);
                        }
                        us.forth(), deltas.forth();
                        us.load(raw_u, last - front - row - PAIR, c.real);
                        deltas.load(raw_delta, last - front - row - PAIR, c.real);
#pragma unroll
                        for (int m = 0; m < PAIR; m++) {
                            float4 B_row = rows[row + m][lane & 3];
#pragma unroll
                            for (int k = 0; k < 4; k++) {
                                float step_k = exchange(step[m], k), u_k = exchange(step[m] * here[m], k);
#pragma unroll
                                for (int j = 0; j < 4; j++)
                                    h[k][j] = fmaf(exp2_fast(decay[k][j] * step_k), h[k][j], part(B_row, j) * u_k);
                            }
                        }
                    }
                }
                Row zs(z, z_stride, last - 1 - (last - first - 1) % PAIR, c.index);
                Row dys(dy, dy_stride, last - 1 - (last - first - 1) % PAIR, c.index);
                int left = (last - first - 1) % PAIR + 1;
                zs.load(raw_z, left, c.real && GATED), dys.load(raw_dy, left, c.real);
                i64 out = (i64)(first + (pairs - 1) * PAIR) * D + c.index;
#pragma unroll 1
                for (int i = pairs - 1; i >= 0; i--, out -= PAIR * D) {
                    int row = first - front + i * PAIR;
                    float here[PAIR], step[PAIR], from_u[PAIR], g[PAIR], slope[PAIR], z_here[PAIR], dy_here[PAIR], gate[PAIR];
                    float value[PAIR], along_B[PAIR], along_A[PAIR];
                    float of_B[PAIR][4] = {}, of_C[PAIR][4] = {};
                    float4 B_row[PAIR], C_row[PAIR];
#pragma unroll
                    for (int m = 0; m < PAIR; m++) {
                        float x = widen(raw_delta[m]) + offset, e = fading(x);
                        here[m] = widen(raw_u[m]), z_here[m] = widen(raw_z[m]), dy_here[m] = widen(raw_dy[m]);
                        step[m] = m < left ? SOFTPLUS ? softplus(x, e) : x : 0.0f;
                        slope[m] = SOFTPLUS ? sigmoid(x, e) : 1.0f;
                        gate[m] = sigmoid(z_here[m], fading(z_here[m]));
                        from_u[m] = step[m] * here[m];
                        g[m] = GATED ? dy_here[m] * z_here[m] * gate[m] : dy_here[m];
                        B_row[m] = rows[row + m][lane & 3], C_row[m] = rows[row + m][QUADS + (lane & 3)];
                    }
                    us.back(), deltas.back(), zs.back(), dys.back();
                    us.load(raw_u, PAIR, c.real && i), deltas.load(raw_delta, PAIR, c.real && i);
                    zs.load(raw_z, PAIR, c.real && GATED && i), dys.load(raw_dy, PAIR, c.real && i);
#pragma unroll
                    for (int k = 0; k < 4; k++) {
                        float step_k[PAIR], u_k[PAIR], g_k[PAIR], values[PAIR] = {}, from_B[PAIR] = {}, from_A[PAIR] = {};
                        float4 h = states[warp][i][k][lane];
#pragma unroll
                        for (int m = 0; m < PAIR; m++)
                            step_k[m] = exchange(step[m], k), u_k[m] = exchange(from_u[m], k), g_k[m] = exchange(g[m], k);
#pragma unroll
                        for (int j = 0; j < 4; j++) {
                            float state[PAIR + 1] = {part(h, j)}, factor[PAIR];
#pragma unroll
                            for (int m = 0; m < PAIR; m++) {
                                factor[m] = exp2_fast(decay[k][j] * step_k[m]);
                                state[m + 1] = fmaf(factor[m], state[m], part(B_row[m], j) * u_k[m]);
                                values[m] = fmaf(state[m + 1], part(C_row[m], j), values[m]);
                                of_C[m][j] = fmaf(state[m + 1], g_k[m], of_C[m][j]);
                            }
#pragma unroll
                            for (int m = PAIR - 1; m >= 0; m--) {
                                float dh = fmaf(part(C_row[m], j), g_k[m], back[k][j]);
                                from_B[m] = fmaf(dh, part(B_row[m], j), from_B[m]);
                                of_B[m][j] = fmaf(dh, u_k[m], of_B[m][j]);
                                back[k][j] = dh * factor[m];
                                float w = back[k][j] * state[m];
                                sum_A[k][j] = fmaf(w, step_k[m], sum_A[k][j]);
                                from_A[m] = fmaf(w, decay[k][j], from_A[m]);
                            }
                        }
#pragma unroll
                        for (int m = 0; m < PAIR; m++) {
                            value[m] = k ? value[m] + exchange(values[m], k) : values[m];
                            along_B[m] = k ? along_B[m] + exchange(from_B[m], k) : from_B[m];
                            along_A[m] = k ? along_A[m] + exchange(from_A[m], k) : from_A[m];
                        }
                    }
                    __syncwarp();
#pragma unroll
                    for (int m = PAIR - 1; m >= 0; m--) {
                        // the states of this pair are no longer needed: their place takes the sums
                        ((float*)states[warp][i])[m * 32 + lane] = sum_channels(of_B[m], of_C[m]);
                        float dstep = fmaf(along_B[m], here[m], along_A[m] * LN2) * slope[m];
                        value[m] = fmaf(direct, here[m], value[m]);
                        if (c.real && m < left) {
                            du[out + m * D] = narrow(fmaf(along_B[m], step[m], direct * g[m]));
                            ddelta[out + m * D] = narrow(dstep);
                            if (GATED)
                                dz[out + m * D] =
                                    narrow(dy_here[m] * value[m] * gate[m] * fmaf(z_here[m], 1.0f - gate[m], 1.0f));
                            sum_D = fmaf(g[m], here[m], sum_D);
                            sum_bias += dstep;
                        }
                    }
                    left = PAIR;
                }
                __syncthreads();
                for (int row = warp; row < last - first; row += WARPS) {
                    float sum = 0.0f;
#pragma unroll
                    for (int w = 0; w < WARPS; w++) sum += ((float*)states[w][row / PAIR])[row % PAIR * 32 + lane];
                    parts[(i64)(first + row) * G * (2 * STATES)] = sum;
                }
                __syncthreads();
            }
        }
        if (p.t == p.start && p.last > p.t && has_initial) store_tile(dinitial + p.sequence * size + tile, back, c.padded);
    }
    store_tile(dA + c.window * size + tile, sum_A, c.padded);
    if (c.real) {
        dD[(i64)c.window * D + c.index] = sum_D;
        dbias[(i64)c.window * D + c.index] = sum_bias;
    }
}
