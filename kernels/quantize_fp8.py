"""Rounding to 8 bits with a scale for each block of a sequence and head, in Triton: `refs.quantize_fp8`, bit for bit.

The bits of e4m3 are computed with integers, equally on every GPU and in the interpreter. A scale is a power of two.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from itertools import product
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from packproof.base.arguments import bind
from packproof.base.errors import ArgumentError, checked_call
from packproof.base.signatures import QUANTIZE_FP8, ROUND_FP8, Signature
from packproof.kernels.blocks import list_blocks, load_block, n_slots
from packproof.kernels.launch import (
    POINTERS,
    align_rows,
    is_on_host,
    launch,
    require_device,
    require_dtype,
    runs_interpreted,
    specializations,
)
from packproof.kernels.operators import fake, operator
from packproof.kernels.sequences import offsets
from packproof.kernels.variant import Variant

PROMISES: dict[str, Any] = {
    "grid": "sequence",
    "chunk": 128,
    "compute": "fp32",
    "deterministic": True,
    "isolated": True,
    "capturable": True,
    "steady": True,
}
INTERPRETED: dict[str, Any] = {"chunk": 16}

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_LARGEST_BLOCK, _SMALLEST_BLOCK = 128, 16
_CHANNELS, _CHANNELS_INTERPRETED = 32, 16  # of a tile
_MULTIPLE = 16  # elements: rows start at multiples, so the kernel has one compiled form for each block size
_NUM_WARPS = 4


@checked_call
def quantize_fp8(x: Tensor, *, cu_seqlens: Tensor, block: int = 128) -> tuple[Tensor, Tensor]:
    """Values of 8 bits and their scales: x is about values times scales, block by block of each sequence and head.

    x: (t, h, k) in fp32, bf16 or fp16.
    cu_seqlens: int32 or int64 (s + 1,).
    block: tokens with a common scale, counted from the start of their sequence; a power of two from 16 to 128.

    Returns the bits of `packproof.refs.quantize_fp8`: values (t, h, k) in torch.float8_e4m3fn and scales (t, h) in
    fp32, zero in slack. No gradient flows back. Nothing waits for a GPU, so the values of cu_seqlens are not checked
    there. Raises ArgumentError and LayoutError.

    >>> import torch
    >>> from packproof.kernels import quantize_fp8
    >>> x = torch.tensor([1.0, 1000.0, 1.1])[:, None, None]  # on a CPU with TRITON_INTERPRET=1
    >>> values, scales = quantize_fp8(x, cu_seqlens=torch.tensor([0, 2, 3]))
    >>> values.float().flatten()
    tensor([2.5000e-01, 2.5600e+02, 2.8800e+02])
    """
    _check(QUANTIZE_FP8, x, cu_seqlens, block)
    result: tuple[Tensor, Tensor] = _quantize_fp8(x.detach(), cu_seqlens, block)
    return result


@checked_call
def round_fp8(x: Tensor, *, cu_seqlens: Tensor, block: int = 128) -> Tensor:
    """x (t, h, k) after rounding to 8 bits: values times scales of `quantize_fp8`, in x's dtype, zero in slack.

    The arguments are those of `quantize_fp8`. No gradient flows back. Raises ArgumentError and LayoutError.

    >>> import torch
    >>> from packproof.kernels import round_fp8  # on a CPU with TRITON_INTERPRET=1
    >>> round_fp8(torch.tensor([1.0, 1.1])[:, None, None], cu_seqlens=torch.tensor([0, 2])).flatten()
    tensor([1.0000, 1.1250])
    """
    _check(ROUND_FP8, x, cu_seqlens, block)
    values, scales = _quantize_fp8(x.detach(), cu_seqlens, block)
    rounded: Tensor = (values.float() * scales[..., None]).to(x.dtype)
    return rounded


def _check(signature: Signature, x: Tensor, cu_seqlens: Tensor, block: int) -> None:
    if torch.compiler.is_compiling():
        return
    bind(signature, cu_seqlens, x=x, values=is_on_host(x))
    require_dtype(signature.op, "x", x, _DTYPES)
    if type(block) is not int or block & (block - 1) or not _SMALLEST_BLOCK <= block <= _LARGEST_BLOCK:
        expected = f"a power of two from {_SMALLEST_BLOCK} to {_LARGEST_BLOCK} was expected"
        raise ArgumentError(f"{signature.op}: block is {block!r} but {expected}")
    require_device(signature.op, x, _quantize_fp8_kernel)


@triton.jit
def _to_e4m3_bits(value):
    """The bits of e4m3 nearest to fp32 values, ties to even. NaN above the values that round to 448."""
    bits = value.to(tl.int32, bitcast=True)
    abs_bits = bits & 0x7FFFFFFF
    normal = ((abs_bits + 0x7FFFF + ((abs_bits >> 20) & 1)) >> 20) - ((127 - 7) << 3)
    # 2^14 has a spacing of 2^-9: adding it rounds a value below 2^-6 to a multiple of that
    subnormal = (tl.abs(value) + 16384.0).to(tl.int32, bitcast=True) - 0x46800000
    magnitude = tl.where(abs_bits < ((127 - 6) << 23), subnormal, tl.minimum(normal, 0x7F))
    return (magnitude | ((bits >> 24) & 0x80)).to(tl.uint8)


@triton.jit
def _scale_exponent(largest):
    """The exponent of the smallest power of two that scales a value of these bits to at most 448 = 1.75 x 2^8."""
    exponent = (largest >> 23) - 127 - 8 + ((largest & 0x7FFFFF) > 0x600000).to(tl.int32)
    ordinary = (largest > 0) & (largest < 0x7F800000)  # NaN and Inf have larger bits than any number
    return tl.where(ordinary, tl.maximum(exponent, -126), 0)


@triton.jit(do_not_specialize=["blocks", "H"])
def _quantize_fp8_kernel(
    x, blocks, values, scales, H, K, x_stride, head_stride, SIZE: tl.constexpr, CHANNELS: tl.constexpr
):
    """A block of one head, in two passes over its channels: find the largest value, then round."""
    index, head = tl.program_id(0) // H, tl.program_id(0) % H
    _, end, _, _, first_row = load_block(blocks, index)
    if first_row < 0:
        return
    t = (first_row + tl.arange(0, SIZE)).to(tl.int64)
    alive = t < end
    source = x + (t * x_stride + head * head_stride.to(tl.int64))[:, None]
    target = values + ((t * H + head) * K)[:, None]
    largest = tl.zeros((SIZE,), tl.int32)
    for channel in range(0, K, CHANNELS):
        columns = channel + tl.arange(0, CHANNELS)[None, :]
        mask = alive[:, None] & (columns < K)
        x_tile = tl.load(source + columns, mask=mask, other=0.0).to(tl.float32)
        largest = tl.maximum(largest, tl.max(x_tile.to(tl.int32, bitcast=True) & 0x7FFFFFFF, 1))
    exponent = _scale_exponent(tl.max(largest, 0))
    inverse = ((127 - exponent) << 23).to(tl.float32, bitcast=True)
    for channel in range(0, K, CHANNELS):
        columns = channel + tl.arange(0, CHANNELS)[None, :]
        mask = alive[:, None] & (columns < K)
        x_tile = tl.load(source + columns, mask=mask, other=0.0).to(tl.float32)
        tl.store(target + columns, _to_e4m3_bits(x_tile * inverse), mask=mask)
    scale = tl.zeros((SIZE,), tl.int32) + ((127 + exponent) << 23)
    tl.store(scales + t * H + head, scale.to(tl.float32, bitcast=True), mask=alive)


@operator
def _quantize_fp8(x: Tensor, cu_seqlens: Tensor, block: int) -> tuple[Tensor, Tensor]:
    (T, H, K), S = x.shape, len(cu_seqlens) - 1
    x, cu = align_rows(x, _MULTIPLE), offsets(QUANTIZE_FP8.op, cu_seqlens, T)
    values, scales = x.new_zeros(x.shape, dtype=torch.uint8), x.new_zeros((T, H), dtype=torch.float32)
    if programs := n_slots(T, T, S, block, 0) * H:
        arguments = {
            **{"x": x, "blocks": list_blocks(cu, T, cu, T, block, 0, reverse=False).items, "values": values},
            **{"scales": scales, "H": H, "K": x.shape[2], "x_stride": x.stride(0), "head_stride": x.stride(1)},
            **_shape(block),
        }
        launch(_quantize_fp8_kernel, (programs,), arguments, num_warps=_NUM_WARPS)
    return values[..., :K].contiguous().view(torch.float8_e4m3fn), scales


def _shape(block: int) -> dict[str, int]:
    return {"SIZE": block, "CHANNELS": _CHANNELS_INTERPRETED if runs_interpreted(_quantize_fp8_kernel) else _CHANNELS}


@fake(_quantize_fp8)
def _(x, cu_seqlens, block):
    return x.new_empty(x.shape, dtype=torch.float8_e4m3fn), x.new_empty(x.shape[:2], dtype=torch.float32)


def variants() -> list[Variant]:
    """Every compiled form of the kernel: dtypes and blocks."""
    result = []
    for dtype, size in product(_DTYPES, (16, 32, 64, 128)):
        pointers = {"x": POINTERS[dtype], "values": "*u8", "scales": "*fp32", "blocks": "*i32"}
        label = f"quantize-fp8-{POINTERS[dtype][1:]}-{size}"
        result += specializations(label, _quantize_fp8_kernel, pointers, _shape(size), _NUM_WARPS)[:1]
    return result
