"""Comparison of two runs, row by row, and the worst element where they disagree."""

from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from packproof.base.axes import Axes, is_in_pool, role
from packproof.base.light_torch import argmax
from packproof.base.stopwatch import span
from packproof.properties.bounds.budget import Budget, same_bits, score
from packproof.properties.bounds.oracle import OracleAnswer
from packproof.properties.calling.tensor_key import TensorKey
from packproof.properties.cases.sample import Sample
from packproof.properties.laws.violation import Violation, number


@dataclass(frozen=True)
class Origin:
    """The origin of compared rows. The budget of its sample applies to them.

    >>> from packproof.properties import Origin
    >>> def last_alone(kernel, case):
    ...     sample = kernel.sample(case)
    ...     packed, alone = kernel.run(sample), kernel.run(sample.alone(-1))
    ...     for key, y in alone.items():
    ...         start = sample.offsets[-2]
    ...         rows = packed[key][start : sample.offsets[-1]]
    ...         yield from kernel.agree(key, rows, y, Origin(sample, start), other="alone")
    """

    sample: Sample
    """The sample with these rows."""
    start: int = 0
    """The first of them in the sample."""


@dataclass(frozen=True)
class RowMap:
    """The sequence and position of each row of a tensor."""

    axes: Axes
    """The axes of the tensor."""
    offsets: list[int]
    """The first row of each sequence, then the end of the last one."""

    def locate(self, row: int) -> tuple[int, int]:
        """Sequence and position of a row; (-1, k) for the k-th slack row."""
        if role(self.axes) == "sequence":
            return row, -1
        if role(self.axes) == "shared":
            return -1, -1
        j = bisect_right(self.offsets, row) - 1  # the last of several that start here: the others are empty
        return (j if j < len(self.offsets) - 1 else -1), row - self.offsets[j]

    def index(self, sequence: int, position: int) -> tuple[int, ...]:
        """The leading index of a position, () for a shared tensor. The inverse of `locate`."""
        if role(self.axes) == "shared":
            return ()
        if role(self.axes) == "sequence":
            return (sequence,)
        return (self.offsets[sequence if sequence >= 0 else -1] + position,)

    def element_index(self, violation: Violation) -> tuple[int, ...]:
        """The index of a violation's element in the whole tensor."""
        row = self.index(violation.sequence, violation.position) if violation.slot < 0 else (violation.slot,)
        return row + violation.index


@dataclass(frozen=True)
class Comparison:
    """Two versions of the same rows of a tensor, to be equal within `allowed`."""

    key: TensorKey
    """The tensor."""
    actual: Tensor
    """The rows under test."""
    baseline: Tensor
    """The rows to agree with."""
    rows: RowMap
    """The sequences and positions of the whole tensor's rows."""
    allowed: Budget | Callable[[], Budget] | None = None
    """The budget, or a function that computes it; None demands equal bits.

    A function is called only if bits differ: a budget costs more than a comparison of bits.
    """
    start: int = 0
    """The row of the whole tensor at which the compared rows begin."""
    baseline_name: str = "reference"
    """The source of `baseline` in reports, such as "reference" or "alone"."""
    note: str = ""
    """How a property had changed the pack."""

    @cached_property
    def budget(self) -> Budget | None:
        return self.allowed() if callable(self.allowed) else self.allowed

    @property
    def is_conclusive(self) -> bool:
        """Whether agreement means anything. It does not if the bits differ and the budget is vacuous.

        Read it after `violations`, which computes the budget if it is needed.
        """
        budget = self.__dict__.get("budget", self.allowed)
        return not (isinstance(budget, Budget) and budget.vacuous)

    def violations(self) -> Iterator[Violation]:
        """The element furthest outside its budget, or furthest off if bits must be equal. Nothing if all agree."""
        record = _active_record.get()
        if self.actual.numel() == 0:
            return
        if record is not None:
            record.append(self)
        if callable(self.allowed) and _are_equal_and_finite(self.actual, self.baseline):
            return
        budget = self.budget
        with span("compare"):
            violations = list(self._bit_violations() if budget is None else self._budget_violations(budget))
        yield from violations

    def _budget_violations(self, budget: Budget) -> Iterator[Violation]:
        baseline = self.baseline.double()
        if float(score(self.actual, baseline, budget.without_operands).max()) <= 1:
            return
        ratio = score(self.actual, baseline, budget.total)
        if float(ratio.max()) > 1:
            index = argmax(ratio)
            term, value = budget.dominant(index)
            yield self._violation(index, float(ratio[index]), f"{term} {number(value)}")

    def _bit_violations(self) -> Iterator[Violation]:
        mismatch = ~same_bits(self.actual, self.baseline)
        if bool(mismatch.any()):
            distance = (self.actual.double() - self.baseline.double()).abs().nan_to_num(nan=float("inf"))
            yield self._violation(argmax(torch.where(mismatch, distance, -1.0)), None, "")

    def _violation(self, index: tuple[int, ...], excess: float | None, term: str) -> Violation:
        row = self.start + index[0] if index else 0
        sequence, position = self.rows.locate(row)
        slot = row if is_in_pool(self.rows.axes) else -1
        return Violation(
            tensor=self.key,
            sequence=sequence,
            position=position,
            index=index if role(self.rows.axes) == "shared" and slot < 0 else index[1:],
            slot=slot,
            got=float(self.actual[index]),
            wanted=float(self.baseline[index]),
            other=self.baseline_name,
            excess=excess,
            term=term,
            note=self.note,
        )


def add_reference_value(violation: Violation, answer: OracleAnswer, budget: Budget, rows: RowMap) -> Violation:
    """The violation with the value of the reference, to tell which of two runs is incorrect.

    budget: the budget of one run.
    rows: the row map of its tensor.
    """
    assert violation.tensor is not None
    index = rows.element_index(violation)
    value, allowed = answer.values[violation.tensor][index], budget.total[index]
    return violation if value.isnan() else replace(violation, expected=float(value), allowed=float(allowed))


_active_record: ContextVar[list[Comparison] | None] = ContextVar("comparisons", default=None)


@contextmanager
def record_comparisons() -> Iterator[list[Comparison]]:
    """Record every comparison made inside, passed or failed, to count judgements and to draw error maps."""
    record: list[Comparison] = []
    token = _active_record.set(record)
    try:
        yield record
    finally:
        _active_record.reset(token)


def _are_equal_and_finite(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and torch.equal(a, b) and bool(a.isfinite().all())
