"""Rows of a tensor that must agree, and the worst element where they do not."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from packproof.properties.bounds.budget import Budget, same_bits, score
from packproof.properties.light_torch import argmax
from packproof.properties.stopwatch import span
from packproof.properties.tensor_key import TensorKey
from packproof.properties.violation import Violation, number
from packproof.refs.axes import Axes, in_pool, role


@dataclass(frozen=True)
class RowMap:
    """How the rows of a tensor belong to sequences."""

    axes: Axes
    offsets: list[int]

    def locate(self, row: int) -> tuple[int, int]:
        """Sequence and position of a leading index; (-1, k) for the k-th slack row."""
        if role(self.axes) == "sequence":
            return row, -1
        if role(self.axes) == "shared":
            return -1, -1
        for j in range(len(self.offsets) - 1):
            if self.offsets[j] <= row < self.offsets[j + 1]:
                return j, row - self.offsets[j]
        return -1, row - self.offsets[-1]

    def index(self, sequence: int, position: int) -> tuple[int, ...]:
        """The leading index of a row, or none of a shared tensor: the inverse of `locate`."""
        if role(self.axes) == "shared":
            return ()
        if role(self.axes) == "sequence":
            return (sequence,)
        return (self.offsets[sequence if sequence >= 0 else -1] + position,)


@dataclass(frozen=True)
class Comparison:
    """Rows of a tensor that must agree: within `allowed`, or bit for bit where that is None.

    allowed: the budget, or what computes it; that costs more than to see that two runs have the same bits. rows:
    how the rows of the whole tensor belong to sequences. start: the row at which `got` begins. other: what `want`
    is ("reference", "alone"). note: what had been done to the pack.
    """

    key: TensorKey
    got: Tensor
    want: Tensor
    rows: RowMap
    allowed: Budget | Callable[[], Budget] | None = None
    start: int = 0
    other: str = "reference"
    note: str = ""

    @cached_property
    def budget(self) -> Budget | None:
        return self.allowed() if callable(self.allowed) else self.allowed

    @property
    def judges(self) -> bool:
        """Whether it says anything that all elements agree, once that was asked: not by a vacuous budget, where the
        bits were not the same."""
        budget = self.__dict__.get("budget", self.allowed)
        return not (isinstance(budget, Budget) and budget.vacuous)

    def violations(self) -> Iterator[Violation]:
        """The element that is furthest outside its budget, or whose bits differ most; nothing where all agree."""
        made = _comparisons.get()
        if self.got.numel() == 0:
            return
        if made is not None:
            made.append(self)
        if callable(self.allowed) and _are_equal_and_finite(self.got, self.want):
            return
        budget = self.budget
        with span("compare"):
            found = list(self._differing_bits() if budget is None else self._past(budget))
        yield from found

    def _past(self, budget: Budget) -> Iterator[Violation]:
        ratio = score(self.got, self.want.double(), budget.total)
        if float(ratio.max()) > 1:
            index = argmax(ratio)
            term, value = budget.dominant(index)
            yield self._violation(index, float(ratio[index]), f"{term} {number(value)}")

    def _differing_bits(self) -> Iterator[Violation]:
        differs = ~same_bits(self.got, self.want)
        if bool(differs.any()):
            distance = (self.got.double() - self.want.double()).abs().nan_to_num(nan=float("inf"))
            yield self._violation(argmax(torch.where(differs, distance, -1.0)), None, "")

    def _violation(self, index: tuple[int, ...], excess: float | None, term: str) -> Violation:
        sequence, position = self.rows.locate(index[0] + self.start)
        slot = index[0] + self.start if in_pool(self.rows.axes) else -1
        return Violation(
            tensor=self.key,
            sequence=sequence,
            position=position,
            index=index if role(self.rows.axes) == "shared" and slot < 0 else index[1:],
            slot=slot,
            got=float(self.got[index]),
            wanted=float(self.want[index]),
            other=self.other,
            excess=excess,
            term=term,
            note=self.note,
        )


_comparisons: ContextVar[list[Comparison] | None] = ContextVar("comparisons", default=None)


@contextmanager
def comparisons() -> Iterator[list[Comparison]]:
    """Every comparison that properties make inside, whether it held or not: what was judged, and maps of the errors."""
    made: list[Comparison] = []
    token = _comparisons.set(made)
    try:
        yield made
    finally:
        _comparisons.reset(token)


def _are_equal_and_finite(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and torch.equal(a, b) and bool(a.isfinite().all())
