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

from packproof.interpreter.batch.blocks import require_size
from packproof.interpreter.batch.programs import Array, Flags, Unsupported, align_to_rank, programs
from packproof.interpreter.memory_guard import is_poison
from packproof.interpreter.memory_map import NO_PROGRAM, SEVERAL_PROGRAMS, Indices, MemoryMap, Region, Segment
from packproof.interpreter.sanitizer import TORCH, Launch, itemsize_of, undefined_values
from packproof.interpreter.types import Handle, Sizes, broadcast_array

_SEVERAL = np.array([SEVERAL_PROGRAMS])
_MAX_PENDING_LANES = 2**21  # lanes, 16 MB


class Shadow(Launch):
    """The shadow state of a launch whose programs run together."""

    def __init__(
        self, kernel: str, memory: MemoryMap, read_only: Sequence[Region], loads_unwritten_floats: bool = False
    ) -> None:
        super().__init__(kernel, memory, read_only, loads_unwritten_floats)
        self._pending_lanes = 0  # lanes of loads that are not marked yet

    def record_read(self, access: "Access") -> None:
        for segment, lanes in self._in_bounds(access, "reads"):
            if self._is_input(segment):  # no program may write it
                continue
            cells, lane_programs = (
                segment.cells(access.addresses[lanes], access.itemsize),
                access.programs[lanes][:, None],
            )
            if segment.has_writes:
                _require_exclusive(segment.writer[cells], lane_programs)
            _mark_read(segment, cells, lane_programs)

    def record_plain_read(self, segment: Segment, cells: Indices, lanes: Flags | None) -> None:
        """Record a plain read of cells. lanes: mask of the active lanes, None for all.

        The read is marked in `reader` later, before the next store: most cells are never written.
        """
        if self._is_input(segment):
            return
        linear = programs.linear_ids if len(cells) == programs.count else _SEVERAL
        lane_programs = align_to_rank(linear, cells.ndim - 1)
        if segment.has_writes:
            _require_exclusive(segment.writer.take(cells, mode="clip"), lane_programs, lanes)
        segment.pending_reads.append((cells, lane_programs, lanes))
        self._pending_lanes += cells.size
        if self._pending_lanes > _MAX_PENDING_LANES:
            for pending_segment in self.memory.segments:
                _mark_pending_reads(pending_segment)
            self._pending_lanes = 0

    def try_plain_write(self, segment: Segment, cells: Indices, lane_programs: Array) -> bool:
        """Mark a store as written if it is plain. Returns whether it is: no cell is stored to twice, and no input of
        the op is in the segment. Values then need no comparison.

        lane_programs: the program of each cell.
        """
        if any(region.start < segment.end and segment.start < region.end for region in self.read_only):
            return False
        lane = np.arange(len(cells), dtype=np.int32)
        segment.write_clock[cells] = lane
        if np.count_nonzero(segment.write_clock.take(cells) != lane):
            return False
        _mark_pending_reads(segment)
        if segment.has_writes:
            _require_exclusive(segment.writer.take(cells), lane_programs)
        if segment.has_reads:
            _require_exclusive(segment.reader.take(cells), lane_programs)
        segment.has_writes = True
        segment.writer[cells] = lane_programs
        return True

    def record_write(self, access: "Access", values: Array) -> None:
        for segment, lanes in self._in_bounds(access, "writes"):
            addresses, lane_programs = access.addresses[lanes], access.programs[lanes]
            self.program = int(lane_programs[0])
            self._check_read_only(addresses)
            cells = segment.cells(addresses, access.itemsize)
            _mark_pending_reads(segment)
            self._check_same_bits(segment, cells, addresses, lane_programs, values[lanes])
            _require_exclusive(segment.writer[cells], lane_programs[:, None])
            _require_exclusive(segment.reader[cells], lane_programs[:, None])
            segment.has_writes = True
            segment.writer[cells] = lane_programs[:, None]

    def _check_same_bits(
        self, segment: Segment, cells: Indices, addresses: Indices, lane_programs: Array, values: Array
    ) -> None:
        """Check lanes with a common element: they have to store the same bits."""
        lane = np.arange(len(cells), dtype=np.int32)[:, None]
        last_lane = segment.write_clock  # otherwise unused: a batch has no clocks
        last_lane[cells] = lane
        is_overwritten = last_lane[cells] != lane
        if not is_overwritten.any():
            return
        later_lane = last_lane[cells[is_overwritten]]
        bits = np.ascontiguousarray(values).view(f"u{values.itemsize}")
        earlier_lane = np.broadcast_to(lane, cells.shape)[is_overwritten]
        is_conflict = (bits[earlier_lane] != bits[later_lane]) | (addresses[earlier_lane] != addresses[later_lane])
        if (is_conflict & (lane_programs[earlier_lane] != lane_programs[later_lane])).any():
            raise Unsupported("programs of one launch that store different values to one element")
        is_conflict &= addresses[earlier_lane] == addresses[later_lane]
        if is_conflict.any():
            clash_lane = earlier_lane[is_conflict][0]
            message = (
                f"stores different values from two lanes of one store to {self._element(int(addresses[clash_lane]))}"
            )
            self._fail_in(lane_programs[clash_lane], message)

    def check_loaded(self, access: "Access", values: Array, kind: Any) -> None:
        """Raises KernelFault if an active lane has loaded poison."""
        if kind not in TORCH or self.may_be_unwritten(kind):
            return
        is_poisoned = np.asarray(is_poison(values.reshape(-1), TORCH[kind]))
        if not is_poisoned.any():
            return
        is_poisoned = is_poisoned[access.lanes]
        if is_poisoned.any():
            i_lane = int(np.argmax(is_poisoned))
            self._enter_program(access.programs[i_lane])
            self._fail_unwritten(int(access.addresses[i_lane]), kind)

    def _in_bounds(self, access: "Access", verb: str) -> Any:
        """Each accessed segment with its lanes. Raises KernelFault for a lane out of bounds."""
        if not access.addresses.size:
            return
        for segment, lanes in self.memory.split(access.addresses):
            if segment is None:
                addresses, lane_programs = access.addresses[lanes], access.programs[lanes]
                is_same_program = lane_programs == lane_programs[0]
                location, n_active = (
                    self.memory.describe_outside(int(addresses[0])),
                    (access.programs == lane_programs[0]).sum(),
                )
                self._fail_in(
                    lane_programs[0],
                    f"{verb} {location} ({is_same_program.sum()} of {n_active} active lanes are out of bounds)",
                )
            yield segment, lanes

    def _fail_in(self, program: int, message: str) -> None:
        self._enter_program(program)
        self._fail(message)

    def _enter_program(self, program: int) -> None:
        self.program = int(programs.linear_ids[0] if program == SEVERAL_PROGRAMS else program)


def _require_exclusive(accessors: Array, lane_programs: Array, lanes: Flags | None = None) -> None:
    """Raises Unsupported if another program has accessed an element. Call it if one of both accesses is a write.

    accessors, lane_programs: program of the earlier and of the current access of each cell.
    lanes: mask of the active lanes, None for all.
    """
    is_shared = (accessors != NO_PROGRAM) & (accessors != lane_programs)
    if np.count_nonzero(is_shared if lanes is None else is_shared & lanes):
        raise Unsupported("programs of one launch share an element that one of them writes")


def _mark_read(segment: Segment, cells: Array, lane_programs: Array) -> None:
    segment.has_reads = True
    previous = segment.reader[cells]
    current = np.where((previous == NO_PROGRAM) | (previous == lane_programs), lane_programs, SEVERAL_PROGRAMS)
    segment.reader[cells] = current
    shared = segment.reader[cells] != current  # another program reads it in this very load
    segment.reader[cells[shared]] = SEVERAL_PROGRAMS


def _mark_pending_reads(segment: Segment) -> None:
    """Mark the pending plain reads in `reader`. Their order does not matter, since nothing is written in between."""
    for cells, readers, lanes in segment.pending_reads:
        lane_readers = np.broadcast_to(readers, cells.shape)
        if lanes is None:
            _mark_read(segment, cells.reshape(-1), lane_readers.reshape(-1))
        else:
            _mark_read(segment, cells[lanes], lane_readers[lanes])
    segment.pending_reads.clear()


class Access:
    """The active lanes of a load or a store: addresses, programs, and positions among all lanes.

    If all programs read the same addresses, each lane occurs once, with the program SEVERAL_PROGRAMS.
    """

    def __init__(self, pointers: Array, mask: Array, shape: Sizes, itemsize: int) -> None:
        require_size(shape)
        self._shape, self.itemsize = shape, itemsize
        self.mask: Flags = broadcast_array(mask.astype(bool, copy=False), shape)
        if programs.active is not None:
            self.mask = self.mask & align_to_rank(programs.active, len(shape) - 1)
        self.lanes: Flags = self.mask.reshape(-1)
        self.pointers = _writable_c_order(broadcast_array(pointers, shape))
        flat = self.pointers.reshape(-1).view(np.int64)
        self._all_active = bool(self.lanes.all())
        self.addresses: Indices = flat if self._all_active else flat[self.lanes]
        self._programs: Array | None = None

    @property
    def programs(self) -> Array:
        if self._programs is None:
            linear = programs.linear_ids if self._shape[0] == programs.count else np.array([SEVERAL_PROGRAMS])
            lane_programs = np.broadcast_to(
                align_to_rank(linear.astype(np.int32), len(self._shape) - 1), self._shape
            ).reshape(-1)
            self._programs = lane_programs if self._all_active else lane_programs[self.lanes]
        return self._programs


def load(shadow: Callable[[], Shadow]) -> Callable[..., Any]:
    """`create_masked_load` with checks."""

    def create_masked_load(self: Any, ptrs: Any, mask: Any, other: Any, *args: Any, **hints: Any) -> Any:
        kind = ptrs.get_element_ty()
        arrays = [ptrs.data, mask.data] if other is None else [ptrs.data, mask.data, other.data]
        count = programs.count if programs.active is not None else max(data.shape[0] for data in arrays)
        shape = (count, *ptrs.data.shape[1:])
        access = Access(ptrs.data, mask.data, shape, itemsize_of(kind))
        shadow().record_read(access)
        if other is None:
            other = undefined_values((1,) * len(shape), kind)
        fill_values = _writable_c_order(broadcast_array(other.data, shape))
        dtype = shipped._get_np_dtype(kind)
        data = shipped._interpreter.load(access.pointers, _writable_c_order(access.mask), fill_values, dtype)
        shadow().check_loaded(access, data, kind)
        return Handle(data, kind)

    return create_masked_load


def store(shadow: Callable[[], Shadow]) -> Callable[..., Any]:
    """`create_masked_store` with checks."""

    def create_masked_store(self: Any, ptrs: Any, value: Any, mask: Any, *args: Any) -> Any:
        shape = (programs.count, *ptrs.data.shape[1:])  # one store for each program, even if all programs agree
        access = Access(ptrs.data, mask.data, shape, itemsize_of(ptrs.get_element_ty()))
        data = _writable_c_order(broadcast_array(value.data, shape))
        shadow().record_write(access, data.reshape(-1)[access.lanes])
        return shipped._interpreter.store(access.pointers, data, _writable_c_order(access.mask))

    return create_masked_store


def _writable_c_order(data: Array) -> Array:
    """A writeable array in C order, as Triton's interpreter requires."""
    return data if data.flags.c_contiguous and data.flags.writeable else np.array(data, order="C")
