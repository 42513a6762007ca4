#include "hardware.cuh"

typedef long long i64;

constexpr int PAST = WIDTH - 1;  // inputs in front of a token that reach it
constexpr float LOG2E = 1.4426950408889634f;
constexpr unsigned NEVER = 0xffffffff;
constexpr int TURN = 2 * PAST;  // rows of an unrolled loop, after which past inputs are in the same registers again

// ------------------------------------------------------------------------------------------------------ rows of a pack

// N adjacent channels, read or written at once. Halves wait in pairs: alone, each would take a register
template <int N, bool PAIRS = (N > 1 && sizeof(token) == 2)>
struct Row;

template <int N>
struct alignas(N * sizeof(token)) Row<N, false> {
    token channels[N];

    __device__ __forceinline__ float get(int i) const { return widen(channels[i]); }
    __device__ __forceinline__ void set(int i, float x) { channels[i] = narrow(x); }
};

template <int N>
struct alignas(N * sizeof(token)) Row<N, true> {
    unsigned pairs[N / 2];

    __device__ __forceinline__ float get(int i) const { return widen(token(pairs[i / 2] >> (i % 2 * 16))); }
    __device__ __forceinline__ void set(int i, float x) {
        unsigned bits = narrow(x);
        pairs[i / 2] = i % 2 ? pairs[i / 2] | bits << 16 : bits;
    }
};

template <int N>
__device__ __forceinline__ void spread(float (&to)[N], const Row<N>& row) {
#pragma unroll
    for (int i = 0; i < N; i++) to[i] = row.get(i);
}

template <int N>
__device__ __forceinline__ void load(float (&to)[N], const token* from) {
    spread(to, *(const Row<N>*)from);
}

template <int N>
__device__ __forceinline__ void store(token* to, const float (&from)[N]) {
    Row<N> row;
#pragma unroll
    for (int i = 0; i < N; i++) row.set(i, from[i]);
    *(Row<N>*)to = row;
}

template <int N, int COUNT>
__device__ __forceinline__ void clear(float (&rows)[COUNT][N]) {
#pragma unroll
    for (int j = 0; j < COUNT; j++)
#pragma unroll
        for (int i = 0; i < N; i++) rows[j][i] = 0.0f;
}

// A column of a matrix, N channels wide. Its rows are fewer than 2^32 bytes apart: one instruction finds them
struct Column {
    char* top;
    unsigned stride;  // bytes

    __device__ __forceinline__ Column(const token* matrix, i64 d, i64 row)
        : top((char*)(matrix + d)), stride(row * sizeof(token)) {}
    __device__ __forceinline__ token* at(unsigned t) const { return (token*)(top + (unsigned long long)t * stride); }
};

template <int N>
__device__ __forceinline__ void store_zeros(const Column& to, unsigned t, unsigned end) {
    float zeros[N] = {};
    for (; t < end; t++) store(to.at(t), zeros);
}

// Rows on their way from COUNT matrices: each thread has a ring of its own in shared memory, and waits for itself alone
template <int N, int ROWS, int COUNT>
struct Ring {
    typedef Row<N> Slots[ROWS][COUNT][THREADS];
    Row<N>*first, *free;  // free: what was taken last, and the next row may fill
    const Column (&from)[COUNT];
    unsigned end;

    __device__ __forceinline__ Ring(Slots& slots, const Column (&from)[COUNT], unsigned t, unsigned end)
        : first(slots[0][0] + threadIdx.x), from(from), end(end) {
#pragma unroll
        for (int k = 0; k < ROWS - 1; k++) {
            free = slot(t + k);
            fetch(t + k);
        }
        free = slot(t + ROWS - 1);
    }
    __device__ __forceinline__ Row<N>* slot(unsigned t) const { return first + t % ROWS * (COUNT * THREADS); }
    __device__ __forceinline__ void fetch(unsigned t) {
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            if (t < end) copy_async<sizeof(Row<N>)>(free + i * THREADS, from[i].at(t));
        group_copies();
    }
    __device__ __forceinline__ void take(float (&rows)[COUNT][N], unsigned t) {
        wait_for_copies<ROWS - 2>();
        Row<N>* taken = slot(t);
#pragma unroll
        for (int i = 0; i < COUNT; i++) spread(rows[i], taken[i * THREADS]);
        fetch(t + ROWS - 1);
        free = taken;
    }
};

// ------------------------------------------------------------------------------------------------- where a thread walks

// A sequence that has tokens. Offsets are kept inside the pack whatever they say: a GPU does not check them
struct Sequence {
    const int* offsets;
    unsigned count, tokens, index, start, end;

    __device__ __forceinline__ unsigned offset(unsigned i) const { return min((unsigned)max(offsets[i], 0), tokens); }

    __device__ __forceinline__ void enter(unsigned i) {
        index = i;
        start = i < count ? offset(i) : NEVER;
        end = i < count ? max(offset(i + 1), start) : NEVER;
    }
    // the sequence of token t: the last that begins there or before
    __device__ __forceinline__ void find(unsigned t) {
        unsigned found = 0;
        for (unsigned left = count; left > 0; left /= 2) {
            unsigned step = (left + 1) / 2;
            if (offset(found + step) <= t) found += step;
        }
        enter(found);
    }
    // the sequence of token t, some sequences ahead
    __device__ __forceinline__ void pass_to(unsigned t) {
        do enter(index + 1);
        while (end <= t);
    }
};

// A thread's way: N adjacent channels, in a window of the pack that knows nothing of sequences
template <int N>
struct Walk {
    unsigned window, begin, limit, used;
    i64 d, D;
    Sequence sequence;
    const token* initial;  // states are rows: [S, w-1, D]
    bool has_initial;
    float past[PAST][N];   // the inputs in front of the next token, oldest first

    __device__ __forceinline__ Walk(
        const int* cu_seqlens, const token* initial, bool has_initial, i64 T, i64 S, i64 D, i64 size)
        : D(D), sequence{cu_seqlens, (unsigned)S, (unsigned)T}, initial(initial), has_initial(has_initial) {
        unsigned blocks = (D + THREADS * N - 1) / (THREADS * N);
        window = blockIdx.x / blocks;
        d = (i64)(blockIdx.x % blocks * THREADS + threadIdx.x) * N;
        begin = window * (unsigned)size;
        limit = begin + (unsigned)size;
        used = sequence.offset(S);
    }
    __device__ __forceinline__ i64 state(unsigned slot) const { return ((i64)sequence.index * PAST + slot) * D + d; }

    // at a sequence's first token
    __device__ __forceinline__ void start() {
        clear(past);
        if (!has_initial) return;
#pragma unroll
        for (int j = 0; j < PAST; j++) load(past[j], initial + state(j));
    }
    // at the window's first token
    __device__ __forceinline__ void enter(const Column& x) {
        sequence.find(begin);
        clear(past);
        if (sequence.index >= sequence.count) return;
        unsigned since = begin - sequence.start;
#pragma unroll
        for (int j = 0; j < PAST; j++) {
            if (since + j >= PAST)
                load(past[j], x.at(begin + j - PAST));
            else if (has_initial)
                load(past[j], initial + state(since + j));
        }
    }
    __device__ __forceinline__ void slide(const float (&here)[N]) {
#pragma unroll
        for (int j = 0; j < PAST; j++)
#pragma unroll
            for (int i = 0; i < N; i++) past[j][i] = j + 1 < PAST ? past[j + 1][i] : here[i];
    }
    // taps of the window's first token that reach in front of its sequence
    __device__ __forceinline__ int missing() const {
        return sequence.index < sequence.count ? max(PAST - (int)min(begin - sequence.start, (unsigned)PAST), 0) : 0;
    }
};

// SHORT: sequences of a token or two without states. Walking each would cost more than its tokens do; instead a table
// says of every token of a window, and of the w-1 behind it, whether a sequence begins there
struct Starts {
    bool at[SHORT ? WINDOW + PAST : 1];

    // by all threads of a block
    __device__ __forceinline__ void mark(Sequence sequence, unsigned begin, unsigned stop) {
        for (unsigned t = begin + threadIdx.x; t < stop; t += THREADS) at[t - begin] = false;
        __syncthreads();
        sequence.find(begin);
        for (unsigned i = sequence.index + threadIdx.x; i < sequence.count; i += THREADS) {
            unsigned start = sequence.offset(i);
            if (start >= stop) break;
            if (start >= begin) at[start - begin] = true;  // an empty one begins where another does, or at the end
        }
        __syncthreads();
    }
};

template <int N>
struct Filter {
    float taps[WIDTH][N], bias[N];

    __device__ __forceinline__ Filter(const token* weight, const token* offset, bool has_bias, i64 d) {
#pragma unroll
        for (int k = 0; k < WIDTH; k++) {
            Row<N> row = ((const Row<N>*)(weight + d * WIDTH))[k];
#pragma unroll
            for (int i = 0; i < N; i++) taps[(k * N + i) % WIDTH][(k * N + i) / WIDTH] = row.get(i);
        }
#pragma unroll
        for (int i = 0; i < N; i++) bias[i] = 0.0f;
        if (has_bias) load(bias, offset + d);
    }
    // bias + Σ_j taps[j] x[t - (w-1) + j], oldest tap first; the first `missing` taps reach in front of the sequence
    __device__ __forceinline__ void apply(
        float (&sum)[N], const float (&past)[PAST][N], const float (&here)[N], int missing) const {
#pragma unroll
        for (int i = 0; i < N; i++) {
            sum[i] = bias[i];
#pragma unroll
            for (int j = 0; j < PAST; j++)
                if (j >= missing) sum[i] = fmaf(past[j][i], taps[j][i], sum[i]);
            sum[i] = fmaf(here[i], taps[PAST][i], sum[i]);
        }
    }
};

__device__ __forceinline__ float sigmoid(float x) { return reciprocal(1.0f + exp2_fast(x * -LOG2E)); }

// ------------------------------------------------------------------------------------------------------------- forward

extern "C" __global__ void __launch_bounds__(THREADS, FORWARD_BLOCKS) causal_conv1d_fwd_kernel(
    const token* x, const token* weight, const token* bias, const token* initial, const int* cu_seqlens, token* y,
    i64 T, i64 S, i64 D, i64 window, i64 x_stride, i64 has_bias, i64 has_initial) {
    constexpr int N = FORWARD_CHANNELS, ROWS = FORWARD_ROWS;
    Walk<N> walk(cu_seqlens, initial, has_initial, T, S, D, window);
    unsigned t = walk.begin, stop = min(walk.limit, walk.used);
    __shared__ Starts starts;
    if (SHORT) starts.mark(walk.sequence, t, stop);
    if (walk.d >= D) return;
    const Column from[1] = {{x, walk.d, x_stride}}, to(y, walk.d, D);
    __shared__ typename Ring<N, ROWS, 1>::Slots slots;
    Ring<N, ROWS, 1> ring(slots, from, t, stop);
    Filter<N> filter(weight, bias, has_bias, walk.d);
    walk.enter(from[0]);
    auto pass = [&](int missing) __attribute__((always_inline)) {
        float here[1][N], sum[N];
        ring.take(here, t);
        filter.apply(sum, walk.past, here[0], missing);
        walk.slide(here[0]);
        if (SILU)
#pragma unroll
            for (int i = 0; i < N; i++) sum[i] *= sigmoid(sum[i]);
        store(to.at(t), sum);
        t++;
    };
    auto walk_to = [&](unsigned last) {
        while (t < last) {
#pragma unroll
            for (int k = 0; k < TURN; k++) {
                if (t >= last) return;
                pass(0);
            }
        }
    };
    auto walk_short = [&](int missing) {
#pragma unroll 1
        while (t < stop) {
            if (starts.at[t - walk.begin]) {
                pass(PAST);
                missing = PAST - 1;
            } else if (missing) {
                pass(missing);
                missing--;
            } else {
                pass(0);
            }
        }
    };
    if (SHORT) walk_short(walk.missing());
    while (!SHORT && t < stop) {
        walk_to(min(walk.sequence.end, stop));
        if (t >= stop) break;
        walk.sequence.pass_to(t);
        walk.start();
    }
    store_zeros<N>(to, max(walk.begin, walk.used), min(walk.limit, (unsigned)T));
}

// ------------------------------------------------------------------------------------------------------------ backward

// The gradients of inputs: of the w-1 in front of the next token, as far as the tokens so far make them up
template <int N>
struct Gradients {
    const Column& dx;
    const token* dfinal;
    token* dinitial;
    bool has_final, needs_dx;
    float open[PAST][N];

    // of what lies w-1 tokens in front of t: an input, or a slot of the initial state
    __device__ __forceinline__ void emit(const Walk<N>& walk, unsigned t, const float (&value)[N]) const {
        unsigned since = t - walk.sequence.start;
        bool inside = since >= PAST;
        bool wanted =
            inside ? needs_dx && t - walk.begin >= PAST : walk.has_initial && walk.sequence.start >= walk.begin;
        token* to = inside ? dx.at(t - PAST) : dinitial + walk.state(since);
        if (wanted) store(to, value);
    }
    // a token adds to the gradients of its own input and of the ones in front, and is the last for the first of them
    __device__ __forceinline__ void add(
        float (&done)[N], const float (&g)[N], const float (&taps)[WIDTH][N], int missing) {
#pragma unroll
        for (int i = 0; i < N; i++) {
            done[i] = missing > 0 ? open[0][i] : fmaf(g[i], taps[0][i], open[0][i]);
#pragma unroll
            for (int j = 0; j + 1 < PAST; j++)
                open[j][i] = missing > j + 1 ? open[j + 1][i] : fmaf(g[i], taps[j + 1][i], open[j + 1][i]);
            open[PAST - 1][i] = g[i] * taps[PAST][i];
        }
    }
    // the inputs still open at a sequence's end are its final state
    __device__ __forceinline__ void finish(const Walk<N>& walk) {
#pragma unroll
        for (int j = 0; j < PAST; j++) {
            if (has_final) {
                float final_state[N];
                load(final_state, dfinal + walk.state(j));
#pragma unroll
                for (int i = 0; i < N; i++) open[j][i] += final_state[i];
            }
            emit(walk, walk.sequence.end + j, open[j]);  // behind the window: the bits that the next one writes
        }
        clear(open);
    }
};

template <int N>
struct alignas(4 * N) Floats {
    float channels[N];
};

// The window's part of the gradients of the taps and, last, of the bias
template <int N>
struct Parts {
    float sums[WIDTH + 1][N];

    __device__ __forceinline__ void add(
        const float (&g)[N], const float (&past)[PAST][N], const float (&here)[N], int missing) {
#pragma unroll
        for (int i = 0; i < N; i++) {
#pragma unroll
            for (int j = 0; j < PAST; j++)
                if (j >= missing) sums[j][i] = fmaf(g[i], past[j][i], sums[j][i]);
            sums[PAST][i] = fmaf(g[i], here[i], sums[PAST][i]);
            sums[WIDTH][i] += g[i];
        }
    }
    __device__ __forceinline__ void leave(float* to, i64 D) const {
        constexpr int AT_ONCE = N < 4 ? N : 4;
#pragma unroll
        for (int j = 0; j <= WIDTH; j++)
#pragma unroll
            for (int i = 0; i < N; i += AT_ONCE) {
                Floats<AT_ONCE> part;
#pragma unroll
                for (int k = 0; k < AT_ONCE; k++) part.channels[k] = sums[j][i + k];
                *(Floats<AT_ONCE>*)(to + j * D + i) = part;
            }
    }
};

// Walks w-1 tokens past the window, which reach its inputs, unless the window's last sequence ends before
extern "C" __global__ void __launch_bounds__(THREADS, BACKWARD_BLOCKS) causal_conv1d_bwd_kernel(
    const token* x, const token* weight, const token* bias, const token* initial, const token* dy, const token* dfinal,
    const int* cu_seqlens, token* dx, token* dinitial, float* partial, i64 T, i64 S, i64 D, i64 window, i64 x_stride,
    i64 dy_stride, i64 has_bias, i64 has_initial, i64 has_final, i64 needs_dx) {
    constexpr int N = BACKWARD_CHANNELS, ROWS = BACKWARD_ROWS;
    Walk<N> walk(cu_seqlens, initial, has_initial, T, S, D, window);
    Sequence& sequence = walk.sequence;
    unsigned t = walk.begin, stop = min(walk.limit + PAST, walk.used);
    __shared__ Starts starts;
    if (SHORT) starts.mark(sequence, t, stop);
    if (walk.d >= D) return;
    const Column from[2] = {{x, walk.d, x_stride}, {dy, walk.d, dy_stride}}, to(dx, walk.d, D);
    __shared__ typename Ring<N, ROWS, 2>::Slots slots;
    Ring<N, ROWS, 2> ring(slots, from, t, stop);
    Filter<N> filter(weight, bias, has_bias, walk.d);
    walk.enter(from[0]);
    Gradients<N> gradients{to, dfinal, dinitial, has_final != 0, needs_dx != 0};
    clear(gradients.open);
    Parts<N> parts;
    clear(parts.sums);
    auto pass = [&](float(&done)[N], int missing) __attribute__((always_inline)) {
        float rows[2][N];
        ring.take(rows, t);
        float(&here)[N] = rows[0], (&g)[N] = rows[1];
        if (SILU) {
            float sum[N];
            filter.apply(sum, walk.past, here, missing);
#pragma unroll
            for (int i = 0; i < N; i++) {
                float gate = sigmoid(sum[i]);
                g[i] *= fmaf(gate, fmaf(-sum[i], gate, sum[i]), gate);
            }
        }
        if (t < walk.limit) parts.add(g, walk.past, here, missing);
        gradients.add(done, g, filter.taps, missing);
        walk.slide(here);
    };
    auto walk_to = [&](unsigned last, unsigned plain) {
        while (t < last) {
#pragma unroll
            for (int k = 0; k < TURN; k++) {
                if (t >= last) return;
                float done[N];
                pass(done, 0);
                if (t >= plain)
                    store(to.at(t - PAST), done);
                else
                    gradients.emit(walk, t, done);
                t++;
            }
        }
    };
    auto leave = [&](unsigned row, const float(&value)[N]) __attribute__((always_inline)) {
        if (needs_dx && row - walk.begin < walk.limit - walk.begin) store(to.at(row), value);
    };
    auto walk_short = [&](int missing) {
#pragma unroll 1
        while (t < stop) {
            float done[N];
            if (starts.at[t - walk.begin]) {
                pass(done, PAST);
                missing = PAST - 1;
            } else if (missing) {
                pass(done, missing);
                missing--;
            } else {
                pass(done, 0);
            }
            leave(t - PAST, done);
            t++;
        }
    };
    if (SHORT) {
        walk_short(walk.missing());
        if (stop == walk.used)
#pragma unroll
            for (int j = 0; j < PAST; j++) leave(t - PAST + j, gradients.open[j]);
    }
    while (!SHORT && t < stop && sequence.start < walk.limit) {
        walk_to(min(sequence.end, stop), needs_dx ? max(sequence.start, walk.begin) + PAST : NEVER);
        if (t < sequence.end) break;
        gradients.finish(walk);
        if (t >= stop) break;
        sequence.pass_to(t);
        walk.start();
    }
    parts.leave(partial + (i64)walk.window * (WIDTH + 1) * D + walk.d, D);
    if (needs_dx) store_zeros<N>(to, max(walk.begin, walk.used), min(walk.limit, (unsigned)T));
}
