"""Attention on operands of 8 bits (FlashAttention-3, Shah et al. 2024, section 3.3): e4m3 with block quantisation.

e4m3 has 4 bits of exponent and 3 of mantissa. Its largest number is 448. Rounding to it has a relative error of at most
2^-4, or an absolute error of 2^-10 below 2^-6. Hence a block of tokens of one head is divided by a scale first. Blocks
start with their sequence, so that no sequence affects the scale of another. Scales are powers of two: dividing by one
does not round, and kernel and reference agree on all scales.
"""

from typing import Any

import torch
from torch import Tensor

from packproof.base.arguments import bind, check_floats, whole_number
from packproof.base.errors import ArgumentError, checked_call
from packproof.base.signatures import QUANTIZE_FP8, ROUND_FP8
from packproof.refs.attention import attention
from packproof.refs.groups.formats import E4M3, round_to_element
from packproof.refs.hadamard import hadamard
from packproof.refs.recurrence import join_sequences, split_sequences, to_compute_dtype

LARGEST = E4M3.largest
_OVERFLOW = 464.0  # half a spacing above LARGEST: rounds to even, 448; anything above overflows
SMALLEST_EXPONENT = -126  # of a scale
BLOCK = 128  # tokens


@checked_call
def quantize_fp8(x: Tensor, *, cu_seqlens: Tensor, block: int = BLOCK) -> tuple[Tensor, Tensor]:
    """Quantize x to 8 bits with one scale per block of tokens, per sequence and head: x ≈ values * scales.

    x: (t, h, k) in fp64, fp32, bf16 or fp16.
    cu_seqlens: int32 or int64 (s + 1,).
    block: tokens per scale, counted from the start of their sequence.

    Returns values (t, h, k) in torch.float8_e4m3fn, rounded to nearest, ties to even, and scales (t, h) in fp32, each
    token having the scale of its block. A scale is the smallest power of two, at least 2^-126, such that no value
    exceeds 448. It is 1 if the block is all zeros, or contains NaN or infinity; NaN and values above 448 then become
    NaN. Both outputs are zero in slack. Raises ArgumentError and LayoutError.

    >>> import torch
    >>> from packproof.refs import quantize_fp8
    >>> x = torch.tensor([1.0, 1000.0, 1.1])[:, None, None]
    >>> values, scales = quantize_fp8(x, cu_seqlens=torch.tensor([0, 2, 3]))
    >>> values.float().flatten(), scales.flatten()  # two sequences: what is small beside 1000 is not so alone
    (tensor([2.5000e-01, 2.5600e+02, 2.8800e+02]), tensor([4.0000e+00, 4.0000e+00, 3.9062e-03]))
    """
    bind(QUANTIZE_FP8, cu_seqlens, x=x, values=True)
    block = whole_number("quantize_fp8", "block", block, minimum=1, error=ArgumentError)
    rows = x.detach().double().masked_fill(x.float().isinf(), torch.inf)  # past fp32, as the scales are
    blocks = [part for sequence in split_sequences(rows, cu_seqlens) for part in torch.split(sequence, block)]
    scales = [_block_scale(part).expand(part.shape[:2]) for part in blocks]
    values = join_sequences([part / scale[..., None] for part, scale in zip(blocks, scales, strict=True)], rows)
    values = torch.where(values.abs() <= _OVERFLOW, values, torch.nan)  # some versions of torch have 448 for infinity
    rounded = round_to_element(values, E4M3).to(torch.float8_e4m3fn)
    return rounded, join_sequences(scales, rows.new_zeros(x.shape[:2])).float()


def _block_scale(block: Tensor) -> Tensor:
    """The scale of each head of a block (n, h, k)."""
    largest = block.abs().amax((0, 2)) if block.numel() else block.new_zeros(block.shape[1])
    mantissa, exponent = torch.frexp(largest)  # largest = mantissa 2^exponent, 448 = 0.875 2^9
    exponent = exponent - 9 + (mantissa > LARGEST / 2**9)
    scale = torch.ldexp(torch.ones_like(largest), exponent.clamp(min=SMALLEST_EXPONENT))
    return torch.where((largest > 0) & largest.isfinite(), scale, 1.0)


@checked_call
def dequantize_fp8(values: Tensor, scales: Tensor) -> Tensor:
    """Values (t, h, k) times the scale (t, h) of their token and head, in fp32. The products are exact.

    >>> import torch
    >>> from packproof.refs import dequantize_fp8, quantize_fp8
    >>> x = torch.tensor([1.0, 1.1])[:, None, None]
    >>> dequantize_fp8(*quantize_fp8(x, cu_seqlens=torch.tensor([0, 2]))).flatten()
    tensor([1.0000, 1.1250])
    """
    check_floats("dequantize_fp8", "scales", scales)
    if not isinstance(values, Tensor) or values.dtype != torch.float8_e4m3fn or values.shape[:2] != scales.shape:
        actual = f"{values.dtype} {tuple(values.shape)}" if isinstance(values, Tensor) else repr(values)[:60]
        raise ArgumentError(
            f"dequantize_fp8: values is {actual} but torch.float8_e4m3fn (t, h, k), with scales (t, h), was expected"
        )
    return values.float() * scales[..., None]


@checked_call
def round_fp8(x: Tensor, *, cu_seqlens: Tensor, block: int = BLOCK) -> Tensor:
    """Quantize x (t, h, k) to 8 bits and dequantize it, in x's dtype, zero in slack.

    The arguments are as in `quantize_fp8`. No gradient flows back. Raises ArgumentError and LayoutError.

    >>> import torch
    >>> from packproof.refs import round_fp8
    >>> round_fp8(torch.tensor([1.0, 1.1])[:, None, None], cu_seqlens=torch.tensor([0, 2])).flatten()
    tensor([1.0000, 1.1250])
    """
    bind(ROUND_FP8, cu_seqlens, x=x, values=True)
    return dequantize_fp8(*quantize_fp8(x, cu_seqlens=cu_seqlens, block=block)).to(x.dtype)


@checked_call
def attention_fp8(
    q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None, *, cu_seqlens: Tensor,
    cu_seqlens_k: Tensor | None = None, signs: Tensor | None = None, block: int = BLOCK, **options: Any,
) -> Any:  # fmt: skip
    """`attention` of queries, keys and values in 8 bits. Queries and keys are transformed by `hadamard` first.

    The transform keeps the scores, and reduces the effect of outliers on rounding (compare `attention_fp8_naive`). The
    weights of the softmax are not rounded. No gradient flows back to q, k and v.

    The arguments are as in `attention`, `hadamard` (signs; k is a power of two) and `quantize_fp8` (block).

    Returns the results of `attention`, in q's dtype. Raises ArgumentError and LayoutError.

    >>> import torch
    >>> from packproof.refs import attention, attention_fp8, attention_fp8_naive, random_signs
    >>> _ = torch.manual_seed(0)
    >>> q, k, v = torch.randn(3, 512, 1, 64) * torch.where(torch.rand(3, 512, 1, 64) < 0.01, 10, 1)  # outliers
    >>> call, exact = {"cu_seqlens": torch.tensor([0, 512])}, attention(q, k, v, cu_seqlens=torch.tensor([0, 512]))
    >>> naive = (attention_fp8_naive(q, k, v, **call) - exact).norm() / exact.norm()
    >>> incoherent = (attention_fp8(q, k, v, signs=random_signs(64, seed=0), **call) - exact).norm() / exact.norm()
    >>> bool(incoherent < naive)
    True
    """
    key_offsets = cu_seqlens if cu_seqlens_k is None else cu_seqlens_k
    rotated_q = hadamard(to_compute_dtype(q), signs, cu_seqlens=cu_seqlens)
    rotated_k = hadamard(to_compute_dtype(k), signs, cu_seqlens=key_offsets)
    outputs = attention_fp8_naive(
        *(rotated_q, rotated_k, to_compute_dtype(v), None if sinks is None else to_compute_dtype(sinks)),
        cu_seqlens=cu_seqlens, cu_seqlens_k=cu_seqlens_k, block=block, **options,
    )  # fmt: skip
    return (outputs[0].to(q.dtype), outputs[1]) if isinstance(outputs, tuple) else outputs.to(q.dtype)


@checked_call
def attention_fp8_naive(
    q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None, *, cu_seqlens: Tensor,
    cu_seqlens_k: Tensor | None = None, block: int = BLOCK, **options: Any,
) -> Any:  # fmt: skip
    """`attention_fp8` without the transform: as accurate without outliers, worse with them.

    Exists to show the difference (docs/ops.md).

    >>> import torch
    >>> from packproof.refs import attention_fp8_naive
    >>> q, v = torch.zeros(2, 1, 2), torch.tensor([1.0, 1.1])[:, None, None]
    >>> attention_fp8_naive(q, q, v, cu_seqlens=torch.tensor([0, 2])).flatten()  # the mean of 1 and 1.125
    tensor([1.0625, 1.0625])
    """
    key_offsets = cu_seqlens if cu_seqlens_k is None else cu_seqlens_k
    q, k, v = (
        round_fp8(x, cu_seqlens=cu, block=block) for x, cu in ((q, cu_seqlens), (k, key_offsets), (v, key_offsets))
    )
    return attention(q, k, v, sinks, cu_seqlens=cu_seqlens, cu_seqlens_k=cu_seqlens_k, **options)
