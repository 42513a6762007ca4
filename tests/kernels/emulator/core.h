// What a kernel compiled for the CPU calls: the hardware, as core.cpp has it.
#pragma once

#define FP32 0
#define FP16 1
#define BF16 2

namespace emulated {

struct Index {
    int x;
};
extern Index threadIdx, blockIdx, gridDim;

// Runs a kernel, block after block, and says which violation ended it, if one did. ranges: where each of `count` tensors
// begins and ends.
const char* run(void (*kernel)(), int programs, int threads, int shared, const long long* ranges, int count);

void* dynamic_shared();
void* static_shared(const void* key, int bytes, int alignment);  // the same for each thread that has this key
template <class T>
T& shared_variable(const void* key) {
    return *(T*)static_shared(key, sizeof(T), alignof(T));
}

void synchronize_block();
void synchronize_warp();
void* exchange(const void* value, int bytes);  // what all lanes of the warp gave, 64 bytes at most

float half_of(int type, unsigned pair, int high);
unsigned pack(int type, float low, float high);

// hardware.cuh: copies of a thread, in groups
void start_copy(void* to, const void* from, int bytes);
void group_copies();
void finish_copies(int youngest);

// hopper.cuh
typedef unsigned shared_address;
shared_address address_of(const void* p);
void read_shared(void* to, shared_address from, int bytes);
void write_shared(shared_address to, const void* from, int bytes);
void copy_async_or_zero(shared_address to, const void* from, bool wanted);
void load_matrices(unsigned* to, int count, bool transposed, shared_address row);
void store_matrices(shared_address row, bool transposed, const unsigned* from);
void multiply_16x8x16(int type, float* d, const unsigned* a, unsigned b0, unsigned b1);
void named_barrier(int name, int threads);
void named_barrier_arrive(int name, int threads);
void mbarrier_init(shared_address barrier, int arrivals);
void fence_mbarrier_init();
void mbarrier_arrive(shared_address barrier);
void mbarrier_arrive_expect(shared_address barrier, unsigned bytes);
void mbarrier_wait(shared_address barrier, unsigned parity);
void fence_async_proxy();
struct tensor_map {  // the first axis is the one whose elements are next to each other
    char* base;
    int element, rank, swizzle;  // bytes of an element and of a row in shared memory that is swizzled, or 0
    int box[3];
    long long shape[3], strides[3];  // elements, bytes
};
void bulk_load(shared_address to, const void* from, unsigned bytes, shared_address barrier);
void tensor_load(shared_address to, const tensor_map& map, shared_address barrier, int c0, int c1);
void tensor_load(shared_address to, const tensor_map& map, shared_address barrier, int c0, int c1, int c2);
void bulk_store(void* to, shared_address from, unsigned bytes);
void tensor_store(const tensor_map& map, shared_address from, int c0, int c1);
void tensor_store(const tensor_map& map, shared_address from, int c0, int c1, int c2);
void group_bulk_stores();
void finish_bulk_stores(int youngest);

// wgmma.cuh
typedef unsigned long long descriptor;
struct Matrix {  // in shared memory, of `count` rows of A or columns of B
    descriptor described;
    int count;
    bool mn_major;
};
void wgmma_fence();
void issue_product(int type, float* d, const unsigned* fragments, Matrix a, Matrix b, bool keep);
void wgmma_commit();
void finish_products(int youngest);
void set_registers(int count);

}  // namespace emulated
