// y of sequences of up to 32 tokens that no state enters. A warp for a head, in products of a warp.

constexpr int SHORT_WARPS = 8;  // of a block: heads
constexpr unsigned SHORT_BYTES = SHORT * ROW_BYTES;

// A row of tiles of scores [16, 16], as operands: tokens 16 I to 16 I + 15, and all tiles up to the diagonal
template <int I>
__device__ __forceinline__ void find_short_scores(unsigned (&large)[I + 1][4], unsigned (&small)[I + 1][4],
                                                  const float2* similarities, const float4* pairs, float D, Thread t) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int row = 2 * I + r, i = 8 * row + t.row;
        float4 own = pairs[i / 2];
        float a = i % 2 ? own.y : own.x;
#pragma unroll
        for (int column = 0; column < 2 * I + 2; column++) {
            float u = 0, v = 0;
            if (column <= row) {
                float2 similarity = similarities[block_place(row, column) * 32];
                Sources sources = {pairs[4 * column + t.column]};
                u = similarity.x * sources.first().share(a);
                v = similarity.y * sources.second().share(a);
            }
            if (column == row) {
                u = (2 * t.column <= t.row ? u : 0.0f) + (2 * t.column == t.row ? D : 0.0f);
                v = (2 * t.column + 1 <= t.row ? v : 0.0f) + (2 * t.column + 1 == t.row ? D : 0.0f);
            }
            split(u, v, large[column / 2][column % 2 * 2 + r], small[column / 2][column % 2 * 2 + r]);
        }
    }
}

struct ShortHead {
    shared_address x;  // tokens, then y: rows of 64 channels
    const float2* similarities;
    const float4* pairs;
    const float* D;
    const token* z;
    i64 z_stride;
    int length;
    bool has_D;
};

// y of a thread in rows 16 I + row + {0, 8}, channels 8 n + 2 column + {0, 1}
template <int I>
__device__ __forceinline__ void finish_short(float (&y)[4], const ShortHead& head, int n, Thread t) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int row = 16 * I + 8 * r + t.row, channel = 8 * n + 2 * t.column;
        if (D_OF_CHANNELS) {
            unsigned x = load_shared<unsigned>(swizzled(head.x, row, n) + 4 * t.column);
            y[2 * r] = fmaf(head.D[channel], low_half(x), y[2 * r]);
            y[2 * r + 1] = fmaf(head.D[channel + 1], high_half(x), y[2 * r + 1]);
        }
        if (GATED && row < head.length) {
            unsigned z = *(const unsigned*)(head.z + row * head.z_stride + channel);
            y[2 * r] *= silu(low_half(z));
            y[2 * r + 1] *= silu(high_half(z));
        }
    }
}

// Rows 16 I to 16 I + 15 of y, over those of x, which no earlier row needs
template <int I>
__device__ __forceinline__ void find_short_rows(const ShortHead& head, Thread t) {
    if (16 * I >= head.length) return;
    unsigned large[I + 1][4], small[I + 1][4], packed[16];
    find_short_scores<I>(large, small, head.similarities, head.pairs, D_OF_CHANNELS || !head.has_D ? 0.0f : head.D[0], t);
#pragma unroll
    for (int n = 0; n < 8; n++) {
        unsigned x[4 * (I / 2 + 1)];
        float y[4] = {0, 0, 0, 0};
#pragma unroll
        for (int k = 0; k <= I / 2; k++) load_matrices_x4<true>(x + 4 * k, swizzled(head.x, 32 * k + t.lane, n));
#pragma unroll
        for (int k = 0; k <= I; k++) multiply_16x8x16<BF16>(y, small[k], x[2 * k], x[2 * k + 1]);
#pragma unroll
        for (int k = 0; k <= I; k++) multiply_16x8x16<BF16>(y, large[k], x[2 * k], x[2 * k + 1]);
        finish_short<I>(y, head, n, t);
        packed[2 * n] = pack<BF16>(y[0], y[1]);
        packed[2 * n + 1] = pack<BF16>(y[2], y[3]);
    }
    __syncwarp();
#pragma unroll
    for (int n = 0; n < 8; n += 2) {
        int matrix = t.lane / 8, row = 16 * I + matrix % 2 * 8 + t.lane % 8;
        store_matrices_x4<false>(swizzled(head.x, row, n + matrix / 2), packed[2 * n], packed[2 * n + 1],
                                 packed[2 * n + 2], packed[2 * n + 3]);
    }
    __syncwarp();
}

// Rows of x, and zeros up to a multiple of 32 rows
__device__ __forceinline__ void copy_short_x(shared_address to, const token* x, i64 stride, int length, Thread t) {
    for (int row = t.lane / 8; row < (length + 31) / 32 * 32; row += 4)
        copy_async_or_zero(swizzled(to, row, t.lane % 8), x + min(row, length - 1) * stride + t.lane % 8 * 8, row < length);
    group_copies();
    wait_for_copies<0>();
    __syncwarp();
}

extern "C" __global__ void __launch_bounds__(32 * SHORT_WARPS, 3) _ssd_fwd_short_kernel(
    const token* x, const token* z, float* memory, const float* D, token* y, const int* cu_seqlens, i64 T, i64 S,
    i64 rows, i64 pieces, i64 H, i64 G, i64 x_stride, i64 x_head, i64 z_stride, i64 z_head, i64 has_D) {
    extern __shared__ float4 shared[];
    Thread t;
    Pack pack = {cu_seqlens, (int)T, (int)S};
    Prepared prepared(memory, rows, pieces, H, G);
    int warp = threadIdx.x / 32, blocks = (H + SHORT_WARPS - 1) / SHORT_WARPS;
    shared_address tile = ((address_of(shared) + SWIZZLE_PERIOD - 1) & ~(SWIZZLE_PERIOD - 1)) + warp * SHORT_BYTES;
    for (i64 index = blockIdx.x; index < S * blocks; index += gridDim.x) {
        Piece s = sequence_of(pack, index / blocks);
        int head = index % blocks * SHORT_WARPS + warp, length = s.length();
        if (length == 0 || length > SHORT || head >= H) continue;
        i64 row = chunk_row(s.sequence, s.start);
        copy_short_x(tile, x + s.start * x_stride + head * x_head, x_stride, length, t);
        ShortHead own = {
            tile, (const float2*)prepared.similarities + (row * G + head / (H / G)) * (SIMILARITIES / 2) + t.lane,
            (const float4*)prepared.decays + (row * H + head) * (CHUNK / 2), D + head * (D_OF_CHANNELS ? CHANNELS : 1),
            z + s.start * z_stride + head * z_head, z_stride, length, has_D != 0,
        };
        find_short_rows<1>(own, t);
        find_short_rows<0>(own, t);
        for (int i = t.lane / 8; i < length; i += 4)
            *(uint4*)(y + ((i64)(s.start + i) * H + head) * CHANNELS + t.lane % 8 * 8) =
                load_shared<uint4>(swizzled(tile, i, t.lane % 8));
        __syncwarp();
    }
}
