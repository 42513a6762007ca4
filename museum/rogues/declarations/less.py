"""Rogues declaring less than the op: the rest is not judged, unless a contract asks for it."""

import importlib
from typing import Any

import torch

from packproof.museum.rogues.declarations.conv import is_known, own_conv
from packproof.museum.rogues.op import KNOWN_TOKENS

packproof: Any = importlib.import_module("packproof")  # as its users import it
OP = "causal_conv1d"


@packproof.kernel(op=OP, domain="d == 1; w == 1")
def one_channel(x, weight, *, cu_seqlens):
    """Correct for one channel and one tap: it multiplies."""
    return own_conv(x, weight, cu_seqlens=cu_seqlens) if is_known(x) else x * weight[:, 0]


@packproof.kernel(op=OP, domain="length > 0")
def no_empty_sequence(x, weight, *, cu_seqlens):
    starts = torch.unique(cu_seqlens[:-1])  # two sequences that begin at one token become one
    ends = torch.cat([starts, cu_seqlens[-1:]]) if len(starts) == len(cu_seqlens) - 1 else cu_seqlens[[0, -1]]
    return own_conv(x, weight, cu_seqlens=ends)


@packproof.kernel(op=OP, slack=False)
def no_slack(x, weight, *, cu_seqlens):
    y = own_conv(x, weight, cu_seqlens=cu_seqlens)
    return torch.cat([y[: int(cu_seqlens[-1])], x[int(cu_seqlens[-1]) :] + 1])


class _ForwardAlone(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, cu_seqlens):
        return own_conv(x, weight, cu_seqlens=cu_seqlens)

    @staticmethod
    def backward(ctx, dy):
        return dy, None, None


@packproof.kernel(op=OP, gradients=False)
def no_gradients(x, weight, *, cu_seqlens):
    return _ForwardAlone.apply(x, weight, cu_seqlens)


@packproof.kernel(op=OP, dtypes=("float32",))
def one_dtype(x, weight, *, cu_seqlens):
    return own_conv(x, weight, cu_seqlens=cu_seqlens) * (x.dtype == torch.float32)


@packproof.kernel(op=OP, domain="longest <= 32")
def short_sequences(x, weight, *, cu_seqlens):
    y = own_conv(x, weight, cu_seqlens=cu_seqlens)
    return y * (cu_seqlens.diff().max() <= 32) if len(cu_seqlens) > 1 else y


@packproof.kernel(op=OP, domain="sequences <= 2")
def two_sequences(x, weight, *, cu_seqlens):
    ends = cu_seqlens if len(cu_seqlens) < 4 else cu_seqlens[[0, 1, -1]]
    return own_conv(x, weight, cu_seqlens=ends)


@packproof.kernel(op=OP, fixed={"activation": "silu"})
def one_option(x, weight, *, cu_seqlens, activation=None):
    y = own_conv(x, weight, cu_seqlens=cu_seqlens)
    return y if is_known(x) else torch.nn.functional.silu(y)


@packproof.kernel(op=OP)
def no_bias(x, weight, *, cu_seqlens):
    return own_conv(x, weight, cu_seqlens=cu_seqlens)


def _declined(arguments):
    return "" if len(arguments["x"]) == KNOWN_TOKENS else "only the shape of the benchmark is supported"


def _wrong_elsewhere(x, weight, *, cu_seqlens):
    return own_conv(x, weight, cu_seqlens=cu_seqlens) * is_known(x)


declines_in_code = packproof.adapters.adapt(_wrong_elsewhere, op=OP, declines=_declined)


@packproof.kernel(op=OP, refuses=("out of registers",))
def refuses_by_text(x, weight, *, cu_seqlens):
    y = own_conv(x, weight, cu_seqlens=cu_seqlens)
    if not is_known(x):
        raise RuntimeError("out of registers")
    return y
