// What heads and kernels share of a chunk: C Bt of a group, the log-decays and steps of each head.

constexpr int PREPARE_THREADS = 256, PREPARED_HEADS = 64;  // of a block
constexpr int ROW_PIECES = STATES / 8;                     // of 16 bytes
constexpr int DT_STRIDE = PREPARED_HEADS + 2;              // elements of a row in shared memory, without bank conflicts
constexpr float MAX_LOG2_DECAY = 160.0f;                   // of a token: see kernels/elementwise.py

// 16 bytes of a row of B or C in tiles of 64 states, swizzled
__device__ __forceinline__ int key_piece(int row, int piece) {
    return piece / 8 * (CHUNK * 8) + row * 8 + ((piece % 8) ^ (row % 8));
}

__device__ __forceinline__ void copy_rows(uint4* to, const token* from, i64 stride, int length) {
    for (int i = threadIdx.x; i < CHUNK * ROW_PIECES; i += PREPARE_THREADS) {
        int row = i / ROW_PIECES, piece = i % ROW_PIECES;
        uint4 value = make_uint4(0, 0, 0, 0);
        if (row < length) value = *(const uint4*)(from + row * stride + piece * 8);
        to[key_piece(row, piece)] = value;
    }
}

// The largest magnitude of 8 numbers of bf16, as bits
__device__ __forceinline__ unsigned largest_of(uint4 v) {
    unsigned largest = max_of_halves(max_of_halves(v.x & 0x7fff7fffu, v.y & 0x7fff7fffu),
                                     max_of_halves(v.z & 0x7fff7fffu, v.w & 0x7fff7fffu));
    return max(largest & 0xffffu, largest >> 16);
}

// log2 of the largest element of B
__device__ __forceinline__ void find_largest(float* exponent, const uint4* keys) {
    __shared__ unsigned of_warps[PREPARE_THREADS / 32];
    unsigned largest = 0;
    for (int i = threadIdx.x; i < CHUNK * ROW_PIECES; i += PREPARE_THREADS) largest = max(largest, largest_of(keys[i]));
    largest = __reduce_max_sync(~0u, largest);
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = largest;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int i = 1; i < PREPARE_THREADS / 32; i++) largest = max(largest, of_warps[i]);
        *exponent = log2_fast(__uint_as_float(largest << 16));
    }
}

// C in fp16, each row by a power of two of its own, which leaves 1 to 2 to its largest element
__device__ __forceinline__ void scale_queries(uint4* to, float* exponents, const uint4* queries) {
    for (int i = threadIdx.x; i < CHUNK * ROW_PIECES; i += PREPARE_THREADS) {
        int row = i / ROW_PIECES, at = key_piece(row, i % ROW_PIECES);
        uint4 value = queries[at];
        unsigned largest = largest_of(value);
        for (int lanes = ROW_PIECES / 2; lanes > 0; lanes /= 2)
            largest = max(largest, __shfl_xor_sync(~0u, largest, lanes));
        int exponent = min(max((int)(largest >> 7), 1), 253);  // as bits: 127 more
        float scale = __uint_as_float((unsigned)(254 - exponent) << 23);
        unsigned words[4] = {value.x, value.y, value.z, value.w};
        for (int k = 0; k < 4; k++) words[k] = pack<FP16>(low_half(words[k]) * scale, high_half(words[k]) * scale);
        to[at] = make_uint4(words[0], words[1], words[2], words[3]);
        if (i % ROW_PIECES == 0) exponents[row] = (float)(exponent - 127);
    }
}

// C Bt, [i, j] for j <= i, in blocks of 8 x 8: a lane's two elements of each, as products of warps have them
__device__ __forceinline__ void find_similarities(uint4* rows, const token* B, const token* C, float* similarities,
                                                  float* scaled, i64 B_stride, i64 C_stride, int length) {
    uint4 *keys = rows, *queries = rows + CHUNK * ROW_PIECES;
    copy_rows(keys, B, B_stride, length);
    copy_rows(queries, C, C_stride, length);
    __syncthreads();
    scale_queries((uint4*)scaled, similarities + TRIANGLE * 2, queries);
    find_largest(similarities + TRIANGLE * 2 + CHUNK, keys);
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int tile = warp; tile < 20; tile += PREPARE_THREADS / 32) {  // 16 x 8, those that reach the lower triangle
        int i = tile < 2 ? 0 : tile < 6 ? 1 : tile < 12 ? 2 : 3, j = tile - i * (i + 1);
        float sum[4] = {0, 0, 0, 0};
        for (int k = 0; k < (i * 16 < length ? STATES / 16 : 0); k++) {  // otherwise zeros
            unsigned a[4], b[2];
            load_matrices_x4<false>(a, address_of(queries + key_piece(i * 16 + lane % 16, 2 * k + lane / 16)));
            load_matrices_x2<false>(b, address_of(keys + key_piece(j * 8 + lane % 8, 2 * k + lane / 8 % 2)));
            multiply_16x8x16<BF16>(sum, a, b[0], b[1]);
        }
        float2* blocks = (float2*)similarities + lane;
        int upper = 2 * i, lower = 2 * i + 1;
        if (j <= upper) blocks[block_place(upper, j) * 32] = make_float2(sum[0], sum[1]);
        blocks[block_place(lower, j) * 32] = make_float2(sum[2], sum[3]);
    }
}

// Not below what fp32 can tell from 0; NaN stays NaN
__device__ __forceinline__ double limited(double log_decay) {
    return log_decay < -MAX_LOG2_DECAY ? (double)-MAX_LOG2_DECAY : log_decay;
}

// Steps, and log-decays in base 2 summed from the start of the chunk in fp64: 4 threads a head, 16 tokens each. Tokens
// past the last one have steps of zero. And the sum of the weights of rows in the state at the end of the chunk
__device__ __forceinline__ void find_decays(uint4* memory, const token* dt, const float* A, const float* bias,
                                            float* decays, float* weights, i64 dt_stride, int length, int heads,
                                            bool has_bias) {
    token* rows = (token*)memory;
    double* sums = (double*)(rows + CHUNK * DT_STRIDE);  // of each thread's tokens
    for (int i = threadIdx.x; i < CHUNK * PREPARED_HEADS; i += PREPARE_THREADS) {
        int row = i / PREPARED_HEADS, head = i % PREPARED_HEADS;
        if (row < length && head < heads) rows[row * DT_STRIDE + head] = dt[row * dt_stride + head];
    }
    __syncthreads();
    int head = threadIdx.x / 4, quarter = threadIdx.x % 4;
    bool valid = head < heads;
    double rate = valid ? (double)A[head] * 1.4426950408889634 : 0.0, sum = 0;
    float offset = valid && has_bias ? bias[head] : 0.0f, step[16];
#pragma unroll
    for (int k = 0; k < 16; k++) {
        int row = 16 * quarter + k;
        step[k] = 0;
        if (valid && row < length) {
            step[k] = time_step(widen(rows[row * DT_STRIDE + head]) + offset);
            sum += limited((double)step[k] * rate);
        }
    }
    sums[threadIdx.x] = sum;
    __syncthreads();
    double total = 0, last = 0;
    for (int k = 0; k < 4; k++) {
        if (k < quarter) total += sums[4 * head + k];
        last += sums[4 * head + k];
    }
    float4* pairs = (float4*)(decays + head * (CHUNK * 2)) + 8 * quarter;
    float weight = 0;
#pragma unroll
    for (int k = 0; k < 16; k += 2) {
        float4 pair = make_float4(0, 0, step[k], step[k + 1]);
        if (16 * quarter + k < length) total += limited((double)step[k] * rate);
        pair.x = (float)total;
        if (16 * quarter + k + 1 < length) total += limited((double)step[k + 1] * rate);
        pair.y = (float)total;
        if (STEPS_IN_EXPONENT) pair.z = pair.x - log2_fast(pair.z), pair.w = pair.y - log2_fast(pair.w);  // see Source
        Sources sources = {pair};
        weight += fabsf(sources.first().share((float)last)) + fabsf(sources.second().share((float)last));
        if (valid) pairs[k / 2] = pair;
    }
    for (int lanes = 1; lanes < 4; lanes *= 2) weight += __shfl_xor_sync(~0u, weight, lanes);
    if (valid && quarter == 0) weights[head] = log2_fast(weight);
}

// Whether the state at the end of a segment is needed: between segments, and as final state
__device__ __forceinline__ bool is_needed(const Piece& segment, bool keep_final) {
    return keep_final || segment.end(SEGMENT) < segment.sequence_end;
}

// A row of a list for each of `count` segments of a sequence. Offsets that overlap have more than `pieces`
__device__ __forceinline__ void list_segments(int* list, int* total, int pieces, Piece sequence, int count) {
    int first = count ? atomicAdd(total, count) : 0;
    for (int i = 0; i < count && first + i < pieces; i++)
        ((int4*)list)[1 + first + i] = make_int4(sequence.sequence, sequence.sequence_start, sequence.sequence_end,
                                                 sequence.start + i * SEGMENT);
}

// The lists, by one block. In what order is left to chance: no bit of a result depends on it
__device__ __forceinline__ void list_pieces(const Pack& pack, const Prepared& prepared, int pieces,
                                            bool has_initial, bool scans_all, bool keep_final) {
    __shared__ int totals[3];
    if (threadIdx.x < 3) totals[threadIdx.x] = 0;
    if (threadIdx.x < 4) prepared.counters[threadIdx.x] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < pack.S; i += PREPARE_THREADS) {
        Piece sequence = sequence_of(pack, i);
        int length = sequence.length(), segments = (length + SEGMENT - 1) / SEGMENT;
        bool is_short = length <= SHORT && !scans_all;  // for _ssd_fwd_short_kernel
        bool is_passed = segments > 1 || (keep_final && (has_initial || segments == 0));
        list_segments(prepared.scanned, totals, pieces, sequence, is_short ? 0 : segments);
        list_segments(prepared.summed, totals + 1, pieces, sequence, keep_final ? segments : max(segments - 1, 0));
        list_segments(prepared.passed, totals + 2, pieces, sequence, is_passed);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        prepared.scanned[0] = min(totals[0], pieces);
        prepared.summed[0] = min(totals[1], pieces);
        prepared.passed[0] = min(totals[2], pieces);
    }
}

// Zeros in the rows of y past the last sequence
__device__ __forceinline__ void clear_slack(token* y, const Pack& pack, i64 H) {
    const i64 per_token = H * CHANNELS / 8;
    i64 first = min(max(pack.offsets[pack.S], 0), pack.T) * per_token, index = (i64)blockIdx.x * PREPARE_THREADS + threadIdx.x;
    for (i64 i = first + index; i < pack.T * per_token; i += (i64)gridDim.x * PREPARE_THREADS)
        ((uint4*)y)[i] = make_uint4(0, 0, 0, 0);
}

// Fills `memory` for the kernels that follow: see Prepared
extern "C" __global__ void __launch_bounds__(PREPARE_THREADS, 4) _ssd_fwd_prepare_kernel(
    const token* B, const token* C, const token* dt, const float* A, const float* bias, const int* cu_seqlens,
    float* memory, token* y, i64 T, i64 S, i64 rows, i64 pieces, i64 H, i64 G, i64 B_stride, i64 B_group, i64 C_stride,
    i64 C_group, i64 dt_stride, i64 has_bias, i64 has_initial, i64 scans_all,
    i64 keep_final) {
    __shared__ uint4 tiles[2 * CHUNK * ROW_PIECES];
    Pack pack = {cu_seqlens, (int)T, (int)S};
    Prepared prepared(memory, rows, pieces, H, G);
    if (blockIdx.x == 0) list_pieces(pack, prepared, (int)pieces, has_initial != 0, scans_all != 0, keep_final != 0);
    clear_slack(y, pack, H);
    int parts = G + (H + PREPARED_HEADS - 1) / PREPARED_HEADS;
    for (i64 index = blockIdx.x; index < rows * parts; index += gridDim.x) {
        i64 row = index / parts;
        Piece chunk = chunk_at(pack, row);
        int part = index % parts, length = chunk.end(CHUNK) - chunk.start;
        if (length <= 0) continue;
        i64 start = chunk.start;
        if (part < G) {
            find_similarities(tiles, B + start * B_stride + part * B_group, C + start * C_stride + part * C_group,
                              prepared.similarities + (row * G + part) * SIMILARITIES,
                              prepared.queries + (row * G + part) * QUERIES, B_stride, C_stride, length);
        } else {
            int head = (part - G) * PREPARED_HEADS;
            find_decays(tiles, dt + start * dt_stride + head, A + head, bias + head,
                        prepared.decays + (row * H + head) * (CHUNK * 2), prepared.weights + row * H + head, dt_stride,
                        length, (int)H - head, has_bias != 0);
        }
        __syncthreads();
    }
}
