"""Quantisation with block scales, as kernels compute it in fp32: 3 correct, 7 with bugs of blocks and their scales."""

from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor

from packproof.museum.variants import kernel_lookup

_SIZES = {"mxfp8": 32, "mxfp8_up": 32, "mxfp4": 32, "nvfp4": 16, "fp8": 128}
_FP4 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
_FP4_MIDDLES = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])


def _to_fp8(x: Tensor) -> Tensor:
    """Nearest numbers of e4m3, ties to even, from the bits of x: torch would round float64 twice, by way of fp32."""
    integer, mantissa_bits = (torch.int64, 52) if x.dtype == torch.float64 else (torch.int32, 23)
    x, dropped_bits = x.clamp(-448, 448), mantissa_bits - 3
    bits = x.view(integer)
    half = (1 << (dropped_bits - 1)) - 1 + (bits >> dropped_bits & 1)
    normal = (bits + half >> dropped_bits << dropped_bits).view(x.dtype)
    shift = 1.5 * 2.0 ** (mantissa_bits - 9)  # numbers there are 2^-9 apart, as below 2^-6 in e4m3
    return torch.where(x.abs() < 2**-6, x + shift - shift, normal)


def _to_fp4(x: Tensor) -> Tensor:
    """Nearest, ties to the even code: the middle of codes i and i + 1 goes up where i is odd."""
    middles = _FP4_MIDDLES.to(x.dtype)
    below, at_or_below = torch.bucketize(x.abs(), middles), torch.bucketize(x.abs(), middles, right=True)
    return torch.where(below % 2 == 1, _FP4[at_or_below], _FP4[below]).to(x.dtype).copysign(x)


def _scales(maxima: Tensor, g: Tensor, block_format: str) -> Tensor:
    """The scales of blocks by their largest values, without the group's g."""
    if block_format == "nvfp4":
        return _to_fp8(maxima / 6 / g)
    if block_format == "fp8":
        return maxima / 448
    mantissa, exponent = torch.frexp(maxima)
    exponent = exponent - (3 if block_format == "mxfp4" else 9)
    if block_format == "mxfp8_up":
        exponent = exponent + (mantissa > 0.875)
    return torch.ldexp(torch.ones_like(maxima), exponent)


def _block_numbers(shape: torch.Size, block_format: str, along: str, shift: int) -> Tensor:
    """The number of each element's block, counted along the group's rows, then its channels."""
    size = _SIZES[block_format]
    rows, channels = (torch.arange(n) for n in shape)
    row_block = rows if along == "rows" else (rows + shift) // size
    channel_block = channels if along == "columns" else (channels + (shift if along == "rows" else 0)) // size
    return row_block[:, None] * (len(channels) + 1) + channel_block


def _maxima(group: Tensor, numbers: Tensor) -> Tensor:
    """The largest absolute value of each element's block."""
    n_blocks = int(numbers.amax()) + 1
    largest = group.new_zeros(n_blocks).scatter_reduce(0, numbers.flatten(), group.abs().flatten(), "amax")
    return largest[numbers]


def _maxima_in_padded_blocks(group: Tensor, block_format: str, along: str) -> Tensor:
    """The same, of the group padded with zeros to whole blocks."""
    size, (n, d) = _SIZES[block_format], group.shape
    rows, channels = {"rows": (1, size), "columns": (size, 1), "squares": (size, size)}[along]
    padded = torch.nn.functional.pad(group, (0, -d % channels, 0, -n % rows))
    blocks = padded.view(len(padded) // rows, rows, padded.shape[1] // channels, channels)
    return blocks.abs().amax((1, 3), keepdim=True).expand_as(blocks).flatten(2).flatten(0, 1)[:n, :d]


def _groups(x: Tensor, offsets: list[int], along: str, bug: str) -> Iterator[tuple[slice, Tensor]]:
    """The rows of each group, and what they hold."""
    if bug == "blocks_of_the_pack" and along != "rows":
        offsets = [0, offsets[-1]]
    for start, end in pairwise(offsets):
        if start < end:
            yield slice(start, end), x[start:end]


def quantize_blocks(
    x: Tensor,
    *,
    cu_seqlens: Tensor,
    block_format: str = "mxfp8",
    along: str = "rows",
    bug: str = "",
    form: str = "quotients",
) -> tuple[Tensor, Tensor]:
    """Op `quantize_blocks` in fp32 (fp64 for fp64), with the named bug."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    n = int(cu_seqlens[-1])
    values, scales, pack = torch.zeros_like(wide), torch.zeros_like(wide), wide[:n]
    for rows, group in _groups(wide, cu_seqlens.tolist(), along, bug):
        largest = (pack if bug == "global_scale_of_the_pack" else group).abs().amax()
        g = largest / 6 / 448 if block_format == "nvfp4" else torch.ones_like(largest)
        maxima = (
            _maxima_in_padded_blocks(group, block_format, along)
            if form == "padded"
            else _maxima_with(wide, rows, group, block_format, along, bug)
        )
        scale = g * _scales(maxima, g, block_format)
        inverse = torch.where(scale > 0, 1 / scale, 0)
        quotients = group * inverse if form == "reciprocals" else torch.where(scale > 0, group / scale, 0)
        values[rows] = (_to_fp4 if "fp4" in block_format else _to_fp8)(quotients)
        scales[rows] = _stored(scale, block_format, along, bug)
    return values.to(x.dtype), scales


def _maxima_with(x: Tensor, rows: slice, group: Tensor, block_format: str, along: str, bug: str) -> Tensor:
    """The largest value of each element's block, with the bugs of which elements those are."""
    size = _SIZES[block_format]
    numbers = _block_numbers(group.shape, block_format, along, 1 if bug == "blocks_one_late" else 0)
    if bug == "last_block_reads_the_next_group" and along != "rows":
        end = rows.start + -(-len(group) // size) * size
        longer = x[rows.start : end]
        return _maxima(longer, _block_numbers(longer.shape, block_format, along, 0))[: len(group)]
    maxima = _maxima(group, numbers)
    if bug == "largest_of_the_row_before":
        return torch.cat([maxima[:1], maxima[:-1]])
    return maxima


def _stored(scale: Tensor, block_format: str, along: str, bug: str) -> Tensor:
    if bug == "stored_one_row_late":
        return torch.cat([scale[:1], scale[:-1]])
    if bug == "stored_one_block_late":
        size = 1 if along == "columns" else _SIZES[block_format]
        return torch.cat([scale[:, :size], scale[:, :-size]], 1)[:, : scale.shape[1]]
    return scale


__getattr__ = kernel_lookup(
    quantize_blocks,
    {"correct": {}, "by_reciprocals": {"form": "reciprocals"}, "in_padded_blocks": {"form": "padded"}},
    (
        *("blocks_of_the_pack", "blocks_one_late", "last_block_reads_the_next_group", "largest_of_the_row_before"),
        *("stored_one_row_late", "stored_one_block_late", "global_scale_of_the_pack"),
    ),
)
