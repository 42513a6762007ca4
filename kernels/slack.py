"""Rows behind the last sequence: zero in every output, whatever they hold in the inputs."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from packproof.kernels.launch import POINTERS, alignments, cdiv
from packproof.kernels.variant import Variant

_TILE = {"BLOCK_T": 16, "BLOCK_D": 128}
_NUM_WARPS = 4


@triton.jit(do_not_specialize=["cu_seqlens", "T", "S", "width"])
def zero_slack_kernel(tensor, cu_seqlens, T, S, width, BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr):
    used = tl.maximum(tl.load(cu_seqlens + S), 0)
    first = tl.program_id(0).to(tl.int64) * BLOCK_T
    if first + BLOCK_T <= used:
        return
    t = first + tl.arange(0, BLOCK_T)
    for column in range(0, width, BLOCK_D):
        d = column + tl.arange(0, BLOCK_D)
        mask = ((t >= used) & (t < T))[:, None] & (d < width)[None, :]
        tl.store(tensor + t[:, None] * width + d[None, :], tl.zeros((BLOCK_T, BLOCK_D), tensor.dtype.element_ty), mask)


def zero_slack(tensor: Tensor, cu_seqlens: Tensor) -> Tensor:
    """Fill the rows of a contiguous tensor (t, ...) behind the last offset with zeros, in place."""
    T, S = len(tensor), len(cu_seqlens) - 1
    if tensor.numel():
        programs = cdiv(T, _TILE["BLOCK_T"])
        zero_slack_kernel[(programs,)](tensor, cu_seqlens, T, S, tensor.numel() // T, **_TILE, num_warps=_NUM_WARPS)
    return tensor


def variants(dtypes: Sequence[torch.dtype]) -> list[Variant]:
    """Every compiled form of the kernel for outputs of these dtypes."""
    return [
        variant
        for dtype in dtypes
        for variant in alignments(
            f"slack-{POINTERS[dtype][1:]}",
            zero_slack_kernel,
            {"tensor": POINTERS[dtype], "cu_seqlens": "*i32"},
            _TILE,
            _NUM_WARPS,
        )
    ]
