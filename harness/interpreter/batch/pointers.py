"""Block pointers and tensor descriptors with different offsets in each program."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter as shipped

from packproof.harness.interpreter.batch.blocks import sizes_of
from packproof.harness.interpreter.batch.programs import Array, lift
from packproof.harness.interpreter.types import Handle, itemsize


def _materialised(pointer: Any, offsets: Sequence[Any], bounded: Sequence[int]) -> tuple[Any, Any]:
    """The addresses of a block, and the mask of those within the bounds of `bounded_axes`."""
    block = sizes_of(pointer.block_shape)
    rank = len(block)
    n_bytes = itemsize(pointer.base.get_element_ty())
    data: Array = lift(pointer.base.data, rank)
    inside: Array = np.ones((1,) * (rank + 1), dtype=bool)
    for axis, size in enumerate(block):
        along = [1] * (rank + 1)
        along[axis + 1] = size
        at = lift(offsets[axis].data, rank) + np.arange(size).reshape(along)
        data = data + (n_bytes * at * lift(pointer.strides[axis].data, rank)).astype(np.uint64)
        if axis in bounded:
            inside = inside & (at < lift(pointer.shape[axis].data, rank)) & (at >= 0)
    shape = (max(data.shape[0], inside.shape[0]), *block)
    mask = Handle(np.broadcast_to(inside, shape), tl.int1)
    return Handle(np.broadcast_to(data, shape), pointer.base.dtype.scalar), mask


def materialise(self: Any, boundary_check: Sequence[int]) -> tuple[Any, Any]:
    """`BlockPointerHandle.materialize_pointers`."""
    return _materialised(self, self.offsets, boundary_check)


def materialise_descriptor(self: Any, offsets: Sequence[Any]) -> tuple[Any, Any]:
    """`TensorDescHandle.materialize_pointers`."""
    assert len(offsets) == self.ndim
    n_bytes = itemsize(self.base.get_element_ty())
    assert (offsets[-1].data * n_bytes % 16 == 0).all(), "block offset start must be 16-byte aligned"
    return _materialised(self, offsets, range(self.ndim))


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
    moved = [Handle(old.data + step.data, old.dtype) for old, step in zip(pointer.offsets, offsets, strict=True)]
    shape = (pointer.base, pointer.shape, pointer.strides)
    return shipped.BlockPointerHandle(*shape, moved, pointer.block_shape, pointer.order)
