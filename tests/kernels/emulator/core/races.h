// Each 2 bytes of shared memory: who wrote and read them last, and what is in flight. An access that no barrier orders
// after another one is a violation, in whatever order the threads happened to run.

enum { GRAIN = 2, COPIED = 1024 };

struct Grain {
    int block;                  // of which all is; of another one it means nothing
    unsigned written;           // when, in the time of the writer
    unsigned read[WARPS];       // when, last, by each warp
    short readers;              // products and stores of warps that read it until they were waited for
    short writer;               // a thread, or COPIED + clock of an mbarrier
    short unfenced, filled_by;  // 1 + the thread whose store no fence_async_proxy() followed; whose copy is in flight
};
static Grain grains[(1 << 18) / GRAIN];
static int block;
static unsigned launched_shared, variables_begin;
static std::map<const void*, shared_address> variables;  // by a place of their own in the program
static std::vector<std::vector<shared_address>> unfenced;  // of each thread

static Grain& grain_at(shared_address at) {
    Grain& grain = grains[at / GRAIN];
    if (grain.block != block) grain = {block};
    return grain;
}

static void release(View& meeting) {
    View known = fibers[current].view;
    known.time[current / 32] = now[current / 32]++;
    meeting.join(known);
}
static void acquire(const View& meeting) { fibers[current].view.join(meeting); }

static bool is_shared(const void* p) { return p >= shared_memory && p < shared_memory + SHARED; }
shared_address address_of(const void* p) {
    if (!is_shared(p)) violation("an address that is not of shared memory");
    return (const char*)p - shared_memory;
}
static char* pointer_to(shared_address at) { return shared_memory + at; }

void* dynamic_shared() { return shared_memory; }
void* static_shared(const void* key, int bytes, int alignment) {
    if (!variables.count(key)) {
        variables_begin = (variables_begin - bytes) / alignment * alignment;
        if (variables_begin < launched_shared) violation("more than %d bytes of shared memory", SHARED);
        variables[key] = variables_begin;
    }
    return pointer_to(variables[key]);
}

static void check_place(shared_address at, unsigned bytes, unsigned alignment) {
    if (at % alignment) violation("shared memory at %u, which is no multiple of %u", at, alignment);
    if (at < variables_begin ? at + bytes > launched_shared : at + bytes > SHARED)
        violation("shared memory at %u to %u, past its end", at, at + bytes);
}

static bool is_known(const Grain& grain) {  // to this thread: the last write
    int clock = grain.writer < COPIED ? grain.writer / 32 : grain.writer - COPIED;
    return grain.writer == current || fibers[current].view.time[clock] >= grain.written;
}
static void check_written(shared_address at, const Grain& grain) {
    if (grain.filled_by)
        violation("uses shared memory at %u, which a copy of thread %d still fills", at, grain.filled_by - 1);
    if (is_known(grain)) return;
    if (grain.writer >= COPIED)
        violation("uses shared memory at %u, which was copied, without a wait for its mbarrier", at);
    violation("uses shared memory at %u, which thread %d wrote, without a barrier", at, grain.writer);
}
static void check_overwritten(shared_address at, const Grain& grain) {
    if (grain.writer / 32 != current / 32 || grain.filled_by) check_written(at, grain);
    if (grain.readers) violation("writes shared memory at %u, which a product or a store in flight reads", at);
    for (int i = 0; i < WARPS; i++)
        if (i != current / 32 && grain.read[i] > fibers[current].view.time[i])
            violation("writes shared memory at %u, which warp %d read, without a barrier", at, i);
}

static void track_read(shared_address at, unsigned bytes) {
    for (unsigned i = at / GRAIN * GRAIN; i < at + bytes; i += GRAIN) {
        Grain& grain = grain_at(i);
        check_written(i, grain);
        grain.read[current / 32] = now[current / 32];
    }
}
static void track_write(shared_address at, unsigned bytes) {
    for (unsigned i = at / GRAIN * GRAIN; i < at + bytes; i += GRAIN) {
        Grain& grain = grain_at(i);
        check_overwritten(i, grain);
        if (grain.unfenced != current + 1) unfenced[current].push_back(i);
        grain.writer = current, grain.written = now[current / 32], grain.unfenced = current + 1;
    }
}
void fence_async_proxy() {
    for (shared_address i : unfenced[current])
        if (grain_at(i).unfenced == current + 1) grain_at(i).unfenced = 0;
    unfenced[current].clear();
}

// a copy of this thread to shared memory, until it arrives: from then on a thread or an mbarrier's engine wrote it
static void begin_filling(shared_address at, unsigned bytes) {
    for (unsigned i = at; i < at + bytes; i += GRAIN) {
        check_overwritten(i, grain_at(i));
        grain_at(i).filled_by = current + 1;
    }
    memset(pointer_to(at), 0xff, bytes);
}
static void end_filling(shared_address at, unsigned bytes, int writer, unsigned time) {
    for (unsigned i = at; i < at + bytes; i += GRAIN) {
        Grain& grain = grain_at(i);
        grain.filled_by = grain.unfenced = 0, grain.writer = writer, grain.written = time;
    }
}

// memory that a product or a store of this thread reads at any time until it was waited for
static void begin_reading(shared_address at, unsigned bytes) {
    for (unsigned i = at; i < at + bytes; i += GRAIN) {
        Grain& grain = grain_at(i);
        check_written(i, grain);
        if (grain.unfenced)
            violation("reads shared memory at %u, which thread %d wrote, without a fence_async_proxy()", i,
                      grain.unfenced - 1);
        grain.readers++;
    }
}
static void end_reading(shared_address at, unsigned bytes) {
    for (unsigned i = at; i < at + bytes; i += GRAIN) {
        grain_at(i).readers--;
        grain_at(i).read[current / 32] = now[current / 32];
    }
}

static void begin_races(int threads, int shared) {
    memset(shared_memory, 0xff, SHARED);
    block++;
    launched_shared = shared, variables_begin = SHARED;
    variables.clear();
    for (unsigned& time : now) time = 1;
    unfenced.assign(threads, {});
}
