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

NO_PROGRAM, SEVERAL_PROGRAMS = -1, -2
_FAR_BYTES = 2**30  # bytes


class Region:
    """The elements of one tensor in memory: the addresses reached by its shape and strides, without the gaps."""

    def __init__(self, name: str, tensor: Tensor) -> None:
        self.name, self.tensor = name, tensor
        self.itemsize = tensor.element_size()
        span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        self.start = tensor.data_ptr()
        self.end = self.start + span * self.itemsize
        self.is_dense = tensor.is_contiguous()
        self._position_of_element: Indices | None = (
            None  # element -> position in the flattened tensor, -1 in gaps; None if dense
        )
        if not self.is_dense:
            elements = np.zeros(1, dtype=np.int64)
            for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
                elements = (elements[:, None] + np.arange(size) * stride).reshape(-1)
            self._position_of_element = np.full(span, -1)
            self._position_of_element[elements] = np.arange(tensor.numel())

    def positions(self, addresses: Indices) -> Indices:
        """The position in the flattened tensor of the element at each address, -1 outside the tensor."""
        is_inside = (addresses >= self.start) & (addresses < self.end)
        elements = np.where(is_inside, addresses - self.start, 0) // self.itemsize
        return np.where(
            is_inside, elements if self._position_of_element is None else self._position_of_element[elements], -1
        )

    def bits(self) -> NDArray[Any]:
        """The bits of the elements, as a numpy view of the tensor's memory. Without torch: a write through torch would
        increase the tensor's version."""
        return np.asarray(_ArrayInterface(self))

    def element(self, address: int) -> str:
        """The element at `address`, for messages: `x[3, 0]`."""
        position = int(self.positions(np.array([address]))[0])
        index = np.unravel_index(position, tuple(self.tensor.shape))
        return f"{self.name}[{', '.join(str(int(i)) for i in index)}]"

    def __str__(self) -> str:
        return f"{self.name}, {str(self.tensor.dtype).removeprefix('torch.')} {tuple(self.tensor.shape)}"


class _ArrayInterface:
    def __init__(self, region: Region) -> None:
        tensor, size = region.tensor, region.itemsize
        strides = tensor.stride()
        self.__array_interface__ = {
            "version": 3,
            "data": (region.start, False),
            "typestr": f"<u{size}" if size <= 8 else f"|V{size}",
            "shape": tuple([n if step else min(n, 1) for n, step in zip(tensor.shape, strides, strict=True)]),
            "strides": tuple([step * size for step in strides]),
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
    has_writes: bool = False
    """Whether any program wrote to it."""
    has_reads: bool = False
    """Whether any reads of a batch are marked in `reader`."""
    pending_reads: list[Any] = field(default_factory=list)
    """Reads of a batch not marked in `reader` yet: (cells, programs, active lanes)."""

    def __post_init__(self) -> None:
        self.cell_bytes = min(region.itemsize for region in self.regions)
        self.n_cells = -((self.start - self.end) // self.cell_bytes)
        extent = (self.start, self.end, self.cell_bytes)
        self.is_dense = all(r.is_dense and (r.start, r.end, r.itemsize) == extent for r in self.regions)

    @cached_property
    def writer(self) -> NDArray[np.int32]:
        """Index of the program that last wrote each cell, or NO_PROGRAM."""
        return np.full(self.n_cells, NO_PROGRAM, dtype=np.int32)

    @cached_property
    def write_clock(self) -> NDArray[np.int32]:
        """The writer's clock at the time of its write."""
        return np.zeros(self.n_cells, dtype=np.int32)

    @cached_property
    def reader(self) -> NDArray[np.int32]:
        """Index of the program that read each cell, NO_PROGRAM or SEVERAL_PROGRAMS."""
        return np.full(self.n_cells, NO_PROGRAM, dtype=np.int32)

    @cached_property
    def read_clock(self) -> NDArray[np.int32]:
        """The reader's clock at the time of its read."""
        return np.zeros(self.n_cells, dtype=np.int32)

    @cached_property
    def is_atomic(self) -> Lanes:
        """Whether the last write of each cell was atomic."""
        return np.zeros(self.n_cells, dtype=bool)

    @cached_property
    def bits(self) -> NDArray[Any]:
        """The bits in the cells of a dense segment."""
        return self.regions[0].bits().reshape(-1)

    def cells(self, addresses: Indices, itemsize: int) -> Indices:
        """The cells of elements of `itemsize` bytes: (lanes, cells per element)."""
        first_cells = ((addresses - self.start) // self.cell_bytes)[:, None]
        return first_cells if itemsize <= self.cell_bytes else first_cells + np.arange(itemsize // self.cell_bytes)

    def owns(self, addresses: Indices) -> Lanes:
        """A mask of the addresses that belong to an element."""
        is_owned = np.zeros(addresses.shape, dtype=bool)
        for region in self.regions:
            is_owned |= region.positions(addresses) >= 0
        return is_owned

    def region(self, address: int) -> Region:
        """The first tensor with an element at the address."""
        return next(region for region in self.regions if region.positions(np.array([address]))[0] >= 0)


def regions_of(tensors: Mapping[str, Tensor]) -> list[Region]:
    """The tensors of a launch by argument name, without empty ones: they own no address."""
    return [Region(name, tensor) for name, tensor in tensors.items() if tensor.numel()]


def _elements_text(count: int) -> str:
    return "1 element" if count == 1 else f"{count} elements"


class MemoryMap:
    """The tensors of one launch, and the accesses of its programs."""

    def __init__(self, regions: Sequence[Region]) -> None:
        self.regions = regions
        self.segments: list[Segment] = []
        for region in sorted(self.regions, key=lambda region: region.start):
            if self.segments and region.start < self.segments[-1].end:
                previous = self.segments.pop()
                merged = [*previous.regions, region]
                self.segments.append(Segment(previous.start, max(previous.end, region.end), merged))
            else:
                self.segments.append(Segment(region.start, region.end, [region]))
        self._starts = [segment.start for segment in self.segments]

    def split(self, addresses: Indices) -> Iterator[tuple[Segment | None, Lanes | slice]]:
        """Each accessed segment with its lanes; None with the lanes outside all elements."""
        single_segment = self._segment_around(int(addresses.min()), int(addresses.max()))
        if single_segment is not None and single_segment.is_dense:  # nearly always: one access, one tensor
            yield single_segment, slice(None)
            return
        outside = np.zeros(addresses.shape, dtype=bool)
        indices = self._segment_indices(addresses)
        for index in np.unique(indices):
            lanes = indices == index
            if index < 0:
                outside |= lanes
                continue
            segment = self.segments[index]
            lanes[lanes] = segment.owns(addresses[lanes])
            outside |= (indices == index) & ~lanes
            if lanes.any():
                yield segment, lanes
        if outside.any():
            yield None, outside

    def dense_segment(self, address: int) -> Segment | None:
        """The segment around an address, if it has no gaps."""
        segment = self._segment_around(address, address)
        return segment if segment is not None and segment.is_dense else None

    def _segment_around(self, low: int, high: int) -> Segment | None:
        """The segment around all addresses from low to high."""
        index = bisect_right(self._starts, low) - 1
        return self.segments[index] if index >= 0 and high < self.segments[index].end else None

    def _segment_indices(self, addresses: Indices) -> Indices:
        """Index of the segment around each address, or -1."""
        indices = np.searchsorted(self._starts, addresses, side="right") - 1
        ends = np.array([segment.end for segment in self.segments] + [0])
        return np.where(addresses < ends[indices], indices, -1)

    def describe_outside(self, address: int) -> str:
        """The location of an address outside all tensors, for messages."""
        if not self.regions:
            return "memory although no tensor with elements was passed"
        nearest = min(self.regions, key=lambda r: max(r.start - address, address - r.end, 0))
        bytes_before, bytes_past = nearest.start - address, address - nearest.end
        if max(bytes_before, bytes_past) > _FAR_BYTES:
            return f"address {address:#x}, far from every tensor passed"
        if bytes_before > 0:
            return f"{_elements_text(-(-bytes_before // nearest.itemsize))} before the start of {nearest}"
        if bytes_past >= 0:
            return f"{_elements_text(1 + bytes_past // nearest.itemsize)} past the end of {nearest}"
        return f"between the elements of {nearest} with strides {tuple(nearest.tensor.stride())}"
