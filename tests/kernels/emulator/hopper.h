// What kernels/hopper.cuh offers, and wgmma.cuh, for a CPU; and what must be over at the end of a block.
#include <functional>
#include <map>

#include "races.h"
#include "shared.h"
#include "mbarrier.h"
#include "bulk.h"
#include "registers.h"
#include "wgmma.h"

static void begin_block(int threads, int shared) {
    begin_races(threads, shared);
    memset(named, 0, sizeof(named));
    mbarriers.clear();
    stores.assign(threads, {});
    registers.assign(threads, {});
    progress.assign(threads, {});
    products.assign((threads + WARPGROUP - 1) / WARPGROUP, {});
    granted.assign(products.size(), {});
}
static void end_block() {
    for (current = 0; current < (int)fibers.size(); current++) {
        if (!stores[current].empty()) violation("ends before its stores from shared memory were waited for");
        if (progress[current].complete < progress[current].issued) violation("ends before its products were waited for");
        if (granted[current / WARPGROUP].second % WARPGROUP) violation("not all of its warpgroup set its registers");
    }
    for (auto& [at, barrier] : mbarriers)
        if (!barrier.loads.empty()) violation("the block ends before copies for the mbarrier at %u arrived", at);
}
