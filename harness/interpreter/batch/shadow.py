"""The memory of a launch in a batch: the sanitizer's shadow state, in one pass for all programs.

Each lane knows its program. Faults that do not depend on the order of programs are the same as in `Sanitizer`: an
access out of bounds, a read of unwritten memory, a store to an input, conflicting lanes of one store. If programs share
an element and one of them writes it, `Unsupported` is raised: the launch then runs one program after another, and
decides whether it is a race. So a completed batch has the reads and writes of any order of its programs.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from triton.runtime import interpreter as shipped

from packproof.harness.interpreter.batch.blocks import require_size
from packproof.harness.interpreter.batch.programs import Array, Flags, Unsupported, along, programs
from packproof.harness.interpreter.memory_guard import is_poison
from packproof.harness.interpreter.memory_map import MANY, NONE, Indices, MemoryMap, Region, Segment
from packproof.harness.interpreter.sanitizer import TORCH, Launch, itemsize_of, undefined
from packproof.harness.interpreter.types import Handle, Sizes, stretched

_SHARED = np.array([MANY])
_HELD = 2**21  # lanes, 16 MB


class Shadow(Launch):
    """The shadow state of a launch whose programs run together."""

    def __init__(self, kernel: str, memory: MemoryMap, read_only: Sequence[Region]) -> None:
        super().__init__(kernel, memory, read_only)
        self._held = 0  # lanes of loads that are not marked yet

    def read(self, access: "Access") -> None:
        for segment, lanes in self._bounded(access, "reads"):
            if self._is_input(segment):  # no program may write it
                continue
            cells, mine = segment.cells(access.addresses[lanes], access.itemsize), access.programs[lanes][:, None]
            if segment.written:
                _alone(segment.writer[cells], mine)
            _mark_read(segment, cells, mine)

    def gathered(self, segment: Segment, cells: Indices, lanes: Flags | None) -> None:
        """Record a plain read of cells. lanes: mask of the active lanes, None for all.

        The read is marked in `reader` later, before the next store: most cells are never written.
        """
        if self._is_input(segment):
            return
        linear = programs.linear if len(cells) == programs.count else _SHARED
        mine = along(linear, cells.ndim - 1)
        if segment.written:
            _alone(segment.writer.take(cells, mode="clip"), mine, lanes)
        segment.reads.append((cells, mine, lanes))
        self._held += cells.size
        if self._held > _HELD:
            for each in self.memory.segments:
                _mark_gathered(each)
            self._held = 0

    def scattered(self, segment: Segment, cells: Indices, mine: Array) -> bool:
        """Mark a store as written if it is plain. Returns whether it is: no cell is stored to twice, and no input of
        the op is in the segment. Values then need no comparison.

        lane_programs: the program of each cell.
        """
        if any(region.start < segment.end and segment.start < region.end for region in self.read_only):
            return False
        lane = np.arange(len(cells), dtype=np.int32)
        segment.written_at[cells] = lane
        if np.count_nonzero(segment.written_at.take(cells) != lane):
            return False
        _mark_gathered(segment)
        if segment.written:
            _alone(segment.writer.take(cells), mine)
        if segment.read:
            _alone(segment.reader.take(cells), mine)
        segment.written = True
        segment.writer[cells] = mine
        return True

    def write(self, access: "Access", values: Array) -> None:
        for segment, lanes in self._bounded(access, "writes"):
            addresses, mine = access.addresses[lanes], access.programs[lanes]
            self.program = int(mine[0])
            self._check_read_only(addresses)
            cells = segment.cells(addresses, access.itemsize)
            _mark_gathered(segment)
            self._agree(segment, cells, addresses, mine, values[lanes])
            _alone(segment.writer[cells], mine[:, None])
            _alone(segment.reader[cells], mine[:, None])
            segment.written = True
            segment.writer[cells] = mine[:, None]

    def _agree(self, segment: Segment, cells: Indices, addresses: Indices, mine: Array, values: Array) -> None:
        """Check lanes with a common element: they have to store the same bits."""
        lane = np.arange(len(cells), dtype=np.int32)[:, None]
        last = segment.written_at  # otherwise unused: a batch has no clocks
        last[cells] = lane
        lost = last[cells] != lane
        if not lost.any():
            return
        other = last[cells[lost]]
        bits = np.ascontiguousarray(values).view(f"u{values.itemsize}")
        here = np.broadcast_to(lane, cells.shape)[lost]
        clash = (bits[here] != bits[other]) | (addresses[here] != addresses[other])
        if (clash & (mine[here] != mine[other])).any():
            raise Unsupported("programs of one launch that store different values to one element")
        clash &= addresses[here] == addresses[other]
        if clash.any():
            clash_lane = here[clash][0]
            what = f"stores different values from two lanes of one store to {self._element(int(addresses[clash_lane]))}"
            self._fail_in(mine[clash_lane], what)

    def written_before(self, access: "Access", values: Array, kind: Any) -> None:
        """Raises KernelFault if an active lane has loaded poison."""
        if kind not in TORCH:
            return
        poisoned = np.asarray(is_poison(values.reshape(-1), TORCH[kind]))
        if not poisoned.any():
            return
        poisoned = poisoned[access.lanes]
        if poisoned.any():
            at = int(np.argmax(poisoned))
            element = self._element(int(access.addresses[at]))
            self._fail_in(access.programs[at], f"reads {element}, which was never written")

    def _bounded(self, access: "Access", verb: str) -> Any:
        """Each accessed segment with its lanes. Raises KernelFault for a lane out of bounds."""
        if not access.addresses.size:
            return
        for segment, lanes in self.memory.split(access.addresses):
            if segment is None:
                addresses, mine = access.addresses[lanes], access.programs[lanes]
                first = mine == mine[0]
                where, active = self.memory.describe_outside(int(addresses[0])), (access.programs == mine[0]).sum()
                self._fail_in(mine[0], f"{verb} {where} ({first.sum()} of {active} active lanes are out of bounds)")
            yield segment, lanes

    def _fail_in(self, program: int, what: str) -> None:
        self.program = int(programs.linear[0] if program == MANY else program)
        self._fail(what)


def _alone(others: Array, mine: Array, lanes: Flags | None = None) -> None:
    """Raises Unsupported if another program has accessed an element. Call it if one of both accesses is a write.

    accessors, lane_programs: program of the earlier and of the current access of each cell.
    lanes: mask of the active lanes, None for all.
    """
    foreign = (others != NONE) & (others != mine)
    if np.count_nonzero(foreign if lanes is None else foreign & lanes):
        raise Unsupported("programs of one launch share an element that one of them writes")


def _mark_read(segment: Segment, cells: Array, mine: Array) -> None:
    segment.read = True
    before = segment.reader[cells]
    now = np.where((before == NONE) | (before == mine), mine, MANY)
    segment.reader[cells] = now
    shared = segment.reader[cells] != now  # another program reads it in this very load
    segment.reader[cells[shared]] = MANY


def _mark_gathered(segment: Segment) -> None:
    """Mark the pending plain reads in `reader`. Their order does not matter, since nothing is written in between."""
    for cells, mine, lanes in segment.reads:
        each = np.broadcast_to(mine, cells.shape)
        if lanes is None:
            _mark_read(segment, cells.reshape(-1), each.reshape(-1))
        else:
            _mark_read(segment, cells[lanes], each[lanes])
    segment.reads.clear()


class Access:
    """The active lanes of a load or a store: addresses, programs, and positions among all lanes.

    If all programs read the same addresses, each lane occurs once, with the program SEVERAL_PROGRAMS.
    """

    def __init__(self, pointers: Array, mask: Array, shape: Sizes, itemsize: int) -> None:
        require_size(shape)
        self._shape, self.itemsize = shape, itemsize
        self.mask: Flags = stretched(mask.astype(bool, copy=False), shape)
        if programs.active is not None:
            self.mask = self.mask & along(programs.active, len(shape) - 1)
        self.lanes: Flags = self.mask.reshape(-1)
        self.pointers = _dense(stretched(pointers, shape))
        flat = self.pointers.reshape(-1).view(np.int64)
        self._all = bool(self.lanes.all())
        self.addresses: Indices = flat if self._all else flat[self.lanes]
        self._programs: Array | None = None

    @property
    def programs(self) -> Array:
        if self._programs is None:
            linear = programs.linear if self._shape[0] == programs.count else np.array([MANY])
            each = np.broadcast_to(along(linear.astype(np.int32), len(self._shape) - 1), self._shape).reshape(-1)
            self._programs = each if self._all else each[self.lanes]
        return self._programs


def load(shadow: Callable[[], Shadow]) -> Callable[..., Any]:
    """`create_masked_load` with checks."""

    def create_masked_load(self: Any, ptrs: Any, mask: Any, other: Any, *rest: Any, **hints: Any) -> Any:
        kind = ptrs.get_element_ty()
        given = [ptrs.data, mask.data] if other is None else [ptrs.data, mask.data, other.data]
        count = programs.count if programs.active is not None else max(data.shape[0] for data in given)
        shape = (count, *ptrs.data.shape[1:])
        access = Access(ptrs.data, mask.data, shape, itemsize_of(kind))
        shadow().read(access)
        if other is None:
            other = undefined((1,) * len(shape), kind)
        filled = _dense(stretched(other.data, shape))
        dtype = shipped._get_np_dtype(kind)
        data = shipped._interpreter.load(access.pointers, _dense(access.mask), filled, dtype)
        shadow().written_before(access, data, kind)
        return Handle(data, kind)

    return create_masked_load


def store(shadow: Callable[[], Shadow]) -> Callable[..., Any]:
    """`create_masked_store` with checks."""

    def create_masked_store(self: Any, ptrs: Any, value: Any, mask: Any, *rest: Any) -> Any:
        shape = (programs.count, *ptrs.data.shape[1:])  # one store for each program, even if all programs agree
        access = Access(ptrs.data, mask.data, shape, itemsize_of(ptrs.get_element_ty()))
        data = _dense(stretched(value.data, shape))
        shadow().write(access, data.reshape(-1)[access.lanes])
        return shipped._interpreter.store(access.pointers, data, _dense(access.mask))

    return create_masked_store


def _dense(data: Array) -> Array:
    """A writeable array in C order, as Triton's interpreter requires."""
    return data if data.flags.c_contiguous and data.flags.writeable else np.array(data, order="C")
