// What a thread knows of the others: up to which time their accesses to shared memory precede its own (vector clocks).
// A thread's time goes on when it lets others know; that of an mbarrier's copies when a phase ends.

enum { THREADS = 1024, MBARRIERS = 32, CLOCKS = THREADS + MBARRIERS };

struct View {
    unsigned time[CLOCKS] = {};
    void join(const View& other) {
        for (int i = 0; i < CLOCKS; i++) time[i] = time[i] < other.time[i] ? other.time[i] : time[i];
    }
};
static unsigned now[CLOCKS];

static void release(View& meeting);  // whoever acquires it knows what this thread knows and did
static void acquire(const View& meeting);
static void settle_doubts();  // of this thread's last write
