"""Keys in the pages of a cache, as decode kernels read them: block tables, and the same as one list of pages.

A cache is (pages, size, ...): each sequence has pages of its own, in any order, and fills them from the first row on.
Where the pages of a sequence lie follows from the offsets of the keys: anywhere in the cache, never in order, between
pages of no sequence. Rows and pages of no key hold NaN, as memory does that nothing has been written to. Inside
`sharing_pages`, sequences share the pages of a common prefix.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor

from packproof.adapters.metadata import once
from packproof.adapters.tokens import (
    MAX_ELEMENTS,
    Tokens,
    check_axis,
    check_fill,
    gather_rows,
    move_token_axis,
    scatter_rows,
    shape_error,
    token_axis,
)
from packproof.base.errors import OutsideConvention, UsageError
from packproof.properties.calling import PagePlacement

_sharing: ContextVar[bool] = ContextVar("sharing", default=False)
_FREE_COLUMNS = 1  # of a block table, past the pages of the longest sequence


@contextmanager
def sharing_pages() -> Iterator[None]:
    """Sequences share the full pages of `common_prefixes`, where their keys have to agree. There are no gradients."""
    token = _sharing.set(True)
    try:
        yield
    finally:
        _sharing.reset(token)


def shares_pages() -> bool:
    """Whether sequences share pages here."""
    return _sharing.get()


@dataclass(frozen=True)
class Pages(Tokens):
    """The keys in pages of a cache: (pages, size, ...). Its methods are metadata of the keys, for `OfKeys`.

    A pack is outside of this convention if the cache would have 2^31 elements or more.

    >>> import torch
    >>> from packproof import adapters
    >>> cache, offsets = adapters.Pages(size=2), torch.tensor([0, 1, 4])
    >>> cache.to(torch.arange(1.0, 5.0), offsets).shape
    torch.Size([6, 2])
    >>> cache.last_page_len(offsets, 4)
    tensor([1, 1], dtype=torch.int32)
    """

    size: int | tuple[int, ...] = 16
    """Rows of a page. Of several sizes a pack has one; packs of other lengths have others."""
    axis: int = 1
    """The axis of the rows of a page. 1: (pages, size, h, k). 2: heads first, (pages, h, size, k)."""
    fill: float = float("nan")
    """The value of rows and pages without a key."""

    def __post_init__(self) -> None:
        if not self.sizes or not all(type(size) is int and size > 0 for size in self.sizes):
            raise UsageError(f"Pages: size is {self.size!r}, expected a number of rows, at least 1, or a tuple of them")
        check_axis("Pages", self.axis)
        check_fill("Pages", self.fill)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes of pages, as a tuple."""
        return self.size if isinstance(self.size, tuple) else (self.size,)

    def to(self, x: Tensor, cu_seqlens: Tensor, outside: float | bool | None = None) -> Tensor:
        placement = self._placement(cu_seqlens)
        rows = placement.count * placement.size
        if rows * x[:1].numel() >= MAX_ELEMENTS:
            description = f"a cache of {placement.count} pages of {placement.size} rows"
            raise OutsideConvention(f"{description} would have 2^31 elements or more")
        cache = scatter_rows(x, self._slots(cu_seqlens), rows, self.fill if outside is None else outside)
        return move_token_axis(cache.view(placement.count, placement.size, *x.shape[1:]), self.axis).contiguous()

    def back(self, y: Tensor, cu_seqlens: Tensor, tokens: int) -> Tensor:
        placement = self._placement(cu_seqlens)
        axis = token_axis(y, self.axis)
        if y.ndim < 2 or (y.shape[0], y.shape[axis]) != (placement.count, placement.size):
            raise shape_error(self, y, f"{placement.count} pages of {placement.size} rows")
        return gather_rows(y.movedim(axis, 1).flatten(0, 1), self._slots(cu_seqlens), tokens)

    def block_tables(self, cu_seqlens: Tensor, tokens: int) -> Tensor:
        """Metadata: (s, most pages) int32, the pages of each sequence. Further entries name a page of no sequence."""
        placement = self._placement(cu_seqlens)
        columns = max(map(len, placement.pages), default=0) + _FREE_COLUMNS
        rows = [[*pages, *[placement.free_page] * (columns - len(pages))] for pages in placement.pages]
        return torch.tensor(rows, dtype=torch.int32, device=cu_seqlens.device).view(len(rows), columns)

    def kv_indptr(self, cu_seqlens: Tensor, tokens: int) -> Tensor:
        """Metadata: (s + 1,) int32, the first page of each sequence in `kv_indices`, then their number."""
        counts = torch.tensor([0, *map(len, self._placement(cu_seqlens).pages)], device=cu_seqlens.device)
        return counts.cumsum(0).int()

    def kv_indices(self, cu_seqlens: Tensor, tokens: int) -> Tensor:
        """Metadata: int32, the pages of all sequences, one after the other."""
        pages = list(chain.from_iterable(self._placement(cu_seqlens).pages))
        return torch.tensor(pages, dtype=torch.int32, device=cu_seqlens.device)

    def last_page_len(self, cu_seqlens: Tensor, tokens: int) -> Tensor:
        """Metadata: (s,) int32, the keys in the last page of each sequence; 0 without keys."""
        lengths, size = cu_seqlens.diff(), self._placement(cu_seqlens).size
        return torch.where(lengths > 0, (lengths - 1) % size + 1, 0).int()

    def slot_mapping(self, cu_seqlens: Tensor, tokens: int) -> Tensor:
        """Metadata: (u,) int64, page * size + row of each key, -1 in slack."""
        slots = self._slots(cu_seqlens)
        return torch.cat([slots, slots.new_full((tokens - len(slots),), -1)])

    def page_size(self, cu_seqlens: Tensor, tokens: int) -> int:
        """Metadata: the rows of a page, on the host."""
        return self._placement(cu_seqlens).size

    def _placement(self, cu_seqlens: Tensor) -> PagePlacement:
        def make() -> PagePlacement:
            return PagePlacement.of(cu_seqlens.tolist(), self.sizes, shared=shares_pages())

        return once((self.sizes, shares_pages(), "pages"), make, cu_seqlens)

    def _slots(self, cu_seqlens: Tensor) -> Tensor:
        """(u,): the slot of each key."""

        def make() -> Tensor:
            slots = self._placement(cu_seqlens).slots
            return torch.tensor(slots, dtype=torch.int64, device=cu_seqlens.device)

        return once((self.sizes, shares_pages(), "slots"), make, cu_seqlens)
