"""Kernels for the bench: correct ones, and some with bugs that only a proof before the timing detects."""

import torch
from torch.nn import functional

from packproof import refs


def correct(x, weight, bias=None, *, cu_seqlens, activation=None):
    return refs.causal_conv1d(x, weight, bias, cu_seqlens=cu_seqlens, activation=activation)


def leaky(x, weight, bias=None, *, cu_seqlens, activation=None):
    """The last inputs of one sequence reach the next one."""
    d, w = weight.shape
    y = functional.conv1d(functional.pad(x.T[None], (w - 1, 0)), weight[:, None], bias, groups=d)[0].T
    return functional.silu(y) if activation == "silu" else y


def wrong_on_many_tokens(x, weight, bias=None, *, cu_seqlens, activation=None):
    y = correct(x, weight, bias, cu_seqlens=cu_seqlens, activation=activation)
    return y * 1.01 if len(x) > 200 else y


def wrong_gradient_on_many_tokens(x, weight, bias=None, *, cu_seqlens, activation=None):
    y = correct(x, weight, bias, cu_seqlens=cu_seqlens, activation=activation)
    return y + 0.01 * (y - y.detach()) if len(x) > 200 else y


def fits_on_few_tokens(x, weight, bias=None, *, cu_seqlens, activation=None):
    if len(x) > 140:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 644.00 GiB.\nGPU 0 has less.")
    return refs.causal_conv1d(x, weight, bias, cu_seqlens=cu_seqlens, activation=activation)


def takes_no_bias(x, weight, *, cu_seqlens, activation=None):
    return correct(x, weight, cu_seqlens=cu_seqlens, activation=activation)


def whole_sequences(q, k, v, *, cu_seqlens):
    return refs.attention(q, k, v, cu_seqlens=cu_seqlens)


def whole_pack(q, k, v, *, cu_seqlens):
    return refs.attention(q, k, v, cu_seqlens=cu_seqlens[[0, -1]])
