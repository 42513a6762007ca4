// The backward kernels of selective_scan.cu.

// λ before each piece that follows another one, from a λ of zero after it, and the piece's sum of Δ
extern "C" __global__ void __launch_bounds__(CHANNELS, CHUNK_STATE_BLOCKS) _selective_scan_bwd_chunk_state_kernel(
    const token* delta, const float* A, const float* C, const token* z, const float* bias, const token* dy,
    const int* cu_seqlens, float* backs, float* sums, i64 T, i64 S, i64 D, i64 G, i64 N, i64 width, i64 delta_stride,
    i64 C_stride, i64 C_group, i64 z_stride, i64 dy_stride, i64 has_bias) {
    __shared__ float4 rows[2][BATCH][STATES / 4];
    Channel c = channel_of_thread(D, G, width);
    // the boundary of a row, if there is one, lies in the sequence of the token before the row's window
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
    for (int n = 0; n < STATES; n++) decay[n] = finite_rate(decay[n]), back[n] = 0.0f;
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
// channel's owner has to the four lanes, and one takes their sums back to it.

constexpr int QUADS = STATES / 4;
constexpr int PAIR = 2;              // tokens whose states registers hold
constexpr int PAIRS = BATCH / PAIR;  // the state before each of which shared memory holds

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
    float offset = c.real && has_bias ? bias[c.index] : 0.0f, direct = c.real && has_skip ? skip[c.index] : 0.0f;
    float sum_D = 0.0f, sum_bias = 0.0f;
    Tile decay, sum_A = {};
    load_tile(decay, A + tile, c.padded);
#pragma unroll
    for (int k = 0; k < 4; k++)
#pragma unroll
        for (int j = 0; j < 4; j++) decay[k][j] = finite_rate(decay[k][j]);
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
                    int i = (front - first) / PAIR;  // of pairs before `first` only the states are computed
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
                        // the states of this pair are no longer needed: the sums take their place
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
