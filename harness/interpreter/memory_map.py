"""A map from addresses to the tensors of a launch, with the accesses of its programs so far (shadow state)."""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Indices = NDArray[np.int64]
Lanes = NDArray[np.bool_]

NONE, MANY = -1, -2
_FAR = 2**30  # bytes


class Region:
    """The elements of one tensor in memory: the addresses reached by its shape and strides, without the gaps."""

    def __init__(self, name: str, tensor: Tensor) -> None:
        self.name, self.tensor = name, tensor
        self.itemsize = tensor.element_size()
        span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        self.start = tensor.data_ptr()
        self.end = self.start + span * self.itemsize
        self.dense = tensor.is_contiguous()
        self._flat: Indices | None = None  # element -> position in the flattened tensor, -1 in gaps; None if dense
        if not self.dense:
            elements = np.zeros(1, dtype=np.int64)
            for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
                elements = (elements[:, None] + np.arange(size) * stride).reshape(-1)
            self._flat = np.full(span, -1)
            self._flat[elements] = np.arange(tensor.numel())

    def positions(self, addresses: Indices) -> Indices:
        """The position in the flattened tensor of the element at each address, -1 outside the tensor."""
        inside = (addresses >= self.start) & (addresses < self.end)
        elements = np.where(inside, addresses - self.start, 0) // self.itemsize
        return np.where(inside, elements if self._flat is None else self._flat[elements], -1)

    def bits(self) -> NDArray[Any]:
        """The bits of the elements, as a numpy view of the tensor's memory. Without torch: a write through torch would
        increase the tensor's version."""
        return np.asarray(_Memory(self))

    def element(self, address: int) -> str:
        """The element at `address`, for messages: `x[3, 0]`."""
        position = int(self.positions(np.array([address]))[0])
        index = np.unravel_index(position, tuple(self.tensor.shape))
        return f"{self.name}[{', '.join(str(int(i)) for i in index)}]"

    def __str__(self) -> str:
        return f"{self.name}, {str(self.tensor.dtype).removeprefix('torch.')} {tuple(self.tensor.shape)}"


class _Memory:
    def __init__(self, region: Region) -> None:
        tensor, size = region.tensor, region.itemsize
        steps = tensor.stride()
        self.__array_interface__ = {
            "version": 3,
            "data": (region.start, False),
            "typestr": f"<u{size}" if size <= 8 else f"|V{size}",
            "shape": tuple([n if step else min(n, 1) for n, step in zip(tensor.shape, steps, strict=True)]),
            "strides": tuple([step * size for step in steps]),
        }


@dataclass
class Segment:
    """Regions with overlapping addresses, as one row of cells with the shadow state of each cell."""

    start: int
    """First address."""
    end: int
    """Address past the last one."""
    regions: list[Region]
    """The tensors in it."""
    written: bool = False
    """Whether any program wrote to it."""
    read: bool = False
    """Whether any reads of a batch are marked in `reader`."""
    reads: list[Any] = field(default_factory=list)
    """Reads of a batch not marked in `reader` yet: (cells, programs, active lanes)."""

    def __post_init__(self) -> None:
        self.cell = min(region.itemsize for region in self.regions)
        self.count = -((self.start - self.end) // self.cell)
        whole = (self.start, self.end, self.cell)
        self.dense = all(r.dense and (r.start, r.end, r.itemsize) == whole for r in self.regions)

    @cached_property
    def writer(self) -> NDArray[np.int32]:
        """Index of the program that last wrote each cell, or NO_PROGRAM."""
        return np.full(self.count, NONE, dtype=np.int32)

    @cached_property
    def written_at(self) -> NDArray[np.int32]:
        """The writer's clock at the time of its write."""
        return np.zeros(self.count, dtype=np.int32)

    @cached_property
    def reader(self) -> NDArray[np.int32]:
        """Index of the program that read each cell, NO_PROGRAM or SEVERAL_PROGRAMS."""
        return np.full(self.count, NONE, dtype=np.int32)

    @cached_property
    def read_at(self) -> NDArray[np.int32]:
        """The reader's clock at the time of its read."""
        return np.zeros(self.count, dtype=np.int32)

    @cached_property
    def atomic(self) -> Lanes:
        """Whether the last write of each cell was atomic."""
        return np.zeros(self.count, dtype=bool)

    @cached_property
    def bits(self) -> NDArray[Any]:
        """The bits in the cells of a dense segment."""
        return self.regions[0].bits().reshape(-1)

    def cells(self, addresses: Indices, itemsize: int) -> Indices:
        """The cells of elements of `itemsize` bytes: (lanes, cells per element)."""
        first = ((addresses - self.start) // self.cell)[:, None]
        return first if itemsize <= self.cell else first + np.arange(itemsize // self.cell)

    def owned(self, addresses: Indices) -> Lanes:
        """A mask of the addresses that belong to an element."""
        owned = np.zeros(addresses.shape, dtype=bool)
        for region in self.regions:
            owned |= region.positions(addresses) >= 0
        return owned

    def region(self, address: int) -> Region:
        """The first tensor with an element at the address."""
        return next(region for region in self.regions if region.positions(np.array([address]))[0] >= 0)


def regions_of(tensors: Mapping[str, Tensor]) -> list[Region]:
    """The tensors of a launch by argument name, without empty ones: they own no address."""
    return [Region(name, tensor) for name, tensor in tensors.items() if tensor.numel()]


def _elements(count: int) -> str:
    return "1 element" if count == 1 else f"{count} elements"


class MemoryMap:
    """The tensors of one launch, and the accesses of its programs."""

    def __init__(self, regions: Sequence[Region]) -> None:
        self.regions = regions
        self.segments: list[Segment] = []
        for region in sorted(self.regions, key=lambda region: region.start):
            if self.segments and region.start < self.segments[-1].end:
                last = self.segments.pop()
                merged = [*last.regions, region]
                self.segments.append(Segment(last.start, max(last.end, region.end), merged))
            else:
                self.segments.append(Segment(region.start, region.end, [region]))
        self._starts = [segment.start for segment in self.segments]

    def split(self, addresses: Indices) -> Iterator[tuple[Segment | None, Lanes | slice]]:
        """Each accessed segment with its lanes; None with the lanes outside all elements."""
        around = self._around(int(addresses.min()), int(addresses.max()))
        if around is not None and around.dense:  # nearly always: one access, one tensor
            yield around, slice(None)
            return
        outside = np.zeros(addresses.shape, dtype=bool)
        slots = self._slots(addresses)
        for slot in np.unique(slots):
            lanes = slots == slot
            if slot < 0:
                outside |= lanes
                continue
            segment = self.segments[slot]
            lanes[lanes] = segment.owned(addresses[lanes])
            outside |= (slots == slot) & ~lanes
            if lanes.any():
                yield segment, lanes
        if outside.any():
            yield None, outside

    def dense_around(self, address: int) -> Segment | None:
        """The segment around an address, if it has no gaps."""
        segment = self._around(address, address)
        return segment if segment is not None and segment.dense else None

    def _around(self, low: int, high: int) -> Segment | None:
        """The segment around all addresses from low to high."""
        slot = bisect_right(self._starts, low) - 1
        return self.segments[slot] if slot >= 0 and high < self.segments[slot].end else None

    def _slots(self, addresses: Indices) -> Indices:
        """Index of the segment around each address, or -1."""
        slots = np.searchsorted(self._starts, addresses, side="right") - 1
        ends = np.array([segment.end for segment in self.segments] + [0])
        return np.where(addresses < ends[slots], slots, -1)

    def describe_outside(self, address: int) -> str:
        """The location of an address outside all tensors, for messages."""
        if not self.regions:
            return "memory although no tensor with elements was passed"
        near = min(self.regions, key=lambda r: max(r.start - address, address - r.end, 0))
        before, past = near.start - address, address - near.end
        if max(before, past) > _FAR:
            return f"address {address:#x}, far from every tensor passed"
        if before > 0:
            return f"{_elements(-(-before // near.itemsize))} before the start of {near}"
        if past >= 0:
            return f"{_elements(1 + past // near.itemsize)} past the end of {near}"
        return f"between the elements of {near} with strides {tuple(near.tensor.stride())}"
