"""Deliberately wrong Triton kernels, for what only a GPU shows: offsets in 32 bits, grids that end at 65,535."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

import torch
import triton
import triton.language as tl
from torch import Tensor

from tests.properties.wrong import sequences, vectorised


@triton.jit
def _copy_kernel(x, y, stride, D, FIRST_AXIS: tl.constexpr, WIDE: tl.constexpr, BLOCK_D: tl.constexpr):
    row, d = tl.program_id(0 if FIRST_AXIS else 1), tl.arange(0, BLOCK_D)
    offset = row.to(tl.int64) * stride if WIDE else row * stride
    value = tl.load(x + offset + d, mask=d < D, other=0.0)
    tl.store(y + row.to(tl.int64) * D + d, value, mask=d < D)


def _copied(x: Tensor, *, first_axis: bool, wide: bool) -> Tensor:
    (T, D), y = x.shape, torch.empty(x.shape, dtype=x.dtype, device=x.device)
    grid = (T,) if first_axis else (1, T)
    if y.numel():
        _copy_kernel[grid](
            x.detach(), y, x.stride(0), D, FIRST_AXIS=first_axis, WIDE=wide, BLOCK_D=triton.next_power_of_2(D)
        )
    return y


def right(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """Offsets of 64 bits on the first axis of the grid."""
    return vectorised(_copied(x, first_axis=True, wide=True), weight, sequences(x, cu_seqlens))


def offsets_of_32_bits(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """Row times stride wraps behind 2^31 elements."""
    return vectorised(_copied(x, first_axis=True, wide=False), weight, sequences(x, cu_seqlens))


def rows_on_the_second_axis(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """One program a token, on the grid's second axis."""
    return vectorised(_copied(x, first_axis=False, wide=True), weight, sequences(x, cu_seqlens))


def illegal_on_three_tokens(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """Writes terabytes away where a sequence has three tokens, and is right elsewhere."""
    lengths, D = cu_seqlens.diff(), x.shape[1]
    y = vectorised(x, weight, sequences(x, cu_seqlens))
    _stray_kernel[(len(lengths),)](y.detach(), lengths, D, BLOCK_D=triton.next_power_of_2(D))
    return y


@triton.jit
def _stray_kernel(y, lengths, D, BLOCK_D: tl.constexpr):
    j, d = tl.program_id(0), tl.arange(0, BLOCK_D)
    away = tl.load(lengths + j) == 3
    tl.store(y + (1 << 44) + d, 0.0, mask=(d < D) & away)
