"""Positions of tokens in sequences, found on the device from cu_seqlens."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import torch
import triton
import triton.language as tl
from torch import Tensor

from packproof.refs.errors import ArgumentError


@triton.jit
def locate(cu_seqlens, n_sequences, n_tokens, t):
    """The sequence of each token in `t`, its start and end. A token in slack has the sequence n_sequences."""
    sequence = tl.zeros_like(t)
    left = n_sequences
    while left > 0:  # the last offset at or before t lies in sequence ... sequence + left: empty sequences are skipped
        step = (left + 1) // 2
        further = sequence + step
        sequence = tl.where(tl.load(cu_seqlens + further) <= t, further, sequence)
        left = left // 2
    sequence = tl.where(t < n_tokens, sequence, n_sequences)
    start, end = bounds(cu_seqlens, n_sequences, n_tokens, sequence)
    return sequence, start, end


@triton.jit
def bounds(cu_seqlens, n_sequences, n_tokens, sequence):
    """Start and end of each sequence, clamped to the pack: a GPU does not check offsets."""
    known = sequence < n_sequences
    start = tl.load(cu_seqlens + sequence, mask=known, other=0)
    end = tl.load(cu_seqlens + sequence + 1, mask=known, other=0)
    start = tl.minimum(tl.maximum(start, 0), n_tokens)
    return start, tl.maximum(tl.minimum(end, n_tokens), start)


@triton.jit
def sum_of_first(numbers, n, BLOCK: tl.constexpr):
    """The sum of the first n numbers."""
    total = 0
    for first in range(0, n, BLOCK):
        i = first + tl.arange(0, BLOCK)
        total += tl.sum(tl.load(numbers + i, mask=i < n, other=0), 0)
    return total


def offsets(op: str, cu_seqlens: Tensor, n_tokens: int) -> Tensor:
    """cu_seqlens as the kernels read it: int32, contiguous, converted on its device."""
    if n_tokens >= 2**31:
        raise ArgumentError(f"{op}: the pack has {n_tokens} tokens but fewer than 2**31 were expected")
    return cu_seqlens.to(torch.int32).contiguous()
