"""The programs of a batch, and the mask of active ones.

A handle has a leading axis: one element for each program, or a single one if all programs agree. Types have no such
axis. So a scalar is (programs,) or (1,), and a block of 16 x 16 is (programs, 16, 16) or (1, 16, 16).
"""

from typing import Any, TypeVar

import numpy as np
import triton.language as tl
from numpy.typing import NDArray
from triton.runtime import interpreter as shipped

from packproof.interpreter.types import Handle, broadcast_array, core

Array = NDArray[Any]
Flags = NDArray[np.bool_]
Value = TypeVar("Value", bound=np.generic)


class Unsupported(Exception):
    """A batch cannot run this: the launch starts again, one program after another."""


class TooLarge(Unsupported):
    """A block of all programs is too large: the launch starts again with smaller batches."""


class Programs:
    """A batch of programs of one launch, and the state of their control flow."""

    def __init__(self) -> None:
        self.begin(np.zeros(1, dtype=np.int64), (1, 1, 1))

    def begin(self, linear_ids: NDArray[np.int64], grid: tuple[int, ...]) -> None:
        """Start a batch. linear_ids: the linear indices of its programs in the grid."""
        self.linear_ids, self.count = linear_ids, len(linear_ids)
        """Linear indices of the programs in the grid, and their number."""
        self.program_ids = [index.astype(np.int32) for index in np.unravel_index(linear_ids, grid)]
        """`tl.program_id` for each axis."""
        for axis, size in enumerate(grid):
            if size == 1:
                self.program_ids[axis] = np.zeros(1, dtype=np.int32)
        self.active: Flags | None = None
        """Mask of the programs that run the current statement; None for all."""
        self.in_function: Flags | None = None
        """Mask of the programs in the current function; None for all."""
        self.has_returned: Flags | None = None
        """Mask of the programs that have returned from the current function; None for none."""
        self.varying_loops = 0
        """Number of enclosing loops with counters that differ between programs."""

    def uniform_value(self, data: Array) -> Any:
        """The common value of a scalar in all active programs. None if they differ, 0 if no program is active."""
        if data.size == 1:
            return data.reshape(-1)[0]
        if data.ndim != 1:
            raise TypeError("a block has no truth value: use & and | between masks, tl.where for if")
        if self.active is not None:
            data = data[self.active]
            if not data.size:
                return 0
        value = data[0]
        return value if (data == value).all() else None

    def expand(self, data: Array) -> Array:
        """The data with an element for each program."""
        return broadcast_array(data, (self.count, *data.shape[1:]))

    def active_where(self, data: Array) -> Flags:
        """Mask of the active programs with a true scalar."""
        is_true = self.expand(data.astype(bool))
        return is_true if self.active is None else is_true & self.active

    def is_idle(self) -> bool:
        """Whether no program is active."""
        return self.active is not None and not self.active.any()

    def resume(self, active: Flags | None) -> None:
        """Activate these programs (None for all), except for returned ones."""
        if self.has_returned is not None:
            active = ~self.has_returned if active is None else active & ~self.has_returned
        self.active = active

    def mark_returned(self, flags: Flags) -> None:
        """Mark programs as returned from the current function."""
        self.has_returned = flags if self.has_returned is None else self.has_returned | flags


programs = Programs()


def lift(data: Array, rank: int) -> Array:
    """Insert axes of size 1 after the axis of programs, up to a block of this rank."""
    missing = rank + 1 - data.ndim
    return data if missing <= 0 else data.reshape(data.shape[0], *(1,) * missing, *data.shape[1:])


def align_to_rank(values: NDArray[Value], rank: int) -> NDArray[Value]:
    """One value per program, with axes of size 1 to broadcast against blocks of this rank."""
    return values.reshape(-1, *(1,) * rank)


def select(flags: Flags, new: Any, old: Any) -> Any:
    """A variable with its new value in the flagged programs and its old value in the others.

    Raises Unsupported if no handle can hold both.
    """
    if new is old or old is UNDEFINED:
        return new
    if new is UNDEFINED:
        return old
    if isinstance(new, tuple | tl.tuple) and type(new) is type(old) and len(new) == len(old):
        values = [select(flags, n, o) for n, o in zip(new, old, strict=True)]
        return tl.tuple(values) if isinstance(new, tl.tuple) else tuple(values)
    if isinstance(new, core.tensor) != isinstance(old, core.tensor):
        new, old = _as_tensor(new), _as_tensor(old)
    if not isinstance(new, core.tensor):
        new, old = getattr(new, "value", new), getattr(old, "value", old)
        if type(new) is type(old) and type(new) in (int, float, bool, str) and new == old:
            return new
        raise Unsupported("a Python value that differs between programs")
    if new.type != old.type or type(new.handle) is not Handle or type(old.handle) is not Handle:
        raise Unsupported(f"{new.type} in some programs, {old.type} in others")
    rank = len(new.sizes)
    new_data, old_data = new.handle.data, old.handle.data
    if rank and not _has_merge_order(new_data, old_data):
        # numpy's order of summation follows memory: other strides, other bits
        raise Unsupported("blocks that lie differently in memory")
    selection = np.where(align_to_rank(flags, rank), new_data, old_data)
    return core.tensor(Handle(selection, new.handle.dtype), new.type)


def _as_tensor(value: Any) -> Any:
    """A Python int or bool as a tensor with the same behaviour.

    Raises Unsupported for others: a negative int divides differently, a float has float64 precision.
    """
    if isinstance(value, core.tensor) or (isinstance(value, int) and 0 <= value < 2**31):
        return to_tensor(value)
    raise Unsupported("a Python value in some programs, a tensor in others")


def _has_merge_order(lhs: Array, rhs: Array) -> bool:
    """Whether two blocks have the memory order of their `np.where`."""
    steps = [(a, b) for a, b, size in zip(lhs.strides[1:], rhs.strides[1:], lhs.shape[1:], strict=True) if size > 1]
    return all(a >= 0 and b >= 0 for a, b in steps) and (len(steps) < 2 or all(a == b and a > 0 for a, b in steps))


class _Undefined:
    """The value of an unassigned variable."""


UNDEFINED = _Undefined()


def to_tensor(value: Any, check: bool = True) -> Any:
    return value if type(value) is core.tensor else shipped.interpreter_semantic.to_tensor(value, check)
