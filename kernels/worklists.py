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

from packproof.kernels.launch import cdiv, launch, runs_interpreted, specializations
from packproof.kernels.sequences import bounds, prefix_sum
from packproof.kernels.variant import Variant

_MAX_PROGRAMS = 16_384  # of one launch: enough for any GPU to balance
_MAX_PROGRAMS_INTERPRETED = 48  # they run together, so more of them gain little
_ITEMS_INTERPRETED = 3  # of the bound, for a program: small packs too then have programs with several items
_N_LISTS = 7
_BLOCK = 1024
_BLOCK_INTERPRETED = 8  # small: the packs of tests take several iterations and programs
_NUM_WARPS = 4


def n_programs(n_items: int) -> int:
    """Programs of a launch that share up to n_items."""
    if runs_interpreted(_worklist_items_kernel):
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
def load_item(worklist, index, SIZE: tl.constexpr):
    """An item: the sequence, its start and end, the start and end of the piece."""
    row = worklist + 4 * (index + 1)
    end, piece_start = tl.load(row + 2), tl.load(row + 3)
    return tl.load(row), tl.load(row + 1), end, piece_start, tl.minimum(piece_start + SIZE, end)


@triton.jit
def _pieces(length, list_index, chunk, half, short, segment, every_sequence, skipped):
    """The number of pieces of a sequence in a list, and the index of the first one."""
    length = tl.where((list_index < 6) & (length <= skipped), 0, length)
    size = tl.where(list_index < 3, chunk, segment)
    full, remainder = length // size, length % size
    long_pieces = full + (remainder > half).to(tl.int32)
    half_pieces = ((remainder > short) & (remainder <= half)).to(tl.int32)
    short_pieces = ((remainder > 0) & (remainder <= short)).to(tl.int32)
    all_pieces = tl.where(
        (every_sequence != 0) | (length > chunk), tl.maximum(full + (remainder > 0).to(tl.int32), every_sequence), 0
    )
    kind = list_index % 3
    count = tl.where(kind == 0, long_pieces, tl.where(kind == 1, half_pieces, short_pieces))
    return tl.where(list_index == 6, all_pieces, count), tl.where(kind == 0, 0, full)


@triton.jit
def _item_counts(cu_seqlens, T, S, chunk, half, short, segment, every_sequence, skipped, BLOCK: tl.constexpr):
    """A program's list, its block of sequences by index and by number, and the items of each sequence in the list."""
    part, list_index = tl.program_id(0), tl.program_id(1)
    sequence = part * BLOCK + tl.arange(0, BLOCK)
    start, end = bounds(cu_seqlens, S, T, sequence)
    count, _ = _pieces(end - start, list_index, chunk, half, short, segment, every_sequence, skipped)
    return list_index, part, sequence, tl.where(sequence < S, count, 0)


@triton.jit(do_not_specialize=["cu_seqlens", "T", "S", "chunk", "half", "short", "segment", "every", "skipped"])
def _worklist_counts_kernel(cu_seqlens, counts, T, S, chunk, half, short, segment, every, skipped, BLOCK: tl.constexpr):
    """Items of each block of sequences: (lists, parts)."""
    list_index, part, _, count = _item_counts(cu_seqlens, T, S, chunk, half, short, segment, every, skipped, BLOCK)
    tl.store(counts + list_index * tl.cdiv(S, BLOCK) + part, tl.sum(count, 0))


@triton.jit(
    do_not_specialize=["cu_seqlens", "T", "S", "slots", "chunk", "half", "short", "segment", "every", "skipped"]
)
def _worklist_offsets_kernel(
    cu_seqlens, counts, offsets, lists, T, S, slots, chunk, half, short, segment, every, skipped, BLOCK: tl.constexpr
):  # fmt: skip
    """Fill `offsets` (lists, s + 1): the items before each sequence, and the total of each list.

    The total also goes into the first row of the list.

    counts: from the kernel above; not read where one block has all sequences.
    slots: rows of a list, without the first.
    chunk, half, short, segment, every, skipped: see `worklists`.
    """
    list_index, part, sequence, count = _item_counts(
        cu_seqlens, T, S, chunk, half, short, segment, every, skipped, BLOCK
    )
    items_before = prefix_sum(counts + list_index * tl.cdiv(S, BLOCK), part, BLOCK)
    running_count, total = items_before + tl.cumsum(count, 0), items_before + tl.sum(count, 0)
    offsets += list_index * (S + 1)
    is_last_part = (part + 1) * BLOCK >= S
    tl.store(offsets + sequence, running_count - count, mask=sequence < S)
    tl.store(offsets + S, total, mask=is_last_part)
    tl.store(lists + list_index.to(tl.int64) * (slots + 1) * 4, total, mask=is_last_part)


@triton.jit(
    do_not_specialize=["cu_seqlens", "T", "S", "slots", "chunk", "half", "short", "segment", "every", "skipped"]
)
def _worklist_items_kernel(
    cu_seqlens, offsets, lists, T, S, slots, chunk, half, short, segment, every, skipped, BLOCK: tl.constexpr
):
    list_index = tl.program_id(1)
    offsets += list_index * (S + 1)
    slot = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    has_item = slot < tl.load(offsets + S)
    sequence = tl.zeros_like(slot)
    span = S - 1
    while span > 0:  # the last sequence whose items begin at or before the slot; those without items are skipped
        step = (span + 1) // 2
        candidate = sequence + step
        sequence = tl.where(tl.load(offsets + candidate) <= slot, candidate, sequence)
        span = span // 2
    start, end = bounds(cu_seqlens, S, T, sequence)
    _, number = _pieces(end - start, list_index, chunk, half, short, segment, every, skipped)
    number += slot - tl.load(offsets + sequence, mask=has_item, other=0)
    row = lists + (list_index.to(tl.int64) * (slots + 1) + 1 + slot) * 4
    tl.store(row, sequence, mask=has_item)
    tl.store(row + 1, start, mask=has_item)
    tl.store(row + 2, end, mask=has_item)
    tl.store(row + 3, start + number * tl.where(list_index < 3, chunk, segment), mask=has_item)


def worklists(
    cu_seqlens: Tensor, n_tokens: int, *, chunk: int, half: int, short: int, segment: int, every_sequence: bool,
    skipped: int = 0,
) -> Worklists:  # fmt: skip
    """The lists of chunks of up to `chunk` tokens, and of segments of `segment` tokens.

    half, short: a chunk or segment of up to `short` tokens is short, one of up to `half` is half.
    every_sequence: list a segment of every sequence, even of one with a single chunk or no token.
    skipped: sequences of up to as many tokens are in no list of long, half and short pieces.
    """
    n_sequences = len(cu_seqlens) - 1
    slots = n_tokens // chunk + n_sequences
    lists = cu_seqlens.new_empty(_N_LISTS, slots + 1, 4)
    offsets = cu_seqlens.new_empty(_N_LISTS, n_sequences + 1)
    arguments = {"cu_seqlens": cu_seqlens, "offsets": offsets, "lists": lists, "T": n_tokens, "S": n_sequences}
    arguments |= {"slots": slots, "chunk": chunk, "half": half, "short": short, "segment": segment}
    arguments |= {"every": int(every_sequence), "skipped": skipped}
    arguments["BLOCK"] = block = _BLOCK_INTERPRETED if runs_interpreted(_worklist_items_kernel) else _BLOCK
    parts = max(cdiv(n_sequences, block), 1)
    arguments["counts"] = cu_seqlens.new_empty(_N_LISTS, parts)
    if parts > 1:
        launch(_worklist_counts_kernel, (parts, _N_LISTS), arguments, num_warps=_NUM_WARPS)
    launch(_worklist_offsets_kernel, (parts, _N_LISTS), arguments, num_warps=_NUM_WARPS)
    if slots:
        launch(_worklist_items_kernel, (cdiv(slots, block), _N_LISTS), arguments, num_warps=_NUM_WARPS)
    list_tensors = lists.unbind()
    return Worklists(list_tensors[:3], list_tensors[3:6], list_tensors[6])


def variants() -> list[Variant]:
    """Every compiled form of the kernels."""
    pointers = dict.fromkeys(("cu_seqlens", "counts", "offsets", "lists"), "*i32")
    return [
        variant
        for kernel in (_worklist_counts_kernel, _worklist_offsets_kernel, _worklist_items_kernel)
        for variant in specializations(kernel.__name__.strip("_"), kernel, pointers, {"BLOCK": _BLOCK}, _NUM_WARPS)
    ]
