// Instructions of the hardware that CUDA C++ has no portable name for, and the dtype of the tokens.
//
// Compile-time macro:
//   TOKEN  dtype of the tokens: FP32, FP16 or BF16

#define FP32 0
#define FP16 1
#define BF16 2

// 2^x within 2 ULP; results below 2^-126 are zero
__device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// 1 / x within 1 ULP
__device__ __forceinline__ float reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

#if TOKEN == FP32
typedef float token;
__device__ __forceinline__ float widen(token x) { return x; }
__device__ __forceinline__ token narrow(float x) { return x; }
#elif TOKEN == FP16
typedef unsigned short token;
__device__ __forceinline__ float widen(token x) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
    return y;
}
__device__ __forceinline__ token narrow(float x) {
    token y;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));
    return y;
}
#else
typedef unsigned short token;
__device__ __forceinline__ float widen(token x) { return __uint_as_float((unsigned)x << 16); }
__device__ __forceinline__ token narrow(float x) {
    token y;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y) : "f"(x));
    return y;
}
#endif

// A copy of 16, 8 or 4 bytes from global to shared memory that no register waits for; of 2 bytes, an ordinary one
template <int BYTES>
__device__ __forceinline__ void copy_async(void* to, const void* from) {
    unsigned shared = (unsigned)__cvta_generic_to_shared(to);
    if (BYTES == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(from) : "memory");
    else if (BYTES >= 4)
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(shared), "l"(from), "n"(BYTES) : "memory");
    else
        *(unsigned short*)to = *(const unsigned short*)from;
}

// A thread's copies since the last call form a group
__device__ __forceinline__ void group_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// All of the thread's groups but the youngest have arrived, for this thread to read
template <int YOUNGEST>
__device__ __forceinline__ void wait_for_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(YOUNGEST) : "memory");
}
