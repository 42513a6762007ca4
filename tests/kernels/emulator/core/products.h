// Products by a warpgroup, computed once a thread waits for them, each sum of 16 in
// fp64 and rounded once.

enum { WARPGROUP = 128, ROWS = 64, DEPTH = 16 };

struct SharedMatrix : Matrix {
    bool is(const Matrix& other) const {
        return described == other.described && count == other.count && mn_major == other.mn_major;
    }
    int swizzle() const { return described >> 62 ? 256 >> (described >> 62) : 0; }
    unsigned field(int bit) const { return (described >> bit & 0x3fff) << 4; }
    shared_address place(int i, int k) const {
        int s = swizzle(), row = mn_major ? k : i, column = mn_major ? i % (s / 2) : k;
        unsigned at = field(0) + row / 8 * field(32) + row % 8 * s + 2 * column;
        return swizzled(mn_major ? at + i / (s / 2) * field(16) : at, s);
    }
    // calls with each 4 bytes of rows `first` to `last`
    template <class Each>
    void words(int first, int last, Each each) const {
        for (int i = first; i < last; i += 1 + mn_major)
            for (int k = 0; k < DEPTH; k += 2 - mn_major) each(place(i, k));
    }
    void begin(int first, int last) const {
        if (field(0) % (8 * swizzle()) >= (unsigned)swizzle()) violation("a matrix at %u, amid its 8 rows", field(0));
        words(first, last, [](shared_address at) { check_place(at, 4, 4), begin_reading(at, 4); });
    }
    void end(int first, int last) const { words(first, last, [](shared_address at) { end_reading(at, 4); }); }
};

struct Product {
    int type;
    bool keep, a_in_shared;
    SharedMatrix a, b;
    int threads = 0, done = 0;  // that issued it, that waited for it
    int previous = -1;          // the product that it adds to
    bool computed = false;
    float* d[WARPGROUP];
    const unsigned* fragments[WARPGROUP];
    unsigned values[WARPGROUP][4];
    std::vector<float> sums;  // [thread, register]

    int registers() const { return b.count / 2; }

    bool same(const Product& p) const {
        return type == p.type && keep == p.keep && a_in_shared == p.a_in_shared && a.is(p.a) && b.is(p.b);
    }
    float of_shared(const SharedMatrix& matrix, int i, int k) const {
        unsigned short bits;
        memcpy(&bits, pointer_to(matrix.place(i, k)), 2);
        return half_of(type, bits, 0);
    }
    float of_a(int i, int k) const {
        if (a_in_shared) return of_shared(a, i, k);
        int thread = i / 16 * 32 + i % 8 * 4 + k % 8 / 2;
        return half_of(type, values[thread][i % 16 / 8 + 2 * (k / 8)], k % 2);
    }
    void compute() {
        float left[ROWS][DEPTH], right[256][DEPTH];
        for (int k = 0; k < DEPTH; k++) {
            for (int i = 0; i < ROWS; i++) left[i][k] = of_a(i, k);
            for (int j = 0; j < b.count; j++) right[j][k] = of_shared(b, j, k);
        }
        for (int t = 0; t < WARPGROUP; t++)
            for (int r = 0; r < registers(); r++) {
                int i = t / 32 * 16 + t % 32 / 4 + r % 4 / 2 * 8, j = r / 4 * 8 + t % 4 * 2 + r % 2;
                double sum = 0;
                for (int k = 0; k < DEPTH; k++) sum += (double)left[i][k] * right[j][k];
                float& d = sums[t * registers() + r];
                d = keep ? (float)(d + sum) : (float)sum;
            }
        computed = true;
    }
};

struct Progress {  // of a thread, in products
    int issued = 0, complete = 0;
    std::vector<int> groups;  // how many were issued at the end of each
};
static std::vector<Progress> progress;
static std::vector<std::deque<Product>> products;  // of each warpgroup

static void issue(Product mine, float* d, const unsigned* a) {
    auto& issued = products[current / WARPGROUP];
    int index = progress[current].issued++, t = current % WARPGROUP;
    if (index == (int)issued.size()) {
        mine.sums.resize(WARPGROUP * mine.registers());
        issued.push_back(mine);
    }
    Product& p = issued[index];
    if (!p.same(mine)) violation("threads of a warpgroup issue products that differ");
    p.d[t] = d, p.fragments[t] = a;
    for (int i = 0; a && i < 4; i++) p.values[t][i] = begin_read(a + i);
    int previous = begin_sum(d, p.registers(), index, &p.sums[t * p.registers()]);
    if (p.threads && previous != p.previous) violation("D is in flight in some threads of a warpgroup only");
    p.previous = previous;
    if (t % 32 == 0) {
        p.b.begin(0, p.b.count);
        if (!a) p.a.begin(t / 2, t / 2 + 16);
    }
    p.threads++;
}
void issue_product(int type, float* d, const unsigned* fragments, Matrix a, Matrix b, bool keep) {
    issue({type, keep, !fragments, {a}, {b}}, d, fragments);
}
void wgmma_commit() { progress[current].groups.push_back(progress[current].issued); }

static void complete(std::deque<Product>& issued, int index) {
    Product& p = issued[index];
    int t = current % WARPGROUP;
    wait_until([&] { return p.threads == WARPGROUP; }, "its warpgroup to issue product %d", index);
    if (!p.computed) {
        if (p.previous >= 0) p.sums.swap(issued[p.previous].sums);
        p.compute();
    }
    for (int i = 0; p.fragments[t] && i < 4; i++) end_read(p.fragments[t] + i);
    end_sum(p.d[t], p.registers(), index, p.sums.data() + t * p.registers());
    if (t % 32 == 0) {
        p.b.end(0, p.b.count);
        if (p.a_in_shared) p.a.end(t / 2, t / 2 + 16);
    }
    if (++p.done == WARPGROUP) p.sums = {};
}
void finish_products(int youngest) {
    Progress& mine = progress[current];
    int groups = (int)mine.groups.size() - youngest;
    while (groups > 0 && mine.complete < mine.groups[groups - 1])
        complete(products[current / WARPGROUP], mine.complete++);
}

// registers of each warpgroup, and how many threads executed the instruction
static std::vector<std::pair<int, int>> granted;
void set_registers(int count) {
    auto& [registers, threads] = granted[current / WARPGROUP];
    if (threads % WARPGROUP && registers != count)
        violation("threads of a warpgroup ask for %d and %d registers", registers, count);
    registers = count, threads++;
    int sum = 0;
    for (auto& [of_group, _] : granted) sum += of_group;
    if (sum > 512) violation("%d registers for a thread of each warpgroup, of 512", sum);
}

static void begin_products(int threads) {
    registers.assign(threads, {});
    progress.assign(threads, {});
    products.assign((threads + WARPGROUP - 1) / WARPGROUP, {});
    granted.assign(products.size(), {});
}
static void end_products() {
    if (progress[current].complete < progress[current].issued) violation("ends before its products were waited for");
    if (granted[current / WARPGROUP].second % WARPGROUP) violation("not all of its warpgroup set its registers");
}
