// causal_conv1d in CUDA C++: a thread owns some adjacent channels and walks along a window of the pack. The parameters of
// a kernel have the names used by causal_conv1d_launch.py.
//
// Compile-time macros, all set by causal_conv1d_launch.py:
//   TOKEN              dtype of the tokens: FP32, FP16 or BF16
//   FILTER             dtype of the filter and its bias: that of the tokens, or FP32
//   WIDTH              taps of the filter
//   SILU               1 if the activation is silu, 0 if there is none
//   SHORT              1 for the form that is faster where sequences have a token or two
//   THREADS            threads of a block
//   WINDOW             the most tokens of a window (the window itself is an argument)
//   FORWARD_CHANNELS   channels of a thread in forward; BACKWARD_CHANNELS in backward
//   FORWARD_ROWS       rows in flight for each thread in forward; BACKWARD_ROWS in backward
//   FORWARD_BLOCKS     blocks of a multiprocessor for which registers must suffice; BACKWARD_BLOCKS in backward

#include "hardware.cuh"
#include "causal_conv1d_common.cuh"

// ------------------------------------------------------------------------------------------------------------- forward

extern "C" __global__ void __launch_bounds__(THREADS, FORWARD_BLOCKS) _causal_conv1d_fwd_kernel(
    const token* x, const parameter* weight, const parameter* bias, const token* initial, const int* cu_seqlens, token* y,
    i64 T, i64 S, i64 D, i64 window, i64 x_stride, i64 has_bias, i64 has_initial) {
    constexpr int N = FORWARD_CHANNELS, ROWS = FORWARD_ROWS;
    Walk<N> walk(cu_seqlens, initial, has_initial, T, S, D, window);
    unsigned t = walk.begin, stop = min(walk.limit, walk.packed_end);
    __shared__ Starts starts;
    if (SHORT) starts.mark(walk.sequence, t, stop);
    if (walk.d >= D) return;
    const Column from[1] = {{x, walk.d, x_stride}}, to(y, walk.d, D);
    __shared__ typename Ring<N, ROWS, 1>::Slots slots;
    Ring<N, ROWS, 1> ring(slots, from, t, stop);
    Filter<N> filter(weight, bias, has_bias, walk.d);
    walk.enter(from[0]);
    auto pass = [&](int missing) __attribute__((always_inline)) {
        float input[1][N], sum[N];
        ring.take(input, t);
        filter.apply(sum, walk.past, input[0], missing);
        walk.slide(input[0]);
        if (SILU)
#pragma unroll
            for (int i = 0; i < N; i++) sum[i] *= sigmoid(sum[i]);
        store(to.at(t), sum);
        t++;
    };
    auto walk_to = [&](unsigned end) {
        while (t < end) {
#pragma unroll
            for (int k = 0; k < UNROLLED; k++) {
                if (t >= end) return;
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
    store_zeros<N>(to, max(walk.begin, walk.packed_end), min(walk.limit, (unsigned)T));
}

// ------------------------------------------------------------------------------------------------------------ backward

// The gradients of the w-1 inputs before the next token, so far
template <int N>
struct Gradients {
    const Column& dx;
    const token* dfinal;
    token* dinitial;
    bool has_final, needs_dx;
    float open[PAST][N];

    // store the gradient of the row w-1 tokens before t: an input, or a slot of the initial state
    __device__ __forceinline__ void emit(const Walk<N>& walk, unsigned t, const float (&value)[N]) const {
        unsigned since = t - walk.sequence.start;
        bool inside = since >= PAST;
        bool needed =
            inside ? needs_dx && t - walk.begin >= PAST : walk.has_initial && walk.sequence.start >= walk.begin;
        token* to = inside ? dx.at(t - PAST) : dinitial + walk.state(since);
        if (needed) store(to, value);
    }
    // a token adds to the gradients of its own input and of those before it, and completes the oldest
    __device__ __forceinline__ void add(
        float (&oldest)[N], const float (&g)[N], const float (&taps)[WIDTH][N], int missing) {
#pragma unroll
        for (int i = 0; i < N; i++) {
            oldest[i] = missing > 0 ? open[0][i] : fmaf(g[i], taps[0][i], open[0][i]);
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
            emit(walk, walk.sequence.end + j, open[j]);  // past the window: the next window writes the same bits
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
        const float (&g)[N], const float (&past)[PAST][N], const float (&input)[N], int missing) {
#pragma unroll
        for (int i = 0; i < N; i++) {
#pragma unroll
            for (int j = 0; j < PAST; j++)
                if (j >= missing) sums[j][i] = fmaf(g[i], past[j][i], sums[j][i]);
            sums[PAST][i] = fmaf(g[i], input[i], sums[PAST][i]);
            sums[WIDTH][i] += g[i];
        }
    }
    __device__ __forceinline__ void write(float* to, i64 D) const {
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

// Also reads the w-1 tokens after the window, which reach its inputs, unless its last sequence ends before
extern "C" __global__ void __launch_bounds__(THREADS, BACKWARD_BLOCKS) _causal_conv1d_bwd_kernel(
    const token* x, const parameter* weight, const parameter* bias, const token* initial, const token* dy, const token* dfinal,
    const int* cu_seqlens, token* dx, token* dinitial, float* partial, i64 T, i64 S, i64 D, i64 window, i64 x_stride,
    i64 dy_stride, i64 has_bias, i64 has_initial, i64 has_final, i64 needs_dx) {
    constexpr int N = BACKWARD_CHANNELS, ROWS = BACKWARD_ROWS;
    Walk<N> walk(cu_seqlens, initial, has_initial, T, S, D, window);
    Sequence& sequence = walk.sequence;
    unsigned t = walk.begin, stop = min(walk.limit + PAST, walk.packed_end);
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
    auto pass = [&](float(&oldest)[N], int missing) __attribute__((always_inline)) {
        float rows[2][N];
        ring.take(rows, t);
        float(&input)[N] = rows[0], (&g)[N] = rows[1];
        if (SILU) {
            float sum[N];
            filter.apply(sum, walk.past, input, missing);
#pragma unroll
            for (int i = 0; i < N; i++) {
                float gate = sigmoid(sum[i]);
                g[i] *= fmaf(gate, fmaf(-sum[i], gate, sum[i]), gate);
            }
        }
        if (t < walk.limit) parts.add(g, walk.past, input, missing);
        gradients.add(oldest, g, filter.taps, missing);
        walk.slide(input);
    };
    auto walk_to = [&](unsigned end, unsigned plain) {
        while (t < end) {
#pragma unroll
            for (int k = 0; k < UNROLLED; k++) {
                if (t >= end) return;
                float oldest[N];
                pass(oldest, 0);
                if (t >= plain)
                    store(to.at(t - PAST), oldest);
                else
                    gradients.emit(walk, t, oldest);
                t++;
            }
        }
    };
    auto write = [&](unsigned row, const float(&value)[N]) __attribute__((always_inline)) {
        if (needs_dx && row - walk.begin < walk.limit - walk.begin) store(to.at(row), value);
    };
    auto walk_short = [&](int missing) {
#pragma unroll 1
        while (t < stop) {
            float oldest[N];
            if (starts.at[t - walk.begin]) {
                pass(oldest, PAST);
                missing = PAST - 1;
            } else if (missing) {
                pass(oldest, missing);
                missing--;
            } else {
                pass(oldest, 0);
            }
            write(t - PAST, oldest);
            t++;
        }
    };
    if (SHORT) {
        walk_short(walk.missing());
        if (stop == walk.packed_end)
#pragma unroll
            for (int j = 0; j < PAST; j++) write(t - PAST + j, gradients.open[j]);
    }
    while (!SHORT && t < stop && sequence.start < walk.limit) {
        walk_to(min(sequence.end, stop), needs_dx ? max(sequence.start, walk.begin) + PAST : NEVER);
        if (t < sequence.end) break;
        gradients.finish(walk);
        if (t >= stop) break;
        sequence.pass_to(t);
        walk.start();
    }
    parts.write(partial + (i64)walk.window * (WIDTH + 1) * D + walk.d, D);
    if (needs_dx) store_zeros<N>(to, max(walk.begin, walk.packed_end), min(walk.limit, (unsigned)T));
}
