"""Matrix products that lose nothing to the dtype of their operands, on tensor cores.

A tensor core multiplies bf16 exactly and adds in fp32. So an fp32 operand enters as a sum of bf16 parts, 8 bits each,
and the products of parts that matter are added up, small ones first: any target has them, and none rounds to tf32.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import triton
import triton.language as tl


@triton.jit
def _first_part(tile):
    """The first 8 bits, cut and not rounded, which takes one instruction for two elements; and the rest."""
    bits = tile.to(tl.int32, bitcast=True)
    part = (bits >> 16).to(tl.int16).to(tl.bfloat16, bitcast=True)
    return part, tile - (bits & -65536).to(tl.float32, bitcast=True)


@triton.jit
def product(a, b, total, EXACT: tl.constexpr):
    """total + a @ b. bf16 operands are exact; of fp32 ones 24 bits count if EXACT, else 16, as bf16 needs."""
    if EXACT:
        total += _exact(a, b)
    elif a.dtype == tl.bfloat16 and b.dtype == tl.bfloat16:
        total = tl.dot(a, b, total)
    elif b.dtype == tl.bfloat16:
        a1, rest = _first_part(a)
        total = tl.dot(a1, b, tl.dot(rest.to(tl.bfloat16), b, total))
    elif a.dtype == tl.bfloat16:
        b1, rest = _first_part(b)
        total = tl.dot(a, b1, tl.dot(a, rest.to(tl.bfloat16), total))
    else:
        a1, a_rest = _first_part(a)
        b1, b_rest = _first_part(b)
        total = tl.dot(a1, b_rest.to(tl.bfloat16), tl.dot(a_rest.to(tl.bfloat16), b1, total))
        total = tl.dot(a1, b1, total)
    return total


@triton.jit
def _exact(a, b):
    """a @ b of fp32 tiles, or of one. Tensor cores cut off what they add to a larger sum: small products are summed
    apart."""
    if a.dtype == tl.bfloat16:
        b1, b_rest = _first_part(b)
        b2, b_rest = _first_part(b_rest)
        total = tl.dot(a, b1) + tl.dot(a, b2, tl.dot(a, b_rest.to(tl.bfloat16)))
    else:
        a1, a_rest = _first_part(a)
        a2, a_rest = _first_part(a_rest)
        a3 = a_rest.to(tl.bfloat16)
        b1, b_rest = _first_part(b)
        b2, b_rest = _first_part(b_rest)
        b3 = b_rest.to(tl.bfloat16)
        small = tl.dot(a1, b3)
        small = tl.dot(a3, b1, small)
        small = tl.dot(a2, b2, small)
        small = tl.dot(a1, b2, small)
        small = tl.dot(a2, b1, small)
        total = tl.dot(a1, b1) + small
    return total
