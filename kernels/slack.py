"""Rows past the last sequence: zero in every output, whatever the inputs hold there."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from packproof.kernels.launch import POINTERS, cdiv, launch, runs_interpreted, specializations
from packproof.kernels.variant import Variant

_TILE = {"BLOCK_T": 16, "BLOCK_D": 128}
_TILE_INTERPRETED = {"BLOCK_T": 4, "BLOCK_D": 8}  # small: the outputs of tests take several iterations and programs
_NUM_WARPS = 4
_TENSORS = ("tensor", "tensor1", "tensor2", "tensor3")
_NAMES = (*_TENSORS, "width", "width1", "width2", "width3")
_MAX_TENSORS = len(_TENSORS)


@triton.jit(do_not_specialize=["cu_seqlens", "T", "S", "width", "width1", "width2", "width3"])
def _zero_slack_kernel(
    tensor, tensor1, tensor2, tensor3, cu_seqlens, T, S, width, width1, width2, width3,
    BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    packed_end = tl.maximum(tl.load(cu_seqlens + S), 0)
    first_row = tl.program_id(0).to(tl.int64) * BLOCK_T
    if first_row + BLOCK_T <= packed_end:
        return
    tensor_index = tl.program_id(1)
    tensor = tl.where(
        tensor_index == 0, tensor, tl.where(tensor_index == 1, tensor1, tl.where(tensor_index == 2, tensor2, tensor3))
    )
    width = tl.where(
        tensor_index == 0, width, tl.where(tensor_index == 1, width1, tl.where(tensor_index == 2, width2, width3))
    )
    t = first_row + tl.arange(0, BLOCK_T)
    for column in range(0, width, BLOCK_D):
        d = column + tl.arange(0, BLOCK_D)
        mask = ((t >= packed_end) & (t < T))[:, None] & (d < width)[None, :]
        tl.store(tensor + t[:, None] * width + d[None, :], tl.zeros((BLOCK_T, BLOCK_D), tensor.dtype.element_ty), mask)


def zero_slack(cu_seqlens: Tensor, *tensors: Tensor) -> None:
    """Fill the rows past the last offset with zeros, in place.

    tensors: up to four (t, ...), contiguous, of one dtype; all but the first may be empty.
    """
    T, S = len(tensors[0]), len(cu_seqlens) - 1
    if T:
        four_tensors = (*tensors, *tensors[:1] * (_MAX_TENSORS - len(tensors)))
        widths = (tensor.numel() // T for tensor in four_tensors)
        tile = _TILE_INTERPRETED if runs_interpreted(_zero_slack_kernel) else _TILE
        grid = cdiv(T, tile["BLOCK_T"]), len(tensors)
        arguments = {
            **dict(zip(_NAMES, (*four_tensors, *widths), strict=True)),
            "cu_seqlens": cu_seqlens,
            "T": T,
            "S": S,
        }
        launch(_zero_slack_kernel, grid, arguments | tile, num_warps=_NUM_WARPS)


def variants(dtypes: Sequence[torch.dtype]) -> list[Variant]:
    """Every compiled form of the kernel for outputs of these dtypes."""
    return [
        variant
        for dtype in dtypes
        for variant in specializations(
            f"slack-{POINTERS[dtype][1:]}",
            _zero_slack_kernel,
            dict.fromkeys(_TENSORS, POINTERS[dtype]) | {"cu_seqlens": "*i32"},
            _TILE,
            _NUM_WARPS,
        )
    ]
