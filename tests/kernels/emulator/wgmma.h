// What kernels/wgmma.cuh offers, for a CPU.

typedef emulated::descriptor descriptor;
using emulated::wgmma_commit, emulated::wgmma_fence;

template <int SWIZZLE>
descriptor describe(shared_address matrix, unsigned leading, unsigned stride) {
    static_assert(SWIZZLE == 32 || SWIZZLE == 64 || SWIZZLE == 128, "32, 64 or 128 bytes");
    return (descriptor)((matrix & 0x3ffff) >> 4) | (descriptor)(leading >> 4) << 16 | (descriptor)(stride >> 4) << 32 |
           (descriptor)(SWIZZLE == 128 ? 1 : SWIZZLE == 64 ? 2 : 3) << 62;
}

template <int YOUNGEST>
void wgmma_wait() {
    emulated::finish_products(YOUNGEST);
}
template <class T, int N>
void hold(T (&)[N]) {}

template <int N, int TYPE, bool MN_MAJOR>
void wgmma(float* d, const unsigned* a, descriptor b, bool keep) {
    emulated::issue_product(TYPE, d, a, {0, 64, false}, {b, N, MN_MAJOR}, keep);
}
template <int N, int TYPE, bool A_MN_MAJOR, bool B_MN_MAJOR>
void wgmma(float* d, descriptor a, descriptor b, bool keep) {
    emulated::issue_product(TYPE, d, nullptr, {a, 64, A_MN_MAJOR}, {b, N, B_MN_MAJOR}, keep);
}

template <int N>
void increase_registers() {
    static_assert(N % 8 == 0 && N >= 24 && N <= 256, "a multiple of 8, 24 to 256");
    emulated::set_registers(N);
}
template <int N>
void decrease_registers() {
    increase_registers<N>();
}
