"""States of drafts in slots of their own: a pool (slots, ...), and for each request the slots of its drafts (s, a)."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_FREE_SLOTS = 3


@dataclass(frozen=True)
class SlotPerDraft:
    """A pool with a slot for each draft, where the op has a slot for each request with a states in it.

    The kernel gets the pool (slots, ...) and the slots of each request's drafts (s, a), -1 for a request without one.
    They lie in any order, between slots of NaN.

    >>> import torch
    >>> from packproof import adapters
    >>> pool = adapters.SlotPerDraft().to(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    >>> pool[adapters.SlotPerDraft().indices(torch.tensor([1, -1]), 2, 2)[0].long()]
    tensor([3., 4.])
    """

    def to(self, states: Tensor) -> Tensor:
        """(c, a, ...) as the kernel's pool."""
        slots, drafts = states.shape[:2]
        pool = states.new_full((slots * drafts + _FREE_SLOTS, *states.shape[2:]), float("nan"))
        pool[self._order(slots * drafts)] = states.flatten(0, 1)
        return pool

    def indices(self, slots: Tensor, count: int, drafts: int) -> Tensor:
        """The slots of each request's drafts (s, a).

        slots: (s,) the op's slot of each request, or -1.
        count: slots of the op's pool.
        drafts: drafts of a slot.
        """
        table = torch.tensor(self._order(count * drafts), dtype=slots.dtype, device=slots.device).view(count, drafts)
        if not count:
            return slots.new_full((len(slots), drafts), -1)
        return torch.where(slots[:, None] >= 0, table[slots.long().clamp(min=0)], -1)

    def back(self, pool: Tensor, slots: int, drafts: int) -> Tensor:
        """The kernel's pool as (c, a, ...)."""
        return pool[self._order(slots * drafts)].view(slots, drafts, *pool.shape[1:])

    def _order(self, count: int) -> Sequence[int]:
        """The kernel's slot of each state of the op's pool, in order."""
        slots = list(range(count + _FREE_SLOTS))
        random.Random(count).shuffle(slots)
        return slots[:count]
