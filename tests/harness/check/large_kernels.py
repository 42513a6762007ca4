"""Kernels of an op of one's own, and its references, that need more memory or time than there is past 450 tokens."""

# mypy: allow-untyped-defs

import os
import signal
import time

import torch

from packproof.properties.ops.op import Op

MANY = 450  # a constant of the source: one case has more tokens


def square(x, *, cu_seqlens):
    """The reference."""
    return x * x


def roomy_square(x, *, cu_seqlens):
    if len(x) > MANY:
        torch.ones(1 << 25, 1 << 15)
    return x * x


def slow_square(x, *, cu_seqlens):
    while len(x) > MANY:
        time.sleep(0.01)
    return x * x


SQUARE, ROOMY_SQUARE, SLOW_SQUARE = (
    Op(name=reference.__name__, reference=reference, inputs={"x": "t d"}, outputs={"y": "t d"}, sizes=({"d": 2},))
    for reference in (square, roomy_square, slow_square)
)


def correct(x, *, cu_seqlens):
    return x * x if len(x) < MANY else x**2


def killed(x, *, cu_seqlens):
    """As the system ends a process that has written more memory than there is."""
    if len(x) > MANY:
        os.kill(os.getpid(), signal.SIGKILL)
    return correct(x, cu_seqlens=cu_seqlens)


def limited(x, *, cu_seqlens):
    if len(x) > MANY:
        raise ValueError(f"takes {MANY} tokens at most, got {len(x)}")
    return correct(x, cu_seqlens=cu_seqlens)


def crashing(x, *, cu_seqlens):
    if len(x) > MANY:
        os.kill(os.getpid(), signal.SIGSEGV)
    return correct(x, cu_seqlens=cu_seqlens)


def hanging(x, *, cu_seqlens):
    while len(x) > MANY:
        time.sleep(0.01)
    return correct(x, cu_seqlens=cu_seqlens)
