// One small kernel for each of the other wrappers of hopper.cuh.
#include "hardware.cuh"
#include "hopper.cuh"

constexpr int ROW = 32;  // bytes: 16 elements of 16 bits

// d = a b, by a warp: a [16, 16] and b [8, 16], or if `transposed` [k, 16] and [k, 8]; rows past `rows` are zeros
template <int TYPE>
__device__ void multiply(const unsigned short* a, const unsigned short* b, float* d, int rows, bool transposed,
                         shared_address a_tile) {
    const int lane = threadIdx.x;
    const shared_address b_tile = a_tile + 16 * ROW;
    copy_async_or_zero(a_tile + lane * 16, a + lane * 8, lane / 2 < rows);
    if (lane < 16) copy_async_or_zero(b_tile + lane * 16, b + lane * 8, true);
    group_copies();
    wait_for_copies<0>();
    __syncwarp();
    unsigned left[4], right[2];
    float sum[4] = {0, 0, 0, 0};
    if (transposed) {
        load_matrices_x4<true>(left, a_tile + (lane / 16 * 8 + lane % 8) * ROW + lane / 8 % 2 * 16);
        load_matrices_x2<true>(right, b_tile + lane % 16 * 16);
    } else {
        load_matrices_x4<false>(left, a_tile + lane % 16 * ROW + lane / 16 * 16);
        load_matrices_x2<false>(right, b_tile + lane % 8 * ROW + lane / 8 % 2 * 16);
    }
    multiply_16x8x16<TYPE>(sum, left, right[0], right[1]);
    for (int i = 0; i < 4; i++) d[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = sum[i];
}
extern "C" __global__ void __launch_bounds__(32)
    products_of_a_warp(const unsigned short* a, const unsigned short* b, float* d, int rows, int transposed, int half) {
    __shared__ __align__(128) uint4 tiles[2 * 16 * ROW / 16];
    if (half)
        multiply<FP16>(a, b, d, rows, transposed, address_of(tiles));
    else
        multiply<BF16>(a, b, d, rows, transposed, address_of(tiles));
}

// to = from [16, 16], or each 8 x 8 of it transposed in its place
extern "C" __global__ void __launch_bounds__(32)
    stores_of_matrices(const unsigned short* from, unsigned short* to, int transposed) {
    __shared__ __align__(128) uint4 tile[16 * ROW / 16];
    const shared_address row = address_of(tile) + threadIdx.x % 16 * ROW + threadIdx.x / 16 * 16;
    const int lane = threadIdx.x, g = lane / 4, q = lane % 4;
    unsigned x[4];
    for (int i = 0; i < 4; i++)
        x[i] = *(const unsigned*)(from + (g + i % 2 * 8) * 16 + i / 2 * 8 + 2 * q);
    if (transposed)
        store_matrices_x4<true>(row, x[0], x[1], x[2], x[3]);
    else
        store_matrices_x4<false>(row, x[0], x[1], x[2], x[3]);
    fence_async_proxy();
    __syncwarp();
    if (lane == 0) {
        bulk_store(to, address_of(tile), 16 * ROW);
        group_bulk_stores();
        wait_for_bulk_reads<0>();
        wait_for_bulk_stores<0>();
    }
}

// A box of `from` at (c0, c1, c2) to shared memory; from there as it lies to `bytes`, and as a box to `to`
extern "C" __global__ void __launch_bounds__(32)
    boxes(const __grid_constant__ tensor_map from, const __grid_constant__ tensor_map to, unsigned char* bytes,
          int size, int axes, int c0, int c1, int c2) {
    extern __shared__ float4 dynamic[];
    const shared_address shared = (address_of(dynamic) + 1023) & ~1023u, barrier = shared + 8192;
    if (threadIdx.x) return;
    mbarrier_init(barrier, 1);
    fence_mbarrier_init();
    mbarrier_arrive_expect(barrier, size);
    if (axes == 2)
        tensor_load(shared, from, barrier, c0, c1);
    else
        tensor_load(shared, from, barrier, c0, c1, c2);
    mbarrier_wait(barrier, 0);
    bulk_store(bytes, shared, size);
    if (axes == 2)
        tensor_store(to, shared, c0, c1);
    else
        tensor_store(to, shared, c0, c1, c2);
    group_bulk_stores();
    wait_for_bulk_stores<0>();
}

// A warp gives numbers to another one, which waits at a barrier that the first one passes
extern "C" __global__ void __launch_bounds__(64) hands_over(const float* from, float* to, int rounds) {
    __shared__ float2 slot[32];
    const shared_address place = address_of(slot + threadIdx.x % 32);
    for (int i = 0; i < rounds; i++)
        if (threadIdx.x < 32) {
            if (i) named_barrier(2, 64);
            store_shared(place, make_float2(from[i * 32 + threadIdx.x], 1));
            named_barrier_arrive(1, 64);
        } else {
            named_barrier(1, 64);
            const float2 x = load_shared<float2>(place);
            to[i * 32 + threadIdx.x - 32] = x.x + x.y;
            if (i < rounds - 1) named_barrier_arrive(2, 64);
        }
}

// pairs of 16 bits, and logarithms
extern "C" __global__ void __launch_bounds__(32)
    arithmetic(const float* from, unsigned* bf16, unsigned* fp16, float* logarithm) {
    const int i = threadIdx.x;
    bf16[i] = pack<BF16>(from[2 * i], from[2 * i + 1]);
    fp16[i] = pack<FP16>(from[2 * i], from[2 * i + 1]);
    logarithm[i] = log2_fast(from[2 * i]);
}
