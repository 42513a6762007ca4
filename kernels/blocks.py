"""A list of the blocks of rows of all sequences, made on the device, those of the longest sequences first.

It is an int32 tensor (slots, 8), a block in each row: the first row of its sequence and the row after its last, the
same two of what the sequence is attended with, the first row of the block, -1 where there is none, and how many blocks
there are. A program knows all it needs of a block after one load. What the host knows is a bound on their number, so
that some programs find none; where it is far from what is likely, fewer programs take several blocks one after another.
Beside it is how many rows lie in no block, those of short sequences and in slack: where that is 0, their kernels have
nothing to do.

Blocks of long sequences take longest and come first: otherwise a GPU would wait for one of them at the end. A sequence
is of the class of its length, a power of two; inside a class, sequences are in the order of the pack.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from packproof.kernels.launch import alignments, cdiv, interpreted, launch
from packproof.kernels.sequences import bounds, sum_of_first
from packproof.kernels.variant import Variant

_CLASSES = tl.constexpr(8)
_LONGEST = 8192  # rows, from which on a sequence is of the first class
_LONGEST_INTERPRETED = 1024  # as many times what is short as on a GPU
# sequences of a program, and slots of the list; the interpreted ones let the packs of tests take several programs
_BLOCK, _BLOCK_INTERPRETED = 1024, 16
_SLOTS, _SLOTS_INTERPRETED = 256, 16
_NUM_WARPS = 4
# of a launch whose list may be almost empty: eight rounds of an H200, and an end of 6 µs where none finds a block
_PROGRAMS, _PROGRAMS_INTERPRETED = 2048, 8


class Blocks(NamedTuple):
    """items (slots, 8): the list. unlisted (1,): how many rows lie in none of them. Both int32."""

    items: Tensor
    unlisted: Tensor


@triton.jit
def block(blocks, index):
    """A block: the bounds of its sequence and of the others there, and its first row, -1 for no block."""
    row = blocks + 8 * index.to(tl.int64)
    return tl.load(row), tl.load(row + 1), tl.load(row + 2), tl.load(row + 3), tl.load(row + 4)


@triton.jit
def n_blocks(blocks, index):
    """How many there are, from any row: that of a block will be read next."""
    return tl.load(blocks + 8 * index.to(tl.int64) + 5)


@triton.jit
def _class(length, longest):
    """0 for the longest sequences, _CLASSES - 1 for the shortest."""
    found = tl.zeros_like(length)
    for step in tl.static_range(_CLASSES - 1):
        found += (length < (longest >> step)).to(tl.int32)
    return found


@triton.jit
def _counts(cu_seqlens, cu_others, T, U, S, size, short, longest, BLOCK: tl.constexpr):
    """A program's class and part of the sequences, these, and how many blocks of the class each of them has; in the
    class after the last, how many rows of short ones."""
    part, which = tl.program_id(0), tl.program_id(1)
    sequence = part * BLOCK + tl.arange(0, BLOCK)
    start, end = bounds(cu_seqlens, S, T, sequence)
    other_start, other_end = bounds(cu_others, S, U, sequence)
    length = tl.maximum(end - start, other_end - other_start)
    of_sequence = tl.where(length > short, _class(length, longest), _CLASSES)
    count = tl.where(which < _CLASSES, tl.cdiv(end - start, size), end - start)
    return which, part, sequence, tl.where((sequence < S) & (of_sequence == which), count, 0)


@triton.jit(do_not_specialize=["cu_seqlens", "cu_others", "T", "U", "S", "size", "short", "longest"])
def _blocks_counts_kernel(cu_seqlens, cu_others, counts, T, U, S, size, short, longest, BLOCK: tl.constexpr):
    """Blocks of the class in each part of the sequences: (classes + 1, parts)."""
    which, part, _, count = _counts(cu_seqlens, cu_others, T, U, S, size, short, longest, BLOCK)
    tl.store(counts + which * tl.cdiv(S, BLOCK) + part, tl.sum(count, 0))


@triton.jit(do_not_specialize=["cu_seqlens", "cu_others", "T", "U", "S", "size", "short", "longest"])
def _blocks_offsets_kernel(cu_seqlens, cu_others, counts, offsets, T, U, S, size, short, longest, BLOCK: tl.constexpr):
    """Blocks of the class before each sequence, and their number in all: (classes + 1, s + 1). Rows in slack count
    among those of the short ones."""
    which, part, sequence, count = _counts(cu_seqlens, cu_others, T, U, S, size, short, longest, BLOCK)
    before = sum_of_first(counts + which * tl.cdiv(S, BLOCK), part, BLOCK)
    up_to = before + tl.cumsum(count, 0)
    offsets += which * (S + 1)
    tl.store(offsets + sequence, up_to - count, mask=sequence < S)
    slack = tl.where(which == _CLASSES, T - tl.load(cu_seqlens + S), 0)
    tl.store(offsets + S, before + tl.sum(count, 0) + slack, mask=(part + 1) * BLOCK >= S)


@triton.jit(do_not_specialize=["cu_seqlens", "cu_others", "T", "U", "S", "slots", "size", "last_first"])
def _blocks_items_kernel(
    cu_seqlens, cu_others, offsets, blocks, T, U, S, slots, size, last_first, SLOTS: tl.constexpr
):  # fmt: skip
    slot = tl.program_id(0) * SLOTS + tl.arange(0, SLOTS)
    row, alive = blocks + slot.to(tl.int64) * 8, slot < slots
    which = tl.zeros_like(slot)
    before = tl.zeros_like(slot)
    total = 0
    for one in tl.static_range(_CLASSES):
        total += tl.load(offsets + one * (S + 1) + S)
        past = slot >= total
        which = tl.where(past, one + 1, which)
        before = tl.where(past, total, before)
    taken = slot < total
    offsets += tl.minimum(which, _CLASSES - 1) * (S + 1)
    slot -= before
    sequence = tl.zeros_like(slot)
    left = tl.where(tl.program_id(0) * SLOTS < total, S - 1, 0)
    while left > 0:  # the last sequence whose blocks begin at or before the slot; those without blocks are skipped
        step = (left + 1) // 2
        further = sequence + step
        sequence = tl.where(tl.load(offsets + further) <= slot, further, sequence)
        left = left // 2
    start, end = bounds(cu_seqlens, S, T, sequence)
    other_start, other_end = bounds(cu_others, S, U, sequence)
    number = slot - tl.load(offsets + sequence, mask=taken, other=0)
    number = tl.where(last_first != 0, tl.cdiv(end - start, size) - 1 - number, number)
    tl.store(row, start, mask=alive)
    tl.store(row + 1, end, mask=alive)
    tl.store(row + 2, other_start, mask=alive)
    tl.store(row + 3, other_end, mask=alive)
    tl.store(row + 4, tl.where(taken, start + number * size, -1), mask=alive)
    tl.store(row + 5, total, mask=alive)


def n_slots(n_rows: int, n_others: int, n_sequences: int, size: int, short: int) -> int:
    """Blocks of `size` rows that so many sequences of so many rows and others can have, those left out that are short
    in both."""
    return n_rows // size + min(n_sequences, n_rows, (n_rows + n_others) // (short + 1))


def n_programs(items: int, n_rows: int, n_sequences: int, size: int) -> int:
    """Programs that share the items, those of all slots: as many, unless sequences have fewer than `size` rows on
    average, since then most slots may have no block, and programs take time that find none."""
    most = _PROGRAMS_INTERPRETED if interpreted(_blocks_items_kernel) else _PROGRAMS
    return items if n_sequences * size <= n_rows else min(items, most)


def blocks_of(
    cu_seqlens: Tensor, n_rows: int, cu_others: Tensor, n_others: int, size: int, short: int, *, last_first: bool
) -> Blocks:
    """The blocks of up to `size` rows of each sequence.

    cu_others, n_others: the offsets and rows of what the sequences are attended with, whose length counts too.
    short: a sequence with no more rows than that, and no more others, has no blocks. last_first: the blocks of a
    sequence from its end, where they are to take longest.
    """
    n_sequences = len(cu_seqlens) - 1
    slots = n_slots(n_rows, n_others, n_sequences, size, short)
    items = cu_seqlens.new_empty(slots, 8)
    small = interpreted(_blocks_items_kernel)
    block_size, slots_each = (_BLOCK_INTERPRETED, _SLOTS_INTERPRETED) if small else (_BLOCK, _SLOTS)
    parts, classes = max(cdiv(n_sequences, block_size), 1), _CLASSES.value + 1
    offsets = cu_seqlens.new_empty(classes, n_sequences + 1)
    arguments = {
        **{"cu_seqlens": cu_seqlens, "cu_others": cu_others, "T": n_rows, "U": n_others, "S": n_sequences},
        **{"counts": cu_seqlens.new_empty(classes, parts), "offsets": offsets},
        **{"blocks": items, "slots": slots},
        **{"size": size, "short": short},
        **{"longest": _LONGEST_INTERPRETED if small else _LONGEST, "last_first": int(last_first)},
        **{"BLOCK": block_size, "SLOTS": slots_each},
    }
    if parts > 1:
        launch(_blocks_counts_kernel, (parts, classes), arguments, num_warps=_NUM_WARPS)
    launch(_blocks_offsets_kernel, (parts, classes), arguments, num_warps=_NUM_WARPS)
    if slots:
        launch(_blocks_items_kernel, (cdiv(slots, slots_each),), arguments, num_warps=_NUM_WARPS)
    return Blocks(items, offsets[-1, n_sequences:])


def variants() -> list[Variant]:
    """Every compiled form of the kernels."""
    pointers = dict.fromkeys(("cu_seqlens", "cu_others", "counts", "offsets", "blocks"), "*i32")
    of_sequences, of_slots = {"BLOCK": _BLOCK}, {"SLOTS": _SLOTS}
    constants = {
        _blocks_counts_kernel: of_sequences,
        _blocks_offsets_kernel: of_sequences,
        _blocks_items_kernel: of_slots,
    }
    return [
        variant
        for kernel, sizes in constants.items()
        for variant in alignments(kernel.__name__.strip("_"), kernel, pointers, sizes, _NUM_WARPS)
    ]
