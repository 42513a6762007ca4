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

from packproof.harness.interpreter.batch.programs import Array, Flags, along, lift, programs
from packproof.harness.interpreter.batch.shadow import Shadow
from packproof.harness.interpreter.floats import float32_to_bfloat16
from packproof.harness.interpreter.memory_guard import POISON
from packproof.harness.interpreter.memory_map import Segment
from packproof.harness.interpreter.sanitizer import TORCH, undefined
from packproof.harness.interpreter.types import core, joint, made, stretched

_HINTS = {  # they change the speed only
    "eviction_policy": {"", "evict_first", "evict_last"},
    "cache_modifier": {"", ".ca", ".cg", ".wb"},
}


@dataclass(frozen=True)
class _Kind:
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
class _Lanes:
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
        def plain_first(pointer: Any, mask: Any = None, other: Any = None, *rest: Any, **hints: Any) -> Any:
            kind = None if rest else _kind(pointer, mask, hints)
            if kind is not None:
                filling = kind.undefined if other is None else _block(other, pointer, kind)
                values = None if filling is None else _loaded(shadow(), pointer, mask, filling, kind)
                if values is not None and (mask is not None or other is None):
                    return made(values, kind.dtype, pointer.sizes)
            return original(pointer, mask, other, *rest, **hints)

        return plain_first

    return make


def store(shadow: Callable[[], Shadow]) -> Callable[[Any], Any]:
    """`tl.store`."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def plain_first(pointer: Any, value: Any, mask: Any = None, *rest: Any, **hints: Any) -> Any:
            kind = None if rest else _kind(pointer, mask, hints)
            block = None if kind is None else _block(value, pointer, kind)
            if kind is None or block is None or not _stored(shadow(), pointer, block, mask, kind):
                return original(pointer, value, mask, *rest, **hints)
            return None

        return plain_first

    return make


def _kind(pointer: Any, mask: Any, hints: Mapping[str, Any]) -> _Kind | None:
    """The element type of a load or store. None if its types are not plain."""
    if type(pointer) is not core.tensor or (mask is not None and not _fits(mask, pointer, "int1")):
        return None
    if hints and not all(type(value) is str and value in _HINTS.get(name, ()) for name, value in hints.items()):
        return None
    return _KINDS.get(pointer.dtype.name)


def _fits(block: Any, pointer: Any, dtype: str) -> bool:
    """Whether this is a tensor of the dtype, and broadcasts to the shape of the pointer."""
    if type(block) is not core.tensor or block.dtype.name != dtype:
        return False
    return bool(block.sizes == pointer.sizes or joint(block.sizes, pointer.sizes) == pointer.sizes)


def _block(value: Any, pointer: Any, kind: _Kind) -> Any:
    """Values for the lanes of a pointer. None: take Triton's own path."""
    if type(value) is core.tensor:
        return lift(value.handle.data, len(pointer.sizes)) if _fits(value, pointer, kind.dtype.name) else None
    value = value.value if type(value) is core.constexpr else value
    return kind.constants.get(value) if type(value) in (int, float) else None


def _loaded(shadow: Shadow, pointer: Any, mask: Any, filling: Any, kind: _Kind) -> Array | None:
    """The values of a plain load, for each program. None if the load is not plain."""
    active = _active(mask, len(pointer.sizes))
    lanes = _lanes(shadow, pointer.handle.data, active, kind)
    if lanes is None:
        return None
    values: Array = lanes.segment.bits.view(kind.values).take(lanes.index, mode="clip")
    if lanes.active is not None:
        np.copyto(values, filling, where=~lanes.active)
    if np.count_nonzero(values.view(kind.bits) == kind.poison):
        return None
    shadow.gathered(lanes.segment, lanes.index, lanes.active)
    return values


def _stored(shadow: Shadow, pointer: Any, values: Any, mask: Any, kind: _Kind) -> bool:
    """Do a store if it is plain. Returns whether it was done."""
    shape = (programs.count, *pointer.sizes)  # one store for each program, even if all programs agree
    lanes = _lanes(shadow, stretched(pointer.handle.data, shape), _active(mask, len(pointer.sizes)), kind)
    if lanes is None:
        return False
    mine = stretched(along(programs.linear, len(pointer.sizes)), shape)
    values = stretched(values, shape)
    if lanes.active is not None:
        cells, mine, values = lanes.index[lanes.active], mine[lanes.active], values[lanes.active]
    else:
        cells, mine, values = lanes.index.reshape(-1), mine.reshape(-1), values.reshape(-1)
    if not shadow.scattered(lanes.segment, cells, mine):
        return False
    lanes.segment.bits.view(kind.values)[cells] = values
    return True


def _active(mask: Any, rank: int) -> Flags | None:
    """The mask of active lanes; None if all are active."""
    if mask is None:
        return None if programs.active is None else along(programs.active, rank)
    data = lift(mask.handle.data, rank)
    return data if programs.active is None else data & along(programs.active, rank)


def _lanes(shadow: Shadow, addresses: Array, active: Flags | None, kind: _Kind) -> _Lanes | None:
    """The lanes of a plain access. None if the access is not plain."""
    if active is not None and active.shape != addresses.shape:
        addresses = stretched(addresses, (max(len(addresses), len(active)), *addresses.shape[1:]))
        active = stretched(active, addresses.shape)
    segment = shadow.memory.dense_around(addresses.item(0 if active is None else active.argmax()))
    if segment is None or segment.cell != kind.values.itemsize:
        return None
    offsets = addresses - np.uint64(segment.start)
    index = offsets >> kind.shift
    inside = (index < np.uint64(segment.count)) & (index << kind.shift == offsets)
    count = np.count_nonzero(inside if active is None else inside & active)
    if count != (inside.size if active is None else np.count_nonzero(active)):
        return None
    return _Lanes(segment, index.view(np.int64), None if count == inside.size else active)


def _of(dtype: Any) -> _Kind:
    values = np.dtype(shipped._get_np_dtype(dtype))
    bits = np.dtype(f"i{values.itemsize}")
    floating = dtype in (tl.float64, tl.float32, tl.float16, tl.bfloat16)
    numbers = (0, 1, *((float("inf"), float("-inf")) if floating else ()))

    def value(number: float) -> Any:
        return float32_to_bfloat16(np.array(number, np.float32)) if dtype == tl.bfloat16 else values.type(number)

    shift, poison = np.uint64(values.itemsize.bit_length() - 1), bits.type(POISON[TORCH[dtype]])
    return _Kind(dtype, values, bits, shift, poison, undefined((), dtype).data, {n: value(n) for n in numbers})


_KINDS: Mapping[str, _Kind] = {tl.pointer_type(dtype).name: _of(dtype) for dtype in TORCH}
