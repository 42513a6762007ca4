// Copies that no register waits for: of a thread, in groups, and in bulk by the copy engine. Loads arrive as late as they
// may, and so are stores read.

struct Copy {
    void* to;  // null: the end of a group
    const void* from;
    int bytes;
};
static std::vector<std::deque<Copy>> copies;  // of each thread

void start_copy(void* to, const void* from, int bytes) {
    check_place(address_of(to), bytes, bytes);
    begin_filling(address_of(to), bytes);
    copies[current].push_back({to, from, bytes});
}
void copy_async_or_zero(shared_address to, const void* from, bool wanted) {
    static const char zeros[16] = {};
    if (wanted) check_global(from, 16, "copies");
    start_copy(pointer_to(to), wanted ? from : zeros, 16);
}
void group_copies() { copies[current].push_back({nullptr, nullptr, 0}); }
void finish_copies(int youngest) {
    int groups = -youngest;
    for (const Copy& copy : copies[current]) groups += !copy.to;
    while (groups > 0) {
        Copy copy = copies[current].front();
        copies[current].pop_front();
        groups -= !copy.to;
        if (!copy.to) continue;
        memcpy(copy.to, copy.from, copy.bytes);
        end_filling(address_of(copy.to), copy.bytes, current, now[current / 32]);
    }
}

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
    if (grain_at(barrier).unfenced) violation("a copy for the mbarrier at %u, without fence_mbarrier_init()", barrier);
    begin_filling(to, bytes);
    b.loads.push_back({to, bytes, copy});
}
static void check_bulk(const void* p, unsigned bytes) {
    check_global(p, bytes, "copies");
    if (!bytes || bytes % 16 || (long long)p % 16)
        violation("a copy of %u bytes, or its place: no multiples of 16", bytes);
}
void bulk_load(shared_address to, const void* from, unsigned bytes, shared_address barrier) {
    check_bulk(from, bytes);
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
void tensor_load(shared_address to, const tensor_map& map, shared_address barrier, int c0, int c1) {
    load_box(to, map, barrier, 2, c0, c1, 0);
}
void tensor_load(shared_address to, const tensor_map& map, shared_address barrier, int c0, int c1, int c2) {
    load_box(to, map, barrier, 3, c0, c1, c2);
}

struct Store {
    shared_address from;
    unsigned bytes;  // 0: the end of a group
    std::function<void()> copy;
};
static std::vector<std::deque<Store>> stores;  // of each thread

static void store(shared_address from, unsigned bytes, std::function<void()> copy) {
    begin_reading(from, bytes);
    stores[current].push_back({from, bytes, copy});
}
void bulk_store(void* to, shared_address from, unsigned bytes) {
    check_bulk(to, bytes);
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
void tensor_store(const tensor_map& map, shared_address from, int c0, int c1) {
    store_box(map, from, 2, c0, c1, 0);
}
void tensor_store(const tensor_map& map, shared_address from, int c0, int c1, int c2) {
    store_box(map, from, 3, c0, c1, c2);
}
void group_bulk_stores() { stores[current].push_back({0, 0, nullptr}); }
void finish_bulk_stores(int youngest) {
    int groups = -youngest;
    for (const Store& store : stores[current]) groups += !store.bytes;
    while (groups > 0) {
        const Store store = stores[current].front();
        stores[current].pop_front();
        groups -= !store.bytes;
        if (store.bytes) store.copy(), end_reading(store.from, store.bytes);
    }
}

static void begin_copies(int threads) {
    copies.assign(threads, {});
    stores.assign(threads, {});
}
static void end_stores() {
    if (!stores[current].empty()) violation("ends before its stores from shared memory were waited for");
}
