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

// C Bt, [i, j] for j <= i, in blocks of 8 x 8: a lane's two elements of each, as products of warps have them
__device__ __forceinline__ void find_similarities(uint4* rows, const token* B, const token* C, float* similarities,
                                                  i64 B_stride, i64 C_stride, int length) {
    uint4 *keys = rows, *queries = rows + CHUNK * ROW_PIECES;
    copy_rows(keys, B, B_stride, length);
    copy_rows(queries, C, C_stride, length);
    __syncthreads();
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int tile = warp; tile < 20; tile += PREPARE_THREADS / 32) {  // 16 x 8, those that reach the lower triangle
        int i = tile < 2 ? 0 : tile < 6 ? 1 : tile < 12 ? 2 : 3, j = tile - i * (i + 1);
        if (i * 16 >= length) break;
        float sum[4] = {0, 0, 0, 0};
        for (int k = 0; k < STATES / 16; k++) {
            unsigned a[4], b[2];
            load_matrices_x4<false>(a, address_of(queries + key_piece(i * 16 + lane % 16, 2 * k + lane / 16)));
            load_matrices_x2<false>(b, address_of(keys + key_piece(j * 8 + lane % 8, 2 * k + lane / 8 % 2)));
            multiply_16x8x16<BF16>(sum, a, b[0], b[1]);
        }
        float2* blocks = (float2*)similarities + lane;
        int upper = 2 * i, lower = 2 * i + 1;
        if (j <= upper) blocks[(upper * (upper + 1) / 2 + j) * 32] = make_float2(sum[0], sum[1]);
        blocks[(lower * (lower + 1) / 2 + j) * 32] = make_float2(sum[2], sum[3]);
    }
}

// Not below what fp32 can tell from 0; NaN stays NaN
__device__ __forceinline__ double limited(double log_decay) {
    return log_decay < -MAX_LOG2_DECAY ? (double)-MAX_LOG2_DECAY : log_decay;
}

// Steps, and log-decays in base 2 summed from the start of the chunk in fp64: 4 threads a head, 16 tokens each. Tokens
// past the last one have steps of zero
__device__ __forceinline__ void find_decays(uint4* memory, const token* dt, const float* A, const float* bias,
                                            float* decays, i64 dt_stride, int length, int heads, bool has_bias) {
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
    if (!valid) return;
    double total = 0;
    for (int k = 0; k < quarter; k++) total += sums[4 * head + k];
    float4* pairs = (float4*)(decays + head * (CHUNK * 2)) + 8 * quarter;
#pragma unroll
    for (int k = 0; k < 16; k += 2) {
        float4 pair = make_float4(0, 0, step[k], step[k + 1]);
        if (16 * quarter + k < length) total += limited((double)step[k] * rate);
        pair.x = (float)total;
        if (16 * quarter + k + 1 < length) total += limited((double)step[k + 1] * rate);
        pair.y = (float)total;
        pairs[k / 2] = pair;
    }
}

// The chunk of a number in the three lists of chunks, `slots` rows each. A number too large has none
__device__ __forceinline__ bool find_chunk(Piece& chunk, const int* chunks, i64 slots, i64 number) {
    for (int kind = 0; kind < 3; kind++) {
        const int* list = chunks + kind * (slots + 1) * 4;
        if (number < list[0]) {
            chunk = piece_of(list, number);
            return true;
        }
        number -= list[0];
    }
    return false;
}

// similarities: (chunks, g, 36, 32, 2). decays: (chunks, h, 32, 4). counters: set to zero for the kernels that follow
extern "C" __global__ void __launch_bounds__(PREPARE_THREADS) _ssd_fwd_prepare_kernel(
    const token* B, const token* C, const token* dt, const float* A, const float* bias, const int* chunks,
    float* similarities, float* decays, int* counters, i64 slots, i64 H, i64 G, i64 B_stride, i64 B_group, i64 C_stride,
    i64 C_group, i64 dt_stride, i64 has_bias) {
    __shared__ uint4 memory[2 * CHUNK * ROW_PIECES];
    if (blockIdx.x == 0 && threadIdx.x < 2) counters[threadIdx.x] = 0;
    int blocks = (H + PREPARED_HEADS - 1) / PREPARED_HEADS;
    Piece chunk;
    for (i64 index = blockIdx.x; find_chunk(chunk, chunks, slots, index / (G + blocks)); index += gridDim.x) {
        int part = index % (G + blocks), length = chunk.end(CHUNK) - chunk.start;
        i64 row = chunk_row(chunk.sequence, chunk.start), start = chunk.start;
        if (part < G) {
            find_similarities(memory, B + start * B_stride + part * B_group, C + start * C_stride + part * C_group,
                              similarities + (row * G + part) * (TRIANGLE * 2), B_stride, C_stride, length);
        } else {
            int head = (part - G) * PREPARED_HEADS;
            find_decays(memory, dt + start * dt_stride + head, A + head, bias + head,
                        decays + (row * H + head) * (CHUNK * 2), dt_stride, length, (int)H - head, has_bias != 0);
        }
        __syncthreads();
    }
}
