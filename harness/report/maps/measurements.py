"""The measurements at the smallest case of a failure, as plain data for passing between processes."""

from dataclasses import dataclass
from math import isfinite
from typing import Literal

from packproof.properties.declarations import Promises

RowKind = Literal["token", "slack", "state", "shared"]


@dataclass(frozen=True)
class TensorRow:
    """A row of a tensor: a token, a row of slack, the state of a sequence, or all of a shared tensor."""

    kind: RowKind
    sequence: int = -1
    """The number of the sequence of a token or a state."""
    position: int = -1
    """The number of the token in its sequence, or of the row in the slack."""

    def __str__(self) -> str:
        return {
            "token": f"sequence {self.sequence}, token {self.position}",
            "slack": f"slack row {self.position}",
            "state": f"state of sequence {self.sequence}",
            "shared": "all",
        }[self.kind]


@dataclass(frozen=True)
class Layout:
    """The layout of a pack."""

    lengths: tuple[int, ...]
    slack: int = 0
    """Rows past the last sequence."""
    grid: str = ""
    """The start of the kernel's chunks, "sequence" or "pack" (Promises.grid); "" if it promises none."""
    chunk: int = 0
    """The tokens of a chunk (Promises.chunk), 0 without a grid."""

    @classmethod
    def from_promises(cls, lengths: tuple[int, ...], slack: int, promises: Promises) -> "Layout":
        chunked = promises.grid in ("sequence", "pack") and promises.chunk
        return cls(lengths, slack, promises.grid or "", promises.chunk or 0) if chunked else cls(lengths, slack)

    def chunk_of(self, sequence: int, token: int) -> int | None:
        """The number of a token's chunk, from the start of its sequence or of the pack; None without a grid."""
        return (self._start(sequence) + token) // self.chunk if self.chunk else None

    def edges(self, sequence: int) -> range:
        """The tokens of a sequence that start a chunk, without the first token."""
        if not self.chunk:
            return range(0)
        return range(-self._start(sequence) % self.chunk or self.chunk, self.lengths[sequence], self.chunk)

    def _start(self, sequence: int) -> int:
        return sum(self.lengths[:sequence]) if self.grid == "pack" else 0


@dataclass(frozen=True)
class WorstElement:
    """The element with the largest error, relative to its budget."""

    location: str
    """Its sequence, token and index, in words."""
    actual: float
    """The kernel's value."""
    expected: float
    """The value of the baseline."""
    baseline_name: str
    """The name of the baseline, such as "reference"."""
    error: float
    terms: tuple[tuple[str, float], ...] = ()
    """The terms of the budget by name, empty if the bits had to agree."""

    @property
    def budget(self) -> float:
        return sum(value for _, value in self.terms)

    @property
    def dominant(self) -> str:
        return max(self.terms, key=lambda term: term[1])[0] if self.terms else ""


@dataclass(frozen=True)
class MapRow:
    """One row of an error map."""

    label: str
    first_cell: int
    """The number of the first cell."""
    cells: tuple[float | None, ...]
    """Errors as multiples of the budget, None for a cell without a comparison."""
    edges: tuple[int, ...] = ()
    """The numbers of the cells that start a chunk."""


@dataclass(frozen=True)
class ErrorMap:
    """The errors of one tensor, as multiples of the budget: the largest in each cell."""

    tensor: str
    baseline_name: str
    """The name of the baseline of the comparison."""
    columns: Literal["token", "element"]
    """The kind of a cell."""
    rows: tuple[MapRow, ...]
    bitwise: bool = False
    """Whether the bits had to agree: then any cell above 0 is wrong."""
    omitted: str = ""
    """The omitted parts in words, or ""."""

    def is_wrong(self, value: float | None) -> bool:
        return value is not None and value > (0 if self.bitwise else 1)

    @property
    def largest(self) -> float:
        return max((cell for row in self.rows for cell in row.cells if cell is not None), default=0.0)


@dataclass(frozen=True)
class LeakCell:
    """The influence of one input row on one result row."""

    allowed: bool
    """Whether the input row may reach the result row."""
    reached: tuple[str, ...] = ()
    """The input tensors through which it does."""
    leaks: tuple[str, ...] = ()
    """The input tensors through which it does without being allowed to."""


@dataclass(frozen=True)
class LeakMap:
    """The influence of each input row on each row of one result, measured by changing one input row at a time."""

    tensor: str
    """The result."""
    probe: Literal["other values", "NaN"]
    """The new content of a changed row."""
    sources: tuple[str, ...]
    """The changed tensors."""
    columns: tuple[TensorRow, ...]
    """The input rows."""
    rows: tuple[TensorRow, ...]
    """The rows of the result."""
    cells: tuple[tuple[LeakCell, ...], ...]
    """A tuple for each row, with a cell for each column."""
    omitted: str = ""
    """The omitted parts in words, or ""."""

    @property
    def leaks(self) -> int:
        return sum(bool(cell.leaks) for row in self.cells for cell in row)


@dataclass(frozen=True)
class Evidence:
    """The measurements at the smallest case. A part is None if it does not apply."""

    layout: Layout
    worst: WorstElement | None = None
    errors: ErrorMap | None = None
    leaks: LeakMap | None = None
    initial_errors: ErrorMap | None = None
    """The errors before shrinking, if the first failing case has another layout."""
    rows: tuple[int, ...] = ()
    """The wrong rows of the pack, of a tensor with a row for each token."""
    factor: float | None = None
    """The wrong elements as a multiple of the expected ones, if it is the same for several; else None."""


def compact(value: float) -> str:
    """A multiple of the budget in at most four characters; "" if negligible."""
    if not isfinite(value):
        return "∞"
    if value >= 999.5:
        return f"{value:.0e}".replace("e+0", "e").replace("e+", "e")
    return f"{value:.0f}" if value >= 9.95 else f"{value:.1f}" if value >= 0.05 else ""
