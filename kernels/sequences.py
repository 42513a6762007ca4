"""Positions of tokens in sequences, found on the device from cu_seqlens."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import torch
import triton
import triton.language as tl
from torch import Tensor

from packproof.base.errors import ArgumentError


@triton.jit
def locate(cu_seqlens, n_sequences, n_tokens, t):
    """The sequence of each token in `t`, its start and end. A token in slack has the sequence n_sequences."""
    sequence = tl.zeros_like(t)
    span = n_sequences
    while span > 0:  # the last offset at or before t lies in sequence ... sequence + left: empty sequences are skipped
        step = (span + 1) // 2
        candidate = sequence + step
        sequence = tl.where(tl.load(cu_seqlens + candidate) <= t, candidate, sequence)
        span = span // 2
    sequence = tl.where(t < n_tokens, sequence, n_sequences)
    start, end = bounds(cu_seqlens, n_sequences, n_tokens, sequence)
    return sequence, start, end


@triton.jit
def bounds(cu_seqlens, n_sequences, n_tokens, sequence):
    """Start and end of each sequence, clamped to the pack: a GPU does not check offsets."""
    has_sequence = sequence < n_sequences
    start = tl.load(cu_seqlens + sequence, mask=has_sequence, other=0)
    end = tl.load(cu_seqlens + sequence + 1, mask=has_sequence, other=0)
    start = tl.minimum(tl.maximum(start, 0), n_tokens)
    return start, tl.maximum(tl.minimum(end, n_tokens), start)


@triton.jit
def prefix_sum(numbers, n, BLOCK: tl.constexpr):
    """The sum of the first n numbers."""
    total = 0
    for block_start in range(0, n, BLOCK):
        i = block_start + tl.arange(0, BLOCK)
        total += tl.sum(tl.load(numbers + i, mask=i < n, other=0), 0)
    return total


def offsets(op: str, cu_seqlens: Tensor, n_tokens: int) -> Tensor:
    """cu_seqlens as the kernels read it: int32, contiguous, converted on its device."""
    if n_tokens >= 2**31:
        raise ArgumentError(f"{op}: the pack has {n_tokens} tokens but fewer than 2**31 were expected")
    return cu_seqlens.to(torch.int32).contiguous()
