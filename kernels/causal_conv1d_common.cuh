// What forward and backward share: rows of a pack, the tokens that a thread takes, and the filter.

typedef long long i64;

constexpr int PAST = WIDTH - 1;  // inputs before a token in its window
constexpr float LOG2E = 1.4426950408889634f;
constexpr unsigned NEVER = 0xffffffff;
constexpr int UNROLLED = 2 * PAST;  // rows of an unrolled loop, after which past inputs are in the same registers again

// ------------------------------------------------------------------------------------------------------ rows of a pack

// N adjacent channels, read or written at once. Halves are kept in pairs: alone, each would take a register
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

// Rows in flight from COUNT matrices: each thread has a ring of its own in shared memory, and waits for its own copies
template <int N, int ROWS, int COUNT>
struct Ring {
    typedef Row<N> Slots[ROWS][COUNT][THREADS];
    Row<N>*base, *free;  // free: the slot read last, for the next row
    const Column (&from)[COUNT];
    unsigned end;

    __device__ __forceinline__ Ring(Slots& slots, const Column (&from)[COUNT], unsigned t, unsigned end)
        : base(slots[0][0] + threadIdx.x), from(from), end(end) {
#pragma unroll
        for (int k = 0; k < ROWS - 1; k++) {
            free = slot(t + k);
            fetch(t + k);
        }
        free = slot(t + ROWS - 1);
    }
    __device__ __forceinline__ Row<N>* slot(unsigned t) const { return base + t % ROWS * (COUNT * THREADS); }
    __device__ __forceinline__ void fetch(unsigned t) {
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            if (t < end) copy_async<sizeof(Row<N>)>(free + i * THREADS, from[i].at(t));
        group_copies();
    }
    __device__ __forceinline__ void take(float (&rows)[COUNT][N], unsigned t) {
        wait_for_copies<ROWS - 2>();
        Row<N>* row = slot(t);
#pragma unroll
        for (int i = 0; i < COUNT; i++) spread(rows[i], row[i * THREADS]);
        fetch(t + ROWS - 1);
        free = row;
    }
};

// ------------------------------------------------------------------------------------------- the tokens of a thread

// A sequence that has tokens. Offsets are clamped to the pack: a GPU does not check them
struct Sequence {
    const int* offsets;
    unsigned count, tokens, index, start, end;

    __device__ __forceinline__ unsigned offset(unsigned i) const { return min((unsigned)max(offsets[i], 0), tokens); }

    __device__ __forceinline__ void enter(unsigned i) {
        index = i;
        start = i < count ? offset(i) : NEVER;
        end = i < count ? max(offset(i + 1), start) : NEVER;
    }
    // the sequence of token t: the last one with its start at t or before
    __device__ __forceinline__ void find(unsigned t) {
        unsigned candidate = 0;
        for (unsigned span = count; span > 0; span /= 2) {
            unsigned step = (span + 1) / 2;
            if (offset(candidate + step) <= t) candidate += step;
        }
        enter(candidate);
    }
    // move on to the sequence of token t
    __device__ __forceinline__ void pass_to(unsigned t) {
        do enter(index + 1);
        while (end <= t);
    }
};

// The tokens of a thread: N adjacent channels of a window of the pack, which has no relation to sequences
template <int N>
struct Walk {
    unsigned window, begin, limit, packed_end;
    i64 d, D;
    Sequence sequence;
    const token* initial;  // states are rows: [S, w-1, D]
    bool has_initial;
    float past[PAST][N];   // the inputs before the next token, oldest first

    __device__ __forceinline__ Walk(
        const int* cu_seqlens, const token* initial, bool has_initial, i64 T, i64 S, i64 D, i64 size)
        : D(D), sequence{cu_seqlens, (unsigned)S, (unsigned)T}, initial(initial), has_initial(has_initial) {
        unsigned blocks = (D + THREADS * N - 1) / (THREADS * N);
        window = blockIdx.x / blocks;
        d = (i64)(blockIdx.x % blocks * THREADS + threadIdx.x) * N;
        begin = window * (unsigned)size;
        limit = begin + (unsigned)size;
        packed_end = sequence.offset(S);
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
    __device__ __forceinline__ void slide(const float (&input)[N]) {
#pragma unroll
        for (int j = 0; j < PAST; j++)
#pragma unroll
            for (int i = 0; i < N; i++) past[j][i] = j + 1 < PAST ? past[j + 1][i] : input[i];
    }
    // taps of the window's first token before the start of its sequence
    __device__ __forceinline__ int missing() const {
        return sequence.index < sequence.count ? max(PAST - (int)min(begin - sequence.start, (unsigned)PAST), 0) : 0;
    }
};

// SHORT: sequences of a token or two without states. A loop for each would cost more than its tokens do; instead a table
// records for every token of a window, and for the w-1 after it, whether a sequence begins there
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

// The filter may be fp32 beside tokens of 16 bits
#if FILTER == FP32
typedef float parameter;
#else
typedef token parameter;
#endif

template <int N>
struct Filter {
    float taps[WIDTH][N], bias[N];

    __device__ __forceinline__ Filter(const parameter* weight, const parameter* offset, bool has_bias, i64 d) {
#if FILTER != TOKEN
#pragma unroll
        for (int k = 0; k < WIDTH * N; k++) taps[k % WIDTH][k / WIDTH] = weight[d * WIDTH + k];
#pragma unroll
        for (int i = 0; i < N; i++) bias[i] = has_bias ? offset[d + i] : 0.0f;
#else
#pragma unroll
        for (int k = 0; k < WIDTH; k++) {
            Row<N> row = ((const Row<N>*)(weight + d * WIDTH))[k];
#pragma unroll
            for (int i = 0; i < N; i++) taps[(k * N + i) % WIDTH][(k * N + i) / WIDTH] = row.get(i);
        }
#pragma unroll
        for (int i = 0; i < N; i++) bias[i] = 0.0f;
        if (has_bias) load(bias, offset + d);
#endif
    }
    // bias + Σ_j taps[j] x[t - (w-1) + j], oldest tap first; the first `missing` taps lie before its start
    __device__ __forceinline__ void apply(
        float (&sum)[N], const float (&past)[PAST][N], const float (&input)[N], int missing) const {
#pragma unroll
        for (int i = 0; i < N; i++) {
            sum[i] = bias[i];
#pragma unroll
            for (int j = 0; j < PAST; j++)
                if (j >= missing) sum[i] = fmaf(past[j][i], taps[j][i], sum[i]);
            sum[i] = fmaf(input[i], taps[PAST][i], sum[i]);
        }
    }
};

__device__ __forceinline__ float sigmoid(float x) { return reciprocal(1.0f + exp2_fast(x * -LOG2E)); }
