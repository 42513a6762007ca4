// What kernels/hopper.cuh offers, and wgmma.cuh, for a CPU; and what must be over at the end of a block.
#include <functional>
#include <map>

namespace emulated {

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

}  // namespace emulated

typedef emulated::shared_address shared_address;
typedef emulated::descriptor descriptor;
using emulated::address_of, emulated::load_shared, emulated::store_shared, emulated::copy_async_or_zero;
using emulated::load_matrices_x2, emulated::load_matrices_x4, emulated::store_matrices_x4, emulated::multiply_16x8x16;
using emulated::log2_fast, emulated::pack;
using emulated::named_barrier, emulated::named_barrier_arrive, emulated::fence_mbarrier_init, emulated::mbarrier_init;
using emulated::mbarrier_arrive, emulated::mbarrier_arrive_expect, emulated::mbarrier_wait, emulated::fence_async_proxy;
using emulated::bulk_load, emulated::bulk_store, emulated::tensor_load, emulated::tensor_map, emulated::tensor_store;
using emulated::group_bulk_stores, emulated::wait_for_bulk_reads, emulated::wait_for_bulk_stores;
using emulated::decrease_registers, emulated::describe, emulated::hold, emulated::increase_registers, emulated::wgmma;
using emulated::wgmma_commit, emulated::wgmma_fence, emulated::wgmma_wait;
