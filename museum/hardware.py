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
from packproof.museum.custom_backward import Outputs, graft, only_token, put_together
from packproof.museum.variants import called_like


@triton.jit
def _read_kernel(wide, y, D, pitch, BLOCK_D: tl.constexpr, UNSIGNED: tl.constexpr):
    row, d = tl.program_id(0), tl.arange(0, BLOCK_D)
    offset = row * pitch  # 32 bits times 32 bits
    if UNSIGNED:
        offset = offset.to(tl.uint32).to(tl.int64)
    value = tl.load(wide + offset + d, mask=d < D, other=0.0)
    tl.store(y + row.to(tl.int64) * D + d, value, mask=d < D)


def _far_apart(x: Tensor, reach: int, unsigned: bool) -> Tensor:
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


@called_like(refs.causal_conv1d)
def conv_beyond_31_bits(x: Tensor, weight: Tensor, bias: Tensor | None = None, **rest: Any) -> Outputs:
    """The product of row and stride is a signed 32-bit integer: it becomes negative."""
    seen = graft(_far_apart(x, 2**31, unsigned=False), x)
    assert isinstance(seen, Tensor)
    return refs.causal_conv1d(seen, weight, bias, **rest)


@called_like(refs.causal_conv1d)
def conv_beyond_32_bits(x: Tensor, weight: Tensor, bias: Tensor | None = None, **rest: Any) -> Outputs:
    """The product is unsigned: it wraps to another place in the same buffer, and nothing faults."""
    seen = graft(_far_apart(x, 2**32, unsigned=True), x)
    assert isinstance(seen, Tensor)
    return refs.causal_conv1d(seen, weight, bias, **rest)


@triton.jit
def _copy_rows_kernel(x, y, K, BLOCK_K: tl.constexpr):
    row, k = tl.program_id(1).to(tl.int64), tl.arange(0, BLOCK_K)
    tl.store(y + row * K + k, tl.load(x + row * K + k, mask=k < K, other=0.0), mask=k < K)


def rope_on_the_second_axis(
    x: Tensor, cos: Tensor, sin: Tensor, *, cu_seqlens: Tensor, interleaved: bool = False
) -> Outputs:
    """Tokens times heads are programs on the grid's second axis; its limit is 65,535."""
    y, _ = only_token(refs.rope(x, cos, sin, cu_seqlens=cu_seqlens, interleaved=interleaved))
    T, H, K = y.shape
    copied = torch.empty_like(y)
    if copied.numel():
        _copy_rows_kernel[(1, T * H)](y.detach(), copied, K, BLOCK_K=triton.next_power_of_2(K))
    return graft(copied, y)


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


@called_like(refs.causal_conv1d)
def conv_of_atomics(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, cu_seqlens: Tensor, **rest: Any
) -> Outputs:
    """A gradient promised to be deterministic is summed by atomics."""
    rest["activation"] = None
    y, final = only_token(refs.causal_conv1d(x, weight, cu_seqlens=cu_seqlens, **rest))
    if bias is None:
        return put_together(y, final)
    real = torch.arange(len(x), device=x.device)[:, None] < cu_seqlens[-1]
    return put_together(y + torch.where(real, _AtomicSum.apply(bias, len(x)), 0), final)


@triton.autotune(configs=[triton.Config({"BLOCK": block}) for block in (128, 256)], key=["n"])
@triton.jit
def _add_in_place_kernel(state, x, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(state + i, mask=i < n, other=0.0) + tl.load(x + i, mask=i < n, other=0.0)
    tl.store(state + i, value, mask=i < n)


@called_like(refs.causal_conv1d)
def conv_tuned_in_place(x: Tensor, weight: Tensor, bias: Tensor | None = None, **rest: Any) -> Outputs:
    """The tuner runs an in-place kernel once per measurement, and restores nothing."""
    y, final = only_token(refs.causal_conv1d(x, weight, bias, **rest))
    total = torch.zeros_like(y)
    if total.numel():
        _add_in_place_kernel[lambda c: (triton.cdiv(y.numel(), c["BLOCK"]),)](total, y.detach(), y.numel())
    tuned = graft(total, y)
    assert isinstance(tuned, Tensor)
    return put_together(tuned, final)


@called_like(refs.attention)
def attention_without_waiting(q: Tensor, k: Tensor, v: Tensor, **rest: Any) -> Outputs:
    """A result is read on one stream while another still computes it."""
    y, _ = only_token(refs.attention(q, k, v, **rest))
    side, late = torch.cuda.Stream(), torch.zeros_like(y)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)
        late.copy_(y.detach())
    read = late.clone()
    torch.cuda.current_stream().wait_stream(side)
    return graft(read, y)
