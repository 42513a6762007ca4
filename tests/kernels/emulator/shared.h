// Loads and stores of shared memory, and matrices of 8 x 8 by a warp: those of kernels/hopper.cuh for a CPU.

template <class T>
static T load_shared(shared_address from) {
    check_place(from, sizeof(T), sizeof(T));
    track_read(from, sizeof(T));
    return *(T*)pointer_to(from);
}
template <class T>
static void store_shared(shared_address to, T value) {
    check_place(to, sizeof(T), sizeof(T));
    track_write(to, sizeof(T));
    *(T*)pointer_to(to) = value;
}
static void copy_async_or_zero(shared_address to, const void* from, bool wanted) {
    static const uint4 zeros = {};
    check_place(to, 16, 16);
    begin_filling(to, 16);
    copies().push_back({pointer_to(to), wanted ? from : &zeros, 16});
}

static float log2_fast(float x) { return log2f(fabsf(x) < 0x1p-126f ? 0.0f : x); }

template <int TYPE>
static unsigned round_to(float x) {
    unsigned bits = __float_as_uint(x);
    if (TYPE == FP16) {
        _Float16 y = x;
        unsigned short half;
        memcpy(&half, &y, 2);
        return half;
    }
    return (bits & 0x7fffffff) > 0x7f800000 ? 0x7fff : bits + 0x7fff + (bits >> 16 & 1) >> 16;
}
template <int TYPE>
static unsigned pack(float low, float high) {
    return round_to<TYPE>(low) | round_to<TYPE>(high) << 16;
}
template <int TYPE>
static float half_of(unsigned pair, int high) {
    unsigned short bits = pair >> 16 * high;
    _Float16 y;
    memcpy(&y, &bits, 2);
    return TYPE == FP16 ? (float)y : __uint_as_float((unsigned)bits << 16);
}

// element `i` of row `row` of matrix `matrix`, whose rows the lanes named
static shared_address element(const shared_address* rows, int matrix, int row, int i) {
    shared_address at = rows[8 * matrix + row];
    check_place(at, 16, 16);
    return at + 2 * i;
}
template <bool TRANSPOSED, int COUNT>
static void load_matrices(unsigned* to, shared_address row) {
    int g = current % 32 / 4, q = current % 4;
    const shared_address* rows = exchange(row);
    for (int i = 0; i < COUNT; i++)
        for (int k = 0; k < 2; k++) {
            shared_address at = TRANSPOSED ? element(rows, i, 2 * q + k, g) : element(rows, i, g, 2 * q + k);
            track_read(at, 2);
            memcpy((char*)(to + i) + 2 * k, pointer_to(at), 2);
        }
}
template <bool TRANSPOSED>
static void load_matrices_x4(unsigned* to, shared_address row) {
    load_matrices<TRANSPOSED, 4>(to, row);
}
template <bool TRANSPOSED>
static void load_matrices_x2(unsigned* to, shared_address row) {
    load_matrices<TRANSPOSED, 2>(to, row);
}
template <bool TRANSPOSED>
static void store_matrices_x4(shared_address row, unsigned a, unsigned b, unsigned c, unsigned d) {
    int g = current % 32 / 4, q = current % 4;
    const shared_address* rows = exchange(row);
    unsigned from[4] = {a, b, c, d};
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 2; k++) {
            shared_address at = TRANSPOSED ? element(rows, i, 2 * q + k, g) : element(rows, i, g, 2 * q + k);
            track_write(at, 2);
            memcpy(pointer_to(at), (char*)(from + i) + 2 * k, 2);
        }
}

struct Fragments {
    unsigned a[4], b[2];
};
template <int TYPE>
static void multiply_16x8x16(float* d, const unsigned* a, unsigned b0, unsigned b1) {
    int g = current % 32 / 4, q = current % 4;
    const Fragments* lanes = exchange(Fragments{{a[0], a[1], a[2], a[3]}, {b0, b1}});
    for (int i = 0; i < 4; i++) {
        double sum = 0;  // of row g + 8 (i / 2), column 2 q + i % 2
        for (int k = 0; k < 16; k++) {
            unsigned x = lanes[4 * g + k % 8 / 2].a[i / 2 + 2 * (k / 8)];
            unsigned y = lanes[4 * (2 * q + i % 2) + k % 8 / 2].b[k / 8];
            sum += (double)half_of<TYPE>(x, k % 2) * half_of<TYPE>(y, k % 2);
        }
        d[i] = (float)(d[i] + sum);
    }
}
