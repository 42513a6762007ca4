// What kernels/hopper.cuh offers, for a CPU.

typedef emulated::shared_address shared_address;
using emulated::address_of, emulated::copy_async_or_zero, emulated::named_barrier, emulated::named_barrier_arrive;
using emulated::mbarrier_arrive, emulated::mbarrier_arrive_expect, emulated::mbarrier_init, emulated::mbarrier_wait;
using emulated::bulk_load, emulated::bulk_store, emulated::tensor_load, emulated::tensor_map, emulated::tensor_store;
using emulated::fence_async_proxy, emulated::fence_mbarrier_init, emulated::group_bulk_stores;

template <class T>
T load_shared(shared_address from) {
    T value;
    emulated::read_shared(&value, from, sizeof(T));
    return value;
}
template <class T>
void store_shared(shared_address to, T value) {
    emulated::write_shared(to, &value, sizeof(T));
}

inline float log2_fast(float x) { return log2f(fabsf(x) < 0x1p-126f ? 0.0f : x); }
inline unsigned max_of_halves(unsigned a, unsigned b) {
    return max(a >> 16, b >> 16) << 16 | max(a & 0xffffu, b & 0xffffu);
}
template <int TYPE>
unsigned pack(float low, float high) {
    return emulated::pack(TYPE, low, high);
}

template <int YOUNGEST>
void wait_for_bulk_reads() {
    emulated::finish_bulk_stores(YOUNGEST);
}
template <int YOUNGEST>
void wait_for_bulk_stores() {
    emulated::finish_bulk_stores(YOUNGEST);
}

template <bool TRANSPOSED>
void load_matrices_x4(unsigned* to, shared_address row) {
    emulated::load_matrices(to, 4, TRANSPOSED, row);
}
template <bool TRANSPOSED>
void load_matrices_x2(unsigned* to, shared_address row) {
    emulated::load_matrices(to, 2, TRANSPOSED, row);
}
template <bool TRANSPOSED>
void store_matrices_x4(shared_address row, unsigned a, unsigned b, unsigned c, unsigned d) {
    const unsigned from[4] = {a, b, c, d};
    emulated::store_matrices(row, TRANSPOSED, from);
}
template <int TYPE>
void multiply_16x8x16(float* d, const unsigned* a, unsigned b0, unsigned b1) {
    emulated::multiply_16x8x16(TYPE, d, a, b0, b1);
}
