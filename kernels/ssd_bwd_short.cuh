// All gradients of sequences of up to 32 tokens that no state enters or leaves, by products of a warp.
//
// A block takes a sequence and a group, a warp every eighth head. Scores, their gradients dM = x dyt and products of
// both are [j, i] in three tiles of 16 x 16: rows 0 to 15 of j with both halves of i, rows 16 to 31 with the second.
// At the end of a sequence the warps' sums over heads are added up in order, for dB and dC.

constexpr int SHORT_WARPS = 8;
constexpr unsigned SHORT_BYTES = SHORT * ROW_BYTES;             // 32 rows of 64 elements
constexpr unsigned SHORT_KEYS = SHORT_WARPS * 2 * SHORT_BYTES;  // after x and dy of each warp: B, C
constexpr unsigned SHORT_TOTAL = SHORT_WARPS * 24 * 32 * 4;     // sums of each warp are there before, then this
constexpr int SHORT_TILES = STATES / 64;
static_assert(SHORT_TOTAL + 2 * SHORT_BYTES <= SHORT_KEYS, "x and dy leave their place to sums");

// Tiles of [j, i]: blocks 2 k and 2 k + 1 of i
struct ShortTile {
    int j, i;
};
__device__ __forceinline__ constexpr ShortTile short_tile(int f) { return {f == 2, f > 0}; }

// Rows of a token tensor, and zeros up to 32 rows, by `lanes` threads
__device__ __forceinline__ void copy_short_rows(shared_address to, const token* from, i64 stride, int length, int lane,
                                                int lanes) {
    for (int row = lane / 8; row < SHORT; row += lanes / 8)
        copy_async_or_zero(swizzled(to, row, lane % 8), from + min(row, length - 1) * stride + lane % 8 * 8,
                           row < length);
}

// An operand [16 rows, 16 columns] of a tile, rows from 16 m, columns from 16 k; of the transposed tile if TRANSPOSED
template <bool TRANSPOSED>
__device__ __forceinline__ void load_operand(unsigned* operand, shared_address tile, int m, int k, Thread t) {
    if (TRANSPOSED) {
        int matrix = t.lane / 8;
        load_matrices_x4<true>(operand, swizzled(tile, 16 * k + matrix / 2 * 8 + t.lane % 8, 2 * m + matrix % 2));
    } else {
        load_matrices_x4<false>(operand, swizzled(tile, 16 * m + t.lane % 16, 2 * k + t.lane / 16));
    }
}

// C Bt of the sequence as tiles of [j, i], zero for i < j
__device__ __forceinline__ void load_short_similarities(float (&similarity)[3][8], const float* similarities,
                                                        Thread t) {
#pragma unroll
    for (int f = 0; f < 3; f++)
#pragma unroll
        for (int k = 0; k < 8; k++) {
            int row = 2 * short_tile(f).i + k / 4, column = 2 * short_tile(f).j + k % 4 / 2, i = 2 * t.column + k % 2;
            const float* block = similarities + block_place(row, min(column, row)) * 64;
            bool valid = column < row || (column == row && t.row <= i);
            similarity[f][k] = valid ? block[(4 * i + t.row / 2) * 2 + t.row % 2] : 0.0f;
        }
}

// dM = x dyt
__device__ __forceinline__ void find_short_pairs(float (&dM)[3][8], shared_address x, shared_address dy, Thread t) {
#pragma unroll
    for (int f = 0; f < 3; f++)
#pragma unroll
        for (int k = 0; k < 8; k++) dM[f][k] = 0;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        unsigned values[2][4], incoming[2][4];
#pragma unroll
        for (int m = 0; m < 2; m++) {
            load_operand<false>(values[m], x, m, k, t);
            load_matrices_x4<false>(incoming[m],
                                    swizzled(dy, 16 * m + t.lane / 16 * 8 + t.lane % 8, 2 * k + t.lane / 8 % 2));
        }
#pragma unroll
        for (int f = 0; f < 3; f++)
#pragma unroll
            for (int b = 0; b < 2; b++)
                multiply_16x8x16<BF16>(dM[f] + 4 * b, values[short_tile(f).j], incoming[short_tile(f).i][2 * b],
                                       incoming[short_tile(f).i][2 * b + 1]);
    }
}

// Two parts of bf16 of tiles, as operands
struct ShortOperands {
    unsigned large[3][4], small[3][4];
};

// From dM to the gradients of scores in total, and to operands: scores with D on the diagonal, and products of
// scores and their gradients times steps. Returns rows' sums of these products without steps
__device__ __forceinline__ float4 weigh_short_pairs(float (&total)[3][8], ShortOperands& scores,
                                                    ShortOperands& products, const float (&dM)[3][8],
                                                    const float (&similarity)[3][8], const float4* pairs, float D,
                                                    Thread t) {
    float decays[4], steps[4], sums[4] = {0, 0, 0, 0};  // of rows
#pragma unroll
    for (int r = 0; r < 4; r++) {
        float4 own = pairs[4 * r + t.row / 2];
        decays[r] = t.row % 2 ? own.y : own.x, steps[r] = t.row % 2 ? own.w : own.z;
    }
#pragma unroll
    for (int f = 0; f < 3; f++)
#pragma unroll
        for (int b = 0; b < 2; b++) {
            int block = 2 * short_tile(f).i + b;
            float4 later = pairs[4 * block + t.column];
#pragma unroll
            for (int r = 0; r < 2; r++) {
                int rows = 2 * short_tile(f).j + r, k = 4 * b + 2 * r;
                float score[2], product[2];
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    int i = 2 * t.column + e;
                    bool valid = rows < block || (rows == block && t.row <= i);
                    float share = exp2_fast((e ? later.y : later.x) - decays[rows]);
                    float weighted = valid ? dM[f][k + e] * share : 0.0f;  // against time it may overflow
                    total[f][k + e] = fmaf(weighted, steps[rows], total[f][k + e]);
                    weighted *= similarity[f][k + e];
                    sums[rows] += weighted;
                    product[e] = weighted * steps[rows];
                    score[e] = valid ? similarity[f][k + e] * share * steps[rows] : 0.0f;
                    if (rows == block && t.row == i) score[e] += D;
                }
                split(score[0], score[1], scores.large[f][2 * b + r], scores.small[f][2 * b + r]);
                split(product[0], product[1], products.large[f][2 * b + r], products.small[f][2 * b + r]);
            }
        }
    return make_float4(sum_of_row(sums[0]), sum_of_row(sums[1]), sum_of_row(sums[2]), sum_of_row(sums[3]));
}

// d += products, summed over i >= t in column t of block 2 K + b; all of them if t is of an earlier tile
__device__ __forceinline__ void sum_later_short(float* d, const ShortOperands& products, int f, int b, bool is_earlier,
                                                Thread t) {
    unsigned ones = 0x3f803f80u;
    unsigned triangle = (2 * t.column >= t.row ? 0x3f80u : 0u) | (2 * t.column + 1 >= t.row ? 0x3f800000u : 0u);
    unsigned first = is_earlier ? ones : b ? 0u : triangle, second = is_earlier || !b ? ones : triangle;
    multiply_16x8x16<BF16>(d, products.small[f], first, second);
    multiply_16x8x16<BF16>(d, products.large[f], first, second);
}

// The token of a lane when its warp has finished sum_short_columns
__device__ __forceinline__ int short_token(Thread t) { return t.row / 2 * 8 + 2 * t.column + t.row % 2; }

// The sum over j < t <= i of the products, for short_token
__device__ __forceinline__ float sum_short_columns(const ShortOperands& products, Thread t) {
    float v[8];
#pragma unroll
    for (int block = 0; block < 4; block++) {
        float upper[4] = {0, 0, 0, 0}, lower[4] = {0, 0, 0, 0};  // rows 0 to 15, 16 to 31
        if (block < 2) sum_later_short(upper, products, 0, block, false, t);
        sum_later_short(upper, products, 1, block % 2, block < 2, t);
        if (block >= 2) sum_later_short(lower, products, 2, block % 2, false, t);
#pragma unroll
        for (int e = 0; e < 2; e++) {
            int token = 8 * block + 2 * t.column + e;
            v[2 * block + e] = (t.row < token ? upper[e] : 0.0f) + (t.row + 8 < token ? upper[2 + e] : 0.0f) +
                               (t.row + 16 < token ? lower[e] : 0.0f) + (t.row + 24 < token ? lower[2 + e] : 0.0f);
        }
    }
#pragma unroll
    for (int half = 4; half >= 1; half /= 2) {  // a lane keeps one half of them, and gives the other away
        bool is_upper = t.lane & half * 4;
#pragma unroll
        for (int i = 0; i < half; i++) {
            float kept = is_upper ? v[i + half] : v[i], given = is_upper ? v[i] : v[i + half];
            v[i] = kept + __shfl_xor_sync(~0u, given, half * 4);
        }
    }
    return v[0];
}

// The gradients of the decay and of the step of a lane's token
__device__ __forceinline__ void finish_short_token(float4 of_rows, float decay, const float4* pairs, int start,
                                                   int length, int head, const ChunkOutputs& out, Thread t) {
    int token = short_token(t), lane = token % 8 * 4;  // of_rows has rows lane / 4, 8, 16 and 24 on
    float sums[4] = {__shfl_sync(~0u, of_rows.x, lane), __shfl_sync(~0u, of_rows.y, lane),
                     __shfl_sync(~0u, of_rows.z, lane), __shfl_sync(~0u, of_rows.w, lane)};
    float of_pairs = token < 16 ? (token < 8 ? sums[0] : sums[1]) : token < 24 ? sums[2] : sums[3];
    float4 own = pairs[token / 2];
    float step = token % 2 ? own.w : own.z, of_step = of_pairs + finite_rate(out.A[head]) * decay;
    if (SOFTPLUS) of_step *= softplus_slope(step);
    if (token >= length) return;
    i64 row = start + token, at = head * out.T + row;
    out.ddt[row * out.H + head] = narrow(of_step);
    out.dA[at] = step * decay;
    out.dbias[at] = of_step;
}

// dx over x, in its tile; D: of channels if D_OF_CHANNELS
__device__ __forceinline__ void find_short_dx(shared_address x, shared_address dy, const ShortOperands& scores,
                                              const float* D, Thread t) {
    unsigned packed[2][16];
#pragma unroll
    for (int n = 0; n < 8; n++) {
        unsigned incoming[4];
        load_matrices_x4<true>(incoming, swizzled(dy, t.lane, n));
        float dx[2][4] = {{0, 0, 0, 0}, {0, 0, 0, 0}};
#pragma unroll
        for (int f = 0; f < 3; f++) {
            const unsigned* rows = incoming + 2 * short_tile(f).i;
            multiply_16x8x16<BF16>(dx[short_tile(f).j], scores.small[f], rows[0], rows[1]);
            multiply_16x8x16<BF16>(dx[short_tile(f).j], scores.large[f], rows[0], rows[1]);
        }
#pragma unroll
        for (int k = 0; k < 4; k++) {
            float* v = dx[k / 2] + k % 2 * 2;
            if (D_OF_CHANNELS) {
                unsigned own = load_shared<unsigned>(swizzled(dy, 8 * k + t.row, n) + 4 * t.column);
                v[0] = fmaf(D[8 * n + 2 * t.column], low_half(own), v[0]);
                v[1] = fmaf(D[8 * n + 2 * t.column + 1], high_half(own), v[1]);
            }
            packed[k / 2][2 * n + k % 2] = pack<BF16>(v[0], v[1]);
        }
    }
    __syncwarp();
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int n = 0; n < 8; n += 2) {
            const unsigned* v = packed[m] + 2 * n;
            int matrix = t.lane / 8, row = 16 * m + matrix % 2 * 8 + t.lane % 8;
            store_matrices_x4<false>(swizzled(x, row, n + matrix / 2), v[0], v[1], v[2], v[3]);
        }
    __syncwarp();
}

// sums (h, p) of this block += columns of x . columns of dy
__device__ __forceinline__ void add_short_dD(float* sums, shared_address x, shared_address dy, Thread t) {
#pragma unroll
    for (int m = 0; m < 4; m++) {
        float d[2][4] = {{0, 0, 0, 0}, {0, 0, 0, 0}};
        unsigned values[2][4];
        load_operand<true>(values[0], x, m, 0, t), load_operand<true>(values[1], x, m, 1, t);
#pragma unroll
        for (int b = 0; b < 2; b++) {
            unsigned incoming[4];
            load_matrices_x4<true>(incoming, swizzled(dy, t.lane, 2 * m + b));
            multiply_16x8x16<BF16>(d[b], values[0], incoming[0], incoming[1]);
            multiply_16x8x16<BF16>(d[b], values[1], incoming[2], incoming[3]);
        }
        if (t.column != t.row / 2) continue;  // not on the diagonal
        sums[16 * m + t.row] += t.row % 2 ? d[0][1] : d[0][0];
        sums[16 * m + 8 + t.row] += t.row % 2 ? d[1][3] : d[1][2];
    }
}

// The warps' sums over heads, in order, as two tiles of bf16: large parts, small parts. By the block
__device__ __forceinline__ void gather_short_total(shared_address base, const float (&total)[3][8], int warp,
                                                   Thread t) {
#pragma unroll
    for (int f = 0; f < 3; f++)
#pragma unroll
        for (int k = 0; k < 8; k += 2)
            store_shared(base + ((warp * 12 + 4 * f + k / 2) * 32 + t.lane) * 8,
                         make_float2(total[f][k], total[f][k + 1]));
    __syncthreads();
    for (int index = threadIdx.x; index < 12 * 32; index += 32 * SHORT_WARPS) {
        float2 sum = make_float2(0, 0);
        for (int w = 0; w < SHORT_WARPS; w++) {
            float2 part = load_shared<float2>(base + (w * 12 * 32 + index) * 8);
            sum.x += part.x, sum.y += part.y;
        }
        int f = index / 128, k = index / 32 % 4, lane = index % 32;
        int row = 16 * short_tile(f).j + k % 2 * 8 + lane / 4, piece = 2 * short_tile(f).i + k / 2;
        unsigned large, small;
        split(sum.x, sum.y, large, small);
        shared_address to = swizzled(base + SHORT_TOTAL, row, piece) + lane % 4 * 4;
        store_shared(to, large), store_shared(to + SHORT_BYTES, small);
    }
    __syncthreads();
}

// dB = total C and dC = totalt B, for 8 states
__device__ __forceinline__ void find_short_keys(shared_address base, const ChunkOutputs& out, i64 at, i64 stride, int n,
                                                int length, Thread t) {
    unsigned keys[4], queries[4];
    shared_address B = base + SHORT_KEYS + n / 8 * SHORT_BYTES, C = B + SHORT_TILES * SHORT_BYTES;
    load_matrices_x4<true>(keys, swizzled(B, t.lane, n % 8));
    load_matrices_x4<true>(queries, swizzled(C, t.lane, n % 8));
    float dB[2][4] = {{0, 0, 0, 0}, {0, 0, 0, 0}}, dC[2][4] = {{0, 0, 0, 0}, {0, 0, 0, 0}};
#pragma unroll
    for (int part = 1; part >= 0; part--)
#pragma unroll
        for (int f = 0; f < 3; f++) {
            int j = short_tile(f).j, i = short_tile(f).i;
            unsigned rows[4], columns[4];
            shared_address total = base + SHORT_TOTAL + part * SHORT_BYTES;
            load_operand<false>(rows, total, j, i, t), load_operand<true>(columns, total, i, j, t);
            multiply_16x8x16<BF16>(dB[j], rows, queries[2 * i], queries[2 * i + 1]);
            multiply_16x8x16<BF16>(dC[i], columns, keys[2 * j], keys[2 * j + 1]);
        }
#pragma unroll
    for (int k = 0; k < 4; k++) {
        int row = 8 * k + t.row;
        if (row >= length) continue;
        i64 to = at + row * stride + 8 * n + 2 * t.column;
        *(unsigned*)(out.dB + to) = pack<BF16>(dB[k / 2][k % 2 * 2], dB[k / 2][k % 2 * 2 + 1]);
        *(unsigned*)(out.dC + to) = pack<BF16>(dC[k / 2][k % 2 * 2], dC[k / 2][k % 2 * 2 + 1]);
    }
}

// Where tokens are read from, and dx goes
struct ShortTokens {
    const token *x, *dy;
    token* dx;
    i64 x_stride, x_head, dy_stride, dy_head;
};

// All of one head but dB and dC
__device__ __forceinline__ void find_short_head(float (&total)[3][8], const float (&similarity)[3][8], shared_address x,
                                                const ShortTokens& tokens, const float4* pairs, const float* D, Piece s,
                                                int head, const ChunkOutputs& out, Thread t) {
    shared_address dy = x + SHORT_BYTES;
    int length = s.length();
    copy_short_rows(x, tokens.x + s.start * tokens.x_stride + head * tokens.x_head, tokens.x_stride, length, t.lane,
                    32);
    copy_short_rows(dy, tokens.dy + s.start * tokens.dy_stride + head * tokens.dy_head, tokens.dy_stride, length,
                    t.lane, 32);
    group_copies();
    wait_for_copies<0>();
    __syncwarp();
    float dM[3][8];
    ShortOperands scores, products;
    find_short_pairs(dM, x, dy, t);
    float of_D = D_OF_CHANNELS || !out.has_D ? 0.0f : D[0];
    float4 of_rows = weigh_short_pairs(total, scores, products, dM, similarity, pairs, of_D, t);
    finish_short_token(of_rows, sum_short_columns(products, t), pairs, s.start, length, head, out, t);
    if (out.has_D) add_short_dD(out.dD + ((i64)blockIdx.x * out.H + head) * CHANNELS, x, dy, t);
    find_short_dx(x, dy, scores, D, t);
    for (int i = t.lane / 8; i < length; i += 4)
        *(uint4*)(tokens.dx + ((i64)(s.start + i) * out.H + head) * CHANNELS + t.lane % 8 * 8) =
            load_shared<uint4>(swizzled(x, i, t.lane % 8));
    __syncwarp();
}

// dD: (programs, h, p), zeros before. The others as of _ssd_bwd_chunk_kernel
extern "C" __global__ void __launch_bounds__(32 * SHORT_WARPS, 2) _ssd_bwd_short_kernel(
    const token* x, const token* dy, const token* B, const token* C, float* memory, const float* A, const float* D,
    token* dx, token* dB, token* dC, token* ddt, float* dA, float* dbias, float* dD, const int* cu_seqlens, i64 T,
    i64 S, i64 rows, i64 pieces, i64 H, i64 G, i64 x_stride, i64 x_head, i64 dy_stride, i64 dy_head, i64 B_stride,
    i64 B_group, i64 C_stride, i64 C_group, i64 has_D) {
        extern __shared__ float4 shared[];
    Thread t;
    Pack pack = {cu_seqlens, (int)T, (int)S};
    Prepared prepared(memory, rows, pieces, H, G);
    shared_address base = (address_of(shared) + SWIZZLE_PERIOD - 1) & ~(SWIZZLE_PERIOD - 1);
    int warp = threadIdx.x / 32, per_group = H / G;
    ChunkOutputs out = {dB, dC, ddt, dA, dbias, dD, A, T, (int)H, (int)G, has_D != 0};
    ShortTokens tokens = {x, dy, dx, x_stride, x_head, dy_stride, dy_head};
    for (i64 index = blockIdx.x; index < S * G; index += gridDim.x) {
        Piece s = sequence_of(pack, index / G);
        int group = index % G, length = s.length();
        if (length == 0 || length > SHORT) continue;
        i64 row = chunk_row(s.sequence, s.start);
        for (int tile = 0; tile < SHORT_TILES; tile++) {
            shared_address to = base + SHORT_KEYS + tile * SHORT_BYTES;
            copy_short_rows(to, B + s.start * B_stride + group * B_group + 64 * tile, B_stride, length, threadIdx.x,
                            256);
            copy_short_rows(to + SHORT_TILES * SHORT_BYTES, C + s.start * C_stride + group * C_group + 64 * tile,
                            C_stride, length, threadIdx.x, 256);
        }
        float similarity[3][8], total[3][8];
        load_short_similarities(similarity, prepared.similarities + (row * G + group) * SIMILARITIES, t);
#pragma unroll
        for (int i = 0; i < 24; i++) total[i / 8][i % 8] = 0;
        for (int i = warp; i < per_group; i += SHORT_WARPS) {
            int head = group * per_group + i;
            find_short_head(total, similarity, base + warp * 2 * SHORT_BYTES, tokens,
                            (const float4*)prepared.decays + (row * H + head) * (CHUNK / 2),
                            D + head * (D_OF_CHANNELS ? CHANNELS : 1), s, head, out, t);
        }
        group_copies();
        wait_for_copies<0>();
        __syncthreads();
        gather_short_total(base, total, warp, t);
        i64 stride = G * STATES;
        for (int n = warp; n < STATES / 8; n += SHORT_WARPS)
            find_short_keys(base, out, s.start * stride + group * STATES, stride, n, length, t);
        __syncthreads();
    }
}
