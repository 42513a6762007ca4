"""The two products of a grouped matrix multiplication, in Triton.

A tile of rows belongs to one group, by its number: the tiles of group j have the numbers from cu_seqlens[j] // BLOCK_M
+ j on, and each group leaves at most one unused. So no list of tiles is made, the host reads no count, and a launch
depends on the numbers of rows and groups alone.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product as combinations
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from packproof.kernels.launch import POINTERS, cdiv, launch, runs_interpreted, specializations
from packproof.kernels.products import product
from packproof.kernels.sequences import bounds
from packproof.kernels.variant import Variant

ROWS, ROWS_INTERPRETED = 128, 4  # of a tile
_DEPTH, _DEPTH_INTERPRETED = 64, 4  # of a tile: sizes that are no multiple of it are ragged
_FEW_ROWS = 64  # of a tile, where groups have fewer rows than this on average; both run the same instructions

_SUM_WARPS = 4
_BAND = tl.constexpr(8)  # tiles of rows that pass through the same tiles of columns, one after another: they share L2


@triton.jit
def _total(a, b, total, EXACT: tl.constexpr):
    """total + a @ b: 16-bit operands are exact, fp32 operands enter as sums of 16-bit parts."""
    if EXACT:
        return product(a, b, total, True)
    return tl.dot(a, b, total)


@triton.jit
def _tile_of_program(n_row_tiles, n_column_tiles):
    """The tile of rows and the tile of columns of this program."""
    band = tl.program_id(0) // (_BAND * n_column_tiles)
    height = tl.minimum(n_row_tiles - band * _BAND, _BAND)
    within = tl.program_id(0) % (_BAND * n_column_tiles)
    return band * _BAND + within % height, within // height


@triton.jit
def _group_of_tile(cu_seqlens, S, T, tile, BLOCK_M: tl.constexpr):
    """The group of a tile, its first row there and the end of the group. Slack is group S, up to row T."""
    group, span = 0, S
    while span > 0:  # the last group whose first tile is at or before this one lies in group ... group + span
        step = (span + 1) // 2
        first_tile = tl.load(cu_seqlens + group + step) // BLOCK_M + group + step
        group = tl.where(first_tile <= tile, group + step, group)
        span = span // 2
    start, end = bounds(cu_seqlens, S, T, group)
    packed_end = tl.minimum(tl.maximum(tl.load(cu_seqlens + S), 0), T)
    start, end = tl.where(group < S, start, packed_end), tl.where(group < S, end, T)
    return group, start + (tile - start // BLOCK_M - group) * BLOCK_M, end


@triton.jit(do_not_specialize=["cu_seqlens", "T", "S", "has_bias"])
def _grouped_rows_kernel(
    x, weight, bias, cu_seqlens, y, T, S, D, F, x_stride, group_stride, d_stride, f_stride, has_bias,
    EXACT: tl.constexpr, EVEN: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """y = x W_j + b_j for a tile of rows of group j, 0 in slack.

    x: (t, d), rows of x_stride elements. weight: (s, d, f), by its strides. y: (t, f), contiguous.
    EVEN: D is a multiple of BLOCK_K. Then no sum that is kept has what is read past the end of rows or columns.
    """
    row_tile, column_tile = _tile_of_program(T // BLOCK_M + S + 1, tl.cdiv(F, BLOCK_N))
    group, first_row, end = _group_of_tile(cu_seqlens, S, T, row_tile, BLOCK_M)
    if first_row >= end:
        return
    row = first_row + tl.arange(0, BLOCK_M)
    column = column_tile * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    row_mask, column_mask = (row < end)[:, None], (column < F)[None, :]
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    if group < S:
        x_tile = x + row.to(tl.int64)[:, None] * x_stride + k[None, :]
        w_tile = (
            weight + group.to(tl.int64) * group_stride + k[:, None] * d_stride + column.to(tl.int64)[None, :] * f_stride
        )
        for d in range(0, D, BLOCK_K):
            if EVEN:
                a = tl.load(x_tile, mask=row_mask)
                b = tl.load(w_tile, mask=column_mask)
            else:
                a = tl.load(x_tile, mask=row_mask & (d + k < D)[None, :], other=0.0)
                b = tl.load(w_tile, mask=column_mask & (d + k < D)[:, None], other=0.0)
            total = _total(a, b, total, EXACT)
            x_tile += BLOCK_K
            w_tile += BLOCK_K * d_stride
        if has_bias != 0:
            b_j = tl.load(bias + group.to(tl.int64) * F + column, mask=column < F)
            total += b_j[None, :]
    target = y + row.to(tl.int64)[:, None] * F + column[None, :]
    tl.store(target, total.to(y.dtype.element_ty), mask=row_mask & column_mask)


@triton.jit(do_not_specialize=["cu_seqlens", "T", "S"])
def _grouped_weights_kernel(
    x, dy, cu_seqlens, dweight, T, S, D, F, x_stride, dy_stride,
    EXACT: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_F: tl.constexpr, BLOCK_T: tl.constexpr,
):  # fmt: skip
    """dW_j = x_jᵀ dy_j for a tile of group j: one program adds all rows, from first to last; without rows, 0.

    dweight: (s, d, f), contiguous.
    """
    d_tiles, f_tiles = tl.cdiv(D, BLOCK_D), tl.cdiv(F, BLOCK_F)
    group, tile = tl.program_id(0) // (d_tiles * f_tiles), tl.program_id(0) % (d_tiles * f_tiles)
    start, end = bounds(cu_seqlens, S, T, group)
    d, f = tile // f_tiles * BLOCK_D + tl.arange(0, BLOCK_D), tile % f_tiles * BLOCK_F + tl.arange(0, BLOCK_F)
    d_mask, f_mask = (d < D)[:, None], (f < F)[None, :]
    t = tl.arange(0, BLOCK_T)
    x_tile = x + (start + t).to(tl.int64)[None, :] * x_stride + d[:, None]
    dy_tile = dy + (start + t).to(tl.int64)[:, None] * dy_stride + f[None, :]
    total = tl.zeros((BLOCK_D, BLOCK_F), tl.float32)
    for first in range(start, end, BLOCK_T):
        a = tl.load(x_tile, mask=(first + t < end)[None, :] & d_mask, other=0.0)
        b = tl.load(dy_tile, mask=(first + t < end)[:, None] & f_mask, other=0.0)
        total = _total(a, b, total, EXACT)
        x_tile += BLOCK_T * x_stride
        dy_tile += BLOCK_T * dy_stride
    target = dweight + (group.to(tl.int64) * D + d[:, None]) * F + f[None, :]
    tl.store(target, total.to(dweight.dtype.element_ty), mask=d_mask & f_mask)


@triton.jit(do_not_specialize=["cu_seqlens", "T", "S"])
def _grouped_sums_kernel(
    dy, cu_seqlens, dbias, T, S, F, dy_stride, BLOCK_F: tl.constexpr, BLOCK_T: tl.constexpr,
):  # fmt: skip
    """db_j = Σ dy_j over the rows of group j, from first to last.

    dbias: (s, f), contiguous.
    """
    f_tiles = tl.cdiv(F, BLOCK_F)
    group = tl.program_id(0) // f_tiles
    start, end = bounds(cu_seqlens, S, T, group)
    f = tl.program_id(0) % f_tiles * BLOCK_F + tl.arange(0, BLOCK_F)
    total = tl.zeros((BLOCK_T, BLOCK_F), tl.float32)
    for first in range(start, end, BLOCK_T):
        t = first + tl.arange(0, BLOCK_T)
        tile = dy + t.to(tl.int64)[:, None] * dy_stride + f[None, :]
        total += tl.load(tile, mask=(t < end)[:, None] & (f < F)[None, :], other=0.0)
    tl.store(dbias + group.to(tl.int64) * F + f, tl.sum(total, 0).to(dbias.dtype.element_ty), mask=f < F)


def _is_exact(dtype: torch.dtype) -> bool:
    return dtype == torch.float32


def _row_tile(n_rows: int, n_groups: int, dtype: torch.dtype, *, is_even: bool) -> dict[str, int]:
    """Ragged rows are read element by element, and small tiles of them stay in registers."""
    if runs_interpreted(_grouped_rows_kernel):
        return {"BLOCK_M": ROWS_INTERPRETED, "BLOCK_N": 8, "BLOCK_K": _DEPTH_INTERPRETED}
    if _is_exact(dtype) or not is_even:
        return {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32}
    return {"BLOCK_M": _FEW_ROWS if n_rows < _FEW_ROWS * n_groups else ROWS, "BLOCK_N": 128, "BLOCK_K": _DEPTH}


def _weight_tile(dtype: torch.dtype, *, is_even: bool) -> dict[str, int]:
    if runs_interpreted(_grouped_weights_kernel):
        return {"BLOCK_D": 4, "BLOCK_F": 8, "BLOCK_T": ROWS_INTERPRETED}
    side = 128 if is_even and not _is_exact(dtype) else 64
    return {"BLOCK_D": side, "BLOCK_F": side, "BLOCK_T": side // 2}


def _sum_tile() -> dict[str, int]:
    return {"BLOCK_F": 8, "BLOCK_T": 2} if runs_interpreted(_grouped_sums_kernel) else {"BLOCK_F": 64, "BLOCK_T": 32}


def _options(tile: Mapping[str, int]) -> dict[str, int]:
    """Warps and stages: a warpgroup for each 64 x 128 elements, or 32 x 64 of fp32, whose parts take more registers.

    Four stages do not fit the 64 KiB of an AMD GPU.
    """
    rows, columns, _ = tile.values()
    return {"num_warps": 4 if (rows, columns) == (_FEW_ROWS, 128) else 8, "num_stages": 3}


def launch_rows(x: Tensor, weight: Tensor, bias: Tensor | None, cu_seqlens: Tensor, y: Tensor) -> None:
    """y = x W_j + b_j, zero in slack.

    x: (t, d), each row dense. weight: (s, d, f), copied unless dense along d or f. cu_seqlens: int32. y: contiguous.
    """
    (T, F), (S, D) = y.shape, weight.shape[:2]
    weight = weight if 1 in weight.stride()[1:] else weight.contiguous()
    is_even = D % (_DEPTH_INTERPRETED if runs_interpreted(_grouped_rows_kernel) else _DEPTH) == 0
    tile = _row_tile(T, S, x.dtype, is_even=is_even)
    group_stride, d_stride, f_stride = weight.stride()
    arguments = {
        **{"x": x, "weight": weight, "bias": weight if bias is None else bias.contiguous(), "cu_seqlens": cu_seqlens},
        **{"y": y, "T": T, "S": S, "D": D, "F": F, "x_stride": x.stride(0), "group_stride": group_stride},
        **{"d_stride": d_stride, "f_stride": f_stride, "has_bias": int(bias is not None)},
        **{"EXACT": _is_exact(x.dtype), "EVEN": is_even, **tile},
    }
    if T:
        programs = (T // tile["BLOCK_M"] + S + 1) * cdiv(F, tile["BLOCK_N"])
        launch(_grouped_rows_kernel, (programs,), arguments, **_options(tile))


def launch_weights(x: Tensor, dy: Tensor, cu_seqlens: Tensor, dweight: Tensor) -> None:
    """dW_j = x_jᵀ dy_j.

    x: (t, d) and dy: (t, f), each row dense. cu_seqlens: int32. dweight: contiguous.
    """
    S, D, F = dweight.shape
    tile = _weight_tile(x.dtype, is_even=all(n % 16 == 0 for n in (D, F, x.stride(0), dy.stride(0))))
    arguments = {
        **{"x": x, "dy": dy, "cu_seqlens": cu_seqlens, "dweight": dweight, "T": len(x), "S": S, "D": D, "F": F},
        **{"x_stride": x.stride(0), "dy_stride": dy.stride(0), "EXACT": _is_exact(x.dtype), **tile},
    }
    if programs := S * cdiv(D, tile["BLOCK_D"]) * cdiv(F, tile["BLOCK_F"]):
        launch(_grouped_weights_kernel, (programs,), arguments, **_options(tile))


def launch_sums(dy: Tensor, cu_seqlens: Tensor, dbias: Tensor) -> None:
    """db_j = Σ dy_j.

    dy: (t, f), each row dense. cu_seqlens: int32. dbias: contiguous.
    """
    (S, F), tile = dbias.shape, _sum_tile()
    arguments = {
        **{"dy": dy, "cu_seqlens": cu_seqlens, "dbias": dbias, "T": len(dy), "S": S, "F": F},
        **{"dy_stride": dy.stride(0), **tile},
    }
    if programs := S * cdiv(F, tile["BLOCK_F"]):
        launch(_grouped_sums_kernel, (programs,), arguments, num_warps=_SUM_WARPS)


def variants() -> list[Variant]:
    """Every compiled form of the kernels."""
    return [form for dtype in (torch.float32, torch.bfloat16, torch.float16) for form in _forms_of(dtype)]


def _forms_of(dtype: torch.dtype) -> Iterator[Variant]:
    pointer, is_exact = POINTERS[dtype], _is_exact(dtype)
    names = ("x", "weight", "bias", "y", "dy", "dweight", "dbias")
    pointers, label = {"cu_seqlens": "*i32", **dict.fromkeys(names, pointer)}, pointer[1:]
    heights = (2 * ROWS,) if is_exact else (1, 2 * ROWS)
    for n_rows, is_even, dense in combinations(heights, (True, False), ("f_stride", "d_stride")):
        tile = _row_tile(n_rows, 1, dtype, is_even=is_even)
        if n_rows == 1 and not is_even:
            continue  # ragged rows have tiles of one height
        constants = {"EXACT": is_exact, "EVEN": is_even, dense: 1, **tile}
        name = f"rows-{label}-{tile['BLOCK_M']}-{'even' if is_even else 'ragged'}-{dense[0]}"
        forms = list(_forms(name, _grouped_rows_kernel, pointers, constants, _options(tile)))
        yield from forms[:1] if is_even else forms  # even sizes are multiples of 16
    for is_even in (False,) if is_exact else (True, False):
        tile = _weight_tile(dtype, is_even=is_even)
        constants = {"EXACT": is_exact, **tile}
        name = f"weights-{label}-{tile['BLOCK_D']}"
        forms = list(_forms(name, _grouped_weights_kernel, pointers, constants, _options(tile)))
        yield from forms[:1] if is_even else forms
    yield from specializations(f"sums-{label}", _grouped_sums_kernel, pointers, _sum_tile(), _SUM_WARPS)


def _forms(
    name: str, kernel: Any, pointers: Mapping[str, str], constants: Mapping[str, Any], options: Mapping[str, int]
) -> Iterator[Variant]:
    for form in specializations(name, kernel, pointers, constants, options["num_warps"]):
        yield replace(form, num_stages=options["num_stages"])
