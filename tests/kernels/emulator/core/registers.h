// Local arrays that a product in flight reads or writes: registers of kernels/wgmma.cuh. They hold NaN until the product
// was waited for, so that whoever reads them sees it, and whoever writes them is seen.

enum { IN_FLIGHT = 0x7fc0dead };

struct Registers {
    std::map<const void*, std::pair<unsigned, int>> reads;  // by address: the value, of how many products
    std::map<float*, std::pair<int, int>> sums;             // the newest product of each accumulator, its registers
    std::vector<char> at_fence;                             // the thread's stack when it last fenced
    char* first = nullptr;

    char* fenced(const void* p) { return first && (char*)p >= first ? at_fence.data() + ((char*)p - first) : nullptr; }
};
static std::vector<Registers> registers;  // of each thread

static char* end_of_stack() { return fibers[current].stack.data() + fibers[current].stack.size(); }

void wgmma_fence() {
    Registers& r = registers[current];
    r.first = (char*)__builtin_frame_address(0);
    r.at_fence.assign(r.first, end_of_stack());
}
static void check_fenced(const void* p, int bytes, const char* name) {
    if ((char*)p < fibers[current].stack.data() || (char*)p >= end_of_stack())
        violation("%s is no array of the thread's own", name);
    const char* was = registers[current].fenced(p);
    if (!was) violation("a product without a wgmma_fence() before it");
    if (memcmp(was, p, bytes)) violation("%s was written after the last wgmma_fence()", name);
}
template <class T>
static void set_register(void* p, T value) {
    memcpy(p, &value, 4);
    if (char* was = registers[current].fenced(p)) memcpy(was, &value, 4);
}
static void check_in_flight(const void* p, const char* name) {
    unsigned value;
    memcpy(&value, p, 4);
    if (value != IN_FLIGHT) violation("%s was written before its product was waited for", name);
}

// the value of a register of A, which from now on is in flight
static unsigned begin_read(const unsigned* p) {
    auto& reads = registers[current].reads;
    if (!reads.count(p)) {
        check_fenced(p, 4, "A");
        reads[p] = {*p, 0};
        set_register((void*)p, (int)IN_FLIGHT);
    }
    reads[p].second++;
    return reads[p].first;
}
static void end_read(const unsigned* p) {
    auto& reads = registers[current].reads;
    check_in_flight(p, "A");
    if (--reads[p].second) return;
    set_register((void*)p, reads[p].first);
    reads.erase(p);
}

// the product that an accumulator waits for already, or -1: then its values, if there are any, go to `to`
static int begin_sum(float* d, int count, int product, float* to) {
    auto& sums = registers[current].sums;
    for (auto& [other, sum] : sums)
        if (other != d && other < d + count && d < other + sum.second)
            violation("D overlaps that of a product that was not waited for");
    int previous = -1;
    if (sums.count(d)) {
        previous = sums[d].first;
        if (sums[d].second != count) violation("D is that of a product of another shape, which was not waited for");
    } else {
        check_fenced(d, 4 * count, "D");
        memcpy(to, d, 4 * count);
        for (int i = 0; i < count; i++) set_register(d + i, (int)IN_FLIGHT);
    }
    sums[d] = {product, count};
    return previous;
}
static void end_sum(float* d, int count, int product, const float* from) {
    auto& sums = registers[current].sums;
    for (int i = 0; i < count; i++) check_in_flight(d + i, "D");
    if (sums[d].first != product) return;  // a younger product adds to it
    for (int i = 0; i < count; i++) set_register(d + i, from[i]);
    sums.erase(d);
}
