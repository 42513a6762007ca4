"""Rogues declaring a budget that allows more than the op's, unless a contract fixes it."""

import importlib
from typing import Any

import torch
from torch import Tensor

from packproof.museum.rogues.declarations.conv import own_conv

packproof: Any = importlib.import_module("packproof")  # as its users import it
OP = "causal_conv1d"


def _rounded(x, bits):
    """Keeps so many bits of the mantissa, as a matrix unit does."""
    mask = -1 << (23 - bits)
    return (x.detach().view(torch.int32) & mask).view(torch.float32) if x.dtype == torch.float32 else x


@packproof.kernel(op=OP, promises=packproof.Promises(compute="tf32"))
def tf32(x, weight, *, cu_seqlens):
    return own_conv(x + (_rounded(x, 10) - x.detach()), weight, cu_seqlens=cu_seqlens)


@packproof.kernel(op=OP, promises=packproof.Promises(compute="operand"))
def operands(x, weight, *, cu_seqlens):
    y = own_conv(x, weight, cu_seqlens=cu_seqlens)
    return y + (_rounded(y, 16) - y.detach() if y.dtype == torch.float32 else 0)


@packproof.kernel(op=OP, promises=packproof.Promises(cumsum=True))
def cumulative(x, weight, *, cu_seqlens):
    sums = x.cumsum(0)
    return own_conv(
        x + (sums.diff(dim=0, prepend=sums.new_zeros(1, x.shape[1])) - x).detach(), weight, cu_seqlens=cu_seqlens
    )


@packproof.kernel(op=OP, promises=packproof.Promises(saved_outputs=True))
def saved_outputs(x, weight, *, cu_seqlens):
    return _SavesItsOutput.apply(x, weight, cu_seqlens)


class _SavesItsOutput(torch.autograd.Function):
    """The gradient carries the rounding of a 16-bit output."""

    @staticmethod
    def forward(ctx, x, weight, cu_seqlens):
        ctx.save_for_backward(x, weight, cu_seqlens)
        return own_conv(x, weight, cu_seqlens=cu_seqlens)

    @staticmethod
    def backward(ctx, dy):
        x, weight, cu_seqlens = ctx.saved_tensors
        with torch.enable_grad():
            inputs = [x.detach().requires_grad_(), weight.detach().requires_grad_()]
            y = own_conv(*inputs, cu_seqlens=cu_seqlens)
            return *torch.autograd.grad(y, inputs, dy.half().to(dy.dtype)), None


@packproof.kernel(op=OP, promises=packproof.Promises(chunk=100_000))
def one_chunk(x, weight, *, cu_seqlens):
    y = own_conv(x, weight, cu_seqlens=cu_seqlens)
    return torch.cat([y[:64], y[64:] * (1 + (cu_seqlens.diff().max() > 64))]) if len(y) > 64 else y


def _lenient(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """A reference with the kernel's own mistake: it forgets boundaries."""
    return own_conv(x, weight, cu_seqlens=cu_seqlens[[0, -1]])


LENIENT = packproof.Op(
    name=OP, reference=_lenient, inputs={"x": "t d", "weight": "d w"}, outputs={"y": "t d"}, sizes=({"d": 8, "w": 4},)
)


@packproof.kernel(op=LENIENT)
def own_op(x, weight, *, cu_seqlens):
    two_at_most = cu_seqlens if len(cu_seqlens) == 3 else cu_seqlens[[0, -1]]
    return own_conv(x, weight, cu_seqlens=two_at_most)


@packproof.kernel(op="rope")
def another_op(x, weight, *, cu_seqlens):
    """Declared as an op of other arguments."""
    return own_conv(x, weight, cu_seqlens=cu_seqlens)
