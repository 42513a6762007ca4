"""scaled_grouped_mm a second way, and that numbers of 8 bits hold what it multiplies."""

import pytest
import torch
from torch import Tensor

from packproof.properties.cases.values import element, scale
from packproof.refs import ArgumentError, PackLayout, quantize_blocks, scaled_grouped_mm

LAYOUT = PackLayout((3, 0, 1, 130), slack=2)
SHAPES = [("mxfp8", 64, 2, 5, 5), ("mxfp4", 64, 2, 5, 5), ("nvfp4", 48, 3, 4, 4), ("fp8", 256, 2, 128, 1)]


def drawn(block_format: str, d: int, b: int, f: int, bf: int) -> list[Tensor]:
    g, t, s = torch.Generator().manual_seed(0), LAYOUT.total_tokens, len(LAYOUT.lengths)
    return [
        *(element((t, d), g, block_format), scale((t, b), g, block_format)),
        *(element((s, d, f), g, block_format), scale((s, b, bf), g, block_format)),
        torch.rand(s, generator=g, dtype=torch.float64),
    ]


@pytest.mark.parametrize(("block_format", "d", "b", "f", "bf"), SHAPES)
def test_each_block_is_multiplied_by_both_scales(block_format: str, d: int, b: int, f: int, bf: int) -> None:
    x, x_scales, weight, weight_scales, alpha = drawn(block_format, d, b, f, bf)
    y = scaled_grouped_mm(
        x, x_scales, weight, weight_scales, alpha, cu_seqlens=LAYOUT.cu_seqlens(), block_format=block_format
    )
    expected = torch.zeros_like(y)
    for j, rows in enumerate(LAYOUT.slices):
        for i in range(b):
            k = slice(i * d // b, (i + 1) * d // b)
            scales = x_scales[rows, i, None] * weight_scales[j, i].repeat_interleave(f // bf)
            expected[rows] += alpha[j] * scales * (x[rows, k] @ weight[j, k])
    torch.testing.assert_close(y, expected, rtol=1e-12, atol=1e-12)
    assert not y[LAYOUT.n_tokens :].any()


@pytest.mark.parametrize(("block_format", "d", "b", "f", "bf"), SHAPES)
def test_what_is_drawn_are_numbers_of_the_format(block_format: str, d: int, b: int, f: int, bf: int) -> None:
    x, x_scales, *_ = drawn(block_format, d, b, f, bf)
    assert torch.equal(x.to(torch.float8_e4m3fn).double(), x)
    if "fp4" in block_format:
        assert set(x.abs().unique().tolist()) == {0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0}
    of_scales = {"nvfp4": torch.float8_e4m3fn, "fp8": torch.float32}.get(block_format, torch.float8_e8m0fnu)
    assert torch.equal(x_scales.to(of_scales).double(), x_scales)
    assert len(x_scales.unique()) > 5


@pytest.mark.parametrize("block_format", ["mxfp8", "mxfp4"])
def test_a_product_of_quantized_operands_is_near_that_of_the_operands(block_format: str) -> None:
    g = torch.Generator().manual_seed(0)
    x, w = (torch.randn(n, 64, generator=g, dtype=torch.float64) for n in (LAYOUT.total_tokens, 7))
    values, scales = quantize_blocks(x, cu_seqlens=LAYOUT.cu_seqlens(), block_format=block_format)
    w_values, w_scales = quantize_blocks(w, cu_seqlens=torch.tensor([0, 7]), block_format=block_format)
    s = len(LAYOUT.lengths)
    y = scaled_grouped_mm(
        *(values, scales[:, ::32], w_values.T.expand(s, -1, -1), w_scales.T[::32].expand(s, -1, -1)),
        cu_seqlens=LAYOUT.cu_seqlens(), block_format=block_format,
    )  # fmt: skip
    off, exact = (y - x @ w.T)[: LAYOUT.n_tokens], (x @ w.T)[: LAYOUT.n_tokens]
    assert off.norm() / exact.norm() < {"mxfp8": 0.06, "mxfp4": 0.3}[block_format]


def test_a_group_has_no_scales() -> None:
    x, x_scales, weight, weight_scales, _ = drawn("mxfp8", 64, 2, 5, 5)
    with pytest.raises(ArgumentError, match="weight_scales has 3 sequences"):
        scaled_grouped_mm(x, x_scales, weight, weight_scales[1:], cu_seqlens=LAYOUT.cu_seqlens())
    with pytest.raises(ArgumentError, match=r"weight has 5 output channels \(axis f\) but weight_scales has 3 blocks"):
        scaled_grouped_mm(x, x_scales, weight, weight_scales[..., :3], cu_seqlens=LAYOUT.cu_seqlens())
