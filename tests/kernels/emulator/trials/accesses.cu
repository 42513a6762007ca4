// Rows of numbers, reversed through shared memory; and what one may get wrong in it.
#include "hardware.cuh"

enum {  // as in test_accesses.py
    NONE,
    READ_PAST_THE_END,
    WRITTEN_BEFORE_THE_START,
    UNALIGNED,
    NO_BARRIER_AFTER_WRITES,
    NO_BARRIER_AFTER_READS,
    BARRIER_OF_A_WARP,
    NO_BARRIER_OF_A_WARP,
    NO_WAIT_FOR_COPIES,
    SHARED_PAST_THE_END,
    BARRIER_IN_A_BRANCH,
};

extern "C" __global__ void __launch_bounds__(64) reverse(const float* from, float* to, int rows, int misuse) {
    __shared__ float row[64];
    extern __shared__ float copied[];
    const int i = threadIdx.x, last = rows - 1;
    for (int r = 0; r < rows; r++) {
        const float* own = from + r * 64;
        row[i] = own[misuse == READ_PAST_THE_END && r == last ? i + 1 : i];
        const float4 four = *(const float4*)(own + (misuse == UNALIGNED ? i % 4 : i / 4 * 4));
        if (i % 4 == 0) row[i] = four.x;
        copy_async<4>(copied + i, own + i);
        group_copies();
        if (misuse != NO_WAIT_FOR_COPIES) wait_for_copies<0>();
        if (misuse == BARRIER_OF_A_WARP)
            __syncwarp();
        else if (misuse != NO_BARRIER_AFTER_WRITES && (misuse != BARRIER_IN_A_BRANCH || i < 32))
            __syncthreads();
        const float x = misuse == SHARED_PAST_THE_END ? copied[63 + i] : copied[63 - i];
        to[r * 64 + (misuse == WRITTEN_BEFORE_THE_START ? i - 1 : i)] = (row[63 - i] + x) / 2;
        if (misuse != NO_BARRIER_AFTER_READS) __syncthreads();
        if (misuse == NO_BARRIER_OF_A_WARP) {
            row[i] = x;
            to[r * 64 + i] = row[i ^ 1];
            __syncthreads();
        }
    }
}
