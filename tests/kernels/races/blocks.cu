// Small kernels whose threads share memory, correct unless BUG names an omission: the seeded bugs of the race tier.
// Inputs are small whole numbers, so that every sum is exact.

#include "hardware.cuh"
#include "hopper.cuh"

enum Bug {
    NONE,
    DOUBLE_BUFFER_WITHOUT_SYNC,
    SINGLE_BUFFER_REUSED_EARLY,
    PREFETCH_INTO_THE_STAGE_IN_USE,
    TREE_WITHOUT_SYNC_BELOW_TWO_WARPS,
    TOTAL_READ_BEFORE_WRITTEN,
    SCRATCH_OF_TWO_REDUCTIONS,
    HISTOGRAM_WITHOUT_ATOMICS,
    HALVES_OF_A_WARP,
    COPY_WAIT_OFF_BY_ONE,
    COPY_WAIT_WITHOUT_SYNC,
    COPY_INTO_STAGE_STILL_READ,
    PHASE_NOT_FLIPPED,
    BULK_STORE_STILL_READING,
    NAMED_BARRIER_OF_CONSUMERS_ALONE,
    ARRIVAL_BEFORE_THE_LAST_READ,
    ARRIVAL_WITHOUT_SYNCWARP,
};

// Double-buffered tiles: one barrier for each of them, since a tile is overwritten two steps later
extern "C" __global__ void __launch_bounds__(256) double_buffer(float* y, const float* x, int steps) {
    __shared__ float tile[2][256];
    int t = threadIdx.x;
    float sum = 0;
    for (int k = 0; k < steps; k++) {
        tile[k & 1][t] = x[(blockIdx.x * steps + k) * 256 + t];
        if (BUG != DOUBLE_BUFFER_WITHOUT_SYNC) __syncthreads();
        sum += (k + 1) * tile[k & 1][(7 * t + 32 * k) & 255];
    }
    y[blockIdx.x * 256 + t] = sum;
}

// One buffer: a barrier before it is read, and one before it is written again
extern "C" __global__ void __launch_bounds__(256) single_buffer(float* y, const float* x, int steps) {
    __shared__ float tile[256];
    int t = threadIdx.x;
    float sum = 0;
    for (int k = 0; k < steps; k++) {
        tile[t] = x[(blockIdx.x * steps + k) * 256 + t];
        __syncthreads();
        sum += (k + 1) * tile[(7 * t + 32 * k) & 255];
        if (BUG != SINGLE_BUFFER_REUSED_EARLY) __syncthreads();
    }
    y[blockIdx.x * 256 + t] = sum;
}

// Three stages, of which the one after next is loaded: with two stages it is the one that others read
extern "C" __global__ void __launch_bounds__(256) prefetch(float* y, const float* x, int steps) {
    constexpr int STAGES = BUG == PREFETCH_INTO_THE_STAGE_IN_USE ? 2 : 3;
    __shared__ float tile[3][256];
    int t = threadIdx.x;
    const float* from = x + blockIdx.x * steps * 256 + t;
    float sum = 0;
    tile[0][t] = from[0];
    tile[1][t] = from[256];
    for (int k = 0; k < steps; k++) {
        __syncthreads();
        float next = k + 2 < steps ? from[(k + 2) * 256] : 0;
        sum += (k + 1) * tile[k % STAGES][(7 * t + 32 * k) & 255];
        if (k + 2 < steps) tile[(k + 2) % STAGES][t] = next;
    }
    y[blockIdx.x * 256 + t] = sum;
}

// A sum by halves: below 64 it is still two warps that take part
extern "C" __global__ void __launch_bounds__(256) tree(float* y, const float* x, int steps) {
    __shared__ float part[256];
    int t = threadIdx.x;
    for (int k = 0; k < steps; k++) {
        part[t] = x[(blockIdx.x * steps + k) * 256 + t];
        __syncthreads();
        for (int half = 128; half > 0; half /= 2) {
            if (t < half) part[t] += part[t + half];
            if (BUG != TREE_WITHOUT_SYNC_BELOW_TWO_WARPS || half > 64) __syncthreads();
        }
        if (t == 0) y[blockIdx.x * steps + k] = part[0];
        __syncthreads();
    }
}

// One thread leaves a total for all
extern "C" __global__ void __launch_bounds__(256) total(float* y, const float* x, int steps) {
    __shared__ float total;
    int t = threadIdx.x;
    for (int k = 0; k < steps; k++) {
        const float* row = x + (blockIdx.x * steps + k) * 256;
        if (t == 0) {
            float sum = 0;
            for (int j = 0; j < 8; j++) sum += row[32 * j];
            total = sum;
        }
        if (BUG != TOTAL_READ_BEFORE_WRITTEN) __syncthreads();
        y[(blockIdx.x * steps + k) * 256 + t] = row[t] + total;
        __syncthreads();
    }
}

// The sum of a block, through shared memory for the warps' sums
__device__ __forceinline__ float block_sum(float value, float* of_warps) {
    for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(~0u, value, step);
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = value;
    __syncthreads();
    float sum = 0;
    for (int warp = 0; warp < 8; warp++) sum += of_warps[warp];
    return sum;
}

// Two sums one after another through the same memory: as of a softmax with its maximum
extern "C" __global__ void __launch_bounds__(256) two_sums(float* y, const float* x, int steps) {
    __shared__ float of_warps[8];
    int t = threadIdx.x;
    for (int k = 0; k < steps; k++) {
        float value = x[(blockIdx.x * steps + k) * 256 + t];
        float first = block_sum(value, of_warps);
        if (BUG != SCRATCH_OF_TWO_REDUCTIONS) __syncthreads();
        float second = block_sum(value * (t % 3), of_warps);
        y[(blockIdx.x * steps + k) * 256 + t] = 4096 * first + second;
        __syncthreads();
    }
}

// Counts of a block, one thread of each warp
extern "C" __global__ void __launch_bounds__(256) histogram(float* y, const float* x, int steps) {
    __shared__ int count[8];
    int t = threadIdx.x;
    if (t < 8) count[t] = 0;
    __syncthreads();
    for (int k = 0; k < steps; k++) {
        int bin = (int)x[(blockIdx.x * steps + k) * 256 + t] % 8;
        if (t % 32 == k % 32) {
            if (BUG == HISTOGRAM_WITHOUT_ATOMICS)
                *(volatile int*)&count[bin] = *(volatile int*)&count[bin] + 1;
            else
                atomicAdd(&count[bin], 1);
        }
    }
    __syncthreads();
    if (t < 8) y[blockIdx.x * 8 + t] = count[t];
}

// Both halves of a warp write, each in a branch of its own, and read what the other one wrote
extern "C" __global__ void __launch_bounds__(32) halves(float* y, const float* x, int steps) {
    __shared__ volatile float data[32];
    int t = threadIdx.x;
    for (int k = 0; k < steps; k++) {
        float value = x[(blockIdx.x * steps + k) * 32 + t];
        if (t < 16)
            data[t] = value + 1;
        else
            data[t] = sqrtf(value * value) + 2;
        if (BUG != HALVES_OF_A_WARP) __syncwarp();
        y[(blockIdx.x * steps + k) * 32 + t] = data[t ^ 16];
        __syncwarp();
    }
}

// Four stages of asynchronous copies by all threads, three of them under way
extern "C" __global__ void __launch_bounds__(128) copies(float* y, const float* x, int steps) {
    __shared__ __align__(16) float tile[4][512];
    constexpr bool EARLY = BUG == COPY_INTO_STAGE_STILL_READ;
    constexpr int OPEN = EARLY || BUG == COPY_WAIT_OFF_BY_ONE ? 3 : 2;
    int t = threadIdx.x;
    const float* from = x + blockIdx.x * steps * 512 + 4 * t;
    for (int k = 0; k < 3; k++) {
        copy_async<16>(&tile[k][4 * t], from + k * 512);
        group_copies();
    }
    float sum = 0;
    for (int k = 0; k < steps; k++) {
        for (int after_barrier = 0; after_barrier < 2; after_barrier++) {
            if (after_barrier == 1) {
                wait_for_copies<OPEN>();
                if (BUG != COPY_WAIT_WITHOUT_SYNC) __syncthreads();
            }
            if (after_barrier == !EARLY) {  // where all read in the step before
                if (k + 3 < steps) copy_async<16>(&tile[(k + 3) % 4][4 * t], from + (k + 3) * 512);
                group_copies();
            }
        }
        for (int j = 0; j < 4; j++) sum += (k + 1) * tile[k % 4][(5 * t + 128 * j + 32 * k) & 511];
        if (BUG == COPY_WAIT_WITHOUT_SYNC) __syncthreads();
    }
    y[blockIdx.x * 128 + t] = sum;
}

// A warp copies tiles into a ring of two stages, four warps read them
extern "C" __global__ void __launch_bounds__(160) ring(float* y, const float* x, int steps) {
    __shared__ __align__(128) float tile[2][1024];
    __shared__ __align__(8) unsigned long long full[2];
    __shared__ __align__(8) unsigned long long empty[2];
    int t = threadIdx.x;
    if (t == 0) {
        for (int stage = 0; stage < 2; stage++) {
            mbarrier_init(address_of(&full[stage]), 1);
            mbarrier_init(address_of(&empty[stage]), 4);
        }
        fence_mbarrier_init();
    }
    __syncthreads();
    const float* from = x + blockIdx.x * steps * 1024;
    if (t >= 128) {
        for (int k = 0; k < steps && t == 128; k++) {
            unsigned phase = k / 2 & 1;
            mbarrier_wait(address_of(&empty[k & 1]), phase ^ 1);
            mbarrier_arrive_expect(address_of(&full[k & 1]), 4096);
            bulk_load(address_of(tile[k & 1]), from + k * 1024, 4096, address_of(&full[k & 1]));
        }
        for (int k = steps - 2; k < steps && t == 128; k++) mbarrier_wait(address_of(&full[k & 1]), k / 2 & 1);
        return;
    }
    float sum = 0;
    for (int k = 0; k < steps; k++) {
        bool late = BUG == PHASE_NOT_FLIPPED && k >= steps - 2;  // at the last use of a stage: nothing can hang
        unsigned phase = (late ? k / 2 - 1 : k / 2) & 1;
        mbarrier_wait(address_of(&full[k & 1]), phase);
        if (BUG == ARRIVAL_BEFORE_THE_LAST_READ && t % 32 == 0) mbarrier_arrive(address_of(&empty[k & 1]));
        for (int j = 0; j < 8; j++) sum += (k + 1) * tile[k & 1][(t + 128 * j + 32 * k) & 1023] * (j + 1);
        if (BUG != ARRIVAL_WITHOUT_SYNCWARP) __syncwarp();
        if (BUG != ARRIVAL_BEFORE_THE_LAST_READ && t % 32 == 0) mbarrier_arrive(address_of(&empty[k & 1]));
    }
    y[blockIdx.x * 128 + t] = sum;
}

// A tile is written, stored in bulk and written again
extern "C" __global__ void __launch_bounds__(128) bulk_out(float* y, const float* x, int steps) {
    __shared__ __align__(128) float tile[1024];
    int t = threadIdx.x;
    for (int k = 0; k < steps; k++) {
        int row = (blockIdx.x * steps + k) * 1024;
        for (int j = 0; j < 8; j++) tile[128 * j + t] = x[row + 128 * j + t] + k;
        fence_async_proxy();
        __syncthreads();
        if (t == 0) {
            bulk_store(y + row, address_of(tile), 4096);
            group_bulk_stores();
            if (BUG != BULK_STORE_STILL_READING) wait_for_bulk_reads<0>();
        }
        __syncthreads();
    }
    if (t == 0) wait_for_bulk_stores<0>();
}

// Four warps write, four others read: a barrier of all 256 threads for each, that those who need not wait arrive at
extern "C" __global__ void __launch_bounds__(256) named(float* y, const float* x, int steps) {
    __shared__ float tile[2][128];
    int t = threadIdx.x % 128;
    bool writes = threadIdx.x < 128;
    for (int k = 0; k < steps; k++) {
        int full = 1 + (k & 1), empty = 3 + (k & 1);
        if (writes) {
            if (k >= 2) named_barrier(empty, 256);
            tile[k & 1][t] = x[(blockIdx.x * steps + k) * 128 + t];
            if (BUG != NAMED_BARRIER_OF_CONSUMERS_ALONE) named_barrier_arrive(full, 256);
        } else {
            named_barrier(full, BUG == NAMED_BARRIER_OF_CONSUMERS_ALONE ? 128 : 256);
            y[(blockIdx.x * steps + k) * 128 + t] = tile[k & 1][127 - t];
            if (k + 2 < steps) named_barrier_arrive(empty, 256);
        }
    }
}
