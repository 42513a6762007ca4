"""A Triton kernel for a GPU, y = x * weight per token, with checks before and after its launch."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import torch
import triton
import triton.language as tl

import packproof
from packproof.properties.ops.op import Op


def scaled(x, weight, *, cu_seqlens):
    return x * weight


SCALED = Op("scaled", scaled, {"x": "t d", "weight": "d"}, {"y": "t d"}, sizes=({"d": 3}, {"d": 8}))


@triton.jit
def _scale_kernel(x, weight, y, n, d, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, i < n, 0) * tl.load(weight + i % d, i < n, 0), i < n)


class _Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return _launched(x, weight)

    @staticmethod
    def backward(ctx, dy):
        x, weight = ctx.saved_tensors
        return _launched(dy.contiguous(), weight), (dy.float() * x.float()).sum(0).to(weight.dtype)


def _launched(x, weight):
    y = torch.empty_like(x)
    if x.numel():
        _scale_kernel[(triton.cdiv(x.numel(), 256),)](x, weight, y, x.numel(), x.shape[1], BLOCK=256)
    return y


@packproof.kernel(op=SCALED)
def checked(x, weight, *, cu_seqlens):
    if x.shape[1] % 8:
        raise ValueError(f"expected a multiple of 8 channels, got {x.shape[1]}")
    return _Scale.apply(x.contiguous(), weight)


@packproof.kernel(op=SCALED)
def late(x, weight, *, cu_seqlens):
    y = torch.empty_like(x)
    _scale_kernel[(1,)](x, weight, y, x.numel(), max(x.shape[1], 1), BLOCK=16)
    raise ValueError(f"{x.shape[1]} channels are not supported")
