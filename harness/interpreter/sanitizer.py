"""A memory sanitizer for Triton kernels in the interpreter: it sees every load, store and atomic of every program.

Reported as `KernelFault("memory", ...)`:

- an access outside the tensors passed to the launch;
- a read of memory that was never written (the poison of `memory_guard.py`);
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
from typing import Any, Literal, Self

import numpy as np
import torch
import triton.language as tl
from numpy.typing import NDArray
from torch import Tensor
from triton.runtime import interpreter as shipped

from packproof.harness.interpreter.memory_guard import is_poison
from packproof.harness.interpreter.memory_map import MANY, NONE, Indices, Lanes, MemoryMap, Region, Segment, regions_of
from packproof.harness.interpreter.patch import replaced
from packproof.properties.call import KernelFault

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

    `launches` counts the launches. The first fault ends its launch. If the code in the block swallows the fault, the
    end of the block raises it again.
    """

    def __init__(self, read_only: Iterable[Tensor] = (), order: Order = "forward", seed: int = 0) -> None:
        self.launches = 0
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
            self._patches.enter_context(replaced(owner, name, make))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._patches.close()
        if self._fault is not None and error is not self._fault:
            raise self._fault

    def _current(self) -> "Launch":
        assert self._launch is not None
        return self._launch

    def _watch_launch(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def launch(executor: Any, *args: Any, **kwargs: Any) -> Any:
            self.launches += 1
            return self._run(original, executor, args, kwargs)

        return launch

    def _run(self, original: Callable[..., Any], executor: Any, args: Any, kwargs: Any) -> Any:
        """Run the programs of a launch one after another."""
        named = {**dict(zip(executor.arg_names, args, strict=False)), **kwargs}
        regions = regions_of(dict(tensors_of(named.items())))
        self._launch = Launch(executor.fn.__name__, MemoryMap(regions), self._read_only)
        try:
            return original(executor, *args, **kwargs)
        except KernelFault as fault:
            self._fault = self._fault or fault
            raise
        finally:
            self._launch = None

    def _watch_grid(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def set_grid_dim(builder: Any, *grid: int) -> Any:
            launch = self._current()
            launch.grid = grid
            for axis, (size, limit) in enumerate(zip(grid, _GRID_LIMIT, strict=True)):
                if size > limit:
                    what = f"grid {grid} has more than {limit} programs on axis {axis}, no GPU can launch it"
                    raise KernelFault("memory", f"{launch.kernel}: {what}")
            launch.order = list(range(grid[0] * grid[1] * grid[2]))
            if self._order == "reverse":
                launch.order.reverse()
            elif self._order == "shuffle":
                self._random.shuffle(launch.order)
            return original(builder, *grid)

        return set_grid_dim

    def _watch_program(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def set_grid_idx(builder: Any, x: int, y: int, z: int) -> Any:
            launch = self._current()
            _, ny, nz = launch.grid
            launch.program = launch.order[(x * ny + y) * nz + z]
            return original(builder, *launch.coordinates(launch.program))

        return set_grid_idx

    def _watch_load(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def create_masked_load(builder: Any, ptrs: Any, mask: Any, other: Any, *rest: Any, **hints: Any) -> Any:
            launch, kind = self._current(), ptrs.get_element_ty()
            addresses, lanes = _addresses(ptrs, mask)
            launch.load(addresses, itemsize_of(kind))
            if other is None and not lanes.all():
                other = undefined(ptrs.data.shape, kind)
            values = original(builder, ptrs, mask, other, *rest, **hints)
            launch.check_written(addresses, values.data.reshape(-1)[lanes], kind)
            return values

        return create_masked_load

    def _watch_store(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def create_masked_store(builder: Any, ptrs: Any, value: Any, mask: Any, *rest: Any) -> Any:
            addresses, lanes = _addresses(ptrs, mask)
            values = np.broadcast_to(value.data, ptrs.data.shape).reshape(-1)[lanes]
            self._current().store(addresses, values, itemsize_of(ptrs.get_element_ty()))
            return original(builder, ptrs, value, mask, *rest)

        return create_masked_store

    def _watch_atomic_rmw(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def create_atomic_rmw(builder: Any, op: Any, ptr: Any, val: Any, mask: Any, *order: Any) -> Any:
            launch, kind = self._current(), ptr.get_element_ty()
            addresses, lanes = _addresses(ptr, mask)
            launch.atomic(addresses, itemsize_of(kind), semantics=order[0])
            before = original(builder, op, ptr, val, mask, *order)
            launch.check_written(addresses, before.data.reshape(-1)[lanes], kind)
            return before

        return create_atomic_rmw

    def _watch_atomic_cas(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def create_atomic_cas(builder: Any, ptr: Any, cmp: Any, val: Any, *order: Any) -> Any:
            launch, kind = self._current(), ptr.get_element_ty()
            addresses, lanes = _addresses(ptr, None)
            launch.atomic(addresses, itemsize_of(kind), semantics=order[0])
            before = original(builder, ptr, cmp, val, *order)
            launch.check_written(addresses, before.data.reshape(-1)[lanes], kind)
            return before

        return create_atomic_cas


class Launch:
    """The memory of one launch, and the accesses of its programs."""

    def __init__(self, kernel: str, memory: MemoryMap, read_only: Sequence[Region]) -> None:
        self.kernel, self.memory, self.read_only = kernel, memory, read_only
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
            if segment.written:
                self._check_writers(segment, cells, addresses[lanes], "reads", atomics_too=True)
            previous, when = segment.reader[cells], segment.read_at[cells]
            forget = (previous == NONE) | self.clocks.ordered(previous, when, self.program)
            segment.reader[cells] = np.where(forget, self.program, MANY)
            segment.read_at[cells] = self.clocks.now(self.program)

    def store(self, addresses: Indices, values: NDArray[Any], itemsize: int) -> None:
        self._check_lanes(addresses, values, itemsize)
        for segment, lanes in self._split(addresses, "writes"):
            touched = addresses[lanes]
            self._check_read_only(touched)
            cells = segment.cells(touched, itemsize)
            changing = _memory(touched, itemsize) != _bits(values[lanes], itemsize)
            self._check_writers(segment, cells[changing], touched[changing], "overwrites", atomics_too=True)
            self._check_readers(segment, cells[changing], touched[changing])
            self._mark_written(segment, cells, atomic=False)

    def atomic(self, addresses: Indices, itemsize: int, semantics: Any) -> None:
        for segment, lanes in self._split(addresses, "changes"):
            touched = addresses[lanes]
            self._check_read_only(touched)
            cells = segment.cells(touched, itemsize)
            self._check_writers(segment, cells, touched, "changes atomically", atomics_too=False)
            self._check_readers(segment, cells, touched)
            self._mark_written(segment, cells, atomic=True)
        if addresses.size == 1:
            self.clocks.synchronise(self.program, int(addresses[0]), semantics)

    def check_written(self, addresses: Indices, values: NDArray[Any], kind: Any) -> None:
        poisoned = is_poison(values, TORCH.get(kind)) if kind in TORCH else np.zeros(0, dtype=bool)
        if np.any(np.asarray(poisoned)):
            address = int(addresses[np.asarray(poisoned)][0])
            self._fail(f"reads {self._element(address)}, which was never written")

    def _split(self, addresses: Indices, verb: str) -> Iterable[tuple[Segment, Lanes | slice]]:
        if not addresses.size:
            return
        for segment, lanes in self.memory.split(addresses):
            if segment is None:
                outside = addresses[lanes]
                where = self.memory.describe_outside(int(outside[0]))
                self._fail(f"{verb} {where} ({outside.size} of {addresses.size} active lanes are out of bounds)")
            else:
                yield segment, lanes

    def _check_lanes(self, addresses: Indices, values: NDArray[Any], itemsize: int) -> None:
        order = np.argsort(addresses, kind="stable")
        same = np.diff(addresses[order]) == 0
        if same.any():
            bits = _bits(values, itemsize)[order]
            clash = same & (bits[1:] != bits[:-1])
            if clash.any():
                address = int(addresses[order][1:][clash][0])
                self._fail(f"stores different values from two lanes of one store to {self._element(address)}")

    def _check_read_only(self, addresses: Indices) -> None:
        low, high = addresses.min(), addresses.max()
        for region in self.read_only:
            if high < region.start or low >= region.end:
                continue
            hit = region.positions(addresses) >= 0
            if hit.any():
                self._fail(f"writes {self._element(int(addresses[hit][0]))}, an input of the op")

    def _check_writers(
        self, segment: Segment, cells: Indices, addresses: Indices, verb: str, atomics_too: bool
    ) -> None:
        writer = segment.writer[cells]
        foreign = (writer != NONE) & ~self.clocks.ordered(writer, segment.written_at[cells], self.program)
        if not atomics_too:
            foreign &= ~segment.atomic[cells]
        if foreign.any():
            lane, part = np.argwhere(foreign)[0]
            how = "changed atomically" if segment.atomic[cells[lane, part]] else "wrote"
            who = self._name(int(writer[lane, part]))
            self._fail(f"{verb} {self._element(int(addresses[lane]))}, which {who} {how}: {_NO_ORDER}")

    def _check_readers(self, segment: Segment, cells: Indices, addresses: Indices) -> None:
        reader = segment.reader[cells]
        foreign = (reader != NONE) & ~self.clocks.ordered(reader, segment.read_at[cells], self.program)
        if foreign.any():
            lane, part = np.argwhere(foreign)[0]
            who = "several programs" if reader[lane, part] == MANY else self._name(int(reader[lane, part]))
            self._fail(f"writes {self._element(int(addresses[lane]))}, which {who} read before: {_NO_ORDER}")

    def _mark_written(self, segment: Segment, cells: Indices, atomic: bool) -> None:
        if atomic:  # an element that was also written plainly stays closed to unordered atomics
            segment.atomic[cells] |= segment.writer[cells] == NONE
        else:
            segment.atomic[cells] = False
        segment.written = True
        segment.writer[cells] = self.program
        segment.written_at[cells] = self.clocks.now(self.program)

    def _element(self, address: int) -> str:
        (segment, _), *_ = self.memory.split(np.array([address]))
        assert segment is not None
        return segment.region(address).element(address)

    def _name(self, program: int) -> str:
        used = max((axis for axis, size in enumerate(self.grid) if size > 1), default=0) + 1
        return f"program ({', '.join(str(i) for i in self.coordinates(program)[:used])})"

    def _is_input(self, segment: Segment) -> bool:
        if segment.start not in self._inputs:
            self._inputs[segment.start] = segment.dense and any(
                region.dense and region.start <= segment.start and segment.end <= region.end
                for region in self.read_only
            )
        return self._inputs[segment.start]

    def _fail(self, what: str) -> None:
        raise KernelFault("memory", f"{self.kernel}: {self._name(self.program)} {what}")


class _Clocks:
    """Vector clocks: for each program, the clocks of the others as acquired by atomics on single elements."""

    def __init__(self) -> None:
        self._own: dict[int, int] = {}
        self._known: dict[int, dict[int, int]] = {}
        self._released: dict[int, dict[int, int]] = {}

    def now(self, program: int) -> int:
        return self._own.get(program, 0)

    def ordered(self, other: NDArray[np.int32], when: NDArray[np.int32], program: int) -> Lanes:
        """Whether the access of `accessor` at its clock `access_clock` comes before the current one of `program`."""
        before: Lanes = other == program
        for known, until in self._known.get(program, {}).items():
            before |= (other == known) & (when < until)
        return before

    def synchronise(self, program: int, address: int, semantics: Any) -> None:
        semantic = shipped._ir.MEM_SEMANTIC
        if semantics in (semantic.ACQUIRE, semantic.ACQUIRE_RELEASE):
            _join(self._known.setdefault(program, {}), self._released.get(address, {}))
        if semantics in (semantic.RELEASE, semantic.ACQUIRE_RELEASE):
            self._own[program] = self.now(program) + 1
            released = self._released.setdefault(address, {})
            _join(released, {**self._known.get(program, {}), program: self._own[program]})


def _join(into: dict[int, int], other: dict[int, int]) -> None:
    for program, until in other.items():
        into[program] = max(into.get(program, 0), until)


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
    flat = lanes.reshape(-1)
    addresses = ptrs.data.reshape(-1).view(np.int64)
    return addresses if mask is None else addresses[flat], flat


def itemsize_of(kind: Any) -> int:
    return max(1, int(kind.primitive_bitwidth) // 8)


def undefined(shape: tuple[int, ...], kind: Any) -> Any:
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


def _memory(addresses: Indices, itemsize: int) -> NDArray[Any]:
    """The values at the addresses now, as bits."""
    everywhere = np.ones(addresses.shape, dtype=bool)
    dtype = np.dtype(f"u{itemsize}")
    bits: NDArray[Any] = shipped._interpreter.load(
        addresses.astype(np.uint64), everywhere, np.zeros(addresses.shape, dtype), dtype
    )
    return bits
