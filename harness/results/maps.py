"""What was measured at the smallest case of a failure, as plain data that is passed between processes."""

from dataclasses import dataclass
from math import isfinite
from typing import Literal

from packproof.properties.promises import Promises

Kind = Literal["token", "slack", "state", "shared"]


@dataclass(frozen=True)
class Place:
    """A row of a tensor: a token, a row of slack, the state of a sequence, or all of a shared tensor."""

    kind: Kind
    sequence: int = -1
    position: int = -1

    def __str__(self) -> str:
        return {
            "token": f"sequence {self.sequence}, token {self.position}",
            "slack": f"slack row {self.position}",
            "state": f"state of sequence {self.sequence}",
            "shared": "all",
        }[self.kind]


@dataclass(frozen=True)
class Layout:
    """The pack. grid, chunk: where the kernel promises its chunks to start; see Promises."""

    lengths: tuple[int, ...]
    slack: int = 0
    grid: str = ""
    chunk: int = 0

    @classmethod
    def of(cls, lengths: tuple[int, ...], slack: int, promises: Promises) -> "Layout":
        chunked = promises.grid in ("sequence", "pack") and promises.chunk
        return cls(lengths, slack, promises.grid or "", promises.chunk or 0) if chunked else cls(lengths, slack)

    def chunk_of(self, sequence: int, token: int) -> int | None:
        """The number of a token's chunk, from the start of its sequence or of the pack; None where no grid is known."""
        return (self._start(sequence) + token) // self.chunk if self.chunk else None

    def edges(self, sequence: int) -> range:
        """The tokens of a sequence at which a chunk starts, without the first token."""
        if not self.chunk:
            return range(0)
        return range(-self._start(sequence) % self.chunk or self.chunk, self.lengths[sequence], self.chunk)

    def _start(self, sequence: int) -> int:
        return sum(self.lengths[:sequence]) if self.grid == "pack" else 0


@dataclass(frozen=True)
class Worst:
    """The element with the largest error. terms: what the budget allows there, by name; empty if bits had to agree."""

    place: str
    got: float
    wanted: float
    other: str
    error: float
    terms: tuple[tuple[str, float], ...] = ()

    @property
    def budget(self) -> float:
        return sum(value for _, value in self.terms)

    @property
    def dominant(self) -> str:
        return max(self.terms, key=lambda term: term[1])[0] if self.terms else ""


@dataclass(frozen=True)
class MapRow:
    """One row of an error map: its name, the number of its first cell, and the cells; None if it was not compared."""

    label: str
    first: int
    cells: tuple[float | None, ...]
    edges: tuple[int, ...] = ()


@dataclass(frozen=True)
class ErrorMap:
    """Error as a multiple of the budget, the largest of each cell of one tensor.

    other: what the tensor was compared with. columns: what a cell is, "token" or "element". bitwise: the bits had
    to agree, so any cell above 0 is wrong. cut: what was left out, or "".
    """

    tensor: str
    other: str
    columns: Literal["token", "element"]
    rows: tuple[MapRow, ...]
    bitwise: bool = False
    cut: str = ""

    def wrong(self, value: float | None) -> bool:
        return value is not None and value > (0 if self.bitwise else 1)

    @property
    def largest(self) -> float:
        return max((cell for row in self.rows for cell in row.cells if cell is not None), default=0.0)


@dataclass(frozen=True)
class LeakCell:
    """Whether one input row may reach one result row. reached: through which tensors it does; leaks: forbidden ones."""

    allowed: bool
    reached: tuple[str, ...] = ()
    leaks: tuple[str, ...] = ()


@dataclass(frozen=True)
class LeakMap:
    """Which input rows (columns) reach which rows of one result (rows), found by changing one input row at a time.

    probe: what a row was changed to, "other values" or "NaN". sources: the tensors changed. cut: what was left out.
    """

    tensor: str
    probe: Literal["other values", "NaN"]
    sources: tuple[str, ...]
    columns: tuple[Place, ...]
    rows: tuple[Place, ...]
    cells: tuple[tuple[LeakCell, ...], ...]
    cut: str = ""

    @property
    def leaks(self) -> int:
        return sum(bool(cell.leaks) for row in self.cells for cell in row)


@dataclass(frozen=True)
class Evidence:
    """Everything measured at the smallest case; a part that does not apply there is None.

    first: the errors in the case in which the failure was first found, if its layout differs.
    """

    layout: Layout
    worst: Worst | None = None
    errors: ErrorMap | None = None
    leaks: LeakMap | None = None
    first: ErrorMap | None = None


def compact(value: float) -> str:
    """A multiple of the budget in at most four characters; "" if negligible."""
    if not isfinite(value):
        return "∞"
    if value >= 999.5:
        return f"{value:.0e}".replace("e+0", "e").replace("e+", "e")
    return f"{value:.0f}" if value >= 9.95 else f"{value:.1f}" if value >= 0.05 else ""
