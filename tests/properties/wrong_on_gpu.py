"""Deliberately wrong Triton kernels, for what only a GPU shows: offsets of 32 bits, grids to 65,535, atomics."""

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
    """Row times stride wraps past 2^31 elements."""
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


def weight_gradient_by_atomics(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """Each program adds the sum of 64 tokens to the gradient of the weight, in the order in which programs end."""
    y: Tensor = _Atomics.apply(x, weight, sequences(x, cu_seqlens))
    return y


@triton.jit
def _sum_kernel(terms, total, T, N, BLOCK_T: tl.constexpr, BLOCK_N: tl.constexpr):
    t, n = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T), tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    read = (t < T)[:, None] & (n < N)[None, :]
    part = tl.sum(tl.load(terms + t[:, None] * N + n[None, :], mask=read, other=0.0), axis=0)
    tl.atomic_add(total + n, part, mask=n < N)


class _Atomics(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, index):
        ctx.save_for_backward(x, weight, index)
        return vectorised(x, weight, index)

    @staticmethod
    def backward(ctx, dy):
        x, weight, index = ctx.saved_tensors
        with torch.enable_grad():
            leaf, rows = x.detach().requires_grad_(), weight.detach().expand(len(x), *weight.shape).requires_grad_()
            y = vectorised(leaf, rows, index)
        dx, terms = torch.autograd.grad(y, (leaf, rows), dy)
        total, (T, N) = torch.zeros_like(weight), (len(x), weight.numel())
        if T:
            _sum_kernel[(triton.cdiv(T, 64), triton.cdiv(N, 128))](terms.contiguous(), total, T, N, 64, 128)
        return dx, total, None
