"""Grouped products of numbers with block scales: 3 correct, 11 with bugs of where a scale is read.

The scales of rows lie in bytes, padded for each group to TILE rows and 4 columns and swizzled, as tensor cores read
them: a tile has 128 rows, of which r, r + 32, r + 64 and r + 96 lie side by side. Padding is NaN.
"""

from itertools import pairwise
from math import gcd
from typing import NamedTuple

import torch
from torch import Tensor

from packproof.museum.variants import kernel_lookup

TILE, COLUMNS, QUARTER = 128, 4, 32
CHANNELS = 32  # of a step along the channels
_SCALES = {"mxfp8": torch.float8_e8m0fnu, "mxfp4": torch.float8_e8m0fnu, "nvfp4": torch.float8_e4m3fn}


class _ScaleBuffer(NamedTuple):
    """The scales of rows as a kernel gets them."""

    numbers: Tensor
    columns: int
    starts: list[int]


def _address(row: Tensor, column: Tensor, columns: int) -> Tensor:
    """Where the scale of a padded row and column lies."""
    tile = row // TILE * (columns // COLUMNS) + column // COLUMNS
    return tile * TILE * COLUMNS + row % QUARTER * 16 + row % TILE // QUARTER * COLUMNS + column % COLUMNS


def _buffer(scales: Tensor, offsets: list[int], block_format: str) -> _ScaleBuffer:
    """What the host hands over."""
    columns, starts = -(-scales.shape[1] // COLUMNS) * COLUMNS, [0]
    lengths = [end - start for start, end in pairwise(offsets)]
    for n in lengths:
        starts.append(starts[-1] + -(-n // TILE) * TILE)
    numbers = scales.new_full((starts[-1] * columns,), torch.nan)
    for group, n, padded_start in zip(offsets, lengths, starts, strict=False):
        rows, column = padded_start + torch.arange(n)[:, None], torch.arange(scales.shape[1])
        numbers[_address(rows, column, columns)] = scales[group : group + n]
    return _ScaleBuffer(numbers.to(_SCALES.get(block_format, scales.dtype)).to(scales.dtype), columns, starts)


def _read(buffer: _ScaleBuffer, rows: Tensor, column: int, bug: str) -> Tensor:
    """The scales of padded rows in one column (n, 1)."""
    columns = torch.full_like(rows, column)
    if bug == "scales_of_the_next_row":
        rows = rows + 1
    if bug == "lanes_one_late":
        rows = rows // QUARTER * QUARTER + (rows + 1) % QUARTER
    place = (
        rows * buffer.columns + columns if bug == "read_without_swizzle" else _address(rows, columns, buffer.columns)
    )
    return buffer.numbers[place.clamp(max=len(buffer.numbers) - 1)][:, None]


def _scale_column(channel: int, size: int, blocks: int, bug: str) -> int:
    """The column of the block that a step's first channel lies in."""
    if bug == "scale_by_step":
        return min(channel // CHANNELS, blocks - 1)
    if bug == "scales_of_the_next_block":
        return min(channel // size + 1, blocks - 1)
    return channel // size


def scaled_grouped_mm(
    x: Tensor,
    x_scales: Tensor,
    weight: Tensor,
    weight_scales: Tensor,
    alpha: Tensor | None = None,
    *,
    cu_seqlens: Tensor,
    block_format: str = "mxfp4",
    bug: str = "",
    form: str = "blocks",
) -> Tensor:
    """Op `scaled_grouped_mm` in fp32 (fp64 for fp64), with the named bug."""
    wide, offsets = torch.promote_types(x.dtype, torch.float32), cu_seqlens.tolist()
    if bug == "scales_without_mantissa":
        x_scales = torch.ldexp(torch.ones_like(x_scales), torch.frexp(x_scales)[1] - 1)
    buffer = _buffer(x_scales, offsets, block_format)
    y = x.new_zeros(len(x), weight.shape[2], dtype=wide)
    for j, (start, end) in enumerate(pairwise(offsets)):
        if start < end:
            rows, matrix = x[start:end].to(wide), weight[j].to(wide)
            padded_start = start if bug == "groups_not_padded" else buffer.starts[j]
            padded_rows = padded_start + torch.arange(end - start)
            matrix_scales = _matrix_scales(weight_scales[j], bug)
            product = _FORMS[form](rows, buffer, padded_rows, matrix, matrix_scales, x_scales.shape[1], bug)
            factor = 1.0 if alpha is None else alpha[0 if bug == "alpha_of_the_first_group" else j]
            y[start:end] = factor * product
    return y.to(x.dtype)


def _matrix_scales(scales: Tensor, bug: str) -> Tensor:
    """The scales of a group's matrix (b, bf)."""
    return scales.T.reshape(scales.shape) if bug == "blocks_of_weights_transposed" else scales


def _by_blocks(
    x: Tensor, buffer: _ScaleBuffer, padded_rows: Tensor, matrix: Tensor, scales: Tensor, blocks: int, bug: str
) -> Tensor:
    """Block after block of channels, in steps that divide it: products of numbers, then both scales."""
    (d, f), bf = matrix.shape, scales.shape[1]
    size, y = d // blocks, x.new_zeros(len(x), matrix.shape[1])
    step = CHANNELS if bug == "first_scale_of_a_step" else gcd(size, CHANNELS)
    for channel in range(0, d, step):
        channels = slice(channel, channel + step)
        column = _scale_column(channel, size, blocks, bug)
        of_columns = scales[column].to(x.dtype).repeat_interleave(f // bf)
        y += _read(buffer, padded_rows, column, bug) * (x[:, channels] @ matrix[channels]) * of_columns
    if bug == "padding_multiplied":  # the channels there are zeros
        for column in range(blocks, buffer.columns):
            y += _read(buffer, padded_rows, column, bug) * 0
    return y


def _dequantized(
    x: Tensor, buffer: _ScaleBuffer, padded_rows: Tensor, matrix: Tensor, scales: Tensor, blocks: int, bug: str
) -> Tensor:
    """Both operands multiplied by their scales first."""
    (d, f), (b, bf) = matrix.shape, scales.shape
    of_rows = torch.cat([_read(buffer, padded_rows, column, bug) for column in range(blocks)], 1)
    of_matrix = scales.to(x.dtype).repeat_interleave(d // b, 0).repeat_interleave(f // bf, 1)
    return (x * of_rows.repeat_interleave(d // b, 1)) @ (matrix * of_matrix)


def _row_by_row(
    x: Tensor, buffer: _ScaleBuffer, padded_rows: Tensor, matrix: Tensor, scales: Tensor, blocks: int, bug: str
) -> Tensor:
    """One row at a time, all its blocks at once."""
    (d, f), bf = matrix.shape, scales.shape[1]
    of_matrix = scales.to(x.dtype).repeat_interleave(f // bf, 1)
    numbers = matrix.reshape(blocks, d // blocks, f)
    ys = []
    for row, at in zip(x.reshape(len(x), blocks, d // blocks), padded_rows, strict=True):
        of_row = torch.cat([_read(buffer, at[None], column, bug) for column in range(blocks)])
        ys.append((torch.einsum("bk, bkf -> bf", row, numbers) * of_row * of_matrix).sum(0))
    return torch.stack(ys)


_FORMS = {"blocks": _by_blocks, "dequantized": _dequantized, "rows": _row_by_row}

__getattr__ = kernel_lookup(
    scaled_grouped_mm,
    {"correct": {}, "dequantized": {"form": "dequantized"}, "row_by_row": {"form": "rows"}},
    (
        *("groups_not_padded", "scale_by_step", "first_scale_of_a_step", "scales_without_mantissa"),
        *("alpha_of_the_first_group", "padding_multiplied", "read_without_swizzle", "blocks_of_weights_transposed"),
        *("scales_of_the_next_row", "scales_of_the_next_block", "lanes_one_late"),
    ),
)
