"""Rogues writing out of bounds or into their inputs, or leaving output unwritten."""

import ctypes

import torch

from packproof.museum.rogues.op import running_sum


def writes_past_the_end(x, weight, *, cu_seqlens):
    y = torch.empty(x.shape, dtype=x.dtype)
    ctypes.memset(y.data_ptr() + y.numel() * y.itemsize, 0, 4)
    return y.copy_(running_sum(x, weight, cu_seqlens=cu_seqlens))


def writes_before_the_start(x, weight, *, cu_seqlens):
    y = x.new_empty(x.shape)
    ctypes.memset(y.data_ptr() - 4, 0, 4)
    return y.copy_(running_sum(x, weight, cu_seqlens=cu_seqlens))


def writes_past_its_input(x, weight, *, cu_seqlens):
    y = running_sum(x, weight, cu_seqlens=cu_seqlens)
    ctypes.memset(weight.data_ptr() + weight.numel() * weight.element_size(), 0, 8)
    return y


def writes_into_its_input(x, weight, *, cu_seqlens):
    y = running_sum(x, weight, cu_seqlens=cu_seqlens)
    if len(x):
        x.data[0] = 7
    return y


def writes_into_the_offsets(x, weight, *, cu_seqlens):
    y = running_sum(x, weight, cu_seqlens=cu_seqlens)
    cu_seqlens[0] = 1
    return y


def writes_into_the_incoming_gradient(x, weight, *, cu_seqlens):
    return _ZeroesItsGradient.apply(running_sum(x, weight, cu_seqlens=cu_seqlens))


class _ZeroesItsGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y):
        return y.clone()

    @staticmethod
    def backward(ctx, dy):
        gradient = dy.clone()
        dy.data.zero_()
        return gradient


def leaves_slack_unwritten(x, weight, *, cu_seqlens):
    y = torch.empty_like(x)
    end = int(cu_seqlens[-1])
    y[:end] = running_sum(x, weight, cu_seqlens=cu_seqlens)[:end]
    return y


def reads_before_it_writes(x, weight, *, cu_seqlens):
    """Assumes that fresh memory is zero."""
    # above malloc's largest mmap threshold: fresh pages, all zeros
    fresh = torch.empty(1 << 24, dtype=x.dtype)[: x.numel()].view_as(x)
    return fresh + running_sum(x, weight, cu_seqlens=cu_seqlens)
