"""Quantisation with block scales (OCP MX 1.0, section 6.3). No block spans two groups."""

from collections.abc import Iterator

import torch
from torch import Tensor

from packproof.base.errors import checked_call
from packproof.base.signatures import QUANTIZE_BLOCKS
from packproof.refs.groups.formats import (
    FORMATS,
    BlockFormat,
    block_scales,
    divided_by_scales,
    group_scale_of,
    round_to_element,
)
from packproof.refs.recurrence import checked_arguments, join_sequences, split_sequences


@checked_call
def quantize_blocks(
    x: Tensor, *, cu_seqlens: Tensor, block_format: str = "mxfp8", along: str = "rows"
) -> tuple[Tensor, Tensor]:
    """Quantize the rows of each group with a scale for each block: x ≈ values * scales.

    Blocks begin at the first row of their group and at its first channel. The last ones may be smaller.

    x: (t, d) in fp64, fp32, bf16 or fp16.
    cu_seqlens: int32 or int64 (s + 1,), the offsets of the groups.
    block_format: "mxfp8", "mxfp8_up", "mxfp4", "nvfp4" or "fp8", with blocks of B = 32, 32, 32, 16 or 128 elements.
        `packproof.refs.groups.formats` has their sources.
    along: "rows" for blocks of 1 x B, "columns" for B rows of one channel, "squares" for B x B.

    Returns values (t, d), numbers of the format in x's dtype, and scales (t, d) in fp32 (fp64 for fp64 x), each element
    having the scale of its block; both are zero in slack. In nvfp4 that is the product of the block's e4m3 scale and
    its group's fp32 scale. No gradient flows back. Raises ArgumentError and LayoutError.

    >>> import torch
    >>> from packproof.refs import quantize_blocks
    >>> x = torch.tensor([[1.0], [1000.0], [1.1]])  # two groups: what is small beside 1000 is not so alone
    >>> values, scales = quantize_blocks(x, cu_seqlens=torch.tensor([0, 2, 3]), along="columns")
    >>> values.flatten(), scales.flatten()
    (tensor([  0.5000, 448.0000, 288.0000]), tensor([2.0000, 2.0000, 0.0039]))
    """
    checked_arguments(QUANTIZE_BLOCKS, locals())
    form, like = FORMATS[block_format], x.detach().double()
    values, scales = [], []
    for group, maxima, g in groups_of_blocks(like, cu_seqlens, form, along):
        scale = block_scales(maxima, form, g) * g
        values.append(round_to_element(divided_by_scales(group, scale), form.element))
        scales.append(scale)
    scale_dtype = torch.promote_types(x.dtype, torch.float32)
    return join_sequences(values, like).to(x.dtype), join_sequences(scales, like).to(scale_dtype)


def groups_of_blocks(
    x: Tensor, cu_seqlens: Tensor, block_format: BlockFormat, along: str
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Each group (n, d), the largest absolute value of each element's block (n, d), and the group's scale, a scalar."""
    for group in split_sequences(x, cu_seqlens):
        yield group, _block_maxima(group, *_block_shape(block_format, along)), group_scale_of(group, block_format)


def _block_shape(block_format: BlockFormat, along: str) -> tuple[int, int]:
    """The rows and channels of a block."""
    size = block_format.block
    return {"rows": (1, size), "columns": (size, 1), "squares": (size, size)}[along]


def _block_maxima(group: Tensor, rows: int, channels: int) -> Tensor:
    maxima = torch.zeros_like(group)
    for i in range(0, group.shape[0], rows):
        for j in range(0, group.shape[1], channels):
            block = slice(i, i + rows), slice(j, j + channels)
            maxima[block] = group[block].abs().amax()
    return maxima
