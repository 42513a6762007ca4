"""Scans and reductions of Triton's interpreter, in the order of a tree.

As shipped, a custom combine function is called once per element, from the first to the last. Here it is called on whole
blocks, log2(n) times, on pairs of neighbours as on a GPU. This is much faster, and a function that is not associative
gives a wrong result, as on a GPU.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import triton.language as tl
from numpy.typing import NDArray
from triton.runtime import interpreter as shipped

from packproof.interpreter.floats import bfloat16_to_float32, float32_to_bfloat16, is_bfloat16, narrow, widen
from packproof.interpreter.patch import replace
from packproof.interpreter.types import type_of

Array = NDArray[Any]
_PROPAGATE_NO_NAN = {
    np.max: np.fmax.reduce,
    np.nanmax: np.fmax.reduce,
    np.min: np.fmin.reduce,
    np.nanmin: np.fmin.reduce,
}
# With an index, the winning NaN depends on a GPU's order of combining. Here it is the first, in each release.
_WITH_INDEX: dict[Any, Any] = {
    **{np.max: np.max, np.min: np.min, np.argmax: np.argmax, np.argmin: np.argmin},
    **{np.nanmax: np.max, np.nanmin: np.min, np.nanargmax: np.argmax, np.nanargmin: np.argmin},
}


def repair() -> None:
    """Replace the interpreter's `tl.associative_scan`, `tl.reduce`, `tl.sum`, `tl.max` and their variants."""
    replace(shipped.ScanOps, "generic_scan", lambda original: _scan)
    replace(shipped.ReduceOps, "generic_reduce", lambda original: _reduce)
    replace(shipped.ReduceOps, "sum", _sum)
    replace(shipped.ReduceOps, "min_max", _min_max)
    for name in ("cumsum", "cumprod"):
        replace(shipped.ScanOps, name, _cumulative)


def block(data: Array, dtype: Any) -> Any:
    return tl.core.tensor(shipped.TensorHandle(data, dtype.scalar), tl.block_type(dtype.scalar, list(data.shape)))


def combine_blocks(combine: Any, lhs: list[Array], rhs: list[Array], dtypes: list[Any]) -> Iterator[Array]:
    """`combine(lhs, rhs)` for equal blocks. Results must have the types of the operands, as when compiled."""
    operands = [block(data, dtype) for side in (lhs, rhs) for data, dtype in zip(side, dtypes, strict=True)]
    results = combine.fn(*operands)
    results = results if isinstance(results, (tuple, tl.tuple)) else (results,)
    for result, data, dtype in zip(results, lhs, dtypes, strict=True):
        if result.dtype.scalar != dtype.scalar:
            raise TypeError(f"the combine function returns {result.dtype} for an operand of {dtype}")
        yield np.broadcast_to(result.handle.data, data.shape)


def _scan(self: Any, inputs: Any) -> list[Any]:
    """Kogge-Stone: after the step of width k, every element holds the combination of the 2k elements up to it."""
    dtypes = [operand.dtype for operand in inputs]
    partial = [np.moveaxis(operand.handle.data, self.axis, 0) for operand in inputs]
    position = np.arange(len(partial[0])).reshape(-1, *[1] * (partial[0].ndim - 1))
    width = 1
    while width < len(position):
        shifted = [np.roll(data, width, axis=0) for data in partial]
        merged = combine_blocks(self.combine_fn, shifted, partial, dtypes)
        partial = [np.where(position >= width, new, old) for new, old in zip(merged, partial, strict=True)]
        width *= 2
    return [
        block(np.ascontiguousarray(np.moveaxis(data, 0, self.axis)), dtype)
        for data, dtype in zip(partial, dtypes, strict=True)
    ]


def _reduce(self: Any, inputs: Any) -> list[Any]:
    """Combine neighbours until one is left."""
    dtypes = [operand.dtype for operand in inputs]
    data = [operand.handle.data for operand in inputs]
    rank = data[0].ndim
    axis = 0 if self.axis is None else self.axis
    partial = [d.reshape(-1) if self.axis is None else np.moveaxis(d, axis, 0) for d in data]
    while len(partial[0]) > 1:
        partial = list(combine_blocks(self.combine_fn, [p[0::2] for p in partial], [p[1::2] for p in partial], dtypes))
    results = [p[0] for p in partial]
    if self.keep_dims:
        results = [r.reshape([1] * rank) if self.axis is None else np.expand_dims(r, axis) for r in results]
    return [self.to_tensor(r, dtype) for r, dtype in zip(results, dtypes, strict=True)]


def _sum(original: Callable[..., Any]) -> Callable[..., Any]:
    def total(self: Any, operand: Any) -> Any:
        if operand.dtype.scalar != tl.bfloat16:
            return original(self, operand)
        values = bfloat16_to_float32(operand.handle.data)
        result = np.asarray(np.sum(values, axis=self.axis, keepdims=self.keep_dims))
        return self.to_tensor(float32_to_bfloat16(result), operand.dtype)

    return total


def _min_max(original: Callable[..., Any]) -> Callable[..., Any]:
    def min_max(self: Any, operand: Any, val_reduce_op: Any, idx_reduce_op: Any = None) -> Any:
        if idx_reduce_op is None:
            return original(self, operand, _PROPAGATE_NO_NAN[val_reduce_op])
        if not is_bfloat16(operand.handle):
            return original(self, operand, _WITH_INDEX[val_reduce_op], _WITH_INDEX[idx_reduce_op])
        # triton 3.9 does not widen bfloat16
        wide = tl.core.tensor(widen(operand.handle), type_of(tl.float32, operand.sizes))
        values, indices = min_max(self, wide, val_reduce_op, idx_reduce_op)
        return tl.core.tensor(narrow(values.handle), type_of(tl.bfloat16, values.sizes)), indices

    return min_max


def _cumulative(original: Callable[..., Any]) -> Callable[..., Any]:
    def cumulative(self: Any, operand: Any) -> Any:
        # triton 3.9 does not widen bfloat16: each sum is rounded, as when compiled
        return _scan(self, (operand,)) if is_bfloat16(operand.handle) else original(self, operand)

    return cumulative
