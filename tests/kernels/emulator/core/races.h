// Each word of shared memory, or each byte of those that are written in parts: who wrote and read it last, and what is
// in flight. An access that no barrier orders after another one is a violation, in whatever order the threads ran.

struct Time {
    int thread;
    unsigned time;
};
struct Record {
    unsigned written = 0;              // when, in the time of the writer
    short writer = 0;                  // a thread, or THREADS + an mbarrier whose copies wrote it
    short readers = 0;                 // products and stores that read it until they were waited for
    short unfenced = 0, filled_by = 0;  // 1 + the thread whose store no fence followed; whose copy is in flight
    std::vector<Time> reads, updates;   // since the last write, the last of each thread; atomic ones
};
struct Word {
    int block;  // of which the rest is
    Record whole;
    std::vector<Record> bytes;  // once it was written in parts
};
static Word words[SHARED / 4];
static int block;
static std::vector<std::vector<shared_address>> unfenced;  // of each thread

static Word& word_at(shared_address at) {
    Word& word = words[at / 4];
    if (word.block != block) word.block = block, word.whole = {}, word.bytes.clear();
    return word;
}
static Record& record_at(shared_address at) {
    Word& word = word_at(at);
    return word.bytes.empty() ? word.whole : word.bytes[at % 4];
}
static void split(Word& word) {
    if (word.bytes.empty()) word.bytes.assign(4, word.whole);
}
// calls with each record, and where it begins
template <class Each>
static void each_record(shared_address at, unsigned size, Each each) {
    for (shared_address end = at + size; at < end;) {
        unsigned step = word_at(at).bytes.empty() ? 4 - at % 4 : 1;
        each(record_at(at), at);
        at += step;
    }
}
// the same, of these bytes alone
template <class Each>
static void each_record_of(shared_address at, unsigned size, Each each) {
    if (at % 4) split(word_at(at));
    if ((at + size) % 4) split(word_at(at + size));
    each_record(at, size, each);
}

static void release(View& meeting) {
    settle_doubts();
    meeting.join(fibers[current].view);
    meeting.time[current] = now[current]++;
}
static void acquire(const View& meeting) { fibers[current].view.join(meeting); }
static bool is_known(int clock, unsigned time) {  // to this thread
    return clock == current || fibers[current].view.time[clock] >= time;
}

static void check_not_filled(shared_address at, const Record& record) {
    if (record.filled_by)
        violation("uses shared memory at %u, which a copy of thread %d still fills", at, record.filled_by - 1);
}
static void check_updated(shared_address at, const Record& record) {
    for (const Time& update : record.updates)
        if (!is_known(update.thread, update.time))
            violation("uses shared memory at %u, which thread %d updates, without a barrier", at, update.thread);
}
static void check_written(shared_address at, const Record& record) {
    check_not_filled(at, record);
    check_updated(at, record);
    if (is_known(record.writer, record.written)) return;
    if (record.writer >= THREADS)
        violation("uses shared memory at %u, which was copied, without a wait for its mbarrier", at);
    violation("uses shared memory at %u, which thread %d wrote, without a barrier", at, record.writer);
}
static void check_read(shared_address at, const Record& record) {
    if (record.readers) violation("writes shared memory at %u, which a product or a store in flight reads", at);
    for (const Time& read : record.reads)
        if (!is_known(read.thread, read.time))
            violation("writes shared memory at %u, which thread %d read, without a barrier", at, read.thread);
}

// Bytes that a thread is about to write after another one, without a barrier: allowed where they stay what they are
struct Doubt {
    shared_address at;
    char was;
    int writer;
};
static std::vector<Doubt> doubts;
static void settle_doubts() {
    for (const Doubt& doubt : doubts)
        if (*pointer_to(doubt.at) != doubt.was)
            violation("writes shared memory at %u, which thread %d wrote, without a barrier", doubt.at, doubt.writer);
    doubts.clear();
}

static void add_time(std::vector<Time>& times) {
    bool all_known = true;
    for (Time& time : times) {
        if (time.thread == current) return void(time.time = now[current]);
        all_known = all_known && is_known(time.thread, time.time);
    }
    if (all_known) times.clear();  // who knows of this one knows of those
    times.push_back({current, now[current]});
}
static void track_read(shared_address at, unsigned size) {
    settle_doubts();
    each_record(at, size, [](Record& record, shared_address at) {
        check_written(at, record);
        add_time(record.reads);
    });
}
static void track_write(shared_address at, unsigned size) {
    settle_doubts();
    each_record_of(at, size, [&](Record& record, shared_address place) {
        check_not_filled(place, record);
        check_read(place, record);
        check_updated(place, record);
        if (!is_known(record.writer, record.written))
            for (unsigned i = place; i < at + size && i / 4 == place / 4; i++)
                doubts.push_back({i, *pointer_to(i), record.writer});
        if (record.unfenced != current + 1) unfenced[current].push_back(place);
        record.writer = current, record.written = now[current], record.unfenced = current + 1;
        record.reads.clear(), record.updates.clear();
    });
}
// a read and a write that no other update comes between
static void track_update(shared_address at, unsigned size) {
    settle_doubts();
    each_record_of(at, size, [&](Record& record, shared_address at) {
        std::vector<Time> updates;
        updates.swap(record.updates);
        check_written(at, record);
        check_read(at, record);
        updates.swap(record.updates);
        add_time(record.updates);
    });
}
void fence_async_proxy() {
    for (shared_address at : unfenced[current])
        each_record(at / 4 * 4, 4, [](Record& record, shared_address) {
            if (record.unfenced == current + 1) record.unfenced = 0;
        });
    unfenced[current].clear();
}

// a copy of this thread to shared memory, until it arrives: from then on a thread or an mbarrier's engine wrote it
static void begin_filling(shared_address at, unsigned size) {
    settle_doubts();
    each_record_of(at, size, [](Record& record, shared_address at) {
        check_written(at, record);
        check_read(at, record);
        record.filled_by = current + 1;
        record.reads.clear(), record.updates.clear();
    });
    memset(pointer_to(at), 0xff, size);
}
static void end_filling(shared_address at, unsigned size, int writer, unsigned time) {
    each_record_of(at, size, [=](Record& record, shared_address) {
        record.filled_by = record.unfenced = 0, record.writer = writer, record.written = time;
    });
}

// memory that a product or a store of this thread reads at any time until it was waited for
static void begin_reading(shared_address at, unsigned size) {
    settle_doubts();
    each_record(at, size, [](Record& record, shared_address at) {
        check_written(at, record);
        if (record.unfenced)
            violation("reads shared memory at %u, which thread %d wrote, without a fence_async_proxy()", at,
                      record.unfenced - 1);
        record.readers++;
    });
}
static void end_reading(shared_address at, unsigned size) {
    each_record(at, size, [](Record& record, shared_address) {
        record.readers--;
        add_time(record.reads);
    });
}

static void begin_races(int threads) {
    block++;
    doubts.clear();
    for (unsigned& time : now) time = 1;
    unfenced.assign(threads, {});
}
