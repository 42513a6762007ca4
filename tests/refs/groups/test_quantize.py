"""quantize_blocks a second way, element by element; its error; what no other group may change."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from packproof.refs import ArgumentError, PackLayout, quantize_blocks

LAYOUT = PackLayout((33, 0, 1, 20), slack=2)
E4M3 = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).double().tolist()
E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
FORMATS = {"mxfp8": (E4M3, 32), "mxfp8_up": (E4M3, 32), "mxfp4": (E2M1, 32), "nvfp4": (E2M1, 16), "fp8": (E4M3, 128)}
ALONG = ("rows", "columns", "squares")


def drawn(layout: PackLayout, channels: int = 40, seed: int = 0) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(layout.total_tokens, channels, generator=g, dtype=torch.float64)
    return x * 2.0 ** torch.randint(-6, 7, x.shape, generator=g)


def nearest(value: float, numbers: Sequence[float]) -> float:
    """The nearest of the numbers, the one of even index if two are as near."""
    distances = [(abs(abs(value) - number), i % 2, number) for i, number in enumerate(numbers)]
    return (-1 if value < 0 else 1) * min(distances)[2]


def scale_of(block: Tensor, group: Tensor, block_format: str) -> float:
    largest, numbers = float(block.abs().max()), FORMATS[block_format][0]
    if block_format == "fp8":
        return largest / 448
    if block_format == "nvfp4":
        g = float(group.abs().max()) / 6 / 448
        return nearest(largest / 6 / g, E4M3) * g
    exponents = [e for e in range(-127, 128) if largest * 2.0**-e <= numbers[-1]]
    if block_format == "mxfp8_up":
        return 2.0 ** exponents[0]
    top = 256.0 if block_format == "mxfp8" else 4.0  # the largest power of two among the numbers
    return 2.0 ** next(e for e in range(-127, 128) if largest * 2.0**-e < 2 * top)


def block_by_block(x: Tensor, block_format: str, along: str) -> tuple[Tensor, Tensor]:
    values, scales = torch.zeros_like(x), torch.zeros_like(x)
    numbers, size = FORMATS[block_format]
    rows, channels = {"rows": (1, size), "columns": (size, 1), "squares": (size, size)}[along]
    for group in LAYOUT.slices:
        for t in range(group.start, group.stop):
            for c in range(x.shape[1]):
                first, channel = group.start + (t - group.start) // rows * rows, c // channels * channels
                block = x[first : min(first + rows, group.stop), channel : channel + channels]
                scales[t, c] = scale_of(block, x[group], block_format)
                values[t, c] = nearest(float(x[t, c] / scales[t, c]), numbers)
    return values, scales


@pytest.mark.parametrize("along", ALONG)
@pytest.mark.parametrize("block_format", FORMATS)
def test_each_element_has_the_nearest_number_and_the_scale_of_its_block(block_format: str, along: str) -> None:
    x = drawn(LAYOUT, 33 if block_format != "fp8" else 130)[:, -33:]
    values, scales = quantize_blocks(x, cu_seqlens=LAYOUT.cu_seqlens(), block_format=block_format, along=along)
    expected_values, expected_scales = block_by_block(x, block_format, along)
    torch.testing.assert_close(scales, expected_scales, rtol=1e-14, atol=0)
    assert torch.equal(values, expected_values)
    assert not values[LAYOUT.n_tokens :].any()
    assert not scales[LAYOUT.n_tokens :].any()


@pytest.mark.parametrize("along", ALONG)
@pytest.mark.parametrize("block_format", FORMATS)
def test_its_error_is_that_of_the_format(block_format: str, along: str) -> None:
    """Half a spacing of the element, and what saturates where a scale was rounded down: up to half a spacing of an e4m3
    scale, which for the smallest blocks of a group is half of its smallest number."""
    x, numbers = drawn(LAYOUT, 130, seed=1), FORMATS[block_format][0]
    values, scales = quantize_blocks(x, cu_seqlens=LAYOUT.cu_seqlens(), block_format=block_format, along=along)
    groups = [x[rows] for rows in LAYOUT.slices if rows.stop > rows.start]
    smallest = torch.cat([group.abs().amax().expand(len(group), 1) * 2**-10 / 448 for group in groups])
    x, scales, off = (part[: LAYOUT.n_tokens] for part in (x, scales, values * scales - x))
    relative = 2**-4 if numbers is E4M3 else 2**-2
    saturated = {"mxfp8": 1 - 448 / 512, "mxfp4": 1 - 6 / 8, "nvfp4": 2**-4}.get(block_format, 0.0)
    allowed = torch.maximum(max(relative, saturated) * x.abs(), scales * numbers[1] / 2)
    allowed = torch.maximum(allowed, smallest) if block_format == "nvfp4" else allowed
    assert (off.abs() <= allowed * (1 + 1e-14)).all()


@pytest.mark.parametrize("along", ALONG)
@pytest.mark.parametrize("block_format", FORMATS)
def test_a_group_is_the_same_alone(block_format: str, along: str) -> None:
    x = drawn(LAYOUT, seed=2).bfloat16()
    x[:33] *= 64
    x[LAYOUT.n_tokens :] = torch.nan
    packed = quantize_blocks(x, cu_seqlens=LAYOUT.cu_seqlens(), block_format=block_format, along=along)
    assert (packed[0].dtype, packed[1].dtype) == (torch.bfloat16, torch.float32)
    for rows in LAYOUT.slices:
        cu_seqlens = torch.tensor([0, rows.stop - rows.start])
        alone = quantize_blocks(x[rows], cu_seqlens=cu_seqlens, block_format=block_format, along=along)
        assert all(torch.equal(a[rows], b) for a, b in zip(packed, alone, strict=True))


def test_numbers_of_8_bits_are_those_of_torch() -> None:
    """One that fp32 holds is rounded by torch once: the same, saturating beyond 448."""
    x = drawn(LAYOUT, 256).float()
    values, scales = quantize_blocks(x, cu_seqlens=LAYOUT.cu_seqlens())
    quotients = torch.where(scales > 0, x / scales, 0).clamp(-448, 448)
    assert torch.equal(values, quotients.to(torch.float8_e4m3fn).float())
    rows = slice(0, LAYOUT.n_tokens)
    assert torch.equal(scales[rows].to(torch.float8_e8m0fnu).float(), scales[rows])


@pytest.mark.parametrize("block_format", FORMATS)
def test_zeros_and_what_is_not_finite(block_format: str) -> None:
    x = torch.zeros(2, 32)
    x[1, 3] = torch.inf
    values, scales = quantize_blocks(x, cu_seqlens=torch.tensor([0, 1, 2]), block_format=block_format)
    assert not values[0].any()
    assert scales[0].unique().tolist() == [1.0]
    assert (values * scales)[1].isnan().all()


def test_messages() -> None:
    x, cu_seqlens = torch.zeros(3, 4), torch.tensor([0, 3])
    with pytest.raises(ArgumentError, match="quantize_blocks: block_format is 'fp6'"):
        quantize_blocks(x, cu_seqlens=cu_seqlens, block_format="fp6")
    with pytest.raises(ArgumentError, match="quantize_blocks: along is 'row'"):
        quantize_blocks(x, cu_seqlens=cu_seqlens, along="row")
