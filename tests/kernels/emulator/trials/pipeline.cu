// y = sum of tiles (a scaled by weights) x: a producer warp, four consumer warps, two stages; and what one may get wrong
// in it.
#include "hardware.cuh"
#include "hopper.cuh"
#include "wgmma.cuh"

enum {  // as in test_misuse.py
    NONE,
    LATER_PARITY,
    NO_WAIT_FOR_COPIES,
    NO_WAIT_FOR_CONSUMERS,
    STAGE_OFF_BY_ONE,
    OTHER_SWIZZLE,
    OTHER_STRIDE,
    NO_WGMMA_FENCE,
    ONE_WGMMA_FENCE,
    NO_COMMIT,
    NO_WGMMA_WAIT,
    WAIT_FOR_ALL_BUT_ONE,
    SUM_READ_BEFORE_WAIT,
    SUM_WRITTEN_BEFORE_WAIT,
    OPERAND_WRITTEN_BEFORE_WAIT,
    RELEASED_BEFORE_WAIT,
    NO_ASYNC_FENCE,
    NO_BARRIER,
    NO_WAIT_FOR_STORES,
    EXPECTS_MORE,
    EXPECTS_LESS,
    NO_INIT_FENCE,
    NO_BARRIER_AFTER_INIT,
    OTHER_ARRIVALS,
    BARRIER_OF_FEWER,
    ONE_WARP_SETS_REGISTERS,
    TABLE_READ_AFTER_RELEASE,
};
enum { A = 0, X = 8192, WEIGHTS = 16384, STAGE = 17 * 1024, STAGES = 2, Y = STAGES * STAGE, FULL = Y + 8192 };
enum { EMPTY = FULL + 8 * STAGES, COPIED = 8192 + 8192 + 256 };

__device__ void produce(const tensor_map& a, const tensor_map& x, const float* weights, int tiles, int misuse,
                        shared_address shared) {
    for (int i = 0; i < tiles; i++) {
        const shared_address stage = shared + i % STAGES * STAGE, full = shared + FULL + 8 * (i % STAGES);
        if (misuse != NO_WAIT_FOR_CONSUMERS) mbarrier_wait(shared + EMPTY + 8 * (i % STAGES), i / STAGES % 2 ^ 1);
        mbarrier_arrive_expect(full, COPIED + (misuse == EXPECTS_MORE ? 16 : misuse == EXPECTS_LESS ? -16 : 0));
        tensor_load(stage + A, a, full, 64 * i, 0);
        tensor_load(stage + X, x, full, 0, 64 * i);
        bulk_load(stage + WEIGHTS, weights + 64 * i, 256, full);
    }
}

// rows 16 w to 16 w + 15 of a, columns times their weights, as operands
__device__ void weigh(unsigned (&to)[4][4], shared_address stage) {
    const int lane = threadIdx.x % 32, w = threadIdx.x / 32, q = lane % 4;
    for (int k = 0; k < 4; k++) {
        unsigned a[4];
        load_matrices_x4<false>(a, stage + A + (16 * w + lane % 16) * 128 + ((2 * k + lane / 16) ^ lane % 8) * 16);
        for (int i = 0; i < 4; i++) {
            const float2 by = load_shared<float2>(stage + WEIGHTS + 4 * (16 * k + i / 2 * 8 + 2 * q));
            to[k][i] = pack<BF16>(__uint_as_float(a[i] << 16) * by.x, __uint_as_float(a[i] & 0xffff0000u) * by.y);
        }
    }
}

__device__ void consume(float (&y)[32], int tiles, int misuse, shared_address shared) {
    for (int i = 0; i < tiles; i++) {
        const int at = (misuse == STAGE_OFF_BY_ONE ? i + 1 : i) % STAGES;
        const shared_address stage = shared + at * STAGE;
        const int parity = i / STAGES % 2 ^ (misuse == LATER_PARITY);
        if (misuse != NO_WAIT_FOR_COPIES) mbarrier_wait(shared + FULL + 8 * (i % STAGES), parity);
        unsigned a[4][4];
        weigh(a, stage);
        for (int k = 0; k < 4; k++) hold(a[k]);
        if (misuse != NO_WGMMA_FENCE && (misuse != ONE_WGMMA_FENCE || i == 0)) wgmma_fence();
        for (int k = 0; k < 4; k++) {
            const shared_address x = stage + X + 2048 * k;
            descriptor b = describe<128>(x, 8192, misuse == OTHER_STRIDE ? 2048 : 1024);
            if (misuse == OTHER_SWIZZLE) b = describe<64>(x, 8192, 1024);
            wgmma<64, BF16, true>(y, a[k], b, i + k > 0);
        }
        if (misuse != NO_COMMIT) wgmma_commit();
        const int lane = threadIdx.x % 32;
        const float read = y[5];
        if (misuse == SUM_WRITTEN_BEFORE_WAIT) y[5] = 1;
        if (misuse == OPERAND_WRITTEN_BEFORE_WAIT) a[3][1] = 0;
        if (misuse == RELEASED_BEFORE_WAIT && lane == 0) mbarrier_arrive(shared + EMPTY + 8 * (i % STAGES));
        if (misuse == WAIT_FOR_ALL_BUT_ONE)
            wgmma_wait<1>();
        else if (misuse != NO_WGMMA_WAIT)
            wgmma_wait<0>();
        if (misuse == SUM_READ_BEFORE_WAIT) y[5] = read;
        hold(y);
        for (int k = 0; k < 4; k++) hold(a[k]);
        __syncwarp();
        if (misuse != RELEASED_BEFORE_WAIT && lane == 0) mbarrier_arrive(shared + EMPTY + 8 * (i % STAGES));
        if (misuse == TABLE_READ_AFTER_RELEASE) y[5] += 0 * load_shared<float>(stage + WEIGHTS);
    }
}

__device__ void leave(const tensor_map& map, const float (&y)[32], int misuse, shared_address shared) {
    const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane % 16;
    for (int i = 0; i < 8; i += 2)
        store_matrices_x4<false>(shared + Y + row * 128 + ((i + lane / 16) ^ row % 8) * 16,
                                 pack<BF16>(y[4 * i], y[4 * i + 1]), pack<BF16>(y[4 * i + 2], y[4 * i + 3]),
                                 pack<BF16>(y[4 * i + 4], y[4 * i + 5]), pack<BF16>(y[4 * i + 6], y[4 * i + 7]));
    if (misuse != NO_ASYNC_FENCE) fence_async_proxy();
    if (misuse != NO_BARRIER) named_barrier(1, misuse == BARRIER_OF_FEWER ? 96 : 128);
    if (threadIdx.x == 0) {
        tensor_store(map, shared + Y, 0, 0);
        group_bulk_stores();
        if (misuse != NO_WAIT_FOR_STORES) wait_for_bulk_stores<0>();
    }
}

extern "C" __global__ void __launch_bounds__(256, 1)
    pipeline(const __grid_constant__ tensor_map a, const __grid_constant__ tensor_map x,
             const __grid_constant__ tensor_map y, const float* weights, int tiles, int misuse) {
    extern __shared__ float4 dynamic[];
    const shared_address shared = (address_of(dynamic) + 1023) & ~1023u;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            mbarrier_init(shared + FULL + 8 * i, 1);
            mbarrier_init(shared + EMPTY + 8 * i, misuse == OTHER_ARRIVALS ? 128 : 4);
        }
        if (misuse != NO_INIT_FENCE) fence_mbarrier_init();
    }
    if (misuse != NO_BARRIER_AFTER_INIT) __syncthreads();
    if (threadIdx.x >= 128) {
        decrease_registers<40>();
        if (threadIdx.x == 128) produce(a, x, weights, tiles, misuse, shared);
    } else {
        if (misuse != ONE_WARP_SETS_REGISTERS || threadIdx.x < 32) increase_registers<200>();
        float sums[32];
        for (int i = 0; i < 32; i++) sums[i] = 0;
        consume(sums, tiles, misuse, shared);
        leave(y, sums, misuse, shared);
    }
}
