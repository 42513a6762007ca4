"""Reductions and scans of blocks of all programs, in the order of one program."""

from collections.abc import Callable
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter as shipped

from packproof.interpreter import scan
from packproof.interpreter.batch.blocks import same_programs
from packproof.interpreter.types import Handle, core, type_of


def apply_reduce(original: Callable[..., Any]) -> Callable[..., Any]:
    """`ReduceOps.apply_impl`, for axes after the axis of programs."""

    def apply_impl(self: Any, inputs: Any) -> Any:
        axis, keep = self.axis, self.keep_dims
        rank = len(inputs[0].sizes)
        flat = axis is None and self.combine_fn not in _ALL_AXES
        if flat:
            inputs, self.axis, self.keep_dims = tuple(map(_flatten, inputs)), 1, False
        elif axis is None:  # all axes by index, not flattened: numpy's order of summation follows memory
            self.axis = tuple(range(1, rank + 1))
        else:
            self.axis = axis + 1 if axis >= 0 else axis
        try:
            results = original(self, inputs)
        finally:
            self.axis, self.keep_dims = axis, keep
        if flat and keep:
            results = results if isinstance(results, tuple | list) else (results,)
            return [_make_block(r.handle.data.reshape(-1, *(1,) * rank), r.dtype) for r in results]
        return results

    return apply_impl


_ALL_AXES = (tl.standard._sum_combine, tl.standard._elementwise_max, tl.standard._elementwise_min)


def _flatten(t: Any) -> Any:
    return _make_block(t.handle.data.reshape(t.handle.data.shape[0], -1), t.dtype)


def _make_block(data: Any, dtype: Any) -> Any:
    return core.tensor(Handle(data, dtype.scalar), type_of(dtype.scalar, tuple(data.shape[1:])))


def to_tensor(self: Any, result: Any, dtype: Any) -> Any:
    """`ReduceScanOpInterface.to_tensor`."""
    return _make_block(np.asarray(result).astype(shipped._get_np_dtype(dtype)), dtype)


block = _make_block  # `scan.block`


def generic_reduce(self: Any, inputs: Any) -> list[Any]:
    """`ReduceOps.generic_reduce`: combine neighbours until one element remains."""
    dtypes = [operand.dtype for operand in inputs]
    partial = same_programs(*[np.moveaxis(operand.handle.data, self.axis, 1) for operand in inputs])
    while partial[0].shape[1] > 1:
        pairs = [p[:, 0::2] for p in partial], [p[:, 1::2] for p in partial]
        partial = list(scan.combine_blocks(self.combine_fn, *pairs, dtypes))
    results = [p[:, 0] for p in partial]
    if self.keep_dims:
        results = [np.expand_dims(result, self.axis) for result in results]
    return [self.to_tensor(result, dtype) for result, dtype in zip(results, dtypes, strict=True)]


def apply_scan(self: Any, inputs: Any) -> list[Any]:
    """`ScanOps.apply_impl`."""
    axis = self.axis + 1 if self.axis >= 0 else self.axis
    dtypes = [operand.dtype for operand in inputs]
    data = [np.flip(o.handle.data, axis) if self.reverse else o.handle.data for o in inputs]
    if self.combine_fn in _CUMULATIVE and dtypes[0].scalar != tl.bfloat16:
        results = [_CUMULATIVE[self.combine_fn](data[0], axis=axis)]
    else:
        results = _scan_programs(self.combine_fn, [np.moveaxis(d, axis, 1) for d in data], dtypes)
        results = [np.ascontiguousarray(np.moveaxis(result, 1, axis)) for result in results]
    tensors = [self.to_tensor(result, dtype) for result, dtype in zip(results, dtypes, strict=False)]
    for tensor in tensors:
        if self.reverse:
            tensor.handle.data = np.flip(tensor.handle.data, axis)
    return tensors


_CUMULATIVE: dict[Any, Callable[..., Any]] = {
    tl.standard._sum_combine: np.cumsum,
    tl.standard._prod_combine: np.cumprod,
}


def _scan_programs(combine: Any, data: list[Any], dtypes: list[Any]) -> list[Any]:
    """The Kogge-Stone scan of `scan._scan`, along the axis after the axis of programs."""
    partial = same_programs(*data)
    position = np.arange(partial[0].shape[1]).reshape(1, -1, *[1] * (partial[0].ndim - 2))
    width = 1
    while width < position.shape[1]:
        shifted = [np.roll(d, width, axis=1) for d in partial]
        merged = scan.combine_blocks(combine, shifted, partial, dtypes)
        partial = [np.where(position >= width, new, old) for new, old in zip(merged, partial, strict=True)]
        width *= 2
    return partial
