"""Where kernels expect the scales of rows: padded for each group, in tiles of 128 x 4 (cuBLAS, "1D block scaling
factors layout"; TransformerEngine's swizzle).

Padding is NaN: its byte is 0xFF in e8m0 and 0x7F in e4m3. A kernel that reads it returns NaN, since 0 times NaN is NaN.
"""

import torch
from torch import Tensor

from packproof.base.arguments import check_offsets, check_offsets_form, whole_number
from packproof.base.errors import ArgumentError, LayoutError, checked_call
from packproof.refs.recurrence import check_rows, sequence_slices

TILE_ROWS, TILE_COLUMNS = 128, 4
_QUARTER = TILE_ROWS // 4  # rows r, r + 32, r + 64 and r + 96 of a tile lie side by side


def padded_offsets(cu_seqlens: Tensor, rows: int = TILE_ROWS) -> Tensor:
    """The first row of each group after padding (s + 1,): every group's rows are rounded up to a multiple of `rows`."""
    lengths = -(-cu_seqlens.diff() // rows) * rows
    return torch.cat([cu_seqlens[:1], lengths.cumsum(0).to(cu_seqlens.dtype)])


@checked_call
def pad_scales(scales: Tensor, *, cu_seqlens: Tensor, rows: int = TILE_ROWS, columns: int = TILE_COLUMNS) -> Tensor:
    """Scales with each group's rows rounded up to a multiple of `rows`, and columns to one of `columns`.

    scales: (t, b), floats, the scales of each row.
    cu_seqlens: int32 or int64 (s + 1,), the offsets of the groups.

    Returns (padded rows, padded columns) in the dtype of scales, NaN in padding; slack is left out. Convert it to the
    dtype of the kernel, such as torch.float8_e8m0fnu, where NaN is 0xFF. Raises ArgumentError and LayoutError.

    >>> import torch
    >>> from packproof.refs import pad_scales
    >>> pad_scales(torch.ones(2, 1), cu_seqlens=torch.tensor([0, 1, 2]), rows=2, columns=2)
    tensor([[1., nan],
            [nan, nan],
            [1., nan],
            [nan, nan]])
    """
    check_rows("pad_scales", "scales", scales)
    check_offsets_form("pad_scales", cu_seqlens)
    check_offsets("pad_scales", cu_seqlens, len(scales), "scales has")
    starts = padded_offsets(cu_seqlens, whole_number("pad_scales", "rows", rows, 1, ArgumentError))
    columns = whole_number("pad_scales", "columns", columns, 1, ArgumentError)
    padded = scales.new_full((int(starts[-1]), -(-scales.shape[1] // columns) * columns), torch.nan)
    for group, start in zip(sequence_slices(cu_seqlens), starts.tolist(), strict=False):
        padded[start : start + group.stop - group.start, : scales.shape[1]] = scales[group]
    return padded


@checked_call
def unpad_scales(padded: Tensor, like: Tensor, *, cu_seqlens: Tensor, rows: int = TILE_ROWS) -> Tensor:
    """The inverse of `pad_scales`: the scales of the groups' rows in the shape of `like` (t, b), zero in slack.

    What a kernel left in the padding is not read. Raises ArgumentError and LayoutError.

    >>> import torch
    >>> from packproof.refs import pad_scales, unpad_scales
    >>> scales, cu_seqlens = torch.rand(5, 3), torch.tensor([0, 1, 5])
    >>> bool((unpad_scales(pad_scales(scales, cu_seqlens=cu_seqlens), scales, cu_seqlens=cu_seqlens) == scales).all())
    True
    """
    for name, x in (("padded", padded), ("like", like)):
        check_rows("unpad_scales", name, x)
    check_offsets_form("unpad_scales", cu_seqlens)
    check_offsets("unpad_scales", cu_seqlens, len(like), "like has")
    starts = padded_offsets(cu_seqlens, whole_number("unpad_scales", "rows", rows, 1, ArgumentError))
    if len(padded) < int(starts[-1]) or padded.shape[1] < like.shape[1]:
        raise LayoutError(
            f"unpad_scales: padded is {tuple(padded.shape)} but the groups need {int(starts[-1])} rows, "
            f"each rounded up to a multiple of {rows}, and {like.shape[1]} columns"
        )
    scales = padded.new_zeros(like.shape)
    for group, start in zip(sequence_slices(cu_seqlens), starts.tolist(), strict=False):
        scales[group] = padded[start : start + group.stop - group.start, : like.shape[1]]
    return scales


@checked_call
def swizzle_scales(padded: Tensor) -> Tensor:
    """Padded scales in the order of cuBLAS: tiles of 128 x 4, row by row of tiles.

    In a tile, row r and column c lie at 16 (r mod 32) + 4 (r // 32) + c.

    padded: (m, n), m a multiple of 128 and n one of 4.

    Returns (m n,). Raises ArgumentError.

    >>> import torch
    >>> from packproof.refs import swizzle_scales
    >>> swizzle_scales(torch.arange(512).view(128, 4))[:8]  # rows 0 and 32
    tensor([  0,   1,   2,   3, 128, 129, 130, 131])
    """
    check_rows("swizzle_scales", "padded", padded)
    if padded.ndim != 2 or padded.shape[0] % TILE_ROWS or padded.shape[1] % TILE_COLUMNS:
        raise ArgumentError(
            f"swizzle_scales: padded is {tuple(padded.shape)} but multiples of {TILE_ROWS} rows and {TILE_COLUMNS} "
            "columns were expected, as `pad_scales` returns them"
        )
    tiles = padded.view(len(padded) // TILE_ROWS, 4, _QUARTER, padded.shape[1] // TILE_COLUMNS, TILE_COLUMNS)
    return tiles.permute(0, 3, 2, 1, 4).flatten()


@checked_call
def unswizzle_scales(swizzled: Tensor, columns: int) -> Tensor:
    """The inverse of `swizzle_scales`: (m, columns) from (m columns,); columns: a multiple of 4. Raises ArgumentError.

    >>> import torch
    >>> from packproof.refs import swizzle_scales, unswizzle_scales
    >>> padded = torch.rand(256, 8)
    >>> bool((unswizzle_scales(swizzle_scales(padded), 8) == padded).all())
    True
    """
    check_rows("unswizzle_scales", "swizzled", swizzled)
    columns = whole_number("unswizzle_scales", "columns", columns, 1, ArgumentError)
    if swizzled.ndim != 1 or columns % TILE_COLUMNS or len(swizzled) % (TILE_ROWS * columns):
        raise ArgumentError(
            f"unswizzle_scales: swizzled is {tuple(swizzled.shape)} but tiles of {TILE_ROWS} x {TILE_COLUMNS} "
            f"for {columns} columns were expected, as `swizzle_scales` returns them"
        )
    row_tiles = len(swizzled) // (TILE_ROWS * columns)
    tiles = swizzled.view(row_tiles, columns // TILE_COLUMNS, _QUARTER, 4, TILE_COLUMNS)
    return tiles.permute(0, 3, 2, 1, 4).reshape(row_tiles * TILE_ROWS, columns)
