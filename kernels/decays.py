"""How strong a decay may be in the kernels, whose log-decays are in base 2: anything from -inf to 0.

A kernel that forms decays as differences of a running sum loses, in all later tokens, the digits of what one token adds
to the sum: with a gate of -1e10 some 1e-6 of the rest, with one of -1e20 everything, with -inf there is NaN. So a token
adds at most FORGOTTEN, which changes no result: 2^-150 rounds to 0 in fp32, whose smallest number is 2^-149, and every
product of decays with that token in it is at most 2^-160. In between lies the error of a difference of sums: those of a
chunk of 64 tokens are at most 10,240, and rounded to fp32 they are 5e-4 off. That is also all that a strong gate can
take from the tokens after it where one fp32 sum is all there is (bf16 tokens: 3e-4 of a decay, a sixth of a rounding).
"""

# mypy: allow-untyped-defs, allow-untyped-decorators

import triton
import triton.language as tl

FORGOTTEN = tl.constexpr(160.0)
_LARGEST = tl.constexpr(3.4028234663852886e38)


@triton.jit
def summable(log_decay):
    """The log-decay of a token as a running sum takes it. NaN stays NaN."""
    return tl.where(log_decay < -FORGOTTEN, -FORGOTTEN, log_decay)


@triton.jit
def finite(rate):
    """A rate that may be -inf, or become so in base 2, as a factor of what may be 0: gradients, and steps of no token.

    NaN stays NaN.
    """
    return tl.where(rate < -_LARGEST, -_LARGEST, rate)
