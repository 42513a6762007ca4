// Small kernels that wait by spinning: warps of a block, or blocks, which share global memory. Correct unless BUG names
// an omission. `words` are zero at first.

#include "hardware.cuh"

enum Bug {
    NONE,
    FLAG_IN_SHARED_BEFORE_DATA,
    NO_FENCE_BEFORE_THE_COUNT,
    NO_SYNC_BEFORE_THE_COUNT,
    FLAG_BEFORE_VALUE,
    UNLOCKED_BEFORE_ALL_ADDED,
    ONE_PART_TOO_FEW,
    SUM_WITHOUT_ATOMICS,
    ZEROED_BY_THE_FIRST_BLOCK,
    HALO_OF_A_NEIGHBOUR_IN_PLACE,
    NO_FENCE_AFTER_THE_FLAG,
};

// A warp writes, then raises a flag for another one that spins
extern "C" __global__ void __launch_bounds__(64) flag(float* y, const float* x, int steps) {
    __shared__ volatile float data[32];
    __shared__ volatile int ready;
    __shared__ volatile int taken;
    int t = threadIdx.x % 32;
    bool writes = threadIdx.x < 32;
    if (threadIdx.x == 0) ready = taken = 0;
    __syncthreads();
    for (int k = 0; k < steps; k++) {
        if (writes) {
            while (taken < k) {}
            __syncwarp();
            float value = x[(blockIdx.x * steps + k) * 32 + t];
            if (BUG == FLAG_IN_SHARED_BEFORE_DATA && t == 0) ready = k + 1;
            data[t] = value;
            __threadfence_block();
            __syncwarp();
            if (t == 0) ready = k + 1;
        } else {
            while (ready < k + 1) {}
            __threadfence_block();
            __syncwarp();
            y[(blockIdx.x * steps + k) * 32 + t] = data[31 - t];
            __syncwarp();
            if (t == 0) taken = k + 1;
        }
    }
}

// Each block leaves 256 parts; the last one to count itself adds them all
extern "C" __global__ void __launch_bounds__(256) last_block(float* y, const float* x, float* parts, int* words) {
    __shared__ int position;
    int t = threadIdx.x, blocks = gridDim.x;
    parts[blockIdx.x * 256 + t] = 2 * x[blockIdx.x * 256 + t];
    if (BUG != NO_FENCE_BEFORE_THE_COUNT) __threadfence();
    if (BUG != NO_SYNC_BEFORE_THE_COUNT) __syncthreads();
    if (t == 0) position = atomicAdd(words, 1);
    __syncthreads();
    if (position < blocks - 1) return;
    __threadfence();
    float sum = 0;
    for (int block = 0; block < blocks; block++) sum += parts[block * 256 + t] * (block % 4 + 1);
    y[t] = sum;
}

// A running sum from block to block: each waits for the flag of the one before
extern "C" __global__ void __launch_bounds__(256) chain(float* y, const float* x, float* parts, int* words) {
    int t = threadIdx.x, block = blockIdx.x;
    float before = 0;
    if (block > 0) {
        const float* from = parts + (block - 1) * 256 + t;
        asm volatile("prefetch.global.L1 [%0];" ::"l"(from));
        if (t == 0)
            while (atomicAdd(words + block - 1, 0) == 0) {}
        __syncthreads();
        if (BUG != NO_FENCE_AFTER_THE_FLAG) __threadfence();
        asm volatile("ld.global.ca.f32 %0, [%1];" : "=f"(before) : "l"(from) : "memory");
    }
    float sum = before + x[block * 256 + t];
    if (BUG == FLAG_BEFORE_VALUE && t == 0) atomicExch(words + block, 1);
    __stcg(parts + block * 256 + t, sum);
    __threadfence();
    __syncthreads();
    if (BUG != FLAG_BEFORE_VALUE && t == 0) atomicExch(words + block, 1);
    y[block * 256 + t] = sum;
}

// Blocks add to one row of sums, one block at a time
extern "C" __global__ void __launch_bounds__(256) lock(float* y, const float* x, float* parts, int* words) {
    int t = threadIdx.x;
    float value = x[blockIdx.x * 256 + t];
    if (t == 0)
        while (atomicCAS(words, 0, 1) != 0) {}
    __syncthreads();
    __threadfence();
    __stcg(parts + t, __ldcg(parts + t) + value);
    __threadfence();
    if (BUG != UNLOCKED_BEFORE_ALL_ADDED) __syncthreads();
    if (t == 0) atomicExch(words, 0);
    y[blockIdx.x * 256 + t] = value;
}

// The first block waits for the parts of the others
extern "C" __global__ void __launch_bounds__(256) split(float* y, const float* x, float* parts, int* words) {
    int t = threadIdx.x, blocks = gridDim.x;
    if (blockIdx.x > 0) {
        __stcg(parts + blockIdx.x * 256 + t, x[blockIdx.x * 256 + t]);
        __threadfence();
        __syncthreads();
        if (t == 0) atomicAdd(words, 1);
        return;
    }
    if (t == 0)
        while (atomicAdd(words, 0) < blocks - 1 - (BUG == ONE_PART_TOO_FEW)) {}
    __syncthreads();
    __threadfence();
    float sum = x[t];
    for (int block = 1; block < blocks; block++) sum += __ldcg(parts + block * 256 + t);
    y[t] = sum;
}

// Two blocks in a row add to the same column
extern "C" __global__ void __launch_bounds__(256) columns(float* y, const float* x, float* parts, int* words) {
    int t = threadIdx.x;
    float* to = y + blockIdx.x / 2 * 256 + t;
    float value = x[blockIdx.x * 256 + t];
    if (BUG == SUM_WITHOUT_ATOMICS)
        __stcg(to, __ldcg(to) + value);
    else
        atomicAdd(to, value);
}

// Sums from zero: the host has zeroed them, and no block need
extern "C" __global__ void __launch_bounds__(256) zeroed(float* y, const float* x, float* parts, int* words) {
    int t = threadIdx.x;
    if (BUG == ZEROED_BY_THE_FIRST_BLOCK && blockIdx.x == 0) __stcg(y + t, 0.f);
    atomicAdd(y + t, x[blockIdx.x * 256 + t]);
}

// Each token plus the one before: in place, a block's first one reads what its neighbour may have overwritten
extern "C" __global__ void __launch_bounds__(256) halo(float* y, const float* x, float* parts, int* words) {
    int i = blockIdx.x * 256 + threadIdx.x;
    const float* from = BUG == HALO_OF_A_NEIGHBOUR_IN_PLACE ? y : x;
    float value = x[i] + (i > 0 ? 64 * __ldcg(from + i - 1) : 0);
    __syncthreads();
    __stcg(y + i, value);
}
