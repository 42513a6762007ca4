"""Triton kernels whose threads or programs communicate through memory, correct unless BUG leaves something out."""

# mypy: disable-error-code="no-untyped-def, misc"

import triton
import triton.language as tl


@triton.jit
def reversed_through_memory(y, x, scratch, STEPS: tl.constexpr, N: tl.constexpr, BUG: tl.constexpr):
    """Rows of N elements, each reversed through memory that all warps of the program share."""
    program, at = tl.program_id(0), tl.arange(0, N)
    for k in range(STEPS):
        row = (program * STEPS + k) * N
        tl.store(scratch + program * N + at, tl.load(x + row + at))
        if BUG != "no-barrier-before-load":
            tl.debug_barrier()
        reversed_row = tl.load(scratch + program * N + (N - 1 - at), volatile=True)
        tl.store(y + row + at, reversed_row)
        if BUG != "no-barrier-before-next-store":
            tl.debug_barrier()


@triton.jit
def last_program(y, x, parts, words, PROGRAMS: tl.constexpr, N: tl.constexpr, BUG: tl.constexpr):
    """Each program leaves a row; the last one to count itself adds all rows."""
    program, at = tl.program_id(0), tl.arange(0, N)
    tl.store(parts + program * N + at, 2 * tl.load(x + program * N + at), cache_modifier=".cg")
    if BUG != "no-barrier-before-count":
        tl.debug_barrier()
    if BUG == "count-is-relaxed":
        position = tl.atomic_add(words, 1, sem="relaxed")
    else:
        position = tl.atomic_add(words, 1, sem="acq_rel")
    if position == PROGRAMS - 1:
        tl.debug_barrier()
        total = tl.zeros((N,), tl.float32)
        for k in range(PROGRAMS):
            total += tl.load(parts + k * N + at, volatile=True)
        tl.store(y + at, total)


@triton.jit
def locked_sum(y, x, words, N: tl.constexpr, BUG: tl.constexpr):
    """Programs add to one row, one at a time, as in a layer norm's gradient of the weight."""
    program, at = tl.program_id(0), tl.arange(0, N)
    value = tl.load(x + program * N + at)
    while tl.atomic_cas(words, 0, 1) == 1:
        pass
    total = tl.load(y + at, volatile=True) + value
    tl.store(y + at, total, cache_modifier=".cg")
    if BUG != "unlocked-without-barrier":
        tl.debug_barrier()
    tl.atomic_xchg(words, 0)


@triton.jit
def chained(y, x, states, words, N: tl.constexpr, BUG: tl.constexpr):
    """A running sum from program to program: each waits for the flag of the one before."""
    program, at = tl.program_id(0), tl.arange(0, N)
    before = tl.zeros((N,), tl.float32)
    if program > 0:
        while tl.atomic_add(words + program - 1, 0) == 0:
            pass
        tl.debug_barrier()
        before = tl.load(states + (program - 1) * N + at, volatile=True)
    total = before + tl.load(x + program * N + at)
    if BUG == "flag-before-state":
        tl.atomic_xchg(words + program, 1)
    tl.store(states + program * N + at, total, cache_modifier=".cg")
    if BUG != "no-barrier-before-flag":
        tl.debug_barrier()
    tl.atomic_xchg(words + program, 1)
    tl.store(y + program * N + at, total)


@triton.jit
def split_sum(y, x, parts, words, PROGRAMS: tl.constexpr, N: tl.constexpr, BUG: tl.constexpr):
    """The first program adds the rows of the others once all have counted themselves."""
    program, at = tl.program_id(0), tl.arange(0, N)
    if program > 0:
        tl.store(parts + program * N + at, tl.load(x + program * N + at), cache_modifier=".cg")
        tl.debug_barrier()
        tl.atomic_add(words, 1)
    else:
        awaited = PROGRAMS - 2 if BUG == "read-one-part-early" else PROGRAMS - 1
        while tl.atomic_add(words, 0) < awaited:
            pass
        tl.debug_barrier()
        total = tl.load(x + at)
        for k in range(1, PROGRAMS):
            total += tl.load(parts + k * N + at, volatile=True)
        tl.store(y + at, total)


@triton.jit
def neighbour(y, x, N: tl.constexpr, BUG: tl.constexpr):
    """Each element plus 64 times the one before it; y holds x at first."""
    at = tl.program_id(0) * N + tl.arange(0, N)
    source = y if BUG == "halo-in-place" else x
    before = tl.load(source + at - 1, mask=at > 0, other=0.0, volatile=True)
    value = tl.load(x + at) + 64 * before
    tl.debug_barrier()
    tl.store(y + at, value, cache_modifier=".cg")


@triton.jit
def summed(y, x, N: tl.constexpr, BUG: tl.constexpr):
    """The sum of all rows by atomic additions, into a row that the host has zeroed."""
    program, at = tl.program_id(0), tl.arange(0, N)
    if BUG == "zeroed-by-first-program" and program == 0:
        tl.store(y + at, tl.zeros((N,), tl.float32), cache_modifier=".cg")
    value = tl.load(x + program * N + at)
    if BUG == "addition-without-atomics":
        tl.store(y + at, tl.load(y + at, volatile=True) + value, cache_modifier=".cg")
    else:
        tl.atomic_add(y + at, value)
