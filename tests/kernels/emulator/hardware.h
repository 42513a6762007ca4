// What kernels/hardware.cuh offers, for a CPU.

inline float exp2_fast(float x) {
    float y = exp2f(x);
    return y < 0x1p-126f ? 0.0f : y;
}
inline float reciprocal(float x) { return 1.0f / x; }

#if TOKEN == FP32
typedef float token;
inline float widen(token x) { return x; }
inline token narrow(float x) { return x; }
#elif TOKEN == FP16
typedef unsigned short token;
inline float widen(token x) {
    _Float16 y;
    memcpy(&y, &x, 2);
    return y;
}
inline token narrow(float x) {
    _Float16 y = x;
    token bits;
    memcpy(&bits, &y, 2);
    return bits;
}
#else
typedef unsigned short token;
inline float widen(token x) { return __uint_as_float((unsigned)x << 16); }
inline token narrow(float x) {
    unsigned bits = __float_as_uint(x);
    if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fc0;
    return (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
}
#endif

template <int BYTES>
inline void copy_async(void* to, const void* from) {
    if (BYTES >= 4)
        emulated::start_copy(to, from, BYTES);
    else
        *(unsigned short*)to = *(const unsigned short*)from;
}
inline void group_copies() { emulated::group_copies(); }
template <int YOUNGEST>
inline void wait_for_copies() {
    emulated::finish_copies(YOUNGEST);
}
