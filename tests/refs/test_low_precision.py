"""Rounding to 8 bits in blocks of a sequence: its bounds, its scales, its messages."""

import pytest
import torch
from torch import Tensor

from packproof.refs import (
    ArgumentError,
    PackLayout,
    attention,
    attention_fp8,
    attention_fp8_naive,
    dequantize_fp8,
    quantize_fp8,
    random_signs,
    round_fp8,
)

LAYOUT = PackLayout((5, 0, 1, 9), slack=2)


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_it_rounds_to_the_nearest_with_the_smallest_power_of_two(dtype: torch.dtype) -> None:
    x = (randn(LAYOUT.total_tokens, 3, 8) * 10 ** (8 * randn(LAYOUT.total_tokens, 1, 1, seed=1).tanh())).to(dtype)
    values, scales = quantize_fp8(x, cu_seqlens=LAYOUT.cu_seqlens(), block=4)
    assert (values.dtype, scales.dtype) == (torch.float8_e4m3fn, torch.float32)
    off = (dequantize_fp8(values, scales).double() - x.double()).abs()[: LAYOUT.n_tokens]
    allowed = torch.maximum(2**-4 * x.double().abs(), 2**-10 * scales.double()[..., None])[: LAYOUT.n_tokens]
    assert (off <= allowed).all()
    assert not values.float()[LAYOUT.n_tokens :].any()
    assert not scales[LAYOUT.n_tokens :].any()
    assert torch.equal(torch.frexp(scales[: LAYOUT.n_tokens])[0], torch.full((LAYOUT.n_tokens, 3), 0.5))
    for rows in filter(lambda rows: rows.stop > rows.start, LAYOUT.slices):
        for block in zip(x[rows].split(4), scales[rows].split(4), strict=True):
            largest, scale = block[0].double().abs().amax((0, 2)), block[1][0].double()
            assert torch.equal(block[1], block[1][:1].expand_as(block[1]))
            assert ((largest <= 448 * scale) & (largest > 224 * scale)).all()


def test_what_cannot_be_scaled() -> None:
    """448 itself keeps a scale of 1, zeros have one, and what is below the smallest scale is still held."""
    x = torch.tensor([448.0, 449.0, 0.0, 2.0**-130, float("nan")])[:, None, None].expand(5, 1, 2)
    values, scales = quantize_fp8(x, cu_seqlens=torch.arange(6))
    assert scales.flatten().tolist() == [1.0, 2.0, 1.0, 2.0**-126, 1.0]
    held = dequantize_fp8(values, scales)[:, 0, 0].tolist()
    assert held[:4] == [448.0, 448.0, 0.0, 2.0**-130]
    assert held[4] != held[4]


NUMBERS = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).double()  # of e4m3, from 0 to 448


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("scale", [1.0, 2.0**-100, 2.0**90])
def test_a_float64_is_rounded_once(scale: float, sign: float) -> None:
    """Beside each midpoint of two numbers, nearer to it than fp32 tells, and at it, where the even one is right."""
    lower, upper = NUMBERS[:-1], NUMBERS[1:]
    middle = (lower + upper) / 2
    even = torch.where(torch.arange(126) % 2 == 0, lower, upper)
    for near, nearest in ((1 + 2.0**-40, upper), (1.0, even), (1 - 2.0**-40, lower)):
        x = sign * scale * torch.stack([middle * near, torch.full_like(middle, 448.0)], 1)[:, None]  # with its scale
        values, scales = quantize_fp8(x, cu_seqlens=torch.tensor([0, 126]), block=1)
        assert torch.equal(scales.double(), torch.full((126, 1), scale, dtype=torch.float64))
        assert torch.equal(values[:, 0, 0].double(), sign * nearest)
        rounded = round_fp8(x, cu_seqlens=torch.tensor([0, 126]), block=1)
        assert rounded.dtype == torch.float64
        assert torch.equal(rounded[:, 0, 0], sign * scale * nearest)


def test_what_fp32_cannot_hold_is_too_large() -> None:
    x = torch.tensor([1e300, 1.0, 448.0 + 1e-9], dtype=torch.float64)[:, None, None]
    values, scales = quantize_fp8(x, cu_seqlens=torch.tensor([0, 2, 3]))
    assert values[:, 0, 0].double().nan_to_num(-1.0).tolist() == [-1.0, 1.0, 224.0]
    assert scales.flatten().tolist() == [1.0, 1.0, 2.0]  # no value passes 448


def test_infinity_is_not_448() -> None:
    x = torch.tensor([float("inf"), 465.0, 464.0, 1.0])[:, None, None]
    values, scales = quantize_fp8(x, cu_seqlens=torch.tensor([0, 4]))
    assert values.float().isnan().flatten().tolist() == [True, True, False, False]
    assert scales.unique().tolist() == [1.0]


def test_the_bits_of_a_sequence_do_not_depend_on_the_others() -> None:
    x, lengths = randn(LAYOUT.n_tokens, 2, 8), LAYOUT.lengths
    x[:5] *= 1e6
    packed = quantize_fp8(x, cu_seqlens=LAYOUT.cu_seqlens(), block=4)
    for own, *found in zip(*(one.split(lengths) for one in (x, *packed)), strict=True):
        alone = quantize_fp8(own, cu_seqlens=torch.tensor([0, len(own)]), block=4)
        assert all(torch.equal(a.float(), b.float()) for a, b in zip(found, alone, strict=True))


def test_attention_of_8_bits_is_attention_of_what_they_hold() -> None:
    q, k, v = randn(3, LAYOUT.total_tokens, 2, 8).unbind()
    call = {"cu_seqlens": LAYOUT.cu_seqlens()}
    held = [dequantize_fp8(*quantize_fp8(x, **call)) for x in (q, k, v)]
    y, lse = attention_fp8_naive(q, k, v, causal=True, return_lse=True, **call)
    for got, want in zip((y, lse), attention(*held, causal=True, return_lse=True, **call), strict=True):
        assert torch.equal(got, want)
    options = {"signs": random_signs(8, 0), "causal": True, "return_lse": True}
    mixed, mixed_lse = attention_fp8(q.bfloat16(), k.bfloat16(), v.bfloat16(), **options, **call)
    assert (mixed.dtype, mixed_lse.dtype) == (torch.bfloat16, torch.float32)
    assert (mixed.float() - y).abs().max() < 0.3


def test_outliers_cost_less_where_they_are_spread() -> None:
    x = randn(3, 512, 1, 64)
    x = (x + torch.where(randn(3, 512, 1, 64, seed=1) > 2.3, 10 * randn(3, 512, 1, 64, seed=2), 0)).double()
    call = {"cu_seqlens": torch.tensor([0, 512])}
    exact = attention(*x, **call)
    naive, spread = attention_fp8_naive(*x, **call), attention_fp8(*x, signs=random_signs(64, 0), **call)
    assert (naive - exact).norm() > 1.5 * (spread - exact).norm()


def test_messages() -> None:
    x = torch.zeros(3, 1, 4)
    with pytest.raises(ArgumentError, match=r"quantize_fp8: block is 0; 1 or more was expected"):
        quantize_fp8(x, cu_seqlens=torch.tensor([0, 3]), block=0)
    with pytest.raises(ArgumentError, match=r"quantize_fp8: x has 2 axes but \(t h k\) was expected"):
        quantize_fp8(x[..., 0], cu_seqlens=torch.tensor([0, 3]))
    with pytest.raises(ArgumentError, match=r"values is torch.float32 \(3, 1, 4\) but torch.float8_e4m3fn \(t, h, k\)"):
        dequantize_fp8(x, x[..., 0])
    with pytest.raises(ArgumentError, match=r"hadamard: x has 6 channels per head"):
        attention_fp8(*torch.zeros(3, 2, 1, 6), cu_seqlens=torch.tensor([0, 2]))
