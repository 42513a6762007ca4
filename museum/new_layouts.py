"""Bugs that make a kernel slow, not wrong: with each new layout it compiles, tunes, waits for a GPU or keeps memory.

A Triton convolution with a program for each tile of a sequence, and its gradients in torch.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from packproof.museum.custom_backward import graft

_BLOCK_T = 16
_tables: dict[Any, tuple[Tensor, Tensor]] = {}
_workspaces: dict[Any, Tensor] = {}


@triton.jit
def _conv_tile(x, weight, cu_seqlens, y, D, W, sequence, tile, BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr):
    start, end = tl.load(cu_seqlens + sequence), tl.load(cu_seqlens + sequence + 1)
    row, d = start + tile * BLOCK_T + tl.arange(0, BLOCK_T), tl.arange(0, BLOCK_D)
    acc = tl.zeros((BLOCK_T, BLOCK_D), y.dtype.element_ty)
    for j in range(W):
        source = row - (W - 1) + j
        inside = ((source >= start) & (row < end))[:, None] & (d < D)[None, :]
        taps = tl.load(weight + d * W + j, mask=d < D, other=0.0)
        acc += tl.load(x + source[:, None] * D + d[None, :], mask=inside, other=0.0) * taps[None, :]
    tl.store(y + row[:, None] * D + d[None, :], acc, mask=(row < end)[:, None] & (d < D)[None, :])


@triton.jit
def _conv_by_tile(x, weight, cu_seqlens, y, D, W, BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr):
    _conv_tile(x, weight, cu_seqlens, y, D, W, tl.program_id(0), tl.program_id(1), BLOCK_T, BLOCK_D)


@triton.jit
def _conv_by_sequence(
    x, weight, cu_seqlens, y, D, W, TILES: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr
):
    for tile in range(TILES):
        _conv_tile(x, weight, cu_seqlens, y, D, W, tl.program_id(0), tile, BLOCK_T, BLOCK_D)


@triton.jit
def _conv_by_number(x, weight, cu_seqlens, y, D, W, tiles, BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr):
    for tile in range(tiles):
        _conv_tile(x, weight, cu_seqlens, y, D, W, tl.program_id(0), tile, BLOCK_T, BLOCK_D)


def _tuned(key: str) -> Any:
    configs = [triton.Config({"BLOCK_T": block}) for block in (16, 32)]

    @triton.autotune(configs, key=[key])
    @triton.jit
    def _conv_tuned(x, weight, cu_seqlens, y, D, W, T, longest, BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr):
        for tile in range(tl.cdiv(min(longest, T), BLOCK_T)):
            _conv_tile(x, weight, cu_seqlens, y, D, W, tl.program_id(0), tile, BLOCK_T, BLOCK_D)

    return _conv_tuned


_tuned_by_length, _tuned_by_rows = _tuned("longest"), _tuned("T")


def _sequence_of_rows(x: Tensor, cu_seqlens: Tensor) -> Tensor:
    """The sequence of each row, -1 in slack: worked out on the device."""
    rows = torch.arange(len(x), device=x.device, dtype=cu_seqlens.dtype)
    sequence = torch.searchsorted(cu_seqlens, rows, right=True) - 1
    return torch.where(sequence < len(cu_seqlens) - 1, sequence, -1)


def _accumulator(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def _in_torch(x: Tensor, weight: Tensor, sequence: Tensor) -> Tensor:
    rows, taps, inside = torch.arange(len(x), device=x.device), weight.shape[1], (sequence >= 0)[:, None]
    tokens, weights = torch.where(inside, x, 0).to(_accumulator(x)), weight.to(_accumulator(x))  # NaN * 0 in slack
    y = tokens * weights[:, -1]
    for k in range(1, taps):
        same = (torch.roll(sequence, k) == sequence) & (rows >= k)
        y = y + torch.where(same[:, None], torch.roll(tokens, k, 0), 0) * weights[:, taps - 1 - k]
    return torch.where(inside, y, 0).to(x.dtype)


def _convolve(x: Tensor, weight: Tensor, cu_seqlens: Tensor, launch: Callable[..., Any]) -> Tensor:
    """launch: called with the tensors and numbers of a launch, and the channels of a tile."""
    y, (d, w) = x.new_zeros(x.shape, dtype=_accumulator(x)), weight.shape
    if x.numel() and len(cu_seqlens) > 1:
        tensors = (tensor.detach().to(y.dtype).contiguous() for tensor in (x, weight))
        launch(*tensors, cu_seqlens, y, d, w, triton.next_power_of_2(d))
    convolved = graft(y.to(x.dtype), _in_torch(x, weight, _sequence_of_rows(x, cu_seqlens)))
    assert isinstance(convolved, Tensor)
    return convolved


def _tiles(tokens: int) -> int:
    return triton.cdiv(tokens, _BLOCK_T)


def _longest(cu_seqlens: Tensor, max_seqlen: int | None) -> int:
    return int(cu_seqlens.diff().max()) if max_seqlen is None else max_seqlen


def tiles_of_the_pack(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """Correct: as many programs as any layout of the pack needs. Those without a tile end at once."""
    grid = len(cu_seqlens) - 1, _tiles(len(x))
    return _convolve(x, weight, cu_seqlens, lambda *a: _conv_by_tile[grid](*a[:-1], BLOCK_T=_BLOCK_T, BLOCK_D=a[-1]))


def tiles_read_on_the_host(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """The grid is that of the longest sequence, which the host waits for."""

    def launch(*a: Any) -> None:
        grid = len(cu_seqlens) - 1, _tiles(int(cu_seqlens.diff().max().item()))
        _conv_by_tile[grid](*a[:-1], BLOCK_T=_BLOCK_T, BLOCK_D=a[-1])

    return _convolve(x, weight, cu_seqlens, launch)


def tiles_as_a_constant(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor, max_seqlen: int | None = None) -> Tensor:
    """The number of tiles of the longest sequence is a constant of the kernel, which is compiled for each."""
    tiles = _tiles(_longest(cu_seqlens, max_seqlen))
    grid = (len(cu_seqlens) - 1,)
    return _convolve(
        x, weight, cu_seqlens, lambda *a: _conv_by_sequence[grid](*a[:-1], tiles, BLOCK_T=_BLOCK_T, BLOCK_D=a[-1])
    )


def tiles_as_a_number(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor, max_seqlen: int | None = None) -> Tensor:
    """Correct: the kernel takes the longest length as a number."""
    longest = _longest(cu_seqlens, max_seqlen)
    grid = (len(cu_seqlens) - 1,)
    return _convolve(
        x, weight, cu_seqlens, lambda *a: _conv_by_number[grid](*a[:-1], longest, BLOCK_T=_BLOCK_T, BLOCK_D=a[-1])
    )


def tuned_by_the_longest(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor, max_seqlen: int | None = None) -> Tensor:
    """The longest length is in the key of the autotuner."""
    return _with_tuner(_tuned_by_length, x, weight, cu_seqlens, max_seqlen)


def tuned_by_rows(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor, max_seqlen: int | None = None) -> Tensor:
    """Correct: the key of the autotuner has the rows of the pack."""
    return _with_tuner(_tuned_by_rows, x, weight, cu_seqlens, max_seqlen)


def _with_tuner(tuner: Any, x: Tensor, weight: Tensor, cu_seqlens: Tensor, max_seqlen: int | None) -> Tensor:
    longest, grid = _longest(cu_seqlens, max_seqlen), (len(cu_seqlens) - 1,)
    return _convolve(x, weight, cu_seqlens, lambda *a: tuner[grid](*a[:-1], len(x), longest, BLOCK_D=a[-1]))


def rows_by_a_mask(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """The rows of sequences are selected by a mask: the host waits for their number."""
    sequence = _sequence_of_rows(x, cu_seqlens)
    inside = sequence >= 0
    y = torch.zeros_like(x)
    y[inside] = _in_torch(x[inside], weight, sequence[inside])
    return y


def rows_by_a_choice(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """Correct: all rows are computed, and those of no sequence are zeros."""
    return _in_torch(x, weight, _sequence_of_rows(x, cu_seqlens))


def sequences_repeated(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """The sequence of each row is its number, repeated as often as it has rows: the host waits for their sum."""
    lengths = cu_seqlens.diff()
    sequence = torch.arange(len(lengths), device=x.device).repeat_interleave(lengths)
    slack = sequence.new_full((len(x) - len(sequence),), -1)
    return _in_torch(x, weight, torch.cat([sequence, slack]))


def table_of_each_pack(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """The table made of the offsets is in a dictionary by their identity, and never leaves it."""
    key = id(cu_seqlens), cu_seqlens._version, len(x)
    if key not in _tables:
        _tables[key] = cu_seqlens, _sequence_of_rows(x, cu_seqlens)  # with the offsets, whose identity stays theirs
    return _in_torch(x, weight, _tables[key][1])


def table_of_the_last_pack(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """Correct: the dictionary has the table of the last offsets alone."""
    key = id(cu_seqlens), cu_seqlens._version, len(x), "last"
    if key not in _tables:
        for other_key in [k for k in _tables if k[-1] == "last"]:
            del _tables[other_key]
        _tables[key] = cu_seqlens, _sequence_of_rows(x, cu_seqlens)
    return _in_torch(x, weight, _tables[key][1])


def workspace_of_each_longest(
    x: Tensor, weight: Tensor, *, cu_seqlens: Tensor, max_seqlen: int | None = None
) -> Tensor:
    """A padded copy of the pack is kept for each longest length, for the next pack with the same."""
    return _padded(x, weight, cu_seqlens, _longest(cu_seqlens, max_seqlen), "each")


def workspace_of_the_pack(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """Correct: one workspace, with room for any layout of the pack."""
    return _padded(x, weight, cu_seqlens, len(x), "pack")


def _padded(x: Tensor, weight: Tensor, cu_seqlens: Tensor, longest: int, kind: str) -> Tensor:
    """The convolution of sequences that are laid out side by side, each in as many rows."""
    sequences, taps = len(cu_seqlens) - 1, weight.shape[1]
    shape = sequences, longest + taps, x.shape[1]  # the last row is for slack
    with torch.inference_mode(False):  # a tensor made in that mode could be written in no other
        zeros = x.new_zeros(shape, dtype=_accumulator(x))
    workspace = _workspaces.setdefault((kind, shape, zeros.dtype, x.device), zeros)
    sequence = _sequence_of_rows(x, cu_seqlens)
    if not (sequences and x.numel()):
        return _in_torch(x, weight, sequence)
    row = torch.arange(len(x), device=x.device) - cu_seqlens[sequence]
    place = torch.where(sequence >= 0, row + taps - 1, longest + taps - 1)
    inside = (sequence >= 0)[:, None]
    workspace.index_put_((sequence, place), torch.where(inside, x.detach(), 0).to(zeros.dtype))
    y = sum(
        workspace[sequence, (place - taps + 1 + j).clamp(min=0)] * weight.detach().to(zeros.dtype)[:, j]
        for j in range(taps)
    )
    workspace.zero_()
    padded = graft(torch.where(inside, torch.as_tensor(y), 0).to(x.dtype), _in_torch(x, weight, sequence))
    assert isinstance(padded, Tensor)
    return padded


@torch.compile(dynamic=False, backend="eager")
def _compiled(x: Tensor, weight: Tensor, sequence: Tensor, rows: int) -> Tensor:
    """rows: of the longest sequence, which no row looks back beyond."""
    return _in_torch(x, weight[:, max(weight.shape[1] - max(rows, 1), 0) :], sequence)


def compiled_for_the_longest(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor, max_seqlen: int | None = None) -> Tensor:
    """The longest length is a number that torch.compile takes for a constant."""
    return _compiled(x, weight, _sequence_of_rows(x, cu_seqlens), _longest(cu_seqlens, max_seqlen))


def compiled_for_the_rows(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """Correct: the number that torch.compile takes for a constant is that of the rows."""
    return _compiled(x, weight, _sequence_of_rows(x, cu_seqlens), len(x))
