// Accesses of a kernel: whether memory is there, and, if it is shared, whether they race.

static void check_global(const void* p, unsigned bytes, const char* access) {
    const long long at = (long long)p;
    for (int i = 0; i < tensors; i++)
        if (at >= memory[2 * i] && at + bytes <= memory[2 * i + 1]) return;
    violation("%s %u bytes of global memory that are in no tensor of the launch", access, bytes);
}

// an ordinary load or store
static void check_access(char* p, unsigned bytes, bool is_store) {
    const std::vector<char>& stack = fibers[current].stack;
    if (p >= stack.data() && p < stack.data() + stack.size()) return;
    if (is_shared(p)) {
        check_place(address_of(p), bytes, 1);
        return is_store ? track_write(address_of(p), bytes) : track_read(address_of(p), bytes);
    }
    if (p >= __ehdr_start && p < _end) return;  // constants of the program
    check_global(p, bytes, is_store ? "writes" : "reads");
}

void read_shared(void* to, shared_address from, int bytes) {
    check_place(from, bytes, bytes);
    track_read(from, bytes);
    memcpy(to, pointer_to(from), bytes);
}
void write_shared(shared_address to, const void* from, int bytes) {
    check_place(to, bytes, bytes);
    track_write(to, bytes);
    memcpy(pointer_to(to), from, bytes);
}
