// What a compiler calls before each access to memory with -fsanitize=thread.

static void check(char* at, unsigned size, bool is_store) {
    if ((unsigned long)at % size) emulated::violation("an access to %u bytes that are not aligned to as many", size);
    emulated::check_access(at, size, is_store);
}

extern "C" {
#define ACCESS(SIZE)                                                 \
    void __tsan_read##SIZE(char* at) { check(at, SIZE, false); }     \
    void __tsan_write##SIZE(char* at) { check(at, SIZE, true); }     \
    void __tsan_unaligned_read##SIZE(char* at) { check(at, SIZE, false); } \
    void __tsan_unaligned_write##SIZE(char* at) { check(at, SIZE, true); }
ACCESS(1)
ACCESS(2)
ACCESS(4)
ACCESS(8)
ACCESS(16)
void __tsan_read_range(char* at, unsigned long size) { emulated::check_access(at, size, false); }
void __tsan_write_range(char* at, unsigned long size) { emulated::check_access(at, size, true); }
void __tsan_init() {}
}
