"""Where the states of a pool lie in the kernel's: past a slot of none, a slot for each draft, or the rows of pages."""

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from packproof.base.errors import ArgumentError, UsageError
from packproof.properties.calling import PagePlacement
from packproof.properties.ops import Op

_FREE_SLOTS = 3


class PoolSlots(ABC):
    """A layout of a pool of states (c, ...), and of the slots in it."""

    @abstractmethod
    def to(self, states: Tensor) -> Tensor:
        """The op's pool as the kernel's."""

    @abstractmethod
    def indices(self, slots: Tensor, shape: Sequence[int]) -> Tensor:
        """The op's slots, -1 for none, as the kernel's.

        shape: of the op's pool.
        """

    @abstractmethod
    def back(self, pool: Tensor, shape: Sequence[int]) -> Tensor:
        """The kernel's pool as the op's, of this shape."""

    @abstractmethod
    def fits(self, op: Op) -> bool:
        """Whether the op has such a pool."""


@dataclass(frozen=True)
class NullSlot(PoolSlots):
    """A pool whose first slot belongs to no request: a request without a slot has 0, where the op has -1.

    The kernel may write anything to that slot, which holds NaN.

    >>> import torch
    >>> from packproof import adapters
    >>> pool = adapters.NullSlot().to(torch.tensor([1.0, 2.0]))
    >>> pool, adapters.NullSlot().indices(torch.tensor([1, -1]), (2,))
    (tensor([nan, 1., 2.]), tensor([2, 0]))
    """

    def to(self, states: Tensor) -> Tensor:
        return torch.cat([states.new_full((1, *states.shape[1:]), float("nan")), states])

    def indices(self, slots: Tensor, shape: Sequence[int]) -> Tensor:  # noqa: ARG002 - the same for every layout
        return slots + 1

    def back(self, pool: Tensor, shape: Sequence[int]) -> Tensor:
        if len(pool) != shape[0] + 1:
            raise ArgumentError(
                f"a kernel with slots={self} returned {tuple(pool.shape)}, expected the shape of its pool"
            )
        return pool[1:]

    def fits(self, op: Op) -> bool:
        return op.pool is not None


@dataclass(frozen=True)
class SlotPerDraft(PoolSlots):
    """A pool with a slot for each draft, where the op has a slot for each request with a states in it.

    The kernel gets the pool (slots, ...) and the slots of each request's drafts (s, a). They lie in any order, between
    slots of NaN.

    >>> import torch
    >>> from packproof import adapters
    >>> pool = adapters.SlotPerDraft().to(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    >>> pool[adapters.SlotPerDraft().indices(torch.tensor([1, -1]), (2, 2))[0].long()]
    tensor([3., 4.])
    """

    null: int = -1
    """The slots of a request without one: -1, or 0 of a pool whose first slot belongs to no request."""

    def __post_init__(self) -> None:
        if self.null not in (-1, 0):
            raise UsageError(f"SlotPerDraft: null is {self.null!r}, expected -1, or 0 if no request has the first slot")

    def to(self, states: Tensor) -> Tensor:
        slots = states.shape[0] * states.shape[1]
        pool = states.new_full((slots + _FREE_SLOTS, *states.shape[2:]), float("nan"))
        pool[self._order(slots)] = states.flatten(0, 1)
        return pool

    def indices(self, slots: Tensor, shape: Sequence[int]) -> Tensor:
        count, drafts = shape[:2]
        if not count:
            return slots.new_full((len(slots), drafts), self.null)
        table = torch.tensor(self._order(count * drafts), dtype=slots.dtype, device=slots.device).view(count, drafts)
        return torch.where(slots[:, None] >= 0, table[slots.long().clamp(min=0)], self.null)

    def back(self, pool: Tensor, shape: Sequence[int]) -> Tensor:
        return pool[self._order(shape[0] * shape[1])].view(*shape[:2], *pool.shape[1:])

    def fits(self, op: Op) -> bool:
        return op.keeps_drafts

    def _order(self, count: int) -> Sequence[int]:
        """The kernel's slot of each state of the op's pool, in order."""
        slots = list(range(self.null + 1, count + _FREE_SLOTS))
        random.Random(count).shuffle(slots)
        return slots[:count]


@dataclass(frozen=True)
class PagedSlots(PoolSlots):
    """A pool in pages: (pages, size, ...), and slots that count its rows.

    The last slot of the op is the last row of the last page. Rows before its first slot belong to none, and hold NaN.

    >>> import torch
    >>> from packproof import adapters
    >>> cache = adapters.PagedSlots(size=4).to(torch.ones(5, 2))
    >>> cache.shape, adapters.PagedSlots(size=4).indices(torch.tensor([0, 4, -1]), (5, 2))
    (torch.Size([2, 4, 2]), tensor([ 3,  7, -1]))
    """

    size: int = 16
    """Rows of a page."""

    def __post_init__(self) -> None:
        if type(self.size) is not int or self.size < 1:
            raise UsageError(f"PagedSlots: size is {self.size!r}, expected a number of rows, at least 1")

    def to(self, states: Tensor) -> Tensor:
        free = states.new_full((self._free_rows(len(states)), *states.shape[1:]), float("nan"))
        return torch.cat([free, states]).view(-1, self.size, *states.shape[1:]) if len(states) else states[:, None]

    def indices(self, slots: Tensor, shape: Sequence[int]) -> Tensor:
        return torch.where(slots >= 0, slots + self._free_rows(shape[0]), -1)

    def back(self, pool: Tensor, shape: Sequence[int]) -> Tensor:
        rows = pool.flatten(0, 1)
        if len(rows) != shape[0] + self._free_rows(shape[0]):
            raise ArgumentError(
                f"a kernel with slots={self} returned {tuple(pool.shape)}, expected the shape of its cache"
            )
        return rows[self._free_rows(shape[0]) :]

    def fits(self, op: Op) -> bool:
        return op.pool is not None and not op.keeps_drafts

    def _free_rows(self, slots: int) -> int:
        return PagePlacement.row_of_slot(0, slots, self.size)
