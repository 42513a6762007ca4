"""Formats of block scales as data: the numbers of an element, the size of a block and how its scale is made.

Elements are small floating-point numbers without infinity (OCP 8-bit Floating Point Specification 1.0; OCP Microscaling
Formats (MX) Specification 1.0, section 5.3). A block of elements has one scale.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor


@dataclass(frozen=True)
class Element:
    """The numbers of an element, from 0 to the largest, of both signs."""

    mantissa_bits: int
    """Without the leading 1."""
    min_exponent: int
    """Of the smallest normal number. Smaller numbers have its spacing."""
    max_exponent: int
    """Of the largest number."""
    largest: float


E4M3 = Element(mantissa_bits=3, min_exponent=-6, max_exponent=8, largest=448.0)
E2M1 = Element(mantissa_bits=1, min_exponent=0, max_exponent=2, largest=6.0)


@dataclass(frozen=True)
class BlockFormat:
    """A format of block scales."""

    element: Element
    block: int
    """Elements of a block along one axis."""
    scale: Literal["power of two below", "power of two above", "e4m3", "fp32"]
    """Of a block with the largest absolute value A:
    - "power of two below": 2^(floor(log2 A) - max_exponent); elements above the largest number saturate.
    - "power of two above": the smallest power of two that scales A to at most the largest number.
    - "e4m3": A / largest / g, rounded to e4m3. The group's scale g is its largest absolute value / largest / 448.
    - "fp32": A / largest.
    """

    @property
    def has_exact_quotients(self) -> bool:
        """Whether dividing by a scale rounds nothing."""
        return self.scale.startswith("power of two")


FORMATS: Mapping[str, BlockFormat] = {
    "mxfp8": BlockFormat(E4M3, 32, "power of two below"),
    "mxfp8_up": BlockFormat(E4M3, 32, "power of two above"),
    "mxfp4": BlockFormat(E2M1, 32, "power of two below"),
    "nvfp4": BlockFormat(E2M1, 16, "e4m3"),
    "fp8": BlockFormat(E4M3, 128, "fp32"),
}
"""By name: MXFP8 and MXFP4 (OCP MX 1.0, sections 5.3 and 6.3), MXFP8 with scales rounded up, as NVIDIA's conversion
does (Mishra et al. 2025, arXiv 2506.08027), NVFP4 (NVIDIA 2025, arXiv 2509.25149), and FP8 in blocks of 128
(DeepSeek-V3, arXiv 2412.19437, section 3.3.2).
"""

_SMALLEST_SCALE_EXPONENT, _LARGEST_SCALE_EXPONENT = -127, 127  # of e8m0


def spacing(values: Tensor, element: Element) -> Tensor:
    """The distance of the element's numbers around values, in float64."""
    exponent = torch.frexp(values.double())[1] - 1  # |values| in [2^exponent, 2^(exponent + 1))
    exponent = exponent.clamp(element.min_exponent, element.max_exponent) - element.mantissa_bits
    return torch.ldexp(torch.ones_like(values, dtype=torch.float64), exponent)


def round_to_element(values: Tensor, element: Element) -> Tensor:
    """Round to the element's nearest numbers in float64, ties to even. Saturates; NaN stays NaN.

    torch rounds float64 to 8 bits twice, by way of fp32.
    """
    values = values.double()
    step = spacing(values, element)
    return ((values / step).round() * step).clamp(-element.largest, element.largest)


def block_scales(largest: Tensor, block_format: BlockFormat, group_scale: Tensor) -> Tensor:
    """The scales of blocks by their largest absolute values, in float64, without the group's scale.

    A block of zeros has scale 1. One with NaN or infinity has scale NaN, which makes all its elements NaN (OCP MX 1.0,
    section 5.1).

    group_scale: g of `group_scale_of`.
    """
    largest, element = largest.double(), block_format.element
    mantissa, exponent = torch.frexp(largest)  # largest = mantissa 2^exponent, mantissa in [1/2, 1)
    if block_format.scale == "power of two below":
        scale = _power_of_two(exponent - 1 - element.max_exponent)
    elif block_format.scale == "power of two above":
        is_above = mantissa * 2.0 ** (element.max_exponent + 1) > element.largest
        scale = _power_of_two(exponent - 1 - element.max_exponent + is_above.int())
    elif block_format.scale == "e4m3":
        scale = round_to_element(largest / element.largest / group_scale, E4M3)
    else:
        scale = largest / element.largest
    return torch.where(largest == 0, 1.0, torch.where(largest.isfinite(), scale, torch.nan))


def group_scale_of(group: Tensor, block_format: BlockFormat) -> Tensor:
    """g, a scalar in float64: the fp32 scale of a group (n, d), 1 for formats without one and for a group of zeros."""
    if block_format.scale != "e4m3" or not group.numel():
        return group.new_ones((), dtype=torch.float64)
    largest = group.double().abs().amax()
    return torch.where(largest == 0, 1.0, largest / block_format.element.largest / E4M3.largest)


def divided_by_scales(x: Tensor, scales: Tensor) -> Tensor:
    """x / scales; 0 where a block is so small beside its group that its scale is 0."""
    return torch.where(scales == 0, 0.0, x / scales)


def _power_of_two(exponent: Tensor) -> Tensor:
    exponent = exponent.clamp(_SMALLEST_SCALE_EXPONENT, _LARGEST_SCALE_EXPONENT)
    return torch.ldexp(torch.ones_like(exponent, dtype=torch.float64), exponent)
