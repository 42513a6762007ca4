"""Operations of Triton's builder and its tensors on blocks of all programs."""

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import triton.language as tl
from triton.language import semantic
from triton.runtime import interpreter as shipped

from packproof.interpreter import operators, types
from packproof.interpreter.batch.programs import Array, TooLarge, Unsupported, lift, programs
from packproof.interpreter.types import Handle, Sizes, broadcast_array, core, type_of

MAX_ELEMENTS = 2**21  # elements of a block of all programs: 16 MB of addresses


def sizes_of(shape: Sequence[Any]) -> Sizes:
    return tuple([int(getattr(size, "value", size)) for size in shape])


def same_programs(*arrays: Array) -> list[Array]:
    """Arrays stretched to the same number of programs."""
    count = max(array.shape[0] for array in arrays)
    return [broadcast_array(array, (count, *array.shape[1:])) for array in arrays]


def require_size(shape: Sizes) -> None:
    """Raises TooLarge for a block of too many elements."""
    if shape[0] > 1 and math.prod(shape) > MAX_ELEMENTS:
        raise TooLarge(f"a block of shape {shape[1:]} in {shape[0]} programs")


def _broadcast_block(data: Array, sizes: Sizes) -> Array:
    shape = (data.shape[0], *sizes)
    require_size(shape)
    return broadcast_array(lift(data, len(sizes)), shape)


def _make_range(self: Any, kind: Any, start: int, stop: int) -> Any:
    return Handle(np.arange(start, stop, dtype=np.int32)[None], tl.int32)


def _splat(self: Any, kind: Any, arg: Any) -> Any:
    # a copy in C order, as for one program: numpy's order of summation follows memory
    return Handle(np.array(_broadcast_block(arg.data, sizes_of(kind.shape)), order="C"), arg.dtype.scalar)


def _unsplat(self: Any, arg: Any) -> Any:
    return Handle(arg.data.reshape(arg.data.shape[0], -1)[:, 0], arg.dtype.scalar)


def _reshape(self: Any, arg: Any, shape: Any, reorder: bool) -> Any:
    return Handle(arg.data.reshape(arg.data.shape[0], *sizes_of(shape)), arg.dtype.scalar)


def _trans(self: Any, arg: Any, order: Any) -> Any:
    return Handle(np.transpose(arg.data, (0, *[axis + 1 for axis in order])), arg.dtype.scalar)


def _broadcast(self: Any, arg: Any, shape: Any) -> Any:
    return Handle(_broadcast_block(arg.data, sizes_of(shape)), arg.dtype.scalar)


def _cat(self: Any, lhs: Any, rhs: Any) -> Any:
    return Handle(np.concatenate(same_programs(lhs.data, rhs.data), axis=1), lhs.dtype.scalar)


def _join(self: Any, lhs: Any, rhs: Any) -> Any:
    return Handle(np.stack(same_programs(lhs.data, rhs.data), axis=-1), lhs.dtype.scalar)


def _gather(self: Any, source: Any, indices: Any, axis: int) -> Any:
    data, positions = same_programs(source.data, indices.data)
    return Handle(np.take_along_axis(data, positions, axis=axis + 1 if axis >= 0 else axis), source.dtype.scalar)


class DeviceAssert(AssertionError):
    """A failed `tl.device_assert` in a batch."""


def _assert(self: Any, condition: Any, message: str) -> None:
    is_true = condition.data
    if programs.active is not None:
        is_true = programs.expand(is_true)[programs.active]
    if not is_true.all():
        raise DeviceAssert(f"{message}")


def _unsupported(name: str) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise Unsupported(name.removeprefix("create_"))

    return refuse


_UNSUPPORTED_METHODS = (  # some are missing in some releases of Triton
    *("create_atomic_rmw", "create_atomic_cas", "create_histogram", "create_print"),
    *("create_atomic_load", "create_atomic_store", "create_atomic_poll"),
    *("create_descriptor_gather", "create_descriptor_scatter"),
)
BUILDER_METHODS: Mapping[str, Callable[..., Any]] = {
    "create_get_program_id": lambda self, axis: Handle(programs.program_ids[axis], tl.int32),
    "create_make_range": _make_range,
    "create_splat": _splat,
    "create_unsplat": _unsplat,
    "create_reshape": _reshape,
    "create_trans": _trans,
    "create_broadcast": _broadcast,
    "create_cat": _cat,
    "create_join": _join,
    "create_gather": _gather,
    "create_assert": _assert,
    "create_assume": lambda self, condition: _assert(self, condition, "Assume failed"),
    **{
        name: _unsupported(name.removeprefix("create_"))
        for name in _UNSUPPORTED_METHODS
        if name in vars(shipped.InterpreterBuilder)
    },
}


def broadcast(x: Any, sizes: Sizes) -> Any:
    """`types.broadcast`."""
    if x.sizes == sizes:
        return x
    return types.make_tensor(_broadcast_block(x.handle.data, sizes), x.dtype, sizes)


def expand_dims(self: Any, value: Any, axis: int) -> Any:
    """`TritonSemantic.expand_dims`."""
    sizes = value.sizes
    axis = axis + len(sizes) + 1 if axis < 0 else axis
    sizes = (*sizes[:axis], 1, *sizes[axis:])
    data = value.handle.data.reshape(value.handle.data.shape[0], *sizes)
    return types.make_tensor(data, value.dtype, sizes)


def index_axes(original: Callable[..., Any]) -> Callable[..., Any]:
    """`tensor.__getitem__`, for whole axes and new axes only."""

    def getitem(self: Any, slices: Any) -> Any:
        if type(slices) is not tuple or not all(entry is None or entry == _WHOLE_AXIS for entry in slices):
            return original(self, slices)
        if len(slices) - slices.count(None) != len(self.sizes):
            return original(self, slices)
        axes = iter(self.sizes)
        sizes = tuple([1 if entry is None else next(axes) for entry in slices])
        data = self.handle.data
        return types.make_tensor(data.reshape(data.shape[0], *sizes), self.dtype, sizes)

    return getitem


_WHOLE_AXIS = slice(None)


def operand_values(original: Callable[..., Any]) -> Callable[..., Any]:
    """`operators.operand_values`."""

    def lifted(lhs: Any, rhs: Any, kinds: Any) -> Any:
        if programs.varying_loops and not lhs.sizes and lhs.dtype.is_int() and _is_float(rhs):
            # one program has a Python int here, and computes in float64
            raise Unsupported("a counter that differs between programs, and a float")
        operands = original(lhs, rhs, kinds)
        if operands is None or not getattr(operands[1], "ndim", 0) or operands[0].shape == operands[1].shape:
            return operands
        lhs_data, rhs_data, dtype, sizes = operands
        require_size((max(len(lhs_data), len(rhs_data)), *sizes))
        return lift(lhs_data, len(sizes)), lift(rhs_data, len(sizes)), dtype, sizes

    return lifted


def _is_float(value: Any) -> bool:
    return isinstance(getattr(value, "value", value), float)


def add_pointer_offsets(original: Callable[..., Any]) -> Callable[..., Any]:
    """`tensor.__add__`, for pointers."""

    def add_offsets(lhs: Any, rhs: Any) -> Any:
        n_bytes = types.pointee_bytes(lhs.dtype)
        if n_bytes is None or type(rhs) is not core.tensor or rhs.dtype.name not in operators.INTEGERS:
            return original(lhs, rhs)
        addresses, offsets, sizes = lhs.handle.data, rhs.handle.data, lhs.sizes
        if sizes != rhs.sizes:
            sizes = types.broadcast_sizes(sizes, rhs.sizes)
            if sizes is None:
                return original(lhs, rhs)
            addresses, offsets = lift(addresses, len(sizes)), lift(offsets, len(sizes))
        return types.make_tensor(addresses + offsets.astype(np.uint64) * n_bytes, lhs.dtype, sizes)

    return add_offsets


def where_blocks(original: Callable[..., Any]) -> Callable[..., Any]:
    """`tl.where`."""

    def lifted(condition: Any, x: Any, y: Any) -> Any:
        rank = max(len(t.sizes) for t in (condition, x, y) if type(t) is core.tensor)
        return original(*(_lift_tensor(t, rank) for t in (condition, x, y)))

    return lifted


def _lift_tensor(t: Any, rank: int) -> Any:
    if type(t) is not core.tensor or len(t.sizes) == rank:
        return t
    kind = type_of(t.dtype, (1,) * (rank - len(t.sizes)) + t.sizes)
    return core.tensor(Handle(lift(t.handle.data, rank), t.handle.dtype), kind)


def transpose(self: Any) -> Any:
    """`tensor.T`."""
    data = np.transpose(self.handle.data, (0, *range(self.handle.data.ndim - 1, 0, -1)))
    return core.tensor(Handle(data, self.handle.dtype), type_of(self.dtype, (*self.sizes[:-2], *self.sizes[:-3:-1])))


def index(self: Any) -> int:
    """`tensor.__index__`."""
    value = programs.uniform_value(self.handle.data)
    if value is None:
        raise Unsupported("an int that differs between programs")
    return int(value)


def truth(self: Any) -> bool:
    """`tensor.__bool__`."""
    if sys._getframe(1).f_globals["__name__"] == semantic.__name__:
        return True  # as in `repair`
    value = programs.uniform_value(self.handle.data)
    if value is None:
        raise Unsupported("a condition that differs between programs, outside of if, while, and, or")
    return bool(value)


def call_per_program(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of libdevice, called once per program. torch computes the end of an array by other code (not
    vectorized), so one array for all programs would have other bits."""

    def elementwise(*args: Any, _semantic: Any = None) -> Any:
        tensor_semantic = shipped.interpreter_semantic
        operands = [tensor_semantic.to_tensor(argument) for argument in args]
        for i in range(1, len(operands)):
            operands[0], operands[i] = tensor_semantic.broadcast_impl_value(operands[0], operands[i])
        count = max(operand.handle.data.shape[0] for operand in operands)
        results = [function(*[_program_part(operand, k) for operand in operands]) for k in range(count)]
        is_scalar = not results[0].sizes
        parts = [result.handle.data.reshape(-1)[:1] if is_scalar else result.handle.data[None] for result in results]
        return core.tensor(Handle(np.concatenate(parts), results[0].handle.dtype), results[0].type)

    return elementwise


def _program_part(t: Any, k: int) -> Any:
    """One program's part of a tensor, in the form of a tensor outside of batches."""
    data = t.handle.data
    row = data[k if data.shape[0] > 1 else 0]
    return core.tensor(Handle(row if t.sizes else row.reshape(1), t.handle.dtype), t.type)
