"""Autotuned kernels of y = x * weight, as users write them."""

# mypy: allow-untyped-defs, allow-untyped-decorators

import torch
import triton
import triton.language as tl

import packproof


def _configs(*blocks, thirds=(False,)):
    return [triton.Config({"B": block, "THIRDS": third}) for block in blocks for third in thirds]


def _autotuned(function, *blocks, thirds=(False,), **options):
    return triton.autotune(_configs(*blocks, thirds=thirds), key=["t"], **options)(function)


@triton.jit
def _forward_kernel(x, w, y, t, d, D: tl.constexpr, B: tl.constexpr, THIRDS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)[:, None]
    column = tl.arange(0, D)[None, :]
    inside = (row < t) & (column < d)
    value = tl.load(x + row * d + column, mask=inside, other=0.0).to(tl.float32)
    weight = tl.load(w + column, mask=column < d, other=0.0).to(tl.float32)
    product = (value / 3) * (weight * 3) if THIRDS else value * weight  # rounds elsewhere
    tl.store(y + row * d + column, product, mask=inside)


@triton.jit
def _backward_kernel(x, w, dy, dx, parts, t, d, D: tl.constexpr, B: tl.constexpr, THIRDS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)[:, None]
    column = tl.arange(0, D)
    inside = (row < t) & (column < d)
    g = tl.load(dy + row * d + column, mask=inside, other=0.0).to(tl.float32)
    value = tl.load(x + row * d + column, mask=inside, other=0.0).to(tl.float32)
    weight = tl.load(w + column, mask=column < d, other=0.0).to(tl.float32)
    tl.store(dx + row * d + column, g * weight, mask=inside)
    tl.store(parts + tl.program_id(0).to(tl.int64) * d + column, tl.sum(g * value, 0), mask=column < d)


_ROWS = 16  # of a program, by the grid of the backward kernel: a configuration with fewer leaves rows out
_forward = _autotuned(_forward_kernel, 16, 32)
_rounding = _autotuned(_forward_kernel, 16, thirds=(False, True))
_backward = _autotuned(_backward_kernel, 16, 32, 64)
_short = _autotuned(_backward_kernel, 16, 8, 32)
_pruned = _autotuned(
    _backward_kernel,
    16,
    8,
    32,
    prune_configs_by={
        "early_config_prune": lambda configs, arguments, **_: [c for c in configs if c.kwargs["B"] >= 16]
    },
)
_many = _autotuned(_backward_kernel, 16, thirds=range(70))  # more than a quick check has cases
_many_and_short = triton.autotune([*_configs(16, thirds=range(99)), *_configs(8)], key=["t"])(_backward_kernel)


class _Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, forward, backward):
        x = x.contiguous()
        y = torch.empty_like(x)
        t, d = x.shape
        if t:
            forward[lambda meta: (triton.cdiv(t, meta["B"]),)](x, weight, y, t, d, D=triton.next_power_of_2(d))
        ctx.save_for_backward(x, weight)
        ctx.kernel = backward
        return y

    @staticmethod
    def backward(ctx, dy):
        x, weight = ctx.saved_tensors
        t, d = x.shape
        dx = torch.empty_like(x)
        parts = torch.zeros(triton.cdiv(t, _ROWS), d, dtype=torch.float32, device=x.device)
        if t:
            grid = (len(parts),)
            ctx.kernel[grid](x, weight, dy.contiguous(), dx, parts, t, d, D=triton.next_power_of_2(d))
        return dx, parts.sum(0).to(weight.dtype), None, None


@packproof.kernel(slack=False)
def correct(x, weight, *, cu_seqlens):
    return _Scaled.apply(x, weight, _forward, _backward)


@packproof.kernel(slack=False)
def second_is_short(x, weight, *, cu_seqlens):
    return _Scaled.apply(x, weight, _forward, _short)


@packproof.kernel(slack=False)
def short_is_pruned(x, weight, *, cu_seqlens):
    return _Scaled.apply(x, weight, _forward, _pruned)


@packproof.kernel(slack=False, promises=packproof.Promises(grid="token"))
def rounds_elsewhere(x, weight, *, cu_seqlens):
    return _Scaled.apply(x, weight, _rounding, _backward)


@packproof.kernel(slack=False)
def correct_of_many(x, weight, *, cu_seqlens):
    return _Scaled.apply(x, weight, _forward, _many)


@packproof.kernel(slack=False)
def last_of_many_is_short(x, weight, *, cu_seqlens):
    return _Scaled.apply(x, weight, _forward, _many_and_short)
