"""A memory sanitizer for Triton kernels in the interpreter: it sees every load, store and atomic of every program.

Reported as `KernelFault("memory", ...)`:

- an access outside the tensors passed to the launch;
- a read of memory that was never written (the poison of `memory_guard.py`), unless floats may be;
- a store to an input of the op;
- unordered accesses to one element by two lanes of one store, or by two programs of one launch;
- a plain access to an element changed atomically by another program;
- a grid too large for any GPU.

Undefined behaviour of a GPU is made visible: lanes masked out of a load without `other=` become NaN, and programs may
run in any order.

Programs run one after another, so races are detected by the accesses of programs, not by timing (vector clocks as in
FastTrack, Flanagan & Freund 2009). An atomic on a single element with release and acquire semantics is a
happens-before edge: all accesses before it in one program come before all accesses after it in another. So locks and
"the last program adds up the partial sums" are not races. Stores of equal bits do not conflict.
"""

import random
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Literal, NoReturn, Self

import numpy as np
import torch
import triton.language as tl
from numpy.typing import NDArray
from torch import Tensor
from triton.runtime import interpreter as shipped

from packproof.base.errors import KernelFault, UnwrittenReadError
from packproof.interpreter.memory_guard import is_poison
from packproof.interpreter.memory_map import (
    NO_PROGRAM,
    SEVERAL_PROGRAMS,
    Indices,
    Lanes,
    MemoryMap,
    Region,
    Segment,
    regions_of,
)
from packproof.interpreter.patch import temporary_replacement

Order = Literal["forward", "reverse", "shuffle"]

TORCH = {
    tl.float64: torch.float64,
    tl.float32: torch.float32,
    tl.float16: torch.float16,
    tl.bfloat16: torch.bfloat16,
    tl.int64: torch.int64,
    tl.int32: torch.int32,
}
_NO_ORDER = "programs of one launch have no order"
_GRID_LIMIT = (2**31 - 1, 65535, 65535)  # CUDA's, per axis


class Sanitizer:
    """Watches the Triton launches inside a with block, forward and backward. Needs `repair.install()`.

    read_only: tensors that no kernel may store to, such as the inputs of the op.
    order: order of the programs of a launch.
    seed: seed of the order "shuffle".
    loads_unwritten_floats: whether a load of floats that were never written is no fault: it may discard them.

    `launches` counts the launches. The first fault ends its launch. If the code in the block swallows the fault, the
    end of the block raises it again.
    """

    def __init__(
        self,
        read_only: Iterable[Tensor] = (),
        order: Order = "forward",
        seed: int = 0,
        *,
        loads_unwritten_floats: bool = False,
    ) -> None:
        self.launches = 0
        self._loads_unwritten_floats = loads_unwritten_floats
        self._read_only = [Region("an input of the op", tensor) for tensor in read_only if tensor.numel()]
        self._order = order
        self._random = random.Random(seed)
        self._fault: KernelFault | None = None
        self._patches = ExitStack()
        self._launch: Launch | None = None

    def __enter__(self) -> Self:
        builder = shipped.InterpreterBuilder
        for owner, name, make in (
            (shipped.GridExecutor, "__call__", self._watch_launch),
            (builder, "set_grid_dim", self._watch_grid),
            (builder, "set_grid_idx", self._watch_program),
            (builder, "create_masked_load", self._watch_load),
            (builder, "create_masked_store", self._watch_store),
            (builder, "create_atomic_rmw", self._watch_atomic_rmw),
            (builder, "create_atomic_cas", self._watch_atomic_cas),
        ):
            self._patches.enter_context(temporary_replacement(owner, name, make))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._patches.close()
        if self._fault is not None and error is not self._fault:
            raise self._fault

    def _current_launch(self) -> "Launch":
        assert self._launch is not None
        return self._launch

    def _watch_launch(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def launch(executor: Any, *args: Any, **kwargs: Any) -> Any:
            self.launches += 1
            return self._run(original, executor, args, kwargs)

        return launch

    def _run(self, original: Callable[..., Any], executor: Any, args: Any, kwargs: Any) -> Any:
        """Run the programs of a launch one after another."""
        arguments = {**dict(zip(executor.arg_names, args, strict=False)), **kwargs}
        regions = regions_of(dict(tensors_of(arguments.items())))
        self._launch = Launch(executor.fn.__name__, MemoryMap(regions), self._read_only, self._loads_unwritten_floats)
        try:
            return original(executor, *args, **kwargs)
        except KernelFault as fault:
            self._fault = self._fault or fault
            raise
        finally:
            self._launch = None

    def _watch_grid(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def set_grid_dim(builder: Any, *grid: int) -> Any:
            launch = self._current_launch()
            launch.grid = grid
            for axis, (size, limit) in enumerate(zip(grid, _GRID_LIMIT, strict=True)):
                if size > limit:
                    message = f"grid {grid} has more than {limit} programs on axis {axis}, no GPU can launch it"
                    raise KernelFault("memory", f"{launch.kernel}: {message}")
            launch.order = list(range(grid[0] * grid[1] * grid[2]))
            if self._order == "reverse":
                launch.order.reverse()
            elif self._order == "shuffle":
                self._random.shuffle(launch.order)
            return original(builder, *grid)

        return set_grid_dim

    def _watch_program(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def set_grid_idx(builder: Any, x: int, y: int, z: int) -> Any:
            launch = self._current_launch()
            _, ny, nz = launch.grid
            launch.program = launch.order[(x * ny + y) * nz + z]
            return original(builder, *launch.coordinates(launch.program))

        return set_grid_idx

    def _watch_load(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def create_masked_load(builder: Any, ptrs: Any, mask: Any, other: Any, *args: Any, **hints: Any) -> Any:
            launch, kind = self._current_launch(), ptrs.get_element_ty()
            addresses, lanes = _addresses(ptrs, mask)
            launch.load(addresses, itemsize_of(kind))
            if other is None and not lanes.all():
                other = undefined_values(ptrs.data.shape, kind)
            values = original(builder, ptrs, mask, other, *args, **hints)
            if not launch.may_be_unwritten(kind):
                launch.check_written(addresses, values.data.reshape(-1)[lanes], kind)
            return values

        return create_masked_load

    def _watch_store(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def create_masked_store(builder: Any, ptrs: Any, value: Any, mask: Any, *args: Any) -> Any:
            addresses, lanes = _addresses(ptrs, mask)
            values = np.broadcast_to(value.data, ptrs.data.shape).reshape(-1)[lanes]
            self._current_launch().store(addresses, values, itemsize_of(ptrs.get_element_ty()))
            return original(builder, ptrs, value, mask, *args)

        return create_masked_store

    def _watch_atomic_rmw(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def create_atomic_rmw(builder: Any, op: Any, ptr: Any, val: Any, mask: Any, *order: Any) -> Any:
            launch, kind = self._current_launch(), ptr.get_element_ty()
            addresses, lanes = _addresses(ptr, mask)
            launch.atomic(addresses, itemsize_of(kind), semantics=order[0])
            old_values = original(builder, op, ptr, val, mask, *order)
            launch.check_written(addresses, old_values.data.reshape(-1)[lanes], kind)
            return old_values

        return create_atomic_rmw

    def _watch_atomic_cas(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def create_atomic_cas(builder: Any, ptr: Any, cmp: Any, val: Any, *order: Any) -> Any:
            launch, kind = self._current_launch(), ptr.get_element_ty()
            addresses, lanes = _addresses(ptr, None)
            launch.atomic(addresses, itemsize_of(kind), semantics=order[0])
            old_values = original(builder, ptr, cmp, val, *order)
            launch.check_written(addresses, old_values.data.reshape(-1)[lanes], kind)
            return old_values

        return create_atomic_cas


class Launch:
    """The memory of one launch, and the accesses of its programs."""

    def __init__(
        self, kernel: str, memory: MemoryMap, read_only: Sequence[Region], loads_unwritten_floats: bool = False
    ) -> None:
        self.kernel, self.memory, self.read_only = kernel, memory, read_only
        self._loads_unwritten_floats = loads_unwritten_floats
        self.grid: tuple[int, ...] = (1, 1, 1)
        self.order: list[int] = [0]
        self.program = 0
        self.clocks = _Clocks()
        self._inputs: dict[int, bool] = {}  # by the start of a segment

    def coordinates(self, program: int) -> tuple[int, int, int]:
        _, ny, nz = self.grid
        return program // (ny * nz), program // nz % ny, program % nz

    def load(self, addresses: Indices, itemsize: int) -> None:
        for segment, lanes in self._split(addresses, "reads"):
            if self._is_input(segment):  # no program may write it
                continue
            cells = segment.cells(addresses[lanes], itemsize)
            if segment.has_writes:
                self._check_writers(segment, cells, addresses[lanes], "reads", atomics_too=True)
            previous_reader, previous_clock = segment.reader[cells], segment.read_clock[cells]
            is_ordered = (previous_reader == NO_PROGRAM) | self.clocks.happens_before(
                previous_reader, previous_clock, self.program
            )
            segment.reader[cells] = np.where(is_ordered, self.program, SEVERAL_PROGRAMS)
            segment.read_clock[cells] = self.clocks.now(self.program)

    def store(self, addresses: Indices, values: NDArray[Any], itemsize: int) -> None:
        self._check_lanes(addresses, values, itemsize)
        for segment, lanes in self._split(addresses, "writes"):
            lane_addresses = addresses[lanes]
            self._check_read_only(lane_addresses)
            cells = segment.cells(lane_addresses, itemsize)
            is_changed = _bits_in_memory(lane_addresses, itemsize) != _bits(values[lanes], itemsize)
            self._check_writers(segment, cells[is_changed], lane_addresses[is_changed], "overwrites", atomics_too=True)
            self._check_readers(segment, cells[is_changed], lane_addresses[is_changed])
            self._mark_written(segment, cells, atomic=False)

    def atomic(self, addresses: Indices, itemsize: int, semantics: Any) -> None:
        for segment, lanes in self._split(addresses, "changes"):
            lane_addresses = addresses[lanes]
            self._check_read_only(lane_addresses)
            cells = segment.cells(lane_addresses, itemsize)
            self._check_writers(segment, cells, lane_addresses, "changes atomically", atomics_too=False)
            self._check_readers(segment, cells, lane_addresses)
            self._mark_written(segment, cells, atomic=True)
        if addresses.size == 1:
            self.clocks.synchronise(self.program, int(addresses[0]), semantics)

    def may_be_unwritten(self, kind: Any) -> bool:
        """Whether elements of this type may be loaded that were never written."""
        return self._loads_unwritten_floats and kind in TORCH and TORCH[kind].is_floating_point

    def check_written(self, addresses: Indices, values: NDArray[Any], kind: Any) -> None:
        is_poisoned = is_poison(values, TORCH.get(kind)) if kind in TORCH else np.zeros(0, dtype=bool)
        if np.any(np.asarray(is_poisoned)):
            address = int(addresses[np.asarray(is_poisoned)][0])
            self._fail_unwritten(address, kind)

    def _split(self, addresses: Indices, verb: str) -> Iterable[tuple[Segment, Lanes | slice]]:
        if not addresses.size:
            return
        for segment, lanes in self.memory.split(addresses):
            if segment is None:
                outside_addresses = addresses[lanes]
                location = self.memory.describe_outside(int(outside_addresses[0]))
                self._fail(
                    f"{verb} {location} ({outside_addresses.size} of {addresses.size} active lanes are out of bounds)"
                )
            else:
                yield segment, lanes

    def _check_lanes(self, addresses: Indices, values: NDArray[Any], itemsize: int) -> None:
        order = np.argsort(addresses, kind="stable")
        is_same_address = np.diff(addresses[order]) == 0
        if is_same_address.any():
            bits = _bits(values, itemsize)[order]
            is_conflict = is_same_address & (bits[1:] != bits[:-1])
            if is_conflict.any():
                address = int(addresses[order][1:][is_conflict][0])
                self._fail(f"stores different values from two lanes of one store to {self._element(address)}")

    def _check_read_only(self, addresses: Indices) -> None:
        low, high = addresses.min(), addresses.max()
        for region in self.read_only:
            if high < region.start or low >= region.end:
                continue
            is_read_only = region.positions(addresses) >= 0
            if is_read_only.any():
                self._fail(f"writes {self._element(int(addresses[is_read_only][0]))}, an input of the op")

    def _check_writers(
        self, segment: Segment, cells: Indices, addresses: Indices, verb: str, atomics_too: bool
    ) -> None:
        writer = segment.writer[cells]
        is_unordered = (writer != NO_PROGRAM) & ~self.clocks.happens_before(
            writer, segment.write_clock[cells], self.program
        )
        if not atomics_too:
            is_unordered &= ~segment.is_atomic[cells]
        if is_unordered.any():
            lane, part = np.argwhere(is_unordered)[0]
            action = "changed atomically" if segment.is_atomic[cells[lane, part]] else "wrote"
            writer_name = self._name(int(writer[lane, part]))
            self._fail(f"{verb} {self._element(int(addresses[lane]))}, which {writer_name} {action}: {_NO_ORDER}")

    def _check_readers(self, segment: Segment, cells: Indices, addresses: Indices) -> None:
        reader = segment.reader[cells]
        is_unordered = (reader != NO_PROGRAM) & ~self.clocks.happens_before(
            reader, segment.read_clock[cells], self.program
        )
        if is_unordered.any():
            lane, part = np.argwhere(is_unordered)[0]
            reader_name = (
                "several programs" if reader[lane, part] == SEVERAL_PROGRAMS else self._name(int(reader[lane, part]))
            )
            self._fail(f"writes {self._element(int(addresses[lane]))}, which {reader_name} read before: {_NO_ORDER}")

    def _mark_written(self, segment: Segment, cells: Indices, atomic: bool) -> None:
        if atomic:  # an element that was also written plainly stays closed to unordered atomics
            segment.is_atomic[cells] |= segment.writer[cells] == NO_PROGRAM
        else:
            segment.is_atomic[cells] = False
        segment.has_writes = True
        segment.writer[cells] = self.program
        segment.write_clock[cells] = self.clocks.now(self.program)

    def _element(self, address: int) -> str:
        (segment, _), *_ = self.memory.split(np.array([address]))
        assert segment is not None
        return segment.region(address).element(address)

    def _name(self, program: int) -> str:
        n_axes = max((axis for axis, size in enumerate(self.grid) if size > 1), default=0) + 1
        return f"program ({', '.join(str(i) for i in self.coordinates(program)[:n_axes])})"

    def _is_input(self, segment: Segment) -> bool:
        if segment.start not in self._inputs:
            self._inputs[segment.start] = segment.is_dense and any(
                region.is_dense and region.start <= segment.start and segment.end <= region.end
                for region in self.read_only
            )
        return self._inputs[segment.start]

    def _fail(self, message: str) -> NoReturn:
        raise KernelFault("memory", self._in_program(message))

    def _fail_unwritten(self, address: int, kind: Any) -> NoReturn:
        message = self._in_program(f"reads {self._element(address)}, which was never written")
        raise UnwrittenReadError(message) if TORCH[kind].is_floating_point else KernelFault("memory", message)

    def _in_program(self, message: str) -> str:
        return f"{self.kernel}: {self._name(self.program)} {message}"


class _Clocks:
    """Vector clocks: for each program, the clocks of the others as acquired by atomics on single elements."""

    def __init__(self) -> None:
        self._local: dict[int, int] = {}
        self._acquired: dict[int, dict[int, int]] = {}
        self._released: dict[int, dict[int, int]] = {}

    def now(self, program: int) -> int:
        return self._local.get(program, 0)

    def happens_before(self, accessor: NDArray[np.int32], access_clock: NDArray[np.int32], program: int) -> Lanes:
        """Whether the access of `accessor` at its clock `access_clock` comes before the current one of `program`."""
        is_before: Lanes = accessor == program
        for acquired_program, acquired_clock in self._acquired.get(program, {}).items():
            is_before |= (accessor == acquired_program) & (access_clock < acquired_clock)
        return is_before

    def synchronise(self, program: int, address: int, semantics: Any) -> None:
        semantic = shipped._ir.MEM_SEMANTIC
        if semantics in (semantic.ACQUIRE, semantic.ACQUIRE_RELEASE):
            _join(self._acquired.setdefault(program, {}), self._released.get(address, {}))
        if semantics in (semantic.RELEASE, semantic.ACQUIRE_RELEASE):
            self._local[program] = self.now(program) + 1
            released_clocks = self._released.setdefault(address, {})
            _join(released_clocks, {**self._acquired.get(program, {}), program: self._local[program]})


def _join(target: dict[int, int], source: dict[int, int]) -> None:
    for program, clock in source.items():
        target[program] = max(target.get(program, 0), clock)


def tensors_of(arguments: Iterable[tuple[str, Any]]) -> Iterable[tuple[str, Tensor]]:
    for name, value in arguments:
        if isinstance(value, tuple | list):
            yield from tensors_of((f"{name}[{i}]", item) for i, item in enumerate(value))
        elif isinstance(value, Tensor):
            yield name, value
        elif hasattr(value, "base"):  # a tensor descriptor, or a tensor reinterpreted as another dtype
            yield from tensors_of([(name, value.base)])


def _addresses(ptrs: Any, mask: Any) -> tuple[Indices, Lanes]:
    """The addresses of the active lanes, and the mask of active lanes in the flattened block."""
    shape = ptrs.data.shape
    lanes = np.ones(shape, dtype=bool) if mask is None else np.broadcast_to(mask.data, shape).astype(bool)
    flat_mask = lanes.reshape(-1)
    addresses = ptrs.data.reshape(-1).view(np.int64)
    return addresses if mask is None else addresses[flat_mask], flat_mask


def itemsize_of(kind: Any) -> int:
    return max(1, int(kind.primitive_bitwidth) // 8)


def undefined_values(shape: tuple[int, ...], kind: Any) -> Any:
    """Values for lanes masked out of a load without `other=`. A GPU may return anything there."""
    dtype = shipped._get_np_dtype(kind)
    if kind == tl.bfloat16:
        value: Any = 0x7FC1
    elif dtype.kind == "f":
        value = np.nan
    else:
        value = True if dtype.kind == "b" else np.iinfo(dtype).max // 3
    return shipped.TensorHandle(np.full(shape, value, dtype=dtype), kind)


def _bits(values: NDArray[Any], itemsize: int) -> NDArray[Any]:
    return np.ascontiguousarray(values).view(f"u{itemsize}")


def _bits_in_memory(addresses: Indices, itemsize: int) -> NDArray[Any]:
    """The values at the addresses now, as bits."""
    all_lanes = np.ones(addresses.shape, dtype=bool)
    dtype = np.dtype(f"u{itemsize}")
    bits: NDArray[Any] = shipped._interpreter.load(
        addresses.astype(np.uint64), all_lanes, np.zeros(addresses.shape, dtype), dtype
    )
    return bits
