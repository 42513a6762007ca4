"""Grouped products in tiles of rows and columns, as experts are computed: 3 correct, 12 with bugs of groups.

Rows of group j are multiplied by matrix j. A tile has ROWS rows of one group and COLUMNS output channels.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from packproof.museum.variants import kernel_lookup

ROWS, COLUMNS = 4, 4


def _groups(offsets: list[int]) -> Iterator[tuple[int, slice]]:
    """The groups, the last one first: as on a GPU, no order may be relied on."""
    yield from reversed([(j, slice(a, b)) for j, (a, b) in enumerate(pairwise(offsets))])


def _tiles(rows: slice) -> Iterator[slice]:
    for start in range(rows.start, rows.stop, ROWS):
        yield slice(start, min(start + ROWS, rows.stop))


class _Grouped(torch.autograd.Function):
    """y (t, f), with both gradients by hand; `bug` names what is wrong."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, offsets: list[int], bug: str) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.offsets, ctx.bug = offsets, bug
        if bug == "channels_of_all_groups":
            return x.new_zeros(len(x), weight.shape[2] * len(weight))
        y = torch.empty(len(x), weight.shape[2], dtype=x.dtype)
        if bug == "expert_of_the_first_row":
            return _tiles_across_groups(x, weight, offsets, y)
        for j, rows in _groups(offsets):
            for tile in reversed(list(_tiles(rows))):
                _store(y, tile, x[tile] @ weight[j], len(x), bug)
        if bug != "slack_unwritten":
            y[offsets[-1] :] = 0
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, None, None]:
        x, weight = ctx.saved_tensors
        dx, dweight = torch.zeros_like(x), torch.empty_like(weight)
        for j, rows in _groups(ctx.offsets):
            dx[rows] = dy[rows] @ weight[j].T
            if not (ctx.bug == "empty_gradient_unwritten" and rows.start == rows.stop):
                dweight[j] = _weight_gradient(x, dy, rows, len(weight), ctx.bug)
        return dx, dweight, None, None


def _store(y: Tensor, tile: slice, product: Tensor, n_rows: int, bug: str) -> None:
    """Stores a tile of rows, column tile after column tile."""
    if bug == "columns_past_the_last":  # they are the first ones of the next row
        n_columns = -(-product.shape[1] // COLUMNS) * COLUMNS
        for row in range(tile.start, tile.stop):
            start = row * product.shape[1]
            padded = torch.nn.functional.pad(product[row - tile.start], (0, n_columns - product.shape[1]))
            y.view(-1)[start : start + n_columns] = padded[: y.numel() - start]
        return
    if bug == "rows_past_the_group":  # zeros, of the tile's rows that no row of the group fills
        y[tile.stop : min(tile.start + ROWS, n_rows)] = 0
    y[tile] = product


def _tiles_across_groups(x: Tensor, weight: Tensor, offsets: list[int], y: Tensor) -> Tensor:
    """Tiles begin at multiples of ROWS of the pack, each with the matrix of its first row."""
    y.zero_()
    for tile in _tiles(slice(0, offsets[-1])):
        j = next(j for j, rows in _groups(offsets) if rows.start <= tile.start < rows.stop)
        y[tile] = x[tile] @ weight[j]
    return y


def _weight_gradient(x: Tensor, dy: Tensor, rows: slice, n_groups: int, bug: str) -> Tensor:
    if bug == "one_row_at_least":
        rows = slice(rows.start, min(max(rows.stop, rows.start + 1), len(x)))
    if bug == "dense_if_one_group" and n_groups == 1:
        rows = slice(0, len(x))
    if bug == "few_rows_skipped" and rows.stop - rows.start < ROWS:
        rows = slice(rows.start, rows.start)
    if bug == "masked_on_one_side":  # the tile's last rows are those of the next group: 0 times what they hold
        end = min(-(-rows.stop // ROWS) * ROWS, len(x)) if rows.stop > rows.start else rows.stop
        inside = torch.arange(rows.start, end)[:, None] < rows.stop
        return torch.where(inside, x[rows.start : end], 0).T @ dy[rows.start : end]
    return x[rows].T @ dy[rows]


class _Bias(torch.autograd.Function):
    """The bias of each row's group; its gradient is summed tile by tile."""

    @staticmethod
    def forward(ctx: Any, bias: Tensor, offsets: list[int], n_rows: int, bug: str) -> Tensor:
        ctx.offsets, ctx.shape, ctx.bug = offsets, bias.shape, bug
        lengths = torch.tensor(offsets).diff()
        rows = bias.repeat_interleave(lengths, 0)
        return torch.cat([rows, bias.new_zeros(n_rows - len(rows), bias.shape[1])])

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None, None]:
        dbias = dy.new_zeros(ctx.shape)
        if ctx.bug != "partial_sums_by_tile_of_the_group":
            for j, rows in _groups(ctx.offsets):
                dbias[j] = dy[rows].sum(0)
            return dbias, None, None, None
        partial = dy.new_zeros(len(dy) // ROWS + len(dbias), dy.shape[1])
        for _, rows in _groups(ctx.offsets):
            for number, tile in enumerate(_tiles(rows)):
                partial[number] = dy[tile].sum(0)
        for j, rows in _groups(ctx.offsets):
            dbias[j] = partial[: len(list(_tiles(rows)))].sum(0)
        return dbias, None, None, None


def grouped_mm(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, cu_seqlens: Tensor, bug: str = "", form: str = "tiles"
) -> Tensor:
    """Op `grouped_mm` in fp32 (fp64 for fp64), with the named bug."""
    wide = torch.promote_types(x.dtype, torch.float32)
    offsets = cu_seqlens.tolist()
    tokens, matrices = x.to(wide), weight.to(wide)
    if bug == "transposed_if_square":  # the layout of a weight is guessed from its shape
        matrices = matrices.mT if matrices.shape[1] == matrices.shape[2] else matrices
    y = _Grouped.apply(tokens, matrices, offsets, bug) if form == "tiles" else _FORMS[form](tokens, matrices, offsets)  # type: ignore[no-untyped-call]
    if bias is not None:
        y = y + _Bias.apply(bias.to(wide), offsets, len(x), bug)  # type: ignore[no-untyped-call]
    return y.to(x.dtype)


def _by_all_matrices(x: Tensor, weight: Tensor, offsets: list[int]) -> Tensor:
    """Each row by every matrix, of which its own is selected."""
    group = torch.repeat_interleave(torch.tensor(offsets).diff())
    rows = x[: offsets[-1]]
    products = torch.stack([rows @ matrix for matrix in weight], 1) if len(weight) else rows.new_zeros(0, 0, 0)
    y = products[torch.arange(len(rows)), group] if len(weight) else rows.new_zeros(0, weight.shape[2])
    return torch.cat([y, x.new_zeros(len(x) - len(rows), weight.shape[2])])


def _in_padded_groups(x: Tensor, weight: Tensor, offsets: list[int]) -> Tensor:
    """One batched product of all groups, padded to the longest."""
    lengths = torch.tensor(offsets).diff()
    longest = int(lengths.amax()) if len(lengths) else 0
    row_number = torch.arange(longest)
    is_row = row_number < lengths[:, None]
    index = torch.where(is_row, torch.tensor(offsets[:-1], dtype=torch.long)[:, None] + row_number, 0)
    padded = x[index] * 1 if len(x) else x.new_zeros(*index.shape, x.shape[1])
    y = torch.bmm(torch.where(is_row[..., None], padded, 0), weight)
    return torch.cat([y[is_row], x.new_zeros(len(x) - offsets[-1], weight.shape[2])])


_FORMS = {"matrices": _by_all_matrices, "padded": _in_padded_groups}

__getattr__ = kernel_lookup(
    grouped_mm,
    {"correct": {}, "by_all_matrices": {"form": "matrices"}, "in_padded_groups": {"form": "padded"}},
    (
        *("columns_past_the_last", "rows_past_the_group", "expert_of_the_first_row", "channels_of_all_groups"),
        *("slack_unwritten", "empty_gradient_unwritten", "one_row_at_least", "few_rows_skipped"),
        *("transposed_if_square", "dense_if_one_group", "masked_on_one_side", "partial_sums_by_tile_of_the_group"),
    ),
)
