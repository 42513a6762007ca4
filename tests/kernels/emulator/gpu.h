// CUDA C++ as a CPU compiler reads it: a block's threads are fibers that switch at barriers and exchanges. Shared
// memory holds NaN until it is written.
#include <setjmp.h>
#include <ucontext.h>

#include <cmath>
#include <cstring>
#include <deque>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static __attribute__((section("shared_memory")))

struct float4 {
    float x, y, z, w;
};
struct int4 {
    int x, y, z, w;
};
struct uint4 {
    unsigned x, y, z, w;
};
struct Index {
    int x;
};
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
static inline float __uint_as_float(unsigned x) {
    float y;
    memcpy(&y, &x, 4);
    return y;
}
static inline unsigned __float_as_uint(float x) {
    unsigned y;
    memcpy(&y, &x, 4);
    return y;
}
static inline int __float_as_int(float x) { return (int)__float_as_uint(x); }

static inline int min(int x, int y) { return x < y ? x : y; }
static inline int max(int x, int y) { return x > y ? x : y; }
static inline unsigned min(unsigned x, unsigned y) { return x < y ? x : y; }
static inline unsigned max(unsigned x, unsigned y) { return x > y ? x : y; }

static Index threadIdx, blockIdx, gridDim;
float4 dynamic_shared[1 << 14];
extern char __start_shared_memory[] __attribute__((weak)), __stop_shared_memory[] __attribute__((weak));

struct Copy {
    void* to;  // null: the end of a group
    const void* from;
    int bytes;
};
struct Fiber {
    ucontext_t context;  // where it starts
    jmp_buf place;       // where it goes on: swapcontext would ask the system for signal masks at each barrier
    std::vector<char> stack;
    int barriers, exchanges;
    bool started, ended;
    std::deque<Copy> copies;  // in flight: they arrive only when they are waited for
};
static std::vector<Fiber> fibers;
static jmp_buf scheduler;
static int current;

static void yield_to_scheduler() {
    if (!_setjmp(fibers[current].place)) _longjmp(scheduler, 1);
}
static void resume(Fiber& f) {
    if (_setjmp(scheduler)) return;
    if (f.started) _longjmp(f.place, 1);
    f.started = true;
    setcontext(&f.context);
}

static void wait_for(int Fiber::*count, int first, int last) {
    int mine = ++(fibers[current].*count);
    for (;;) {
        bool all = true;
        for (int i = first; i < last; i++) all = all && (fibers[i].ended || fibers[i].*count >= mine);
        if (all) return;
        yield_to_scheduler();
    }
}
static void wait_for_warp() {
    int first = current / 32 * 32, last = first + 32;
    wait_for(&Fiber::exchanges, first, last < (int)fibers.size() ? last : (int)fibers.size());
}
static void __syncthreads() { wait_for(&Fiber::barriers, 0, fibers.size()); }
static void __syncwarp() { wait_for_warp(); }
static float __shfl_xor_sync(unsigned, float x, int lanes) {
    static float slots[2][1024];
    int parity = fibers[current].exchanges & 1;
    slots[parity][current] = x;
    wait_for_warp();
    return slots[parity][current ^ lanes];
}

static std::deque<Copy>& copies() { return fibers[current].copies; }
static void finish_copies(int youngest) {
    int groups = -youngest;
    for (const Copy& copy : copies()) groups += !copy.to;
    while (groups > 0) {
        Copy copy = copies().front();
        copies().pop_front();
        if (copy.to)
            memcpy(copy.to, copy.from, copy.bytes);
        else
            groups--;
    }
}

static void (*body)();
static void fiber() {
    body();
    fibers[current].ended = true;
    yield_to_scheduler();
}

static void run(void (*kernel)(), int programs, int threads) {
    body = kernel;
    fibers.resize(threads);
    gridDim.x = programs;
    for (int program = 0; program < programs; program++) {
        memset(dynamic_shared, 0xff, sizeof(dynamic_shared));
        if (__start_shared_memory) memset(__start_shared_memory, 0xff, __stop_shared_memory - __start_shared_memory);
        for (Fiber& f : fibers) {
            f.stack.resize(1 << 16);
            getcontext(&f.context);
            f.context.uc_stack.ss_sp = f.stack.data();
            f.context.uc_stack.ss_size = f.stack.size();
            makecontext(&f.context, fiber, 0);
            f.barriers = f.exchanges = 0;
            f.started = f.ended = false;
            f.copies.clear();
        }
        for (bool some = true; some;) {
            some = false;
            for (int i = 0; i < threads; i++) {
                if (fibers[i].ended) continue;
                some = true;
                current = threadIdx.x = i;
                blockIdx.x = program;
                resume(fibers[i]);
            }
        }
    }
}
