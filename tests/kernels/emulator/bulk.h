// Copies in bulk, those of kernels/hopper.cuh for a CPU: loads arrive and stores are read as late as they may.

struct tensor_map {  // the first axis is the one whose elements are next to each other
    char* base;
    int element, rank, swizzle;  // bytes of an element and of a row in shared memory that is swizzled, or 0
    int box[3];
    long long shape[3], strides[3];  // elements, bytes
};

static shared_address swizzled(shared_address at, int swizzle) {
    return swizzle ? at ^ (at >> 7 & (swizzle / 16 - 1)) << 4 : at;
}

// calls with an offset into shared memory and, where the tensor has such an element, its place
template <class Each>
static void walk(const tensor_map& m, shared_address box, const int* start, Each each) {
    for (int k = 0; k < m.box[2]; k++)
        for (int j = 0; j < m.box[1]; j++)
            for (int i = 0; i < m.box[0]; i++) {
                const long long at[3] = {(long long)start[0] + i, (long long)start[1] + j, (long long)start[2] + k};
                char* place = m.base;
                for (int axis = 0; axis < 3; axis++) {
                    if (place && (at[axis] < 0 || at[axis] >= m.shape[axis])) place = nullptr;
                    if (place) place += at[axis] * m.strides[axis];
                }
                const unsigned offset = ((k * m.box[1] + j) * m.box[0] + i) * m.element;
                each(pointer_to(swizzled(box + offset, m.swizzle)), place);
            }
}
static unsigned check_box(const tensor_map& m, shared_address box, int rank) {
    unsigned row = m.box[0] * m.element, bytes = row * m.box[1] * m.box[2];
    if (rank != m.rank) violation("%d coordinates for a tensor of %d axes", rank, m.rank);
    if (m.swizzle && row != (unsigned)m.swizzle) violation("rows of %u bytes, swizzled by %d", row, m.swizzle);
    check_place(box, bytes, m.swizzle ? 8 * m.swizzle : 128);
    return bytes;
}

static void load(shared_address to, unsigned bytes, shared_address barrier, std::function<void(char*)> copy) {
    Mbarrier& b = mbarrier_at(barrier);
    if (words[barrier / 4].unfenced) violation("a copy for the mbarrier at %u, without fence_mbarrier_init()", barrier);
    begin_filling(to, bytes);
    b.loads.push_back({to, bytes, copy});
}
static void check_global(const void* p, unsigned bytes) {
    const long long at = (long long)p;
    bool inside = false;
    for (int i = 0; i < tensors; i++) inside |= at >= memory[2 * i] && at + bytes <= memory[2 * i + 1];
    if (!inside) violation("a copy of %u bytes that is not in a tensor of the launch", bytes);
    if (!bytes || bytes % 16 || at % 16) violation("a copy of %u bytes at address %lld: no multiples of 16", bytes, at);
}
static void bulk_load(shared_address to, const void* from, unsigned bytes, shared_address barrier) {
    check_global(from, bytes);
    check_place(to, bytes, 16);
    load(to, bytes, barrier, [=](char* at) { memcpy(at, from, bytes); });
}
static void load_box(shared_address to, const tensor_map& m, shared_address barrier, int rank, int c0, int c1, int c2) {
    load(to, check_box(m, to, rank), barrier, [=, map = m](char*) {
        const int start[3] = {c0, c1, c2};
        walk(map, to, start, [&](char* at, const char* place) {
            memset(at, 0, map.element);
            if (place) memcpy(at, place, map.element);
        });
    });
}
static void tensor_load(shared_address to, const tensor_map& map, shared_address barrier, int c0, int c1) {
    load_box(to, map, barrier, 2, c0, c1, 0);
}
static void tensor_load(shared_address to, const tensor_map& map, shared_address barrier, int c0, int c1, int c2) {
    load_box(to, map, barrier, 3, c0, c1, c2);
}

struct Store {
    shared_address from;
    unsigned bytes;  // 0: the end of a group
    std::function<void()> copy;
};
static std::vector<std::deque<Store>> stores;  // of each thread

static void store(shared_address from, unsigned bytes, std::function<void()> copy) {
    for (unsigned i = 0; i < bytes; i += 4) begin_reading(from + i);
    stores[current].push_back({from, bytes, copy});
}
static void bulk_store(void* to, shared_address from, unsigned bytes) {
    check_global(to, bytes);
    check_place(from, bytes, 16);
    store(from, bytes, [=] { memcpy(to, pointer_to(from), bytes); });
}
static void store_box(const tensor_map& m, shared_address from, int rank, int c0, int c1, int c2) {
    store(from, check_box(m, from, rank), [=, map = m] {
        const int start[3] = {c0, c1, c2};
        walk(map, from, start, [&](const char* at, char* place) {
            if (place) memcpy(place, at, map.element);
        });
    });
}
static void tensor_store(const tensor_map& map, shared_address from, int c0, int c1) {
    store_box(map, from, 2, c0, c1, 0);
}
static void tensor_store(const tensor_map& map, shared_address from, int c0, int c1, int c2) {
    store_box(map, from, 3, c0, c1, c2);
}
static void group_bulk_stores() { stores[current].push_back({0, 0, nullptr}); }
template <int YOUNGEST>
static void wait_for_bulk_reads() {
    int groups = -YOUNGEST;
    for (const Store& store : stores[current]) groups += !store.bytes;
    while (groups > 0) {
        const Store store = stores[current].front();
        stores[current].pop_front();
        groups -= !store.bytes;
        if (store.bytes) store.copy();
        for (unsigned i = 0; i < store.bytes; i += 4) end_reading(store.from + i);
    }
}
template <int YOUNGEST>
static void wait_for_bulk_stores() {
    wait_for_bulk_reads<YOUNGEST>();
}
