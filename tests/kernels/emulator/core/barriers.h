// Named barriers, and barriers that count bytes. Copies arrive as late as they may: when a thread waits for a phase that
// lacks nothing else.

struct Named {
    int arrived, phase;
    View known, released;
};
static Named named[16];

// whether this thread completed the barrier
static bool arrive_at(int name, int threads) {
    if (name < 0 || name > 15 || threads % 32)
        violation("barrier %d of %d threads: 0 to 15, of whole warps", name, threads);
    Named& barrier = named[name];
    release(barrier.known);
    if (++barrier.arrived < threads) return false;
    if (barrier.arrived > threads) violation("barrier %d of %d threads: another thread names fewer", name, threads);
    barrier.arrived = 0, barrier.phase++;
    barrier.released = barrier.known;
    return true;
}
void named_barrier_arrive(int name, int threads) { arrive_at(name, threads); }
void named_barrier(int name, int threads) {
    int phase = named[name & 15].phase;
    if (!arrive_at(name, threads))
        wait_until([&] { return named[name].phase != phase; }, "barrier %d of %d threads", name, threads);
    acquire(named[name].released);
}

struct Load {
    shared_address to;
    unsigned bytes;
    std::function<void(char*)> copy;
};
struct Mbarrier {
    int arrivals, lacking, clock;
    long long bytes;  // that the phase expects and did not get
    unsigned phase;
    View known, released;
    std::vector<Load> loads;
};
static std::map<shared_address, Mbarrier> mbarriers;

void mbarrier_init(shared_address barrier, int arrivals) {
    check_place(barrier, 8, 8);
    track_write(barrier, 8);
    int clock = mbarriers.count(barrier) ? mbarriers[barrier].clock : WARPS + mbarriers.size();
    if (clock >= CLOCKS) violation("more than %d mbarriers", CLOCKS - WARPS);
    mbarriers[barrier] = {arrivals, arrivals, clock};
}
void fence_mbarrier_init() {
    for (auto& [at, barrier] : mbarriers)
        for (int i = 0; i < 8; i += GRAIN)
            if (grain_at(at + i).unfenced == current + 1) grain_at(at + i).unfenced = 0;
}
static Mbarrier& mbarrier_at(shared_address at) {
    if (!mbarriers.count(at)) violation("no mbarrier at %u", at);
    check_written(at, grain_at(at));
    return mbarriers[at];
}

static void end_phase(Mbarrier& b) {
    b.lacking = b.arrivals, b.phase++;
    b.known.time[b.clock] = now[b.clock]++;
    b.released = b.known;
}
// once nothing but copies lacks
static void settle(shared_address at, Mbarrier& b) {
    for (const Load& load : b.loads) {
        load.copy(pointer_to(load.to));
        end_filling(load.to, load.bytes, COPIED + b.clock, now[b.clock]);
        b.bytes -= load.bytes;
    }
    b.loads.clear();
    if (b.bytes < 0) violation("the mbarrier at %u got %lld bytes more than it expects", at, -b.bytes);
    if (!b.bytes) end_phase(b);
}
static void arrive(shared_address at, unsigned bytes) {
    Mbarrier& b = mbarrier_at(at);
    if (!b.lacking) violation("the mbarrier at %u has all the arrivals of its phase, and lacks bytes", at);
    release(b.known);
    b.bytes += bytes, b.lacking--;
    if (!b.lacking && !b.bytes) settle(at, b);
}
void mbarrier_arrive(shared_address barrier) { arrive(barrier, 0); }
void mbarrier_arrive_expect(shared_address barrier, unsigned bytes) { arrive(barrier, bytes); }
void mbarrier_wait(shared_address barrier, unsigned parity) {
    Mbarrier& b = mbarrier_at(barrier);
    auto ended = [&] {
        if (b.phase % 2 == parity && !b.lacking) settle(barrier, b);
        return b.phase % 2 != parity;
    };
    wait_until(ended, "the phase of parity %2$d of the mbarrier at %1$d", barrier, parity);
    acquire(b.released);
}

static void begin_barriers() {
    for (Named& barrier : named) barrier = {};
    mbarriers.clear();
}
static void end_barriers() {
    for (auto& [at, barrier] : mbarriers)
        if (!barrier.loads.empty()) violation("the block ends before copies for the mbarrier at %u arrived", at);
}
