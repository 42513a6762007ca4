"""A convolution in Triton that goes wrong past one limit each, and the correct one, which goes past them all.

Where it has initial states it returns none at the end.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

import torch
import triton
import triton.language as tl
from torch import Tensor

_MASKS = {"int16": 0xFFFF, "uint16": 0xFFFF, "17 bits": 0x1FFFF, "int64": -1}


@triton.jit
def _offset(row, D, d, INDEX: tl.constexpr):
    if INDEX == "int32":
        return row.to(tl.int32)[:, None] * D + d[None, :]
    if INDEX == "uint32":
        return (row.to(tl.uint32)[:, None] * D.to(tl.uint32) + d[None, :].to(tl.uint32)).to(tl.int64)
    wide = row.to(tl.int64)[:, None] * D + d[None, :]
    if INDEX == "uint32 bytes":
        return (wide * 4 & 0xFFFFFFFF) // 4
    return wide


@triton.jit
def _conv_kernel(
    x, weight, states, y, ids, labels, starts, T, D,
    STATES: tl.constexpr, INDEX: tl.constexpr, AXIS: tl.constexpr, W: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(AXIS).to(tl.int64)
    d_block = tl.program_id(1 if AXIS == 0 else 0)
    row, d = block * BLOCK_T + tl.arange(0, BLOCK_T), d_block * BLOCK_D + tl.arange(0, BLOCK_D)
    seq = tl.load(ids + row, mask=row < T, other=-1)
    label = tl.load(labels + row, mask=row < T, other=-1)
    inside, live = (label >= 0)[:, None], (d < D)[None, :]
    position = row - tl.load(starts + seq, mask=seq >= 0, other=0)
    total = tl.zeros((BLOCK_T, BLOCK_D), tl.float32)
    for k in tl.static_range(W):
        tap = tl.load(weight + d * W + (W - 1 - k), mask=d < D, other=0.0)[None, :]
        own = inside & (position >= k)[:, None] & live
        total += tl.load(x + _offset(row - k, D, d, INDEX), mask=own, other=0.0) * tap
        if STATES:
            column = W - 1 - k + position
            before = inside & (position < k)[:, None] & live
            at = (label.to(tl.int64)[:, None] * D + d[None, :]) * (W - 1) + column[:, None]
            total += tl.load(states + at, mask=before, other=0.0) * tap
    tl.store(y + row[:, None] * D + d[None, :], total, mask=(row < T)[:, None] & live)


def _conv(x, weight, states, cu_seqlens, *, index="int64", ids="int64", axis=0, chunk=64):
    (T, D), W = x.shape, weight.shape[1]
    y = torch.empty_like(x)
    if not y.numel():
        return y
    starts = cu_seqlens.long()
    seq = torch.searchsorted(starts, torch.arange(T, device=x.device), right=True) - 1
    seq = torch.where(seq < len(starts) - 1, seq, -1)
    label = torch.where(seq >= 0, seq & _MASKS[ids], -1)
    label = label.to(torch.int16).long() if ids == "int16" else label
    grid = [1, 1, 1]
    grid[axis], grid[1 if axis == 0 else 0] = triton.cdiv(T, chunk), triton.cdiv(D, 64)
    _conv_kernel[tuple(grid)](
        x.contiguous(), weight.contiguous(), x if states is None else states.contiguous(), y, seq, label, starts, T, D,
        STATES=states is not None, INDEX=index, AXIS=axis, W=W, BLOCK_T=chunk, BLOCK_D=64,
    )  # fmt: skip
    return y


def right(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor, initial_states: Tensor | None = None) -> Tensor:
    """64 bits for everything, chunks on the first axis."""
    return _conv(x, weight, initial_states, cu_seqlens)


def chunks_on_the_second_axis(
    x: Tensor, weight: Tensor, *, cu_seqlens: Tensor, initial_states: Tensor | None = None
) -> Tensor:
    """More than 65,535 chunks of 256 tokens are refused at the launch."""
    return _conv(x, weight, initial_states, cu_seqlens, axis=1, chunk=256)


def chunks_on_the_third_axis(
    x: Tensor, weight: Tensor, *, cu_seqlens: Tensor, initial_states: Tensor | None = None
) -> Tensor:
    """More than 65,535 chunks of 16 tokens are refused at the launch."""
    return _conv(x, weight, initial_states, cu_seqlens, axis=2, chunk=16)


def offsets_in_int32(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor, initial_states: Tensor | None = None) -> Tensor:
    """Elements past 2^31 are read from before the tensor."""
    return _conv(x, weight, initial_states, cu_seqlens, index="int32")


def offsets_in_uint32(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor, initial_states: Tensor | None = None) -> Tensor:
    """Elements past 2^32 are read from the tensor's start."""
    return _conv(x, weight, initial_states, cu_seqlens, index="uint32")


def offsets_in_bytes(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor, initial_states: Tensor | None = None) -> Tensor:
    """Bytes past 2^32 are read from the tensor's start."""
    return _conv(x, weight, initial_states, cu_seqlens, index="uint32 bytes")


def sequences_in_int16(
    x: Tensor, weight: Tensor, *, cu_seqlens: Tensor, initial_states: Tensor | None = None
) -> Tensor:
    """Sequences 32,768 to 65,535 count as slack; those after them are right where they have no state."""
    return _conv(x, weight, initial_states, cu_seqlens, ids="int16")


def sequences_in_uint16(
    x: Tensor, weight: Tensor, *, cu_seqlens: Tensor, initial_states: Tensor | None = None
) -> Tensor:
    """Sequence 65,536 and those after it get the states of the first ones."""
    return _conv(x, weight, initial_states, cu_seqlens, ids="uint16")


def sequences_in_17_bits(
    x: Tensor, weight: Tensor, *, cu_seqlens: Tensor, initial_states: Tensor | None = None
) -> Tensor:
    """Sequence 131,072 and those after it get the states of the first ones."""
    return _conv(x, weight, initial_states, cu_seqlens, ids="17 bits")


def sequences_in_int16_without_states(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """Right again at the last of 131,072 sequences."""
    return _conv(x, weight, None, cu_seqlens, ids="int16")
