"""Scalar functions of state-space ops in fp32, accurate to a few ULP everywhere, and limits for decays. The logarithm
of a decay may be anything from -inf to 0.

Decays are differences of a running sum of logarithms. A large summand takes digits from all later tokens: a gate of
-1e10 leaves errors of 1e-6, one of -1e20 leaves no digit, -inf leaves NaN. So a token adds at most MAX_LOG2_DECAY, in
base 2. No result changes: a product of decays over that token is at most 2^-160, and in fp32, with 2^-149 as its
smallest number, 2^-150 rounds to 0 already. The errors of the sums lie between. Sums over a chunk of 64 tokens are at
most 10,240. For bf16 tokens they are one fp32 number, off by at most 5e-4, and later decays by 7e-4, a third of a
rounding to bf16. In two fp32 parts the error vanishes.
"""

# mypy: allow-untyped-defs, allow-untyped-decorators

import triton
import triton.language as tl

MAX_LOG2_DECAY = tl.constexpr(160.0)
_FP32_MAX = tl.constexpr(3.4028234663852886e38)


@triton.jit
def softplus(x):
    """log(1 + exp(x)) = max(x, 0) + log(1 + e) with e = exp(-|x|) in [0, 1].

    e times a polynomial (minimax of the relative error) is log(1 + e) to 5e-9, however small e is, for half the
    instructions of a logarithm.
    """
    e = tl.exp(-tl.abs(x))
    p = 0.01985139027 - 0.003244009102 * e
    p = -0.05695939809 + p * e
    p = 0.10603640974 + p * e
    p = -0.15305584669 + p * e
    p = 0.19675935805 + p * e
    p = -0.24954132736 + p * e
    p = 0.33329963684 + p * e
    p = -0.49999901652 + p * e
    p = 1.0 + p * e
    return tl.maximum(x, 0.0) + e * p


@triton.jit
def sigmoid(x):
    """1 / (1 + exp(-x)), the derivative of softplus."""
    e = tl.exp(-tl.abs(x))
    return tl.where(x >= 0, 1.0, e) / (1.0 + e)


@triton.jit
def silu(x):
    """x sigmoid(x)."""
    return x * sigmoid(x)


@triton.jit
def silu_derivative(x):
    """The derivative of silu."""
    s = sigmoid(x)
    return s * (1.0 + x * (1.0 - s))


@triton.jit
def tanh(x):
    """Near 0 x plus x³ times a polynomial in x² (minimax of the relative error, 3e-9), elsewhere 1 - 2 / (e²ˣ + 1)."""
    u = x * x
    p = 0.02079597 - 0.00589516 * u
    p = -0.05378383 + p * u
    p = 0.13331924 + p * u
    p = -0.33333298 + p * u
    far = 1.0 - 2.0 / (tl.exp(2.0 * tl.abs(x)) + 1.0)
    return tl.where(u < 0.36, x + x * u * p, tl.where(x < 0, -far, far))


@triton.jit
def clamp_log_decay(log_decay):
    """A log-decay with a bounded magnitude, as a summand of a running sum. NaN stays NaN."""
    return tl.where(log_decay < -MAX_LOG2_DECAY, -MAX_LOG2_DECAY, log_decay)


@triton.jit
def clamp_rate(rate):
    """A decay rate as a finite number. It may be -inf, or become so in base 2, and is a factor of zeros: gradients,
    empty steps.

    NaN stays NaN.
    """
    return tl.where(rate < -_FP32_MAX, -_FP32_MAX, rate)
