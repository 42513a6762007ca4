"""Where the states of a pool lie in the kernel's: past a slot of none, by drafts, beside it, or in rows of pages."""

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from packproof.base.errors import ArgumentError, UsageError, contradiction
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

    def replaced_inputs(self, op: Op) -> frozenset[str]:  # noqa: ARG002 - of layouts with `more_arguments`
        """The op's inputs that the kernel does not take."""
        return frozenset()

    @property
    def more_names(self) -> tuple[str, ...]:
        """The names of the kernel's further arguments."""
        return ()

    def more_arguments(
        self,
        states: Tensor,  # noqa: ARG002
        slots: Tensor,  # noqa: ARG002
        accepted: Tensor | None,  # noqa: ARG002
    ) -> Mapping[str, Any]:
        """Further arguments of the kernel by name, made of the op's pool, slots and numbers of accepted drafts."""
        return {}

    def check_unchanged(self, passed: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
        """Raises ArgumentError if the kernel wrote to its further arguments."""
        for name, x in expected.items():
            if isinstance(x, Tensor) and not torch.equal(passed[name].nan_to_num(-7.0), x.nan_to_num(-7.0)):
                raise contradiction(f"a kernel with slots={self} wrote to {name}, expected that it stays as it is")


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
        return _among_free_slots(states.flatten(0, 1), self.null + 1)

    def indices(self, slots: Tensor, shape: Sequence[int]) -> Tensor:
        count, drafts = shape[:2]
        return _in_order(slots, _order(count * drafts, self.null + 1), (count, drafts), self.null)

    def back(self, pool: Tensor, shape: Sequence[int]) -> Tensor:
        return pool[_order(shape[0] * shape[1], self.null + 1)].view(*shape[:2], *pool.shape[1:])

    def fits(self, op: Op) -> bool:
        return op.keeps_drafts


@dataclass(frozen=True)
class DraftBuffer(PoolSlots):
    """A buffer for the states after each draft, beside a pool with the states that the step begins from.

    Where an engine copies the state after the last accepted draft into the pool between two steps, the kernel takes no
    numbers of accepted drafts. The op's pool (c, a, ...) is then the buffer (rows, a, ...), and its slots are the rows
    of requests in it (s,). The pool (slots, ...) stays as it is. Rows and slots lie in any order, between some of
    NaN, and are -1 for a request without one.

    >>> import torch
    >>> from packproof import adapters
    >>> layout, states = adapters.DraftBuffer("pool", "slots"), torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> more = layout.more_arguments(states, torch.tensor([1, -1]), torch.tensor([2, 1]))
    >>> more["pool"][more["slots"][0]]
    tensor(4.)
    """

    pool: str
    """The kernel's argument for the pool."""
    slots: str
    """Its argument for the slot of each request in the pool, (s,)."""
    drafts: str = ""
    """Its argument for a, the drafts that a row of the buffer has room for; "" for none."""

    def to(self, states: Tensor) -> Tensor:
        return _among_free_slots(states)

    def indices(self, slots: Tensor, shape: Sequence[int]) -> Tensor:
        return _in_order(slots, _order(shape[0]))

    def back(self, pool: Tensor, shape: Sequence[int]) -> Tensor:
        return pool[_order(shape[0])]

    def fits(self, op: Op) -> bool:
        return op.keeps_drafts

    def replaced_inputs(self, op: Op) -> frozenset[str]:
        return op.integers_drawn("accepted")

    @property
    def more_names(self) -> tuple[str, ...]:
        return (self.pool, self.slots, *([self.drafts] if self.drafts else []))

    def more_arguments(self, states: Tensor, slots: Tensor, accepted: Tensor | None) -> Mapping[str, Any]:
        """The pool in another order than the buffer."""
        assert accepted is not None
        begun = states.new_full((len(states), *states.shape[2:]), float("nan"))
        has_slot = slots >= 0
        begun[slots[has_slot].long()] = states[slots[has_slot].long(), accepted[has_slot].long() - 1]
        pool = _among_free_slots(begun.flip(0))
        in_pool = _in_order(torch.where(has_slot, len(states) - 1 - slots, -1), _order(len(states)))
        return dict(zip(self.more_names, (pool, in_pool, states.shape[1]), strict=False))


def _order(count: int, first: int = 0) -> Sequence[int]:
    """The kernel's slot of each of these states, in order. first: the first slot that may be one."""
    slots = list(range(first, count + _FREE_SLOTS))
    random.Random(count).shuffle(slots)
    return slots[:count]


def _among_free_slots(states: Tensor, first: int = 0) -> Tensor:
    """The states in their slots, between slots of NaN."""
    pool = states.new_full((len(states) + _FREE_SLOTS, *states.shape[1:]), float("nan"))
    pool[_order(len(states), first)] = states
    return pool


def _in_order(slots: Tensor, order: Sequence[int], shape: Sequence[int] = (), null: int = -1) -> Tensor:
    """The kernel's slots (s, *) of the op's (s,). order: of all states, (c, *) by `shape`."""
    table = torch.tensor(order, dtype=slots.dtype, device=slots.device).view(shape or (len(order),))
    rows = slots.view(-1, *[1] * (table.ndim - 1))
    if not len(table):
        return slots.new_full((len(slots), *table.shape[1:]), null)
    return torch.where(rows >= 0, table[slots.long().clamp(min=0)], null)


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
