// A block's threads are fibers that switch at barriers and exchanges. A violation ends the run, and so do threads that
// all wait.

Index threadIdx, blockIdx, gridDim;
static const long long* memory;  // of each tensor of the launch: where it begins and ends
static int tensors;

struct Fiber {
    ucontext_t context;  // where it starts
    jmp_buf place;       // where it goes on: swapcontext would ask the system for signal masks at each barrier
    std::vector<char> stack;
    int barriers, exchanges, warps;
    bool started, ended;
    char waits_for[64];
    View view;
};
static std::vector<Fiber> fibers;
static jmp_buf scheduler;
static int current, returns;  // the thread that runs; how often threads started, ended or had what they waited for
static char violation_text[512];

static void violation(const char* format, ...) {
    int n = snprintf(violation_text, sizeof(violation_text), "block %d, thread %d: ", blockIdx.x, current);
    va_list values;
    va_start(values, format);
    vsnprintf(violation_text + n, sizeof(violation_text) - n, format, values);
    va_end(values);
    _longjmp(scheduler, 1);
}

static void yield_to_scheduler() {
    if (!_setjmp(fibers[current].place)) _longjmp(scheduler, 1);
}
static void resume(Fiber& f) {
    if (_setjmp(scheduler)) return;
    if (f.started) _longjmp(f.place, 1);
    f.started = true;
    returns++;
    setcontext(&f.context);
}
template <class Condition>
static void wait_until(Condition condition, const char* format, int x = 0, int y = 0) {
    snprintf(fibers[current].waits_for, sizeof(fibers[current].waits_for), format, x, y);
    while (!condition()) yield_to_scheduler();
    returns++;
}

static void wait_for(int Fiber::*count, int first, int last, const char* name) {
    int mine = ++(fibers[current].*count);
    auto all = [&] {
        for (int i = first; i < last; i++)
            if (!fibers[i].ended && fibers[i].*count < mine) return false;
        return true;
    };
    wait_until(all, name);
}
static void wait_for_warp(int Fiber::*count = &Fiber::exchanges) {
    int first = current / 32 * 32, last = first + 32;
    wait_for(count, first, last < (int)fibers.size() ? last : (int)fibers.size(), "all lanes of its warp");
}
static View met[2], met_in_warp[WARPS][2];  // what threads knew at a barrier, of the block and of each warp

void synchronize_block() {
    View& known = met[fibers[current].barriers & 1];
    release(known);
    wait_for(&Fiber::barriers, 0, fibers.size(), "__syncthreads()");
    acquire(known);
}
void synchronize_warp() {
    View& known = met_in_warp[current / 32][fibers[current].warps & 1];
    release(known);
    wait_for_warp(&Fiber::warps);
    acquire(known);
}

void* exchange(const void* value, int bytes) {
    static __attribute__((aligned(16))) char slots[2][WARPS][32 * 64];
    char* lanes = slots[fibers[current].exchanges & 1][current / 32];
    memcpy(lanes + current % 32 * bytes, value, bytes);
    wait_for_warp();
    return lanes;
}

static void (*body)();
static void fiber() {
    body();
    fibers[current].ended = true;
    returns++;
    yield_to_scheduler();
}

static void start(Fiber& f) {
    f.stack.resize(1 << 17);
    getcontext(&f.context);
    f.context.uc_stack.ss_sp = f.stack.data();
    f.context.uc_stack.ss_size = f.stack.size();
    makecontext(&f.context, fiber, 0);
    f.barriers = f.exchanges = f.warps = 0;
    f.started = f.ended = false;
    f.view = View();
}

// lets each thread that has not ended run to its next wait; whether there are some
static bool run_in_order() {
    int before = returns, waiting = -1;
    for (current = 0; current < (int)fibers.size() && !violation_text[0]; current++) {
        if (fibers[current].ended) continue;
        threadIdx.x = waiting = current;
        resume(fibers[current]);
    }
    if (violation_text[0] || waiting < 0) return false;
    if (returns == before)
        snprintf(violation_text, sizeof(violation_text), "block %d: all threads wait, thread %d for %s", blockIdx.x,
                 waiting, fibers[waiting].waits_for);
    return returns != before;
}

static void begin_block(int threads, int shared), end_block();  // what else lasts as long as a block

// what the violation was, if there was one
const char* run(void (*kernel)(), int programs, int threads, int shared, const long long* ranges, int count) {
    body = kernel, memory = ranges, tensors = count;
    violation_text[0] = 0;
    fibers.resize(threads);
    gridDim.x = programs;
    for (blockIdx.x = 0; blockIdx.x < programs && !violation_text[0]; blockIdx.x++) {
        for (Fiber& f : fibers) start(f);
        for (View& view : met) view = {};
        for (auto& warp : met_in_warp) warp[0] = warp[1] = {};
        begin_block(threads, shared);
        while (run_in_order()) {
        }
        if (!violation_text[0] && !_setjmp(scheduler)) end_block();
    }
    return violation_text;
}
