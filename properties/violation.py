"""What a property found: one wrong element, where it is, and by how much it is wrong."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from packproof.properties.budget import Budget, same_bits, score
from packproof.refs.axes import Axes, role


@dataclass(frozen=True)
class Violation:
    """The worst element of one tensor, or a fault of the kernel.

    tensor: output name or "gradient of <input>", "" for a fault. sequence, position: where a token or state belongs,
    -1 where that has no meaning. index: of the element in its tensor. other: what `wanted` is ("reference", "alone").
    excess: error as a multiple of the budget, or None where bits were compared. term: the budget's dominant term there.
    text: what to say instead of numbers, for faults; fault: its kind. note: what was done to the pack. expected: what
    the reference has there, where two runs of the kernel were compared; allowed: what a run may be off from it.
    """

    tensor: str = ""
    sequence: int = -1
    position: int = -1
    index: tuple[int, ...] = ()
    got: float = 0.0
    wanted: float = 0.0
    other: str = "reference"
    excess: float | None = None
    term: str = ""
    text: str = ""
    note: str = ""
    fault: str = ""
    expected: float | None = None
    allowed: float = 0.0

    def lines(self) -> list[str]:
        """For a person: the place, the values, and how far off they are."""
        if self.text:
            return [*self.text.splitlines(), *([self.note] if self.note else [])]
        far = "bits differ" if self.excess is None else f"{_number(self.excess)} x the budget ({self.term})"
        got, wanted, *expected = apart(self.got, self.wanted, *([] if self.expected is None else [self.expected]))
        values = f"got {got}, {self.other} {wanted}; {far}"
        judged = [f"reference {text}: {self.side}" for text in expected]
        return [f"{self.place}: {values}", *judged, *([self.note] if self.note else [])]

    @property
    def side(self) -> str:
        """Which of two runs is off, by what each may differ from the reference."""
        assert self.expected is not None
        mine, other = (abs(x - self.expected) <= self.allowed for x in (self.got, self.wanted))
        this = _THIS.get(self.other, "this run")
        if mine and other:
            return "both lie within the budget of it"
        if not mine and not other:
            return "both are wrong"
        return f"{self.other} is wrong, {this} is right" if mine else f"{this} is wrong, {self.other} is right"

    @property
    def place(self) -> str:
        element = f", element {list(self.index)}" if self.index else ""
        if self.sequence < 0:
            return f"slack row {self.position}{element}" if self.position >= 0 else f"shared{element}"
        return f"sequence {self.sequence}" + (f", token {self.position}" if self.position >= 0 else "") + element


# what a run is called that is compared with another one
_THIS = {
    "alone": "packed",
    "sum over the sequences": "packed",
    "before": "now",
    "permuted": "before",
    "in pieces": "in one run",
    "again": "the first run",
    "int32": "int64",
}


def _number(x: float) -> str:
    return f"{x:.4g}"


def apart(*numbers: float) -> list[str]:
    """The numbers with as many digits as show where the first two differ, four at least."""
    texts = ([f"{x:.{digits}g}" for x in numbers] for digits in range(4, 18))
    return next((each for each in texts if len(set(each[:2])) > 1), [_number(x) for x in numbers])


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
        """The leading index of a row, or none of a shared tensor: what `locate` was given."""
        if role(self.axes) == "shared":
            return ()
        if role(self.axes) == "sequence":
            return (sequence,)
        return (self.offsets[sequence if sequence >= 0 else -1] + position,)


@dataclass(frozen=True)
class Comparison:
    """What had to agree from row `start` on: within `allowed`, or where that is None, bit for bit."""

    name: str
    got: Tensor
    want: Tensor
    allowed: Budget | None
    frame: RowMap
    start: int
    other: str
    note: str


_comparisons: ContextVar[list[Comparison] | None] = ContextVar("comparisons", default=None)


@contextmanager
def comparisons() -> Iterator[list[Comparison]]:
    """Every comparison that properties make inside, held or not: for maps of where a tensor is wrong."""
    made: list[Comparison] = []
    token = _comparisons.set(made)
    try:
        yield made
    finally:
        _comparisons.reset(token)


def _note(comparison: Comparison) -> None:
    made = _comparisons.get()
    if made is not None and comparison.got.numel():
        made.append(comparison)


def within(
    name: str,
    got: Tensor,
    want: Tensor,
    allowed: Budget,
    frame: RowMap,
    *,
    start: int = 0,
    other: str = "reference",
    note: str = "",
) -> Iterator[Violation]:
    """A violation at the worst element if any is outside its budget. `start` is the row where `got` begins."""
    _note(Comparison(name, got, want, allowed, frame, start, other, note))
    if got.numel() == 0:
        return
    ratio = score(got, want.double(), allowed.total)
    index = _argmax(ratio)
    if ratio[index] <= 1:
        return
    term, value = allowed.dominant(index)
    excess = float(ratio[index])
    yield _at(
        name, got, want, frame, index, start, excess=excess, term=f"{term} {_number(value)}", other=other, note=note
    )


def identical(
    name: str, got: Tensor, want: Tensor, frame: RowMap, *, start: int = 0, other: str = "reference", note: str = ""
) -> Iterator[Violation]:
    """A violation at the element that differs most if any has other bits. `start` as in `within`."""
    _note(Comparison(name, got, want, None, frame, start, other, note))
    if got.numel() == 0:
        return
    differs = ~same_bits(got, want)
    if bool(differs.any()):
        distance = (got.double() - want.double()).abs().nan_to_num(nan=float("inf"))
        index = _argmax(torch.where(differs, distance, -1.0))
        yield _at(name, got, want, frame, index, start, excess=None, term="", other=other, note=note)


def _argmax(x: Tensor) -> tuple[int, ...]:
    return tuple(int(i) for i in torch.unravel_index(x.reshape(-1).argmax(), x.shape))


def _at(
    name: str, got: Tensor, want: Tensor, frame: RowMap, index: tuple[int, ...], start: int, **said: Any
) -> Violation:
    sequence, position = frame.locate(index[0] + start)
    inner = index if role(frame.axes) == "shared" else index[1:]
    return Violation(name, sequence, position, inner, float(got[index]), float(want[index]), **said)
