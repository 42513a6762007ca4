// Products by a warpgroup, four warps of Hopper (sm_90a): D (64 x N, fp32 in registers) = A (64 x 16) B (16 x N) of
// bf16 or fp16, or D += A B. All 128 threads take part, and warp w of the four has rows 16 w to 16 w + 15 of D and A.
// After hardware.cuh and hopper.cuh.
//
// A product runs from wgmma_commit() to wgmma_wait(): until then its registers may be neither written nor read, and its
// shared memory not written.
//
// A thread, g = lane / 4 and q = lane % 4, has of D: d[4 j + {0, 1}] in row g, d[4 j + {2, 3}] in row g + 8, columns
// 8 j + 2 q + {0, 1}; of A: a[0] row g, a[1] row g + 8, columns 2 q + {0, 1}; a[2] and a[3] the same 8 columns on.
// So the D of 16 columns, packed, is an A.

// A matrix in shared memory, rows of SWIZZLE (32, 64 or 128) bytes whose 16-byte parts are exchanged as the copy engine
// does: part p of row r is at p ^ (r % 8 * SWIZZLE / 128). The first 8 rows begin at a multiple of 8 SWIZZLE bytes.
//   K contiguous: rows are of N (of A: M); `stride` bytes on are the next 8 rows; 16 columns further is an address + 32
//   N contiguous (MN_MAJOR): rows are of K; `stride` bytes on are the next 8 rows of K, `leading` bytes on the next
//   SWIZZLE / 2 columns
typedef unsigned long long descriptor;
template <int SWIZZLE>
__device__ __forceinline__ descriptor describe(shared_address matrix, unsigned leading, unsigned stride) {
    static_assert(SWIZZLE == 32 || SWIZZLE == 64 || SWIZZLE == 128, "32, 64 or 128 bytes");
    return (descriptor)((matrix & 0x3ffff) >> 4) | (descriptor)(leading >> 4) << 16 | (descriptor)(stride >> 4) << 32 |
           (descriptor)(SWIZZLE == 128 ? 1 : SWIZZLE == 64 ? 2 : 3) << 62;
}

// what the thread wrote to registers is there for the products that follow
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

// the products since the last call form a group
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// all groups but the youngest are complete
template <int YOUNGEST>
__device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(YOUNGEST) : "memory");
}

// The compiler moves no access to these registers over this place: before a product that has them and after its wait
template <int N>
__device__ __forceinline__ void hold(float (&r)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(r[i])::"memory");
}
template <int N>
__device__ __forceinline__ void hold(unsigned (&r)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+r"(r[i])::"memory");
}

// The warpgroup's threads have N registers from now on (a multiple of 8, 24 to 240): more, when others gave theirs up;
// fewer. All its warps execute it, in a kernel that bounds its registers at the start.
template <int N>
__device__ __forceinline__ void increase_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N>
__device__ __forceinline__ void decrease_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

#define D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define D8(i) D4(i), D4(i + 4)
#define D16(i) D8(i), D8(i + 8)
#define D32(i) D16(i), D16(i + 16)
#define TO8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define TO16 TO8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define TO32 TO16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define TO48 TO32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define TO64 TO48 ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

// D, as text and as operands, then A and B; the number of the operand that says whether D is added to; transpositions
#define WGMMA(N, TYPE, D, OPERANDS, A_AND_B, KEEP, TRANSPOSED, ...)                                                  \
    asm volatile("{\n.reg .pred keep;\nsetp.ne.b32 keep, " KEEP ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N          \
                 "k16.f32." TYPE " {" D "}, " A_AND_B ", keep, 1, 1, " TRANSPOSED ";\n}"                              \
                 : OPERANDS                                                                                          \
                 : __VA_ARGS__)
#define ARGS(...) __VA_ARGS__
#define WGMMA_RS(N, D, OPERANDS, A_AND_B, KEEP, TRANSPOSED)                                                          \
    if constexpr (TYPE == BF16)                                                                                      \
        WGMMA(N, "bf16.bf16", D, ARGS(OPERANDS), A_AND_B, KEEP, TRANSPOSED, "r"(a[0]), "r"(a[1]), "r"(a[2]),         \
              "r"(a[3]), "l"(b), "r"((int)keep), "n"((int)MN_MAJOR));                                                \
    else                                                                                                             \
        WGMMA(N, "f16.f16", D, ARGS(OPERANDS), A_AND_B, KEEP, TRANSPOSED, "r"(a[0]), "r"(a[1]), "r"(a[2]),           \
              "r"(a[3]), "l"(b), "r"((int)keep), "n"((int)MN_MAJOR))
#define WGMMA_SS(N, D, OPERANDS, A_AND_B, KEEP, TRANSPOSED)                                                          \
    if constexpr (TYPE == BF16)                                                                                      \
        WGMMA(N, "bf16.bf16", D, ARGS(OPERANDS), A_AND_B, KEEP, TRANSPOSED, "l"(a), "l"(b), "r"((int)keep),          \
              "n"((int)A_MN_MAJOR), "n"((int)B_MN_MAJOR));                                                           \
    else                                                                                                             \
        WGMMA(N, "f16.f16", D, ARGS(OPERANDS), A_AND_B, KEEP, TRANSPOSED, "l"(a), "l"(b), "r"((int)keep),            \
              "n"((int)A_MN_MAJOR), "n"((int)B_MN_MAJOR))

// D of N columns, d[N / 2], = or if `keep` += A, a[4], times B, both of TYPE BF16 or FP16; MN_MAJOR: B has N contiguous
template <int N, int TYPE, bool MN_MAJOR>
__device__ __forceinline__ void wgmma(float* d, const unsigned* a, descriptor b, bool keep) {
    static_assert(N == 16 || N == 32 || N == 64 || N == 96 || N == 128, "16, 32, 64, 96 or 128 columns");
    if constexpr (N == 16)
        WGMMA_RS(16, TO8, ARGS(D8(0)), "{%8, %9, %10, %11}, %12", "%13", "%14");
    else if constexpr (N == 32)
        WGMMA_RS(32, TO16, ARGS(D16(0)), "{%16, %17, %18, %19}, %20", "%21", "%22");
    else if constexpr (N == 64)
        WGMMA_RS(64, TO32, ARGS(D32(0)), "{%32, %33, %34, %35}, %36", "%37", "%38");
    else if constexpr (N == 96)
        WGMMA_RS(96, TO48, ARGS(D32(0), D16(32)), "{%48, %49, %50, %51}, %52", "%53", "%54");
    else if constexpr (N == 128)
        WGMMA_RS(128, TO64, ARGS(D32(0), D32(32)), "{%64, %65, %66, %67}, %68", "%69", "%70");
}

// the same with A in shared memory; A_MN_MAJOR: A has M contiguous
template <int N, int TYPE, bool A_MN_MAJOR, bool B_MN_MAJOR>
__device__ __forceinline__ void wgmma(float* d, descriptor a, descriptor b, bool keep) {
    static_assert(N == 16 || N == 32 || N == 64 || N == 96 || N == 128, "16, 32, 64, 96 or 128 columns");
    if constexpr (N == 16)
        WGMMA_SS(16, TO8, ARGS(D8(0)), "%8, %9", "%10", "%11, %12");
    else if constexpr (N == 32)
        WGMMA_SS(32, TO16, ARGS(D16(0)), "%16, %17", "%18", "%19, %20");
    else if constexpr (N == 64)
        WGMMA_SS(64, TO32, ARGS(D32(0)), "%32, %33", "%34", "%35, %36");
    else if constexpr (N == 96)
        WGMMA_SS(96, TO48, ARGS(D32(0), D16(32)), "%48, %49", "%50", "%51, %52");
    else if constexpr (N == 128)
        WGMMA_SS(128, TO64, ARGS(D32(0), D32(32)), "%64, %65", "%66", "%67, %68");
}

#undef D4
#undef D8
#undef D16
#undef D32
#undef TO8
#undef TO16
#undef TO32
#undef TO48
#undef TO64
#undef ARGS
#undef WGMMA
#undef WGMMA_RS
#undef WGMMA_SS
