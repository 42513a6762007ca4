// What a thread knows of the others: up to which time their accesses to shared memory precede its own (vector clocks).
// A warp's time goes on when one of its threads lets others know; a copy engine's, one for each mbarrier, when a phase
// ends.

enum { WARPS = 32, CLOCKS = 64 };

struct View {
    unsigned time[CLOCKS] = {};
    void join(const View& other) {
        for (int i = 0; i < CLOCKS; i++)
            if (time[i] < other.time[i]) time[i] = other.time[i];
    }
};
static unsigned now[CLOCKS];
static void release(View& meeting);  // whoever acquires it knows what this thread knows and did
static void acquire(const View& meeting);
