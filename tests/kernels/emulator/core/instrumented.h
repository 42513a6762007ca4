// What a compiler calls before each access to memory with -fsanitize=kernel-address.

static void check(unsigned long at, unsigned bytes, bool is_store) {
    if (at % bytes && (bytes & (bytes - 1)) == 0)
        emulated::violation("an access to %u bytes that are not aligned to as many", bytes);
    emulated::check_access((char*)at, bytes, is_store);
}

extern "C" {
#define ACCESS(BYTES)                                                                            \
    void __asan_load##BYTES##_noabort(unsigned long at) { check(at, BYTES, false); }             \
    void __asan_store##BYTES##_noabort(unsigned long at) { check(at, BYTES, true); }
ACCESS(1)
ACCESS(2)
ACCESS(4)
ACCESS(8)
ACCESS(16)
void __asan_loadN_noabort(unsigned long at, unsigned long n) { emulated::check_access((char*)at, n, false); }
void __asan_storeN_noabort(unsigned long at, unsigned long n) { emulated::check_access((char*)at, n, true); }
void __asan_handle_no_return() {}
}
