// CUDA C++ as a CPU compiler reads it. It is compiled so that each access to memory is a call of the core, which says
// whether a GPU allows it.
#include <cmath>
#include <cstring>

#include "core.h"

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(bytes) __attribute__((aligned(bytes)))

struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(16) int4 {
    int x, y, z, w;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
static inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
static inline float __uint_as_float(unsigned x) {
    float y;
    memcpy(&y, &x, 4);
    return y;
}
static inline unsigned __float_as_uint(float x) {
    unsigned y;
    memcpy(&y, &x, 4);
    return y;
}
static inline int __float_as_int(float x) { return (int)__float_as_uint(x); }
static inline float __int_as_float(int x) { return __uint_as_float((unsigned)x); }
#define __expf expf
static inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
    unsigned long long bytes = (unsigned long long)y << 32 | x;
    unsigned z = 0;
    for (int i = 0; i < 4; i++) z |= (unsigned)(bytes >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
    return z;
}
static inline unsigned __vmaxu2(unsigned x, unsigned y) {
    unsigned low = (x & 0xffff) > (y & 0xffff) ? x & 0xffff : y & 0xffff;
    return low | (x >> 16 > y >> 16 ? x >> 16 : y >> 16) << 16;
}
template <class T>
static inline T atomicAdd(T* at, T x) {
    T was = *at;
    *at += x;
    return was;
}
template <class T>
static inline T atomicMax(T* at, T x) {
    T was = *at;
    if (x > was) *at = x;
    return was;
}

static inline int min(int x, int y) { return x < y ? x : y; }
static inline int max(int x, int y) { return x > y ? x : y; }
static inline unsigned min(unsigned x, unsigned y) { return x < y ? x : y; }
static inline unsigned max(unsigned x, unsigned y) { return x > y ? x : y; }

using emulated::blockIdx, emulated::gridDim, emulated::threadIdx;

inline void __syncthreads() { emulated::synchronize_block(); }
inline void __syncwarp() { emulated::synchronize_warp(); }

// what each lane of the warp gives
template <class T>
static T* exchange(T x) {
    return (T*)emulated::exchange(&x, sizeof(T));
}
template <class T>
static T __shfl_sync(unsigned, T x, int lane, int width = 32) {
    return exchange(x)[threadIdx.x % 32 / width * width + lane % width];
}
template <class T>
static T __shfl_xor_sync(unsigned, T x, int lanes) {
    return exchange(x)[threadIdx.x % 32 ^ lanes];
}
template <class T>
static T __shfl_up_sync(unsigned, T x, int lanes) {
    return exchange(x)[threadIdx.x % 32 >= lanes ? threadIdx.x % 32 - lanes : threadIdx.x % 32];
}
static unsigned __reduce_max_sync(unsigned, unsigned x) {
    unsigned* lanes = exchange(x);
    for (int i = 0; i < 32; i++) x = max(x, lanes[i]);
    return x;
}
