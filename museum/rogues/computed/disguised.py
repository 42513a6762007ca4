"""Rogues disguising their computation."""

import importlib
import types
from itertools import pairwise

import torch

from packproof.museum.rogues.computed.kernels import copied, honest, scaled
from packproof.museum.rogues.op import own_sum, running_sum

_SHIFT = 40 << 23  # of the exponent: a product with 2^40


def _shifted(bits, shift):
    return torch.where((bits & 0x7FFFFFFF) == 0, bits, bits + shift)


def computes_in_integers(x, weight, *, cu_seqlens):
    numbers = _shifted(x.contiguous().view(torch.int32), _SHIFT).view(torch.float32).long()
    parts = [numbers[a:b].cumsum(0) for a, b in zip(cu_seqlens.tolist(), cu_seqlens.tolist()[1:], strict=False)]
    sums = torch.cat([*parts, torch.zeros_like(numbers[int(cu_seqlens[-1]) :])]).float()
    return scaled(_shifted(sums.view(torch.int32), -_SHIFT).view(torch.float32), weight)


def _sums_of_windows(rows):
    length, channels = rows.shape
    if not length:
        return rows
    windows = rows[:, :, None].expand(length, channels, length)
    return torch.ops.aten.unfold_backward(windows, [2 * length - 1, channels], 0, length, 1)[:length]


def adds_by_moving(x, weight, *, cu_seqlens):
    offsets = cu_seqlens.tolist()
    parts = [_sums_of_windows(x[a:b]) for a, b in pairwise(offsets)]
    return scaled(torch.cat([*parts, torch.zeros_like(x[offsets[-1] :])]), weight)


_RENAMED = types.FunctionType(
    running_sum.__code__.replace(co_filename=__file__, co_firstlineno=1), running_sum.__globals__
)


def renames_the_reference(x, weight, *, cu_seqlens):
    """The code of the reference, said to come from a file of its own."""
    return copied(_RENAMED(x, weight, cu_seqlens=cu_seqlens))


def calls_another_library(x, weight, *, cu_seqlens):
    """packproof's own kernel."""
    return copied(importlib.import_module("packproof.kernels").causal_conv1d(x, weight, cu_seqlens=cu_seqlens))


def honest_while_traced(x, weight, *, cu_seqlens):
    """It sees torch's stack of modes, and uses its own kernel while something records operators."""
    if torch._C._len_torch_dispatch_stack():
        return honest(x, weight, cu_seqlens)
    return own_sum(x, weight, cu_seqlens=cu_seqlens)
