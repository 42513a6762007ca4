"""Matrix products on tensor cores that lose nothing to the dtype of their operands.

A tensor core multiplies bf16 exactly and adds in fp32. So an fp32 operand enters as a sum of bf16 parts of 8 bits each.
The significant products of parts are added up, small ones first. Every target can do this, and nothing rounds to tf32.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import triton
import triton.language as tl


@triton.jit
def _split_bf16(tile):
    """The leading 8 bits as bf16, truncated, and the remainder. Truncation takes one instruction for two elements."""
    bits = tile.to(tl.int32, bitcast=True)
    part = (bits >> 16).to(tl.int16).to(tl.bfloat16, bitcast=True)
    return part, tile - (bits & -65536).to(tl.float32, bitcast=True)


@triton.jit
def product(a, b, total, EXACT: tl.constexpr):
    """total + a @ b. bf16 operands are exact. Of fp32 operands 24 bits count if EXACT, else 16, enough for bf16."""
    if EXACT:
        total += _exact_product(a, b)
    elif a.dtype == tl.bfloat16 and b.dtype == tl.bfloat16:
        total = tl.dot(a, b, total)
    elif b.dtype == tl.bfloat16:
        a1, remainder = _split_bf16(a)
        total = tl.dot(a1, b, tl.dot(remainder.to(tl.bfloat16), b, total))
    elif a.dtype == tl.bfloat16:
        b1, remainder = _split_bf16(b)
        total = tl.dot(a, b1, tl.dot(a, remainder.to(tl.bfloat16), total))
    else:
        a1, a_remainder = _split_bf16(a)
        b1, b_remainder = _split_bf16(b)
        total = tl.dot(a1, b_remainder.to(tl.bfloat16), tl.dot(a_remainder.to(tl.bfloat16), b1, total))
        total = tl.dot(a1, b1, total)
    return total


@triton.jit
def _exact_product(a, b):
    """a @ b, of which at least b is fp32.

    Tensor cores truncate a summand to the exponent of a larger sum, so small products are summed separately.
    """
    if a.dtype == tl.bfloat16:
        b1, b_remainder = _split_bf16(b)
        b2, b_remainder = _split_bf16(b_remainder)
        total = tl.dot(a, b1) + tl.dot(a, b2, tl.dot(a, b_remainder.to(tl.bfloat16)))
    else:
        a1, a_remainder = _split_bf16(a)
        a2, a_remainder = _split_bf16(a_remainder)
        a3 = a_remainder.to(tl.bfloat16)
        b1, b_remainder = _split_bf16(b)
        b2, b_remainder = _split_bf16(b_remainder)
        b3 = b_remainder.to(tl.bfloat16)
        small_products = tl.dot(a1, b3)
        small_products = tl.dot(a3, b1, small_products)
        small_products = tl.dot(a2, b2, small_products)
        small_products = tl.dot(a1, b2, small_products)
        small_products = tl.dot(a2, b1, small_products)
        total = tl.dot(a1, b1) + small_products
    return total
