// CUDA C++ as a CPU compiler reads it: a block's threads are fibers that switch at barriers and exchanges. Shared
// memory holds NaN until it is written. A violation ends the run, and so do threads that all wait.
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <ucontext.h>

#include <cmath>
#include <cstring>
#include <deque>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __shared__ static __attribute__((section("shared_memory")))

struct float2 {
    float x, y;
};
struct float4 {
    float x, y, z, w;
};
struct int4 {
    int x, y, z, w;
};
struct uint2 {
    unsigned x, y;
};
struct uint4 {
    unsigned x, y, z, w;
};
struct Index {
    int x;
};
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
static inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
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
static inline float __int_as_float(int x) { return __uint_as_float((unsigned)x); }
#define __expf expf
static inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
    unsigned long long bytes = (unsigned long long)y << 32 | x;
    unsigned z = 0;
    for (int i = 0; i < 4; i++) z |= (unsigned)(bytes >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
    return z;
}
static inline unsigned __vmaxu2(unsigned x, unsigned y) {
    unsigned low = (x & 0xffff) > (y & 0xffff) ? x & 0xffff : y & 0xffff;
    return low | (x >> 16 > y >> 16 ? x >> 16 : y >> 16) << 16;
}
template <class T>
static inline T atomicAdd(T* at, T x) {
    T was = *at;
    *at += x;
    return was;
}
template <class T>
static inline T atomicMax(T* at, T x) {
    T was = *at;
    if (x > was) *at = x;
    return was;
}

static inline int min(int x, int y) { return x < y ? x : y; }
static inline int max(int x, int y) { return x > y ? x : y; }
static inline unsigned min(unsigned x, unsigned y) { return x < y ? x : y; }
static inline unsigned max(unsigned x, unsigned y) { return x > y ? x : y; }

static Index threadIdx, blockIdx, gridDim;
extern char __start_shared_memory[], __stop_shared_memory[];

namespace emulated {

enum { SHARED = 227 * 1024 };  // bytes that a block can have
__shared__ __align__(1024) char dynamic_shared[SHARED];

#if TRACKED
#include "view.h"
#else
struct View {};  // no accesses to shared memory are compared
static void release(View&) {}
static void acquire(const View&) {}
static void arrived(void*, int) {}
#endif

struct Copy {
    void* to;  // null: the end of a group
    const void* from;
    int bytes;
};
struct Fiber {
    ucontext_t context;  // where it starts
    jmp_buf place;       // where it goes on: swapcontext would ask the system for signal masks at each barrier
    std::vector<char> stack;
    int barriers, exchanges, warps;
    bool started, ended;
    char waits_for[64];
    std::deque<Copy> copies;  // in flight: they arrive only when they are waited for
    View view;
};
static const long long* memory;  // of each tensor of the launch: where it begins and ends
static int tensors;
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
static void __syncthreads() {
    static View seen[2];
    View& now = seen[fibers[current].barriers & 1];
    release(now);
    wait_for(&Fiber::barriers, 0, fibers.size(), "__syncthreads()");
    acquire(now);
}
static void __syncwarp() {
    static View seen[32][2];
    View& now = seen[current / 32][fibers[current].warps & 1];
    release(now);
    wait_for_warp(&Fiber::warps);
    acquire(now);
}

// what each lane of the warp gives, as the one that asks sees it
template <class T>
static T* exchange(T x) {
    static __align__(16) char slots[2][1024 * 64];
    static_assert(sizeof(T) <= 64, "a slot");
    char* place = slots[fibers[current].exchanges & 1];
    memcpy(place + current * sizeof(T), &x, sizeof(T));
    wait_for_warp();
    return (T*)place + current / 32 * 32;
}
template <class T>
static T __shfl_sync(unsigned, T x, int lane, int width = 32) {
    return exchange(x)[current % 32 / width * width + lane % width];
}
template <class T>
static T __shfl_xor_sync(unsigned, T x, int lanes) {
    return exchange(x)[current % 32 ^ lanes];
}
template <class T>
static T __shfl_up_sync(unsigned, T x, int lanes) {
    return exchange(x)[current % 32 >= lanes ? current % 32 - lanes : current % 32];
}
static unsigned __reduce_max_sync(unsigned, unsigned x) {
    unsigned* lanes = exchange(x);
    for (int i = 0; i < 32; i++) x = max(x, lanes[i]);
    return x;
}

static std::deque<Copy>& copies() { return fibers[current].copies; }
static void finish_copies(int youngest) {
    int groups = -youngest;
    for (const Copy& copy : copies()) groups += !copy.to;
    while (groups > 0) {
        Copy copy = copies().front();
        copies().pop_front();
        if (!copy.to) {
            groups--;
            continue;
        }
        memcpy(copy.to, copy.from, copy.bytes);
        arrived(copy.to, copy.bytes);
    }
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
    f.copies.clear();
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
static const char* run(void (*kernel)(), int programs, int threads, int shared) {
    body = kernel;
    violation_text[0] = 0;
    fibers.resize(threads);
    gridDim.x = programs;
    for (blockIdx.x = 0; blockIdx.x < programs && !violation_text[0]; blockIdx.x++) {
        memset(__start_shared_memory, 0xff, __stop_shared_memory - __start_shared_memory);
        for (Fiber& f : fibers) start(f);
        begin_block(threads, shared);
        while (run_in_order()) {
        }
        if (!violation_text[0] && !_setjmp(scheduler)) end_block();
    }
    return violation_text;
}

#if !TRACKED
static void begin_block(int, int) {}
static void end_block() {}
#endif

}  // namespace emulated

using emulated::__syncthreads, emulated::__syncwarp, emulated::__shfl_sync, emulated::__shfl_xor_sync;
using emulated::__shfl_up_sync, emulated::__reduce_max_sync;
