// The forward kernels of selective_scan.cu.

extern "C" __global__ void __launch_bounds__(CHANNELS, CHUNK_STATE_BLOCKS) _selective_scan_fwd_chunk_state_kernel(
    const token* u, const token* delta, const float* A, const float* B, const float* bias, const int* cu_seqlens,
    float* ends, float* sums, i64 T, i64 S, i64 D, i64 G, i64 N, i64 width, i64 u_stride, i64 delta_stride,
    i64 B_stride, i64 B_group, i64 has_bias, i64 keep_final) {
    __shared__ float4 rows[2][BATCH][STATES / 4];
    Channel c = channel_of_thread(D, G, width);
    int start, end;
    int t = full_piece({cu_seqlens, (int)S, (int)T}, c.window, start, end);
    bool needed = t + SIZE < end || (t + SIZE == end && keep_final);
    if (t < c.window * SIZE || !needed) return;
    int token_of_thread = threadIdx.x / 4, quarter = threadIdx.x % 4;
    bool fetches = token_of_thread < BATCH;
    Keys keys{B + c.group * B_group + 4 * quarter, B_stride};
    float decay[STATES], h[STATES], total = 0.0f;
    load_states(decay, A + c.states, c.padded);
#pragma unroll
    for (int n = 0; n < STATES; n++) decay[n] = finite_rate(decay[n]), h[n] = 0.0f;
    float offset = c.valid && has_bias ? bias[c.index] : 0.0f;
    // from the last token back: the decay of each token up to the end is one exponential, so errors do not add up
    int last_token = t + SIZE - 1;
    Stream us(u, -u_stride, -last_token, c.index, SIZE, c.valid);
    Stream deltas(delta, -delta_stride, -last_token, c.index, SIZE, c.valid);
    float4 fetched = {};
    keys.load(fetched, last_token - token_of_thread, fetches);
#pragma unroll 1
    for (int i = 0; i < SIZE; i += BATCH) {
        float4(&batch)[BATCH][STATES / 4] = rows[i / BATCH % 2];
        if (fetches) batch[token_of_thread][quarter] = fetched;
        __syncthreads();
        keys.load(fetched, last_token - i - BATCH - token_of_thread, fetches && i + BATCH < SIZE);
#pragma unroll 1
        for (int k0 = 0; k0 < BATCH; k0 += ROUND) {
            float step[ROUND], u_value[ROUND];
            deltas.take(step, SIZE - i - k0, c.valid);
            us.take(u_value, SIZE - i - k0, c.valid);
            time_steps(step, offset, ROUND);
#pragma unroll
            for (int k = 0; k < ROUND; k++) {
                float from_u = step[k] * u_value[k];
#pragma unroll
                for (int n = 0; n < STATES; n++)
                    h[n] = fmaf(exp2_fast(decay[n] * total), part(batch[k0 + k][n / 4], n % 4) * from_u, h[n]);
                total += step[k];
            }
        }
    }
    store_states(ends + (i64)c.window * N * width + c.states, h, c.padded);
    if (c.padded) sums[(i64)c.window * width + c.column] = total;
}

extern "C" __global__ void __launch_bounds__(CHANNELS, FORWARD_BLOCKS) _selective_scan_fwd_kernel(
    const token* u, const token* delta, const float* A, const float* B, const float* C, const float* skip,
    const token* z, const float* bias, const float* initial, const float* boundaries, const int* cu_seqlens, token* y,
    float* final_states, float* kept, i64 T, i64 S, i64 D, i64 G, i64 N, i64 width, i64 u_stride, i64 delta_stride,
    i64 B_stride, i64 B_group, i64 C_stride, i64 C_group, i64 z_stride, i64 has_skip, i64 has_bias,
    i64 has_initial, i64 keep_final, i64 keep_states) {
    __shared__ float4 rows[2][BATCH][STATES / 2];
    Channel c = channel_of_thread(D, G, width);
    i64 size = N * width;
    float decay[STATES], h[STATES];
    load_states(decay, A + c.states, c.padded);
#pragma unroll
    for (int n = 0; n < STATES; n++) decay[n] = finite_rate(decay[n]);
    float offset = c.valid && has_bias ? bias[c.index] : 0.0f, direct = c.valid && has_skip ? skip[c.index] : 0.0f;
    int token_of_thread = threadIdx.x / 8, quarter = threadIdx.x % 4;
    Keys keys = threadIdx.x % 8 < 4 ? Keys{B + c.group * B_group + 4 * quarter, B_stride}
                                    : Keys{C + c.group * C_group + 4 * quarter, C_stride};
    int buffer = 0;
    for (Pieces p({cu_seqlens, (int)S, (int)T}, c.window); p.exists(); p.next()) {
        int t = p.t, count = p.piece_end - t;
        if (t > p.start)
            load_states(h, boundaries + (i64)(t / SIZE - 1) * size + c.states, c.padded);
        else
            load_states(h, initial + p.sequence * size + c.states, c.padded && has_initial);
        Stream us(u, u_stride, t, c.index, count, c.valid), deltas(delta, delta_stride, t, c.index, count, c.valid);
        Stream zs(z, z_stride, t, c.index, count, c.valid && GATED);
        token* out = y + t * D + c.index;
        float4 fetched = {};
        keys.load(fetched, t + token_of_thread, token_of_thread < count);
#pragma unroll 1
        for (int i = 0; i < count; i += BATCH, buffer ^= 1) {
            float4(&batch)[BATCH][STATES / 2] = rows[buffer];
            batch[token_of_thread][threadIdx.x % 8] = fetched;
            __syncthreads();
            int ahead = i + BATCH + token_of_thread;
            keys.load(fetched, t + ahead, ahead < count);
            if (keep_states && i % KEEP == 0 && t + i > p.start)
                store_states(kept + (i64)((t + i) / KEEP - 1) * size + c.states, h, c.padded);
#pragma unroll 1
            for (int k0 = 0; k0 < minimum(BATCH, count - i); k0 += ROUND) {
                float step[ROUND], u_value[ROUND], gate[ROUND];
                int remaining = count - i - k0;
                deltas.take(step, remaining, c.valid);
                us.take(u_value, remaining, c.valid);
                time_steps(step, offset, remaining);
                if (GATED) {
                    zs.take(gate, remaining, c.valid);
#pragma unroll
                    for (int k = 0; k < ROUND; k++) gate[k] = silu(gate[k]);
                }
#pragma unroll
                for (int k = 0; k < ROUND; k++) {
                    float from_u = step[k] * u_value[k], value[4] = {};
#pragma unroll
                    for (int n = 0; n < STATES; n++) {
                        h[n] = fmaf(power(decay[n] * step[k]), h[n], part(batch[k0 + k][n / 4], n % 4) * from_u);
                        value[n % 4] = fmaf(h[n], part(batch[k0 + k][4 + n / 4], n % 4), value[n % 4]);
                    }
                    float sum = fmaf(direct, u_value[k], (value[0] + value[1]) + (value[2] + value[3]));
                    if (GATED) sum *= gate[k];
                    if (c.valid && k < remaining) *out = narrow(sum);
                    out += D;
                }
            }
        }
        // a sequence of whole pieces gets its final state from state passing
        bool ends = p.piece_end == p.end && (p.end - p.start) % SIZE != 0 && count > 0 && keep_final;
        store_states(final_states + p.sequence * size + c.states, h, c.padded && ends);
    }
}
