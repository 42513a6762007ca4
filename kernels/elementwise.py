"""Scalar functions of state-space ops in fp32, accurate to a few ULP on all of their range."""

# mypy: allow-untyped-defs, allow-untyped-decorators

import triton
import triton.language as tl


@triton.jit
def softplus(x):
    """log(1 + exp(x)); 1 + e loses the digits of a small e, and log(u) e / (u - 1) gets them back (Kahan)."""
    e = tl.exp(-tl.abs(x))
    u = 1.0 + e
    tail = tl.where(u == 1.0, e, tl.log(u) * (e / tl.where(u == 1.0, 1.0, u - 1.0)))
    return tl.maximum(x, 0.0) + tail


@triton.jit
def sigmoid(x):
    """1 / (1 + exp(-x)), which is also the derivative of softplus."""
    e = tl.exp(-tl.abs(x))
    return tl.where(x >= 0, 1.0, e) / (1.0 + e)


@triton.jit
def silu(x):
    """x sigmoid(x)."""
    return x * sigmoid(x)


@triton.jit
def silu_slope(x):
    """The derivative of silu."""
    s = sigmoid(x)
    return s * (1.0 + x * (1.0 - s))
