"""Bugs visible on hardware only: addresses past 2^31, grids past 65,535, atomics, the tuner, streams.

The caller's tensors are small. A kernel spreads their rows over a buffer of its own, large enough for these addresses.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from packproof import refs
from packproof.base.errors import copy_signature_of
from packproof.museum.custom_backward import Outputs, graft, join_outputs, split_outputs


@triton.jit
def _read_kernel(wide, y, D, pitch, BLOCK_D: tl.constexpr, UNSIGNED: tl.constexpr):
    row, d = tl.program_id(0), tl.arange(0, BLOCK_D)
    offset = row * pitch  # 32 bits times 32 bits
    if UNSIGNED:
        offset = offset.to(tl.uint32).to(tl.int64)
    value = tl.load(wide + offset + d, mask=d < D, other=0.0)
    tl.store(y + row.to(tl.int64) * D + d, value, mask=d < D)


def _read_spread_rows(x: Tensor, reach: int, unsigned: bool) -> Tensor:
    """x, read by a kernel from rows spread over a buffer: the last one starts past `reach` elements."""
    (T, D), y = x.shape, torch.empty_like(x)
    if T < 2 or D == 0:
        return x
    pitch = reach // (T - 1) + D
    wide = torch.empty(T * pitch, dtype=x.dtype, device=x.device)
    wide[:D] = 1  # read by a wrapped address
    wide.as_strided((T, D), (pitch, 1)).copy_(x.detach())
    _read_kernel[(T,)](wide, y, D, pitch, BLOCK_D=triton.next_power_of_2(D), UNSIGNED=unsigned)
    return y


@copy_signature_of(refs.causal_conv1d)
def conv_beyond_31_bits(x: Tensor, weight: Tensor, bias: Tensor | None = None, **options: Any) -> Outputs:
    """The product of row and stride is a signed 32-bit integer: it becomes negative."""
    values = graft(_read_spread_rows(x, 2**31, unsigned=False), x)
    assert isinstance(values, Tensor)
    return refs.causal_conv1d(values, weight, bias, **options)


@copy_signature_of(refs.causal_conv1d)
def conv_beyond_32_bits(x: Tensor, weight: Tensor, bias: Tensor | None = None, **options: Any) -> Outputs:
    """The product is unsigned: it wraps to another place in the same buffer, and nothing faults."""
    values = graft(_read_spread_rows(x, 2**32, unsigned=True), x)
    assert isinstance(values, Tensor)
    return refs.causal_conv1d(values, weight, bias, **options)


@triton.jit
def _copy_rows_kernel(x, y, K, BLOCK_K: tl.constexpr):
    row, k = tl.program_id(1).to(tl.int64), tl.arange(0, BLOCK_K)
    tl.store(y + row * K + k, tl.load(x + row * K + k, mask=k < K, other=0.0), mask=k < K)


def rope_on_the_second_axis(
    x: Tensor, cos: Tensor, sin: Tensor, *, cu_seqlens: Tensor, interleaved: bool = False
) -> Outputs:
    """Tokens times heads are programs on the grid's second axis; its limit is 65,535."""
    y, _ = split_outputs(refs.rope(x, cos, sin, cu_seqlens=cu_seqlens, interleaved=interleaved))
    T, H, K = y.shape
    copy = torch.empty_like(y)
    if copy.numel():
        _copy_rows_kernel[(1, T * H)](y.detach(), copy, K, BLOCK_K=triton.next_power_of_2(K))
    return graft(copy, y)


@triton.jit
def _sum_rows_kernel(x, total, D, BLOCK_D: tl.constexpr):
    row, d = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK_D)
    tl.atomic_add(total + d, tl.load(x + row * D + d, mask=d < D, other=0.0), mask=d < D)


class _AtomicSum(torch.autograd.Function):
    """The bias for every row; backward sums the incoming gradient in the order in which programs arrive."""

    @staticmethod
    def forward(ctx, bias, rows):
        return bias.expand(rows, -1).clone()

    @staticmethod
    def backward(ctx, d):
        total = torch.zeros(d.shape[1], dtype=torch.float32, device=d.device)
        if d.numel():
            block = triton.next_power_of_2(d.shape[1])
            _sum_rows_kernel[(len(d),)](d.float().contiguous(), total, d.shape[1], BLOCK_D=block)
        return total.to(d.dtype), None


@copy_signature_of(refs.causal_conv1d)
def conv_of_atomics(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, cu_seqlens: Tensor, **options: Any
) -> Outputs:
    """A gradient promised to be deterministic is summed by atomics."""
    options["activation"] = None
    y, final = split_outputs(refs.causal_conv1d(x, weight, cu_seqlens=cu_seqlens, **options))
    if bias is None:
        return join_outputs(y, final)
    token_mask = torch.arange(len(x), device=x.device)[:, None] < cu_seqlens[-1]
    return join_outputs(y + torch.where(token_mask, _AtomicSum.apply(bias, len(x)), 0), final)


@triton.autotune(configs=[triton.Config({"BLOCK": block}) for block in (128, 256)], key=["n"])
@triton.jit
def _add_in_place_kernel(state, x, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(state + i, mask=i < n, other=0.0) + tl.load(x + i, mask=i < n, other=0.0)
    tl.store(state + i, value, mask=i < n)


@copy_signature_of(refs.causal_conv1d)
def conv_tuned_in_place(x: Tensor, weight: Tensor, bias: Tensor | None = None, **options: Any) -> Outputs:
    """The tuner runs an in-place kernel once per measurement, and restores nothing."""
    y, final = split_outputs(refs.causal_conv1d(x, weight, bias, **options))
    total = torch.zeros_like(y)
    if total.numel():
        _add_in_place_kernel[lambda c: (triton.cdiv(y.numel(), c["BLOCK"]),)](total, y.detach(), y.numel())
    tuned_y = graft(total, y)
    assert isinstance(tuned_y, Tensor)
    return join_outputs(tuned_y, final)


@copy_signature_of(refs.attention)
def attention_without_waiting(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Outputs:
    """A result is read on one stream while another still computes it."""
    y, _ = split_outputs(refs.attention(q, k, v, **options))
    side, delayed = torch.cuda.Stream(), torch.zeros_like(y)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)
        delayed.copy_(y.detach())
    snapshot = delayed.clone()
    torch.cuda.current_stream().wait_stream(side)
    return graft(snapshot, y)
