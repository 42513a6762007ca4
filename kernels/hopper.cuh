// Instructions of Hopper (sm_90) on tiles in shared memory: barriers that count bytes, copies by the copy engine; and
// the older ones of a warp on 8 x 8 matrices of 16 bits. After hardware.cuh, whose FP16 and BF16 name types.
//
// Shared memory is addressed by 32 bits. What an ordinary store wrote there is seen by the copy engine and by products
// of a warpgroup (wgmma.cuh) after fence_async_proxy() in the thread that wrote it, then a barrier.

typedef unsigned shared_address;

// of shared memory that the kernel declared
__device__ __forceinline__ shared_address address_of(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }

// 4, 8 or 16 bytes from shared memory, aligned to their size
template <class T>
__device__ __forceinline__ T load_shared(shared_address from) {
    union {
        T value;
        unsigned word[sizeof(T) / 4];
    } x;
    static_assert(sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16, "4, 8 or 16 bytes");
    if constexpr (sizeof(T) == 4)
        asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x.word[0]) : "r"(from) : "memory");
    else if constexpr (sizeof(T) == 8)
        asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(x.word[0]), "=r"(x.word[1]) : "r"(from) : "memory");
    else
        asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(x.word[0]), "=r"(x.word[1]), "=r"(x.word[2]), "=r"(x.word[3])
                     : "r"(from)
                     : "memory");
    return x.value;
}

// 4, 8 or 16 bytes to shared memory, aligned to their size
template <class T>
__device__ __forceinline__ void store_shared(shared_address to, T value) {
    union {
        T value;
        unsigned word[sizeof(T) / 4];
    } x;
    static_assert(sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16, "4, 8 or 16 bytes");
    x.value = value;
    if constexpr (sizeof(T) == 4)
        asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(x.word[0]) : "memory");
    else if constexpr (sizeof(T) == 8)
        asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(to), "r"(x.word[0]), "r"(x.word[1]) : "memory");
    else
        asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(x.word[0]), "r"(x.word[1]),
                     "r"(x.word[2]), "r"(x.word[3])
                     : "memory");
}

// 16 bytes from global to shared memory, or 16 bytes of zeros; no register waits (group_copies and wait_for_copies do)
__device__ __forceinline__ void copy_async_or_zero(shared_address to, const void* from, bool wanted) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(wanted ? 16 : 0) : "memory");
}

// ------------------------------------------------------------------------------------------------------ arithmetic

// log2(x) within 2^-22, absolute between 0.5 and 2 and relative elsewhere; of a subnormal number -inf
__device__ __forceinline__ float log2_fast(float x) {
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// of both halves, as integers
__device__ __forceinline__ unsigned max_of_halves(unsigned a, unsigned b) {
    unsigned y;
    asm("max.u16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
    return y;
}

// two numbers rounded to TYPE (BF16 or FP16), the first in the low half
template <int TYPE>
__device__ __forceinline__ unsigned pack(float low, float high) {
    unsigned y;
    if constexpr (TYPE == BF16)
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    else
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    return y;
}

// -------------------------------------------------------------------------------------------------------- barriers

// of `threads` threads, whole warps, that name the same barrier, 1 to 15; __syncthreads() is 0
__device__ __forceinline__ void named_barrier(int name, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(name), "r"(threads) : "memory");
}

// counts for that barrier and goes on; `threads` as of those that wait
__device__ __forceinline__ void named_barrier_arrive(int name, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(name), "r"(threads) : "memory");
}

// 8 bytes of shared memory: a phase ends once `arrivals` threads arrived and the bytes that it expects were copied.
// By one thread; fence_mbarrier_init(), then a barrier, before the others use it.
__device__ __forceinline__ void mbarrier_init(shared_address barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void fence_mbarrier_init() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// what the thread did so far is seen by those who wait for this phase
__device__ __forceinline__ void mbarrier_arrive(shared_address barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// the same, and copies of `bytes` bytes belong to this phase
__device__ __forceinline__ void mbarrier_arrive_expect(shared_address barrier, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// waits for the end of the phase of this parity: 0 for the first, 1 for the second; 1 at the start returns at once
__device__ __forceinline__ void mbarrier_wait(shared_address barrier, unsigned parity) {
    asm volatile(
        "{\n.reg .pred done;\n"
        "again:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra again;\n}" ::"r"(barrier),
        "r"(parity)
        : "memory");
}

// ---------------------------------------------------------------------------------------------- copies in bulk (TMA)

// A tensor in global memory in boxes: a parameter `const __grid_constant__ tensor_map`, made by cuda.tensor_map
struct alignas(64) tensor_map {
    unsigned long long opaque[16];
};

// what this thread stored in shared memory is there for copies and products of a warpgroup after the next barrier
__device__ __forceinline__ void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// global to shared memory; `bytes` and both addresses are multiples of 16. Complete when `barrier` counted the bytes
__device__ __forceinline__ void bulk_load(shared_address to, const void* from, unsigned bytes, shared_address barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from),
        "r"(bytes), "r"(barrier)
        : "memory");
}

// A box of a tensor, the first coordinate along its last axis; counts the whole box, zeros outside of the tensor.
// `to` is aligned to 128 bytes, to 8 rows (256, 512 or 1,024) if swizzled
__device__ __forceinline__ void tensor_load(shared_address to, const tensor_map& map, shared_address barrier, int c0,
                                            int c1) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], "
        "[%4];" ::"r"(to),
        "l"(&map), "r"(c0), "r"(c1), "r"(barrier)
        : "memory");
}
__device__ __forceinline__ void tensor_load(shared_address to, const tensor_map& map, shared_address barrier, int c0,
                                            int c1, int c2) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], "
        "[%5];" ::"r"(to),
        "l"(&map), "r"(c0), "r"(c1), "r"(c2), "r"(barrier)
        : "memory");
}

// shared to global memory, in the thread's open group
__device__ __forceinline__ void bulk_store(void* to, shared_address from, unsigned bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from), "r"(bytes)
                 : "memory");
}

// a box to a tensor, in the thread's open group; what lies outside of the tensor is not written
__device__ __forceinline__ void tensor_store(const tensor_map& map, shared_address from, int c0, int c1) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&map),
                 "r"(c0), "r"(c1), "r"(from)
                 : "memory");
}
__device__ __forceinline__ void tensor_store(const tensor_map& map, shared_address from, int c0, int c1, int c2) {
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(&map),
                 "r"(c0), "r"(c1), "r"(c2), "r"(from)
                 : "memory");
}

// the thread's stores since the last call form a group
__device__ __forceinline__ void group_bulk_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// all of the thread's groups but the youngest were read: their shared memory may be written again
template <int YOUNGEST>
__device__ __forceinline__ void wait_for_bulk_reads() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(YOUNGEST) : "memory");
}

// ... and are in global memory
template <int YOUNGEST>
__device__ __forceinline__ void wait_for_bulk_stores() {
    asm volatile("cp.async.bulk.wait_group %0;" ::"n"(YOUNGEST) : "memory");
}

// ------------------------------------------------------------------------------------- matrices of 8 x 8, by a warp

// Of matrix i, lane 8 i + r names row r, 16 bytes. Register i has elements 2 (lane % 4) + {0, 1} of row lane / 4; if
// TRANSPOSED, of that column
template <bool TRANSPOSED>
__device__ __forceinline__ void load_matrices_x4(unsigned* to, shared_address row) {
    if constexpr (TRANSPOSED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                     : "r"(row)
                     : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                     : "r"(row)
                     : "memory");
}
template <bool TRANSPOSED>
__device__ __forceinline__ void load_matrices_x2(unsigned* to, shared_address row) {
    if constexpr (TRANSPOSED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                     : "=r"(to[0]), "=r"(to[1])
                     : "r"(row)
                     : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                     : "=r"(to[0]), "=r"(to[1])
                     : "r"(row)
                     : "memory");
}

// the same from registers to shared memory
template <bool TRANSPOSED>
__device__ __forceinline__ void store_matrices_x4(shared_address row, unsigned a, unsigned b, unsigned c, unsigned d) {
    if constexpr (TRANSPOSED)
        asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(a),
                     "r"(b), "r"(c), "r"(d)
                     : "memory");
    else
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(a), "r"(b),
                     "r"(c), "r"(d)
                     : "memory");
}

// d (16 x 8) += a (16 x 16, four 8 x 8: top left, bottom left, top right, bottom right) b (16 x 8, as [n, k]); d has
// elements 2 (lane % 4) + {0, 1} of rows lane / 4 and lane / 4 + 8
template <int TYPE>
__device__ __forceinline__ void multiply_16x8x16(float* d, const unsigned* a, unsigned b0, unsigned b1) {
    if constexpr (TYPE == BF16)
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    else
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
