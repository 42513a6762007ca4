// Products by a warpgroup in each form that wgmma.cuh has, from tiles that the copy engine loads.
#include "hardware.cuh"
#include "hopper.cuh"
#include "wgmma.cuh"

enum { M = 64, K = 64, TILE = 1024, MOST = 64 * 128 * 2 };

// a matrix of ROWS x COLUMNS elements to blocks of SWIZZLE bytes of its columns, one after another
template <int ROWS, int COLUMNS, int SWIZZLE>
__device__ void load_blocks(shared_address to, const tensor_map& map, shared_address barrier) {
    constexpr int blocks = (2 * COLUMNS + SWIZZLE - 1) / SWIZZLE;
    mbarrier_arrive_expect(barrier, blocks * ROWS * SWIZZLE);
    for (int i = 0; i < blocks; i++) tensor_load(to + i * ROWS * SWIZZLE, map, barrier, i * SWIZZLE / 2, 0);
}

// of the k-th 16 of K, of a matrix of SIZE rows of K, or of K rows of SIZE if MN_MAJOR
template <int SIZE, int SWIZZLE, bool MN_MAJOR>
__device__ descriptor part(shared_address matrix, int k) {
    if (MN_MAJOR) return describe<SWIZZLE>(matrix + 16 * k * SWIZZLE, K * SWIZZLE, 8 * SWIZZLE);
    return describe<SWIZZLE>(matrix + 32 * k / SWIZZLE * SIZE * SWIZZLE + 32 * k % SWIZZLE, 16, 8 * SWIZZLE);
}

// rows 16 w to 16 w + 15 of a matrix [M, K], or [K, M] if TRANSPOSED, as operands
template <bool TRANSPOSED>
__device__ void load_fragments(unsigned* a, shared_address matrix, int k) {
    const int lane = threadIdx.x % 32, w = threadIdx.x / 32, m = lane / 8, r = lane % 8;
    const int row = TRANSPOSED ? 16 * k + m / 2 * 8 + r : 16 * w + m % 2 * 8 + r;
    const int chunk = TRANSPOSED ? 2 * w + m % 2 : 2 * k + m / 2;
    load_matrices_x4<TRANSPOSED>(a, matrix + row * 128 + (chunk ^ r) * 16);
}

template <int N>
__device__ void leave(float* out, const float* d) {
    const int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4, column = threadIdx.x % 4 * 2;
    for (int i = 0; i < N / 2; i++) out[(row + i % 4 / 2 * 8) * N + i / 4 * 8 + column + i % 2] = d[i];
}

template <int N, int TYPE, bool A_MN_MAJOR, bool B_MN_MAJOR, int SWIZZLE, bool REGISTERS>
__device__ void product(const tensor_map& a_map, const tensor_map& b_map, float* out, shared_address shared) {
    const shared_address a = shared, b = shared + MOST, barrier = shared + 2 * MOST;
    if (threadIdx.x == 0) {
        mbarrier_init(barrier, 2);
        fence_mbarrier_init();
        load_blocks<A_MN_MAJOR ? K : M, A_MN_MAJOR ? M : K, SWIZZLE>(a, a_map, barrier);
        load_blocks<B_MN_MAJOR ? K : N, B_MN_MAJOR ? N : K, SWIZZLE>(b, b_map, barrier);
    }
    __syncthreads();
    mbarrier_wait(barrier, 0);
    float d[N / 2];
    unsigned fragments[K / 16][4];
    for (int i = 0; i < N / 2; i++) d[i] = 1;
#pragma unroll
    for (int k = 0; k < K / 16; k++)
        if constexpr (REGISTERS) load_fragments<A_MN_MAJOR>(fragments[k], a, k);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < K / 16; k++) {
        const descriptor part_b = part<N, SWIZZLE, B_MN_MAJOR>(b, k);
        if constexpr (REGISTERS)
            wgmma<N, TYPE, B_MN_MAJOR>(d, fragments[k], part_b, k > 0);
        else
            wgmma<N, TYPE, A_MN_MAJOR, B_MN_MAJOR>(d, part<M, SWIZZLE, A_MN_MAJOR>(a, k), part_b, k > 0);
    }
    wgmma_commit();
    wgmma_wait<0>();
    hold(d);
    for (int k = 0; k < K / 16; k++) hold(fragments[k]);
    leave<N>(out, d);
}

// form: the place in test_products.FORMS
extern "C" __global__ void __launch_bounds__(128)
    products(const __grid_constant__ tensor_map a, const __grid_constant__ tensor_map b, float* out, int form) {
    extern __shared__ float4 dynamic[];
    const shared_address shared = (address_of(dynamic) + TILE - 1) / TILE * TILE;
    if (form == 0) product<16, BF16, false, false, 128, true>(a, b, out, shared);
    if (form == 1) product<32, BF16, false, false, 128, true>(a, b, out, shared);
    if (form == 2) product<64, FP16, false, false, 128, true>(a, b, out, shared);
    if (form == 3) product<96, BF16, false, false, 128, true>(a, b, out, shared);
    if (form == 4) product<128, BF16, true, true, 128, true>(a, b, out, shared);
    if (form == 5) product<64, BF16, false, true, 128, true>(a, b, out, shared);
    if (form == 6) product<64, BF16, false, false, 64, false>(a, b, out, shared);
    if (form == 7) product<64, BF16, false, false, 32, false>(a, b, out, shared);
    if (form == 8) product<64, BF16, true, true, 64, false>(a, b, out, shared);
    if (form == 9) product<64, FP16, true, true, 32, false>(a, b, out, shared);
    if (form == 10) product<128, BF16, true, false, 128, false>(a, b, out, shared);
    if (form == 11) product<32, FP16, false, true, 64, false>(a, b, out, shared);
}
