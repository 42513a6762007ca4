// Each 4 bytes of shared memory: who wrote and read them last, and what is in flight. An access that no barrier orders
// after another one is a violation, in whatever order the threads happened to run. Ordinary pointers are not seen.

typedef unsigned shared_address;
enum { WORDS = 1 << 16, COPIED = 1024 };

struct Word {
    unsigned written;          // when, in the time of the writer
    unsigned read[WARPS];      // when, last
    short readers;             // products and stores of warps that read it until they were waited for
    short writer;              // a thread, or COPIED + clock of an mbarrier
    short unfenced, filled_by; // 1 + the thread whose store no fence_async_proxy() followed; whose copy is in flight
};
static Word words[WORDS];
static int launched_shared;
static std::vector<std::vector<shared_address>> unfenced;  // of each thread

static void release(View& meeting) {
    View known = fibers[current].view;
    known.time[current / 32] = now[current / 32]++;
    meeting.join(known);
}
static void acquire(const View& meeting) { fibers[current].view.join(meeting); }

static shared_address address_of(const void* p) {
    const char* at = (const char*)p;
    if (at < __start_shared_memory || at >= __stop_shared_memory) violation("an address that is not of shared memory");
    return at - __start_shared_memory;
}
static char* pointer_to(shared_address at) { return __start_shared_memory + at; }

static void check_place(shared_address at, unsigned bytes, unsigned alignment) {
    unsigned first = dynamic_shared - __start_shared_memory, size = __stop_shared_memory - __start_shared_memory;
    if (at % alignment) violation("shared memory at %u, which is no multiple of %u", at, alignment);
    bool beyond = at + bytes > size || (at < first + SHARED && at + bytes > first + launched_shared && at >= first);
    if (beyond) violation("shared memory at %u to %u, past its end", at - first, at - first + bytes);
}

static bool known(const Word& w) {  // to this thread: the last write
    int clock = w.writer < COPIED ? w.writer / 32 : w.writer - COPIED;
    return w.writer == current || fibers[current].view.time[clock] >= w.written;
}
static void check_written(shared_address at, const Word& w) {
    if (w.filled_by) violation("uses shared memory at %u, which a copy of thread %d still fills", at, w.filled_by - 1);
    if (known(w)) return;
    if (w.writer < COPIED) violation("uses shared memory at %u, which thread %d wrote, without a barrier", at, w.writer);
    violation("uses shared memory at %u, which was copied, without a wait for its mbarrier", at);
}
static void check_overwritten(shared_address at, Word& w) {
    if (w.writer / 32 != current / 32 || w.filled_by) check_written(at, w);
    if (w.readers) violation("writes shared memory at %u, which a product or a store in flight reads", at);
    for (int i = 0; i < WARPS; i++)
        if (i != current / 32 && w.read[i] > fibers[current].view.time[i])
            violation("writes shared memory at %u, which warp %d read, without a barrier", at, i);
}

static void track_read(shared_address at, unsigned bytes) {
    for (unsigned i = at / 4; i < (at + bytes + 3) / 4; i++) {
        check_written(4 * i, words[i]);
        words[i].read[current / 32] = now[current / 32];
    }
}
static void track_write(shared_address at, unsigned bytes) {
    for (unsigned i = at / 4; i < (at + bytes + 3) / 4; i++) {
        Word& w = words[i];
        check_overwritten(4 * i, w);
        w.writer = current, w.written = now[current / 32], w.unfenced = current + 1;
        unfenced[current].push_back(i);
    }
}
static void fence_async_proxy() {
    for (shared_address i : unfenced[current])
        if (words[i].unfenced == current + 1) words[i].unfenced = 0;
    unfenced[current].clear();
}

// a copy of this thread to shared memory, until it arrives: from then on a thread or an mbarrier's engine wrote it
static void begin_filling(shared_address at, unsigned bytes) {
    for (unsigned i = at / 4; i < (at + bytes) / 4; i++) {
        check_overwritten(4 * i, words[i]);
        words[i].filled_by = current + 1;
    }
    memset(pointer_to(at), 0xff, bytes);
}
static void end_filling(shared_address at, unsigned bytes, int writer, unsigned time) {
    for (unsigned i = at / 4; i < (at + bytes) / 4; i++)
        words[i].filled_by = words[i].unfenced = 0, words[i].writer = writer, words[i].written = time;
}
static void arrived(void* to, int bytes) {
    char* at = (char*)to;
    if (at < __start_shared_memory || at >= __stop_shared_memory || !words[address_of(to) / 4].filled_by) return;
    end_filling(address_of(to), bytes, current, now[current / 32]);
}

// 4 bytes that a product or a store of this thread reads at any time until it was waited for
static void begin_reading(shared_address at) {
    Word& w = words[at / 4];
    check_written(at, w);
    if (w.unfenced)
        violation("reads shared memory at %u, which thread %d wrote, without a fence_async_proxy()", at, w.unfenced - 1);
    w.readers++;
}
static void end_reading(shared_address at) {
    words[at / 4].readers--;
    words[at / 4].read[current / 32] = now[current / 32];
}

static void begin_races(int threads, int shared) {
    memset(words, 0, sizeof(words));
    launched_shared = shared;
    for (unsigned& time : now) time = 1;
    unfenced.assign(threads, {});
}
