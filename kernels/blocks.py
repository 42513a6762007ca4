"""A list of the blocks of rows of all sequences, made on the device, longest sequences first.

The list is an int32 tensor (slots, 8) with a block in each row: start and end of its sequence, start and end of the
same sequence on the other side (the keys of queries, or the reverse), the first row of the block, and the number of
blocks. An empty slot has -1 as first row. A program knows its block after one load. The host knows only an upper bound
on the number of blocks, so some programs find none. If the bound is likely to be far too high, fewer programs take
several blocks each. A counter beside the list has the rows of no block, those of short sequences and of slack. If it is
0, the kernels for short sequences return at once.

Blocks of long sequences take longest and come first, or the GPU would wait for one of them at the end. Sequences are
sorted by class, a power of two of their length; inside a class they keep the order of the pack.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from packproof.kernels.launch import cdiv, launch, runs_interpreted, specializations
from packproof.kernels.sequences import bounds, prefix_sum
from packproof.kernels.variant import Variant

_CLASSES = tl.constexpr(8)
_LONGEST = 8192  # rows of a sequence of the first class, at least
_LONGEST_INTERPRETED = 1024  # in proportion to the limit of short sequences, as on a GPU
# sequences of a program, and slots of the list; interpreted, the packs of tests take several programs
_BLOCK, _BLOCK_INTERPRETED = 1024, 16
_SLOTS, _SLOTS_INTERPRETED = 256, 16
_NUM_WARPS = 4
# of a launch with a list that may be almost empty: eight rounds of an H200, and 6 µs if no program finds a block
_PROGRAMS, _PROGRAMS_INTERPRETED = 2048, 8


class Blocks(NamedTuple):
    """The list and its counter, both int32."""

    items: Tensor
    """(slots, 8), the list."""
    unlisted: Tensor
    """(1,), the number of rows in no block."""


@triton.jit
def load_block(blocks, index):
    """A block: start and end of its sequence, the same of the other side, and its first row, -1 for no block."""
    row = blocks + 8 * index.to(tl.int64)
    return tl.load(row), tl.load(row + 1), tl.load(row + 2), tl.load(row + 3), tl.load(row + 4)


@triton.jit
def block_count(blocks, index):
    """The number of blocks, read from any row: from the one that the program loads next."""
    return tl.load(blocks + 8 * index.to(tl.int64) + 5)


@triton.jit
def _length_class(length, longest):
    """0 for the longest sequences, _CLASSES - 1 for the shortest."""
    class_index = tl.zeros_like(length)
    for step in tl.static_range(_CLASSES - 1):
        class_index += (length < (longest >> step)).to(tl.int32)
    return class_index


@triton.jit
def _block_counts(cu_seqlens, cu_others, T, U, S, size, short, longest, BLOCK: tl.constexpr):
    """A program's class, its block of sequences by index and by number, and the number of blocks of each sequence in
    the class.

    In the class after the last it counts the rows of short sequences.
    """
    part, class_index = tl.program_id(0), tl.program_id(1)
    sequence = part * BLOCK + tl.arange(0, BLOCK)
    start, end = bounds(cu_seqlens, S, T, sequence)
    other_start, other_end = bounds(cu_others, S, U, sequence)
    length = tl.maximum(end - start, other_end - other_start)
    sequence_class = tl.where(length > short, _length_class(length, longest), _CLASSES)
    count = tl.where(class_index < _CLASSES, tl.cdiv(end - start, size), end - start)
    return class_index, part, sequence, tl.where((sequence < S) & (sequence_class == class_index), count, 0)


@triton.jit(do_not_specialize=["cu_seqlens", "cu_others", "T", "U", "S", "size", "short", "longest"])
def _blocks_counts_kernel(cu_seqlens, cu_others, counts, T, U, S, size, short, longest, BLOCK: tl.constexpr):
    """Blocks of each class in each block of sequences: (classes + 1, parts)."""
    class_index, part, _, count = _block_counts(cu_seqlens, cu_others, T, U, S, size, short, longest, BLOCK)
    tl.store(counts + class_index * tl.cdiv(S, BLOCK) + part, tl.sum(count, 0))


@triton.jit(do_not_specialize=["cu_seqlens", "cu_others", "T", "U", "S", "size", "short", "longest"])
def _blocks_offsets_kernel(cu_seqlens, cu_others, counts, offsets, T, U, S, size, short, longest, BLOCK: tl.constexpr):
    """Blocks of the class before each sequence, and their total number: (classes + 1, s + 1).

    Rows in slack are added to the rows of short sequences.
    """
    class_index, part, sequence, count = _block_counts(cu_seqlens, cu_others, T, U, S, size, short, longest, BLOCK)
    blocks_before = prefix_sum(counts + class_index * tl.cdiv(S, BLOCK), part, BLOCK)
    running_count = blocks_before + tl.cumsum(count, 0)
    offsets += class_index * (S + 1)
    tl.store(offsets + sequence, running_count - count, mask=sequence < S)
    slack = tl.where(class_index == _CLASSES, T - tl.load(cu_seqlens + S), 0)
    tl.store(offsets + S, blocks_before + tl.sum(count, 0) + slack, mask=(part + 1) * BLOCK >= S)


@triton.jit(do_not_specialize=["cu_seqlens", "cu_others", "T", "U", "S", "slots", "size", "last_first"])
def _blocks_items_kernel(
    cu_seqlens, cu_others, offsets, blocks, T, U, S, slots, size, last_first, SLOTS: tl.constexpr
):  # fmt: skip
    slot = tl.program_id(0) * SLOTS + tl.arange(0, SLOTS)
    row, alive = blocks + slot.to(tl.int64) * 8, slot < slots
    slot_class = tl.zeros_like(slot)
    blocks_before = tl.zeros_like(slot)
    total = 0
    for class_index in tl.static_range(_CLASSES):
        total += tl.load(offsets + class_index * (S + 1) + S)
        is_past = slot >= total
        slot_class = tl.where(is_past, class_index + 1, slot_class)
        blocks_before = tl.where(is_past, total, blocks_before)
    has_block = slot < total
    offsets += tl.minimum(slot_class, _CLASSES - 1) * (S + 1)
    slot -= blocks_before
    sequence = tl.zeros_like(slot)
    span = tl.where(tl.program_id(0) * SLOTS < total, S - 1, 0)
    while span > 0:  # the last sequence whose blocks begin at or before the slot; those without blocks are skipped
        step = (span + 1) // 2
        candidate = sequence + step
        sequence = tl.where(tl.load(offsets + candidate) <= slot, candidate, sequence)
        span = span // 2
    start, end = bounds(cu_seqlens, S, T, sequence)
    other_start, other_end = bounds(cu_others, S, U, sequence)
    number = slot - tl.load(offsets + sequence, mask=has_block, other=0)
    number = tl.where(last_first != 0, tl.cdiv(end - start, size) - 1 - number, number)
    tl.store(row, start, mask=alive)
    tl.store(row + 1, end, mask=alive)
    tl.store(row + 2, other_start, mask=alive)
    tl.store(row + 3, other_end, mask=alive)
    tl.store(row + 4, tl.where(has_block, start + number * size, -1), mask=alive)
    tl.store(row + 5, total, mask=alive)


def n_slots(n_rows: int, n_others: int, n_sequences: int, size: int, short: int) -> int:
    """An upper bound on the blocks of `size` rows, from the numbers of rows and sequences on both sides.

    Sequences with at most `short` rows on both sides have no block.
    """
    return n_rows // size + min(n_sequences, n_rows, (n_rows + n_others) // (short + 1))


def n_programs(items: int, n_rows: int, n_sequences: int, size: int) -> int:
    """Programs that share `items`, the work of all slots: one each if sequences have at least `size` rows on average.

    Otherwise most slots may be empty, and a limited number of programs shares them: a program without work costs time
    too.
    """
    limit = _PROGRAMS_INTERPRETED if runs_interpreted(_blocks_items_kernel) else _PROGRAMS
    return items if n_sequences * size <= n_rows else min(items, limit)


def list_blocks(
    cu_seqlens: Tensor, n_rows: int, cu_others: Tensor, n_others: int, size: int, short: int, *, reverse: bool
) -> Blocks:
    """The blocks of up to `size` rows of each sequence.

    cu_others, n_others: offsets and rows of the other side, whose lengths count too for class and shortness.
    short: a sequence with at most this many rows on both sides has no blocks.
    reverse: list the blocks of a sequence from its end, if the last ones take longest.
    """
    n_sequences = len(cu_seqlens) - 1
    slots = n_slots(n_rows, n_others, n_sequences, size, short)
    items = cu_seqlens.new_empty(slots, 8)
    in_interpreter = runs_interpreted(_blocks_items_kernel)
    block_size, slots_per_program = (_BLOCK_INTERPRETED, _SLOTS_INTERPRETED) if in_interpreter else (_BLOCK, _SLOTS)
    parts, classes = max(cdiv(n_sequences, block_size), 1), _CLASSES.value + 1
    offsets = cu_seqlens.new_empty(classes, n_sequences + 1)
    arguments = {
        **{"cu_seqlens": cu_seqlens, "cu_others": cu_others, "T": n_rows, "U": n_others, "S": n_sequences},
        **{"counts": cu_seqlens.new_empty(classes, parts), "offsets": offsets},
        **{"blocks": items, "slots": slots},
        **{"size": size, "short": short},
        **{"longest": _LONGEST_INTERPRETED if in_interpreter else _LONGEST, "last_first": int(reverse)},
        **{"BLOCK": block_size, "SLOTS": slots_per_program},
    }
    if parts > 1:
        launch(_blocks_counts_kernel, (parts, classes), arguments, num_warps=_NUM_WARPS)
    launch(_blocks_offsets_kernel, (parts, classes), arguments, num_warps=_NUM_WARPS)
    if slots:
        launch(_blocks_items_kernel, (cdiv(slots, slots_per_program),), arguments, num_warps=_NUM_WARPS)
    return Blocks(items, offsets[-1, n_sequences:])


def variants() -> list[Variant]:
    """Every compiled form of the kernels."""
    pointers = dict.fromkeys(("cu_seqlens", "cu_others", "counts", "offsets", "blocks"), "*i32")
    sequence_constants, slot_constants = {"BLOCK": _BLOCK}, {"SLOTS": _SLOTS}
    constants = {
        _blocks_counts_kernel: sequence_constants,
        _blocks_offsets_kernel: sequence_constants,
        _blocks_items_kernel: slot_constants,
    }
    return [
        variant
        for kernel, sizes in constants.items()
        for variant in specializations(kernel.__name__.strip("_"), kernel, pointers, sizes, _NUM_WARPS)
    ]
