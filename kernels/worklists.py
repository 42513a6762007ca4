"""Worklists of a pack, made on the device: the pieces of sequences that a kernel has to process.

A list is an int32 tensor (1 + slots, 4). Row 0 starts with the number of items. Each other row is an item: the
sequence, its first token, its end, the first token of the piece. A program takes several items, one after another. So
the cost of a launch follows the work of the pack; the host knows only an upper bound on it.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from packproof.kernels.launch import alignments, cdiv, interpreted, launch
from packproof.kernels.sequences import bounds, sum_of_first
from packproof.kernels.variant import Variant

_MAX_PROGRAMS = 16_384  # of one launch: enough for any GPU to balance
_MAX_PROGRAMS_INTERPRETED = 48  # they run together, so more of them gain little
_ITEMS_INTERPRETED = 3  # of the bound, for a program: small packs too then have programs with several items
_LISTS = 7
_BLOCK = 1024
_BLOCK_INTERPRETED = 8  # small: the packs of tests take several iterations and programs
_NUM_WARPS = 4


def n_programs(n_items: int) -> int:
    """Programs of a launch that share up to n_items."""
    if interpreted(_worklist_items_kernel):
        return min(cdiv(n_items, _ITEMS_INTERPRETED), _MAX_PROGRAMS_INTERPRETED)
    return min(n_items, _MAX_PROGRAMS)


class Worklists(NamedTuple):
    """The lists of one pack."""

    chunks: tuple[Tensor, ...]
    """Long, half and short chunks of all sequences."""
    segments: tuple[Tensor, ...]
    """Long, half and short segments of all sequences."""
    all_segments: Tensor
    """All segments of sequences with several chunks, or of every sequence."""


@triton.jit
def item(worklist, index, SIZE: tl.constexpr):
    """An item: the sequence, its start and end, the start and end of the piece."""
    row = worklist + 4 * (index + 1)
    end, first = tl.load(row + 2), tl.load(row + 3)
    return tl.load(row), tl.load(row + 1), end, first, tl.minimum(first + SIZE, end)


@triton.jit
def _pieces(length, which, chunk, half, short, segment, every):
    """The number of pieces of a sequence in a list, and the index of the first one."""
    size = tl.where(which < 3, chunk, segment)
    full, rest = length // size, length % size
    of_long = full + (rest > half).to(tl.int32)
    of_half = ((rest > short) & (rest <= half)).to(tl.int32)
    of_short = ((rest > 0) & (rest <= short)).to(tl.int32)
    of_all = tl.where((every != 0) | (length > chunk), tl.maximum(full + (rest > 0).to(tl.int32), every), 0)
    kind = which % 3
    count = tl.where(kind == 0, of_long, tl.where(kind == 1, of_half, of_short))
    return tl.where(which == 6, of_all, count), tl.where(kind == 0, 0, full)


@triton.jit
def _counts(cu_seqlens, T, S, chunk, half, short, segment, every, BLOCK: tl.constexpr):
    """A program's list, its block of sequences by index and by number, and the items of each sequence in the list."""
    part, which = tl.program_id(0), tl.program_id(1)
    sequence = part * BLOCK + tl.arange(0, BLOCK)
    start, end = bounds(cu_seqlens, S, T, sequence)
    count, _ = _pieces(end - start, which, chunk, half, short, segment, every)
    return which, part, sequence, tl.where(sequence < S, count, 0)


@triton.jit(do_not_specialize=["cu_seqlens", "T", "S", "chunk", "half", "short", "segment", "every"])
def _worklist_counts_kernel(cu_seqlens, counts, T, S, chunk, half, short, segment, every, BLOCK: tl.constexpr):
    """Items of each block of sequences: (lists, parts)."""
    which, part, _, count = _counts(cu_seqlens, T, S, chunk, half, short, segment, every, BLOCK)
    tl.store(counts + which * tl.cdiv(S, BLOCK) + part, tl.sum(count, 0))


@triton.jit(do_not_specialize=["cu_seqlens", "T", "S", "slots", "chunk", "half", "short", "segment", "every"])
def _worklist_offsets_kernel(
    cu_seqlens, counts, offsets, lists, T, S, slots, chunk, half, short, segment, every, BLOCK: tl.constexpr
):  # fmt: skip
    """Items before each sequence (lists, s + 1), and their total number."""
    which, part, sequence, count = _counts(cu_seqlens, T, S, chunk, half, short, segment, every, BLOCK)
    before = sum_of_first(counts + which * tl.cdiv(S, BLOCK), part, BLOCK)
    up_to, total = before + tl.cumsum(count, 0), before + tl.sum(count, 0)
    offsets += which * (S + 1)
    last = (part + 1) * BLOCK >= S
    tl.store(offsets + sequence, up_to - count, mask=sequence < S)
    tl.store(offsets + S, total, mask=last)
    tl.store(lists + which.to(tl.int64) * (slots + 1) * 4, total, mask=last)


@triton.jit(do_not_specialize=["cu_seqlens", "T", "S", "slots", "chunk", "half", "short", "segment", "every"])
def _worklist_items_kernel(
    cu_seqlens, offsets, lists, T, S, slots, chunk, half, short, segment, every, BLOCK: tl.constexpr
):
    which = tl.program_id(1)
    offsets += which * (S + 1)
    slot = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    taken = slot < tl.load(offsets + S)
    sequence = tl.zeros_like(slot)
    left = S - 1
    while left > 0:  # the last sequence whose items begin at or before the slot; those without items are skipped
        step = (left + 1) // 2
        further = sequence + step
        sequence = tl.where(tl.load(offsets + further) <= slot, further, sequence)
        left = left // 2
    start, end = bounds(cu_seqlens, S, T, sequence)
    _, number = _pieces(end - start, which, chunk, half, short, segment, every)
    number += slot - tl.load(offsets + sequence, mask=taken, other=0)
    row = lists + (which.to(tl.int64) * (slots + 1) + 1 + slot) * 4
    tl.store(row, sequence, mask=taken)
    tl.store(row + 1, start, mask=taken)
    tl.store(row + 2, end, mask=taken)
    tl.store(row + 3, start + number * tl.where(which < 3, chunk, segment), mask=taken)


def worklists(
    cu_seqlens: Tensor, n_tokens: int, *, chunk: int, half: int, short: int, segment: int, every: bool
) -> Worklists:
    """The lists of chunks of up to `chunk` tokens, and of segments of `segment` tokens.

    half, short: a chunk or segment of up to `short` tokens is short, one of up to `half` is half.
    every_sequence: list a segment of every sequence, even of one with a single chunk or no token.
    """
    n_sequences = len(cu_seqlens) - 1
    slots = n_tokens // chunk + n_sequences
    lists = cu_seqlens.new_empty(_LISTS, slots + 1, 4)
    offsets = cu_seqlens.new_empty(_LISTS, n_sequences + 1)
    arguments = {"cu_seqlens": cu_seqlens, "offsets": offsets, "lists": lists, "T": n_tokens, "S": n_sequences}
    arguments |= {"slots": slots, "chunk": chunk, "half": half, "short": short, "segment": segment}
    arguments["every"] = int(every)
    arguments["BLOCK"] = block = _BLOCK_INTERPRETED if interpreted(_worklist_items_kernel) else _BLOCK
    parts = max(cdiv(n_sequences, block), 1)
    arguments["counts"] = cu_seqlens.new_empty(_LISTS, parts)
    if parts > 1:
        launch(_worklist_counts_kernel, (parts, _LISTS), arguments, num_warps=_NUM_WARPS)
    launch(_worklist_offsets_kernel, (parts, _LISTS), arguments, num_warps=_NUM_WARPS)
    if slots:
        launch(_worklist_items_kernel, (cdiv(slots, block), _LISTS), arguments, num_warps=_NUM_WARPS)
    each = lists.unbind()
    return Worklists(each[:3], each[3:6], each[6])


def variants() -> list[Variant]:
    """Every compiled form of the kernels."""
    pointers = dict.fromkeys(("cu_seqlens", "counts", "offsets", "lists"), "*i32")
    return [
        variant
        for kernel in (_worklist_counts_kernel, _worklist_offsets_kernel, _worklist_items_kernel)
        for variant in alignments(kernel.__name__.strip("_"), kernel, pointers, {"BLOCK": _BLOCK}, _NUM_WARPS)
    ]
