"""Kernels of y = x * weight that differ in who computes them: their own launches, torch, numpy or the reference."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

import ctypes

import numpy as np
import torch
import triton
import triton.language as tl

import packproof
from packproof import kernels
from tests.harness.check.product_reference import product

PRODUCT = packproof.Op(
    name="product",
    reference=product,
    inputs={"x": "t d", "weight": "d"},
    outputs={"y": "t d"},
    sizes=({"d": 8}, {"d": 3}),
)
_BLOCK = 64
_LIBRARY = torch.library.Library("packproof_tests", "FRAGMENT")
_workspaces: dict[int, torch.Tensor] = {}


@triton.jit
def _idle_kernel(x, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.load(x + i, mask=i < n, other=0.0)


@triton.jit
def _product_kernel(x, weight, y, n, d, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n, other=0.0) * tl.load(weight + i % d, mask=i < n, other=0.0)
    tl.store(y + i, value, mask=i < n)


@triton.jit
def _sum_kernel(x, dy, dweight, t, d):
    column, total = tl.program_id(0), 0.0
    for row in range(t):
        total += tl.load(x + row * d + column) * tl.load(dy + row * d + column)
    tl.store(dweight + column, total)


_tuned_kernel = triton.autotune([triton.Config({"BLOCK": block}) for block in (16, 64)], key=["n"])(_product_kernel)


def _launched_product(x, weight, y=None):
    x, y = x.detach().contiguous(), torch.empty(x.shape, device=x.device) if y is None else y
    if x.numel():
        _product_kernel[(triton.cdiv(x.numel(), _BLOCK),)](
            x, weight.detach().contiguous(), y, x.numel(), x.shape[1], BLOCK=_BLOCK
        )
    return y


class _OwnKernels(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return _launched_product(x, weight)

    @staticmethod
    def backward(ctx, dy):
        x, weight = ctx.saved_tensors
        dy, dweight = dy.contiguous(), torch.empty(weight.shape, device=dy.device)
        _sum_kernel[(len(weight),)](x.contiguous(), dy, dweight, *x.shape)
        return _launched_product(dy, weight), dweight


def own_kernels(x, weight, *, cu_seqlens):
    cu_seqlens.diff().cumsum(0).max() if len(cu_seqlens) > 1 else None  # arithmetic on offsets is free
    return _OwnKernels.apply(x, weight)


class _TorchBackward(_OwnKernels):
    @staticmethod
    def backward(ctx, dy):
        x, weight = ctx.saved_tensors
        return dy * weight, (dy * x).sum(0)


def torch_backward(x, weight, *, cu_seqlens):
    return _TorchBackward.apply(x, weight)


class _Tuned(_TorchBackward):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        x, y = x.contiguous(), torch.empty(x.shape, device=x.device)
        if x.numel():
            _tuned_kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](
                x, weight.contiguous(), y, x.numel(), x.shape[1]
            )
        return y


def tuned(x, weight, *, cu_seqlens):
    return _Tuned.apply(x, weight)


class _Workspace(_TorchBackward):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        workspace = _workspaces.setdefault(x.numel(), torch.empty(x.shape, device=x.device))
        return _launched_product(x, weight, workspace.view(x.shape)).clone()


def reused_workspace(x, weight, *, cu_seqlens):
    """Correct: its launch fills a buffer that lives on, and torch copies from it."""
    return _Workspace.apply(x, weight)


def idle_launch(x, weight, *, cu_seqlens):
    """A launch for show, and torch does the work."""
    if x.numel():
        _idle_kernel[(triton.cdiv(x.numel(), _BLOCK),)](x.detach().contiguous(), x.numel(), BLOCK=_BLOCK)
    return x * weight


def launch_for_slack_alone(x, weight, *, cu_seqlens):
    """Correct: torch computes, and a launch multiplies the rows past the last sequence."""
    n = int(cu_seqlens[-1])
    return torch.cat([x[:n] * weight, _OwnKernels.apply(x[n:], weight)]) if n < len(x) else x * weight


def in_torch(x, weight, *, cu_seqlens):
    return x * weight


def calls_the_reference(x, weight, *, cu_seqlens):
    return product(x, weight, cu_seqlens=cu_seqlens)


class _Numpy(_OwnKernels):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return torch.from_numpy(np.multiply(x.detach().numpy(), weight.detach().numpy()))

    @staticmethod
    def backward(ctx, dy):
        x, weight, dy = (tensor.detach().numpy() for tensor in (*ctx.saved_tensors, dy))
        return torch.from_numpy(dy * weight), torch.from_numpy((dy * x).sum(0))


def in_numpy(x, weight, *, cu_seqlens):
    return _Numpy.apply(x, weight)


def _memory(x):
    """The values of a tensor, read where they lie: no function of torch hands them out."""
    if not x.numel():
        return np.zeros(x.shape, np.float32)
    return np.ctypeslib.as_array((ctypes.c_float * x.numel()).from_address(x.data_ptr())).reshape(x.shape)


class _Memory(_OwnKernels):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return torch.from_numpy(np.multiply(*map(_memory, (x.contiguous(), weight.contiguous()))))

    @staticmethod
    def backward(ctx, dy):
        x, weight, dy = map(_memory, (*(tensor.contiguous() for tensor in ctx.saved_tensors), dy.contiguous()))
        return torch.from_numpy(dy * weight), torch.from_numpy((dy * x).sum(0))


def in_memory(x, weight, *, cu_seqlens):
    return _Memory.apply(x, weight)


class _MemoryBackward(_OwnKernels):
    backward = staticmethod(_Memory.backward)


def memory_backward(x, weight, *, cu_seqlens):
    return _MemoryBackward.apply(x, weight)


class _NumpyBackward(_OwnKernels):
    backward = staticmethod(_Numpy.backward)


def numpy_backward(x, weight, *, cu_seqlens):
    return _NumpyBackward.apply(x, weight)


def _registered(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * weight


def _registered_launch(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return _launched_product(x, weight)


_LIBRARY.define("launched_product(Tensor x, Tensor weight) -> Tensor")
_LIBRARY.impl("launched_product", _registered_launch, "CompositeExplicitAutograd")
_LIBRARY.define("product(Tensor x, Tensor weight) -> Tensor")
_LIBRARY.impl("product", _registered, "CompositeExplicitAutograd")


class _Registered(_TorchBackward):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return torch.ops.packproof_tests.product(x, weight)


def in_a_registered_operator(x, weight, *, cu_seqlens):
    return _Registered.apply(x, weight)


class _RegisteredLaunches(_OwnKernels):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        torch.ops.packproof_tests.launched_product(x, weight)
        return torch.ops.packproof_tests.launched_product(x, weight)


def registered_launches(x, weight, *, cu_seqlens):
    """The same operator twice."""
    return _RegisteredLaunches.apply(x, weight)


def calls_a_library(x, weight, *, cu_seqlens):
    """A convolution with one tap, by packproof's kernel."""
    y = kernels.causal_conv1d(x, weight[:, None], cu_seqlens=cu_seqlens)
    return torch.cat([y[: cu_seqlens[-1]], x[cu_seqlens[-1] :] * weight])
