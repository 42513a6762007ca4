// Steps of a chunk that kernels of both passes take: states from memory, scores, results to memory.

__device__ __forceinline__ void load_state(float (&state)[STATE / 128], const float* from, bool entered, Thread t) {
    from += (16 * t.warp + t.row) * STATES + 2 * t.column;
#pragma unroll
    for (int n = 0; n < STATES / 8; n++) {
        float2 upper = make_float2(0, 0), lower = make_float2(0, 0);
        if (entered) upper = *(const float2*)(from + 8 * n), lower = *(const float2*)(from + 8 * n + 8 * STATES);
        state[4 * n] = upper.x, state[4 * n + 1] = upper.y, state[4 * n + 2] = lower.x, state[4 * n + 3] = lower.y;
    }
}

constexpr int BATCH = 5;  // blocks whose loads come before their first store

// Scores of a warp's 9 blocks of 8 x 8, in the order of block_place, to shared memory, without a branch; D on the
// diagonal. Above the diagonal there are zeros from the start
__device__ __forceinline__ void find_scores(shared_address scores, shared_address similarities, Decays decays, float D,
                                            Thread t) {
    int in_last = 7 - t.warp;  // blocks of row 7 - warp but for the one on the diagonal
    float last = decays.of(8 * in_last + t.row), first = decays.of(8 * t.warp + t.row);
    shared_address row = scores + t.row * ROW_BYTES + t.column * 4;
    shared_address last_row = row + in_last * 8 * ROW_BYTES, first_row = row + t.warp * 8 * ROW_BYTES;
    similarities += t.warp * (9 * 256) + t.lane * 8;
#pragma unroll
    for (int start = 0; start < 9; start += BATCH) {
        float2 similarity[BATCH];
        Sources sources[BATCH];
        unsigned large[BATCH], small[BATCH];
#pragma unroll
        for (int i = 0; i < BATCH && start + i < 9; i++) {
            int k = start + i, column = k == 7 ? in_last : k == 8 ? t.warp : k < in_last ? k : k - in_last;
            similarity[i] = load_shared<float2>(similarities + k * 256);
            sources[i] = decays.pair(column * 64 + t.column * 16);
        }
#pragma unroll
        for (int i = 0; i < BATCH && start + i < 9; i++) {
            int k = start + i;
            float a = (k < 7 ? k < in_last : k == 7) ? last : first;
            float u = similarity[i].x * sources[i].first().share(a);
            float v = similarity[i].y * sources[i].second().share(a);
            if (k >= 7) {  // selected, not multiplied: a score against time may overflow
                u = (2 * t.column <= t.row ? u : 0.0f) + (2 * t.column == t.row ? D : 0.0f);
                v = (2 * t.column + 1 <= t.row ? v : 0.0f) + (2 * t.column + 1 == t.row ? D : 0.0f);
            }
            split(u, v, large[i], small[i]);
        }
#pragma unroll
        for (int i = 0; i < BATCH && start + i < 9; i++) {
            int k = start + i, column = k == 7 ? in_last : k == 8 ? t.warp : k < in_last ? k : k - in_last;
            shared_address to = ((k < 7 ? k < in_last : k == 7) ? last_row : first_row) + ((column ^ t.row) * 16);
            store_shared(to, large[i]);
            store_shared(to + TILE_BYTES, small[i]);
        }
    }
}

// y as [tokens, channels] in a tile
__device__ __forceinline__ void store_transposed(shared_address tile, const float (&y)[32], Thread t) {
#pragma unroll
    for (int n = 0; n < 8; n += 2) {
        int matrix = t.lane / 8, row = t.lane % 8;
        const float* v = y + 4 * n;
        store_matrices_x4<true>(swizzled(tile, 8 * (n + matrix / 2) + row, 2 * t.warp + matrix % 2),
                                pack<BF16>(v[0], v[1]), pack<BF16>(v[2], v[3]), pack<BF16>(v[4], v[5]),
                                pack<BF16>(v[6], v[7]));
    }
}

// A tile to y (t, h, p): the whole one by the copy engine, of a shorter chunk its own rows
__device__ __forceinline__ void store_y(const tensor_map& map, token* y, shared_address tile, int start, int length,
                                        int head, int H, Thread t) {
    if (length == CHUNK) {
        if (t.index == 0) {
            tensor_store(map, tile, 0, head, start);
            group_bulk_stores();
        }
        return;
    }
    int piece = t.index % 8;
    for (int row = t.index / 8; row < length; row += 16)
        *(uint4*)(y + ((i64)(start + row) * H + head) * CHANNELS + 8 * piece) = load_shared<uint4>(swizzled(tile, row, piece));
}

// Rows of B or C past the last token may hold anything, NaN too: zero for products. By all consumers
__device__ __forceinline__ void clear_rows(shared_address B, int length) {
    for (int i = threadIdx.x; i < (CHUNK - length) * (STATES / 8); i += CONSUMERS) {
        int row = length + i / (STATES / 8), piece = i % (STATES / 8);
        store_shared(B + piece / 8 * TILE_BYTES + row * ROW_BYTES + piece % 8 * 16, make_uint4(0, 0, 0, 0));
    }
    fence_async_proxy();
    named_barrier(1 + HEADS, CONSUMERS);
}
