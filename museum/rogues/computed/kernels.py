"""The Triton kernels of these rogues."""

# mypy: allow-untyped-decorators

import torch
import triton
import triton.language as tl

_BLOCK = 64


@triton.jit
def nothing_kernel(x, n):
    tl.load(x, mask=n > 0, other=0.0)


@triton.jit
def copy_kernel(source, target, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(target + at, tl.load(source + at, mask=at < n), mask=at < n)


@triton.jit
def scale_kernel(sums, weight, y, n, d, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    scaled = tl.load(sums + at, mask=at < n) * tl.load(weight + at % d, mask=at < n)
    tl.store(y + at, scaled, mask=at < n)


@triton.jit
def sum_kernel(x, weight, offsets, y, d):
    start, end = tl.load(offsets + tl.program_id(0)), tl.load(offsets + tl.program_id(0) + 1)
    channel = tl.program_id(1)
    total = 0.0
    for t in range(start, end):
        total += tl.load(x + t * d + channel)
        tl.store(y + t * d + channel, total * tl.load(weight + channel))


def copied(source):
    source = source.contiguous()
    target = torch.zeros_like(source)
    if source.numel():
        copy_kernel[(triton.cdiv(source.numel(), _BLOCK),)](source, target, source.numel(), BLOCK=_BLOCK)
    return target


def scaled(sums, weight):
    """The sums by weight, multiplied by a kernel of its own."""
    y = torch.zeros_like(sums)
    if sums.numel():
        grid = (triton.cdiv(sums.numel(), _BLOCK),)
        scale_kernel[grid](sums.contiguous(), weight.contiguous(), y, sums.numel(), weight.numel(), BLOCK=_BLOCK)
    return y


def honest(x, weight, cu_seqlens):
    """The running sum by a kernel of its own."""
    y = torch.zeros_like(x)
    if len(cu_seqlens) > 1 and x.numel():
        grid = (len(cu_seqlens) - 1, x.shape[1])
        sum_kernel[grid](x.contiguous(), weight.contiguous(), cu_seqlens, y, x.shape[1])
    return y
