"""Plain loads and stores of a batch, straight from and to the memory of a tensor.

An access is plain if addresses and values have common types, and all active lanes lie aligned in one tensor without
gaps. A plain load reads only written memory. A plain store meets no other lane and no input of the op. All other
accesses, and so all faults, are left to `shadow`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter as shipped

from packproof.interpreter.batch.programs import Array, Flags, align_to_rank, lift, programs
from packproof.interpreter.batch.shadow import Shadow
from packproof.interpreter.floats import float32_to_bfloat16
from packproof.interpreter.memory_guard import POISON
from packproof.interpreter.memory_map import Segment
from packproof.interpreter.sanitizer import TORCH, undefined_values
from packproof.interpreter.types import broadcast_array, broadcast_sizes, core, make_tensor

_SPEED_HINTS = {  # they change the speed only
    "eviction_policy": {"", "evict_first", "evict_last"},
    "cache_modifier": {"", ".ca", ".cg", ".wb"},
}


@dataclass(frozen=True)
class _ElementType:
    """An element type in memory."""

    dtype: Any
    """Triton's dtype."""
    values: Any
    """numpy's dtype of the values."""
    bits: Any
    """numpy's integer of the same size."""
    shift: Any
    """log2 of the bytes of an element."""
    poison: Any
    """The poison pattern, as an integer."""
    undefined: Any
    """The value of a lane masked out of a load without `other=`."""
    constants: Mapping[Any, Any]
    """Python numbers as values of this type: 0, 1 and, for floats, the infinities."""


@dataclass
class _PlainLanes:
    """The lanes of a plain access."""

    segment: Segment
    """The segment of all active lanes."""
    index: Array
    """Position of each lane in the segment; arbitrary for inactive lanes."""
    active: Flags | None
    """Mask of the active lanes, None if all are active."""


def load(shadow: Callable[[], Shadow]) -> Callable[[Any], Any]:
    """`tl.load`."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def fast_load(pointer: Any, mask: Any = None, other: Any = None, *args: Any, **hints: Any) -> Any:
            kind = None if args else _plain_element_type(pointer, mask, hints)
            if kind is not None:
                fill_values = kind.undefined if other is None else _lane_values(other, pointer, kind)
                values = None if fill_values is None else _try_load(shadow(), pointer, mask, fill_values, kind)
                if values is not None and (mask is not None or other is None):
                    return make_tensor(values, kind.dtype, pointer.sizes)
            return original(pointer, mask, other, *args, **hints)

        return fast_load

    return make


def store(shadow: Callable[[], Shadow]) -> Callable[[Any], Any]:
    """`tl.store`."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def fast_store(pointer: Any, value: Any, mask: Any = None, *args: Any, **hints: Any) -> Any:
            kind = None if args else _plain_element_type(pointer, mask, hints)
            block = None if kind is None else _lane_values(value, pointer, kind)
            if kind is None or block is None or not _try_store(shadow(), pointer, block, mask, kind):
                return original(pointer, value, mask, *args, **hints)
            return None

        return fast_store

    return make


def _plain_element_type(pointer: Any, mask: Any, hints: Mapping[str, Any]) -> _ElementType | None:
    """The element type of a load or store. None if its types are not plain."""
    if type(pointer) is not core.tensor or (mask is not None and not _has_dtype_and_shape(mask, pointer, "int1")):
        return None
    if hints and not all(type(value) is str and value in _SPEED_HINTS.get(name, ()) for name, value in hints.items()):
        return None
    return _ELEMENT_TYPES.get(pointer.dtype.name)


def _has_dtype_and_shape(block: Any, pointer: Any, dtype: str) -> bool:
    """Whether this is a tensor of the dtype, and broadcasts to the shape of the pointer."""
    if type(block) is not core.tensor or block.dtype.name != dtype:
        return False
    return bool(block.sizes == pointer.sizes or broadcast_sizes(block.sizes, pointer.sizes) == pointer.sizes)


def _lane_values(value: Any, pointer: Any, kind: _ElementType) -> Any:
    """Values for the lanes of a pointer. None: take Triton's own path."""
    if type(value) is core.tensor:
        return (
            lift(value.handle.data, len(pointer.sizes))
            if _has_dtype_and_shape(value, pointer, kind.dtype.name)
            else None
        )
    value = value.value if type(value) is core.constexpr else value
    return kind.constants.get(value) if type(value) in (int, float) else None


def _try_load(shadow: Shadow, pointer: Any, mask: Any, fill_values: Any, kind: _ElementType) -> Array | None:
    """The values of a plain load, for each program. None if the load is not plain."""
    active = _active_lanes(mask, len(pointer.sizes))
    lanes = _plain_lanes(shadow, pointer.handle.data, active, kind)
    if lanes is None:
        return None
    values: Array = lanes.segment.bits.view(kind.values).take(lanes.index, mode="clip")
    if lanes.active is not None:
        np.copyto(values, fill_values, where=~lanes.active)
    if np.count_nonzero(values.view(kind.bits) == kind.poison):
        return None
    shadow.record_plain_read(lanes.segment, lanes.index, lanes.active)
    return values


def _try_store(shadow: Shadow, pointer: Any, values: Any, mask: Any, kind: _ElementType) -> bool:
    """Do a store if it is plain. Returns whether it was done."""
    shape = (programs.count, *pointer.sizes)  # one store for each program, even if all programs agree
    lanes = _plain_lanes(
        shadow, broadcast_array(pointer.handle.data, shape), _active_lanes(mask, len(pointer.sizes)), kind
    )
    if lanes is None:
        return False
    lane_programs = broadcast_array(align_to_rank(programs.linear_ids, len(pointer.sizes)), shape)
    values = broadcast_array(values, shape)
    if lanes.active is not None:
        cells, lane_programs, values = lanes.index[lanes.active], lane_programs[lanes.active], values[lanes.active]
    else:
        cells, lane_programs, values = lanes.index.reshape(-1), lane_programs.reshape(-1), values.reshape(-1)
    if not shadow.try_plain_write(lanes.segment, cells, lane_programs):
        return False
    lanes.segment.bits.view(kind.values)[cells] = values
    return True


def _active_lanes(mask: Any, rank: int) -> Flags | None:
    """The mask of active lanes; None if all are active."""
    if mask is None:
        return None if programs.active is None else align_to_rank(programs.active, rank)
    data = lift(mask.handle.data, rank)
    return data if programs.active is None else data & align_to_rank(programs.active, rank)


def _plain_lanes(shadow: Shadow, addresses: Array, active: Flags | None, kind: _ElementType) -> _PlainLanes | None:
    """The lanes of a plain access. None if the access is not plain."""
    if active is not None and active.shape != addresses.shape:
        addresses = broadcast_array(addresses, (max(len(addresses), len(active)), *addresses.shape[1:]))
        active = broadcast_array(active, addresses.shape)
    segment = shadow.memory.dense_segment(addresses.item(0 if active is None else active.argmax()))
    if segment is None or segment.cell_bytes != kind.values.itemsize:
        return None
    offsets = addresses - np.uint64(segment.start)
    index = offsets >> kind.shift
    is_inside = (index < np.uint64(segment.n_cells)) & (index << kind.shift == offsets)
    count = np.count_nonzero(is_inside if active is None else is_inside & active)
    if count != (is_inside.size if active is None else np.count_nonzero(active)):
        return None
    return _PlainLanes(segment, index.view(np.int64), None if count == is_inside.size else active)


def _element_type(dtype: Any) -> _ElementType:
    values = np.dtype(shipped._get_np_dtype(dtype))
    bits = np.dtype(f"i{values.itemsize}")
    floating = dtype in (tl.float64, tl.float32, tl.float16, tl.bfloat16)
    numbers = (0, 1, *((float("inf"), float("-inf")) if floating else ()))

    def value(number: float) -> Any:
        return float32_to_bfloat16(np.array(number, np.float32)) if dtype == tl.bfloat16 else values.type(number)

    shift, poison = np.uint64(values.itemsize.bit_length() - 1), bits.type(POISON[TORCH[dtype]])
    return _ElementType(
        dtype, values, bits, shift, poison, undefined_values((), dtype).data, {n: value(n) for n in numbers}
    )


_ELEMENT_TYPES: Mapping[str, _ElementType] = {tl.pointer_type(dtype).name: _element_type(dtype) for dtype in TORCH}
