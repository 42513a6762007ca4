// Numbers of 16 bits, and matrices of 8 x 8 of them by a warp.

static unsigned round_to(int type, float x) {
    unsigned bits;
    memcpy(&bits, &x, 4);
    if (type == FP16) {
        _Float16 y = x;
        unsigned short half;
        memcpy(&half, &y, 2);
        return half;
    }
    return (bits & 0x7fffffff) > 0x7f800000 ? 0x7fff : bits + 0x7fff + (bits >> 16 & 1) >> 16;
}
unsigned pack(int type, float low, float high) { return round_to(type, low) | round_to(type, high) << 16; }
float half_of(int type, unsigned pair, int high) {
    unsigned short half = pair >> 16 * high;
    unsigned bits = (unsigned)half << 16;
    _Float16 fp16;
    float bf16;
    memcpy(&fp16, &half, 2);
    memcpy(&bf16, &bits, 4);
    return type == FP16 ? (float)fp16 : bf16;
}

// element `k` of a lane's pair of matrix `matrix`, whose rows the lanes named
static shared_address element(const shared_address* rows, int matrix, bool transposed, int k) {
    int g = current % 32 / 4, i = 2 * (current % 4) + k;
    shared_address row = rows[8 * matrix + (transposed ? i : g)];
    check_place(row, 16, 16);
    return row + 2 * (transposed ? g : i);
}
void load_matrices(unsigned* to, int count, bool transposed, shared_address row) {
    const shared_address* rows = (shared_address*)exchange(&row, 4);
    for (int i = 0; i < count; i++)
        for (int k = 0; k < 2; k++) {
            shared_address at = element(rows, i, transposed, k);
            track_read(at, 2);
            memcpy((char*)(to + i) + 2 * k, pointer_to(at), 2);
        }
}
void store_matrices(shared_address row, bool transposed, const unsigned* from) {
    const shared_address* rows = (shared_address*)exchange(&row, 4);
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 2; k++) {
            shared_address at = element(rows, i, transposed, k);
            track_write(at, 2);
            memcpy(pointer_to(at), (char*)(from + i) + 2 * k, 2);
        }
}

struct Fragments {
    unsigned a[4], b[2];
};
void multiply_16x8x16(int type, float* d, const unsigned* a, unsigned b0, unsigned b1) {
    int g = current % 32 / 4, q = current % 4;
    const Fragments own = {{a[0], a[1], a[2], a[3]}, {b0, b1}};
    const Fragments* lanes = (Fragments*)exchange(&own, sizeof(own));
    for (int i = 0; i < 4; i++) {
        double sum = 0;  // of row g + 8 (i / 2), column 2 q + i % 2
        for (int k = 0; k < 16; k++) {
            unsigned x = lanes[4 * g + k % 8 / 2].a[i / 2 + 2 * (k / 8)];
            unsigned y = lanes[4 * (2 * q + i % 2) + k % 8 / 2].b[k / 8];
            sum += (double)half_of(type, x, k % 2) * half_of(type, y, k % 2);
        }
        d[i] = (float)(d[i] + sum);
    }
}
