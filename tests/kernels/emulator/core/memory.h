// A block's shared memory: what the launch asks for from its start on, variables from its end on. NaN until it is
// written.

enum { SHARED = 227 * 1024 };  // bytes
__attribute__((aligned(1024))) static char shared_memory[SHARED];
static unsigned launched_shared, variables_begin;
static std::map<const void*, shared_address> variables;  // by a place of their own in the program

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

static void begin_memory(int shared) {
    memset(shared_memory, 0xff, SHARED);
    launched_shared = shared, variables_begin = SHARED;
    variables.clear();
}
