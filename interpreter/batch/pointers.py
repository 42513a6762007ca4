"""Block pointers and tensor descriptors with different offsets in each program."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter as shipped

from packproof.interpreter.batch.blocks import sizes_of
from packproof.interpreter.batch.programs import Array, lift
from packproof.interpreter.types import Handle, itemsize


def _block_addresses(pointer: Any, offsets: Sequence[Any], bounded_axes: Sequence[int]) -> tuple[Any, Any]:
    """The addresses of a block, and the mask of those within the bounds of `bounded_axes`."""
    block = sizes_of(pointer.block_shape)
    rank = len(block)
    n_bytes = itemsize(pointer.base.get_element_ty())
    data: Array = lift(pointer.base.data, rank)
    is_inside: Array = np.ones((1,) * (rank + 1), dtype=bool)
    for axis, size in enumerate(block):
        axis_shape = [1] * (rank + 1)
        axis_shape[axis + 1] = size
        positions = lift(offsets[axis].data, rank) + np.arange(size).reshape(axis_shape)
        data = data + (n_bytes * positions * lift(pointer.strides[axis].data, rank)).astype(np.uint64)
        if axis in bounded_axes:
            is_inside = is_inside & (positions < lift(pointer.shape[axis].data, rank)) & (positions >= 0)
    shape = (max(data.shape[0], is_inside.shape[0]), *block)
    mask = Handle(np.broadcast_to(is_inside, shape), tl.int1)
    return Handle(np.broadcast_to(data, shape), pointer.base.dtype.scalar), mask


def materialise(self: Any, boundary_check: Sequence[int]) -> tuple[Any, Any]:
    """`BlockPointerHandle.materialize_pointers`."""
    return _block_addresses(self, self.offsets, boundary_check)


def materialise_descriptor(self: Any, offsets: Sequence[Any]) -> tuple[Any, Any]:
    """`TensorDescHandle.materialize_pointers`."""
    assert len(offsets) == self.ndim
    n_bytes = itemsize(self.base.get_element_ty())
    assert (offsets[-1].data * n_bytes % 16 == 0).all(), "block offset start must be 16-byte aligned"
    return _block_addresses(self, offsets, range(self.ndim))


def validate(self: Any) -> None:
    """`TensorDescHandle.validate`."""
    assert (self.base.data % 16 == 0).all(), "base must be 16-byte aligned"
    assert len(self.strides) == len(self.block_shape) == self.ndim >= 1
    n_bytes = itemsize(self.base.get_element_ty())
    for stride in self.strides[:-1]:
        assert (stride.data * n_bytes % 16 == 0).all(), "stride must be 16-byte aligned"
    assert (self.strides[-1].data == 1).all(), "last dim must be contiguous"


def advance(self: Any, pointer: Any, offsets: Sequence[Any]) -> Any:
    """`create_advance`."""
    new_offsets = [
        Handle(offset.data + step.data, offset.dtype) for offset, step in zip(pointer.offsets, offsets, strict=True)
    ]
    shape = (pointer.base, pointer.shape, pointer.strides)
    return shipped.BlockPointerHandle(*shape, new_offsets, pointer.block_shape, pointer.order)
