// The backward kernels of selective_scan.cu.

// λ before each piece after the first one, from a λ of zero after it, and the sum of Δ of the piece
extern "C" __global__ void __launch_bounds__(CHANNELS, CHUNK_STATE_BLOCKS) _selective_scan_bwd_chunk_state_kernel(
    const token* delta, const float* A, const float* C, const token* z, const float* bias, const token* dy,
    const int* cu_seqlens, float* backs, float* sums, i64 T, i64 S, i64 D, i64 G, i64 N, i64 width, i64 delta_stride,
    i64 C_stride, i64 C_group, i64 z_stride, i64 dy_stride, i64 has_bias) {
    __shared__ float4 rows[2][BATCH][STATES / 4];
    Channel c = channel_of_thread(D, G, width);
    // the boundary of a row, if any, is at (row + 1) * SIZE or later, in the sequence of the token before that
    Sequences sequences{cu_seqlens, (int)S, (int)T};
    int sequence = sequences.at(c.window * SIZE + SIZE - 1);
    int start = sequences.start(sequence), end = sequences.end(sequence);
    int t = start + (c.window * SIZE + SIZE - start + SIZE - 1) / SIZE * SIZE;
    if (t >= end) return;
    int count = minimum(SIZE, end - t);
    int token_of_thread = threadIdx.x / 4, quarter = threadIdx.x % 4;
    bool fetches = token_of_thread < BATCH;
    Keys keys{C + c.group * C_group + 4 * quarter, C_stride};
    float decay[STATES], back[STATES], total = 0.0f;
    load_states(decay, A + c.states, c.padded);
#pragma unroll
    for (int n = 0; n < STATES; n++) decay[n] = finite_rate(decay[n]), back[n] = 0.0f;
    float offset = c.valid && has_bias ? bias[c.index] : 0.0f;
    Stream deltas(delta, delta_stride, t, c.index, count, c.valid), dys(dy, dy_stride, t, c.index, count, c.valid);
    Stream zs(z, z_stride, t, c.index, count, c.valid && GATED);
    float4 fetched = {};
    keys.load(fetched, t + token_of_thread, fetches && token_of_thread < count);
#pragma unroll 1
    for (int i = 0; i < count; i += BATCH) {
        float4(&batch)[BATCH][STATES / 4] = rows[i / BATCH % 2];
        if (fetches) batch[token_of_thread][quarter] = fetched;
        __syncthreads();
        int ahead = i + BATCH + token_of_thread;
        keys.load(fetched, t + ahead, fetches && ahead < count);
#pragma unroll 1
        for (int k0 = 0; k0 < minimum(BATCH, count - i); k0 += ROUND) {
            float step[ROUND], g[ROUND], gate[ROUND];
            int remaining = count - i - k0;
            deltas.take(step, remaining, c.valid);
            dys.take(g, remaining, c.valid);
            time_steps(step, offset, remaining);
            if (GATED) {
                zs.take(gate, remaining, c.valid);
#pragma unroll
                for (int k = 0; k < ROUND; k++) g[k] *= silu(gate[k]);
            }
#pragma unroll
            for (int k = 0; k < ROUND; k++) {
                total += step[k];
                if (k < remaining)
#pragma unroll
                    for (int n = 0; n < STATES; n++)
                        back[n] = fmaf(exp2_fast(decay[n] * total), part(batch[k0 + k][n / 4], n % 4) * g[k], back[n]);
            }
        }
    }
    store_states(backs + (i64)c.window * N * width + c.states, back, c.padded);
    if (c.padded) sums[(i64)c.window * width + c.column] = total;
}

// The gradients. A lane owns a channel, for all values without states. Four lanes share the states of their four channels,
// and each holds 4 states of every channel. Its k-th channel is the one of lane ^ k. So one exchange takes a value from a
// channel's owner to the four lanes, and one takes their sums back.

constexpr int QUADS = STATES / 4;
constexpr int PAIR = 2;              // tokens with their states in registers
constexpr int PAIRS = BATCH / PAIR;  // shared memory holds the state before each of them

typedef float Tile[4][4];  // [channel, state]

__device__ __forceinline__ int tile_offset(int k, int j) {
    int lane = threadIdx.x % 32;
    return (4 * (lane & 3) + j) * TILE + (lane ^ k);
}

__device__ __forceinline__ void load_tile(Tile& x, const float* from, bool valid) {
#pragma unroll
    for (int k = 0; k < 4; k++)
#pragma unroll
        for (int j = 0; j < 4; j++) x[k][j] = valid ? from[tile_offset(k, j)] : 0.0f;
}

__device__ __forceinline__ void store_tile(float* to, const Tile& x, bool valid) {
#pragma unroll
    for (int k = 0; k < 4; k++)
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (valid) to[tile_offset(k, j)] = x[k][j];
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
    __device__ __forceinline__ void load(token (&x)[PAIR], int remaining, bool valid) const {
#pragma unroll
        for (int m = 0; m < PAIR; m++) x[m] = valid && m < remaining ? at[m * stride] : token(0);
    }
    __device__ __forceinline__ void advance() { at += PAIR * stride; }
    __device__ __forceinline__ void retreat() { at -= PAIR * stride; }
};

extern "C" __global__ void __launch_bounds__(CHANNELS, BACKWARD_BLOCKS) _selective_scan_bwd_kernel(
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
    float offset = c.valid && has_bias ? bias[c.index] : 0.0f, direct = c.valid && has_skip ? skip[c.index] : 0.0f;
    float sum_D = 0.0f, sum_bias = 0.0f;
    Tile decay, sum_A = {};
    load_tile(decay, A + tile, c.padded);
#pragma unroll
    for (int k = 0; k < 4; k++)
#pragma unroll
        for (int j = 0; j < 4; j++) decay[k][j] = finite_rate(decay[k][j]);
    parts += ((i64)c.block * T * G + c.group) * (2 * STATES) + row_of_lane(lane);
    for (Pieces p({cu_seqlens, (int)S, (int)T}, c.window); p.exists(); p.next()) {
        Tile back;
        if (p.piece_end < p.end)
            load_tile(back, backs + (i64)(p.piece_end / SIZE - 1) * size + tile, c.padded);
        else
            load_tile(back, dfinal + p.sequence * size + tile, c.padded && has_final);
#pragma unroll 1
        for (int front = p.t + (p.piece_end - p.t - 1 + KEEP) / KEEP * KEEP - KEEP; front >= p.t; front -= KEEP) {
            int stop = minimum(front + KEEP, p.piece_end);
            __syncthreads();
            for (int row = token_of_thread; row < KEEP; row += CHANNELS / (2 * QUADS)) {
                float4 fetched = {};
                keys.load(fetched, front + row, row < stop - front);
                rows[row][quad] = fetched;
            }
            __syncthreads();
#pragma unroll 1
            for (int batch_start = front + (stop - front - 1) / BATCH * BATCH; batch_start >= front; batch_start -= BATCH) {
                int batch_end = minimum(batch_start + BATCH, stop), pairs = (batch_end - batch_start + PAIR - 1) / PAIR;
                token raw_u[PAIR], raw_delta[PAIR], raw_z[PAIR], raw_dy[PAIR];
                Row us(u, u_stride, front, c.index), deltas(delta, delta_stride, front, c.index);
                {
                    Tile h;
                    if (front > p.start)
                        load_tile(h, ends + (i64)(front / KEEP - 1) * size + tile, c.padded);
                    else
                        load_tile(h, initial + p.sequence * size + tile, c.padded && has_initial);
                    us.load(raw_u, batch_end - front, c.valid), deltas.load(raw_delta, batch_end - front, c.valid);
                    int i = (front - batch_start) / PAIR;  // before `batch_start` only the states are computed
#pragma unroll 1
                    for (int row = 0;; i++, row += PAIR) {
                        if (i >= 0)
#pragma unroll
                            for (int k = 0; k < 4; k++)
                                states[warp][i][k][lane] = make_float4(h[k][0], h[k][1], h[k][2], h[k][3]);
                        if (i + 1 >= pairs) break;
                        float u_value[PAIR], step[PAIR];
#pragma unroll
                        for (int m = 0; m < PAIR; m++) {
                            u_value[m] = widen(raw_u[m]);
                            step[m] = time_step(widen(raw_delta[m]) + offset);
                        }
                        us.advance(), deltas.advance();
                        us.load(raw_u, batch_end - front - row - PAIR, c.valid);
                        deltas.load(raw_delta, batch_end - front - row - PAIR, c.valid);
#pragma unroll
                        for (int m = 0; m < PAIR; m++) {
                            float4 B_row = rows[row + m][lane & 3];
#pragma unroll
                            for (int k = 0; k < 4; k++) {
                                float step_k = exchange(step[m], k), u_k = exchange(step[m] * u_value[m], k);
#pragma unroll
                                for (int j = 0; j < 4; j++)
                                    h[k][j] = fmaf(exp2_fast(decay[k][j] * step_k), h[k][j], part(B_row, j) * u_k);
                            }
                        }
                    }
                }
                Row zs(z, z_stride, batch_end - 1 - (batch_end - batch_start - 1) % PAIR, c.index);
                Row dys(dy, dy_stride, batch_end - 1 - (batch_end - batch_start - 1) % PAIR, c.index);
                int remaining = (batch_end - batch_start - 1) % PAIR + 1;
                zs.load(raw_z, remaining, c.valid && GATED), dys.load(raw_dy, remaining, c.valid);
                i64 out = (i64)(batch_start + (pairs - 1) * PAIR) * D + c.index;
#pragma unroll 1
                for (int i = pairs - 1; i >= 0; i--, out -= PAIR * D) {
                    int row = batch_start - front + i * PAIR;
                    float u_value[PAIR], step[PAIR], from_u[PAIR], g[PAIR], slope[PAIR];
                    float z_value[PAIR], dy_value[PAIR], gate[PAIR];
                    float value[PAIR], along_B[PAIR], along_A[PAIR];
                    float of_B[PAIR][4] = {}, of_C[PAIR][4] = {};
                    float4 B_row[PAIR], C_row[PAIR];
#pragma unroll
                    for (int m = 0; m < PAIR; m++) {
                        float x = widen(raw_delta[m]) + offset, e = exp_neg_abs(x);
                        u_value[m] = widen(raw_u[m]), z_value[m] = widen(raw_z[m]), dy_value[m] = widen(raw_dy[m]);
                        step[m] = m < remaining ? SOFTPLUS ? softplus(x, e) : x : 0.0f;
                        slope[m] = SOFTPLUS ? sigmoid(x, e) : 1.0f;
                        gate[m] = sigmoid(z_value[m], exp_neg_abs(z_value[m]));
                        from_u[m] = step[m] * u_value[m];
                        g[m] = GATED ? dy_value[m] * z_value[m] * gate[m] : dy_value[m];
                        B_row[m] = rows[row + m][lane & 3], C_row[m] = rows[row + m][QUADS + (lane & 3)];
                    }
                    us.retreat(), deltas.retreat(), zs.retreat(), dys.retreat();
                    us.load(raw_u, PAIR, c.valid && i), deltas.load(raw_delta, PAIR, c.valid && i);
                    zs.load(raw_z, PAIR, c.valid && GATED && i), dys.load(raw_dy, PAIR, c.valid && i);
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
                        // the states of this pair are no longer needed: the sums take their place
                        ((float*)states[warp][i])[m * 32 + lane] = sum_channels(of_B[m], of_C[m]);
                        float dstep = fmaf(along_B[m], u_value[m], along_A[m] * LN2) * slope[m];
                        value[m] = fmaf(direct, u_value[m], value[m]);
                        if (c.valid && m < remaining) {
                            du[out + m * D] = narrow(fmaf(along_B[m], step[m], direct * g[m]));
                            ddelta[out + m * D] = narrow(dstep);
                            if (GATED)
                                dz[out + m * D] =
                                    narrow(dy_value[m] * value[m] * gate[m] * fmaf(z_value[m], 1.0f - gate[m], 1.0f));
                            sum_D = fmaf(g[m], u_value[m], sum_D);
                            sum_bias += dstep;
                        }
                    }
                    remaining = PAIR;
                }
                __syncthreads();
                for (int row = warp; row < batch_end - batch_start; row += WARPS) {
                    float sum = 0.0f;
#pragma unroll
                    for (int w = 0; w < WARPS; w++) sum += ((float*)states[w][row / PAIR])[row % PAIR * 32 + lane];
                    parts[(i64)(batch_start + row) * G * (2 * STATES)] = sum;
                }
                __syncthreads();
            }
        }
        if (p.t == p.start && p.piece_end > p.t && has_initial) store_tile(dinitial + p.sequence * size + tile, back, c.padded);
    }
    store_tile(dA + c.window * size + tile, sum_A, c.padded);
    if (c.valid) {
        dD[(i64)c.window * D + c.index] = sum_D;
        dbias[(i64)c.window * D + c.index] = sum_bias;
    }
}
