// The hardware, apart from the kernels: these functions may touch any memory.
#include "core.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <ucontext.h>

#include <cmath>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <vector>

extern __attribute__((visibility("hidden"))) char __ehdr_start[], _end[];  // of this library

namespace emulated {

// of a block: what the launch asks for from its start on, variables from its end on
enum { SHARED = 227 * 1024 };
__attribute__((aligned(1024))) static char shared_memory[SHARED];

#include "clocks.h"
#include "fibers.h"
#include "races.h"
#include "accesses.h"
#include "matrices.h"
#include "barriers.h"
#include "copies.h"
#include "registers.h"
#include "products.h"

static void begin_block(int threads, int shared) {
    begin_races(threads, shared);
    begin_barriers();
    begin_copies(threads);
    begin_products(threads);
}
static void end_block() {
    for (current = 0; current < (int)fibers.size(); current++) {
        end_stores();
        end_products();
    }
    end_barriers();
}

}  // namespace emulated

#include "instrumented.h"
