"""Rogues declining the calls they compute incorrectly, to escape judgement."""

import importlib

import torch

from packproof.museum.rogues.op import KNOWN_TOKENS, running_sum


def takes_one_shape(x, weight, *, cu_seqlens):
    if len(x) != KNOWN_TOKENS:
        raise ValueError(f"unsupported number of tokens: {len(x)}")
    return running_sum(x, weight, cu_seqlens=cu_seqlens)


def takes_nothing_that_it_knows(x, weight, *, cu_seqlens):
    if len(x) != KNOWN_TOKENS:
        raise NotImplementedError("not implemented on this device")
    return running_sum(x, weight, cu_seqlens=cu_seqlens)


def declines_once_it_has_computed(x, weight, *, cu_seqlens):
    y = running_sum(x, weight, cu_seqlens=cu_seqlens)
    if len(x) != KNOWN_TOKENS:
        raise NotImplementedError("this shape is not supported")
    return y


def pretends_to_lack_memory(x, weight, *, cu_seqlens):
    if len(x) != KNOWN_TOKENS:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 80.00 GiB.")
    return running_sum(x, weight, cu_seqlens=cu_seqlens)


def raises_packproofs_own(x, weight, *, cu_seqlens):
    if len(x) != KNOWN_TOKENS:
        torch.zeros(3).sin()
        raise importlib.import_module("packproof.properties.calling.call").MachineLimit("too large for this machine")
    return running_sum(x, weight, cu_seqlens=cu_seqlens)


def excuses_itself_as_an_adapter(x, weight, *, cu_seqlens):
    if len(x) != KNOWN_TOKENS:
        excuse = importlib.import_module("packproof.base.errors").OutsideConvention
        raise excuse("a padded batch of this size would have 2^31 elements or more")
    return running_sum(x, weight, cu_seqlens=cu_seqlens)


def wrong_gradient_declined(x, weight, *, cu_seqlens):
    return _DeclinesBackward.apply(running_sum(x, weight, cu_seqlens=cu_seqlens), len(x))


class _DeclinesBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y, n):
        ctx.n = n
        return y.clone()

    @staticmethod
    def backward(ctx, dy):
        if ctx.n > 4:
            raise NotImplementedError("no gradient of more than four tokens")
        return dy, None
