"""What a check says while it runs: frozen data, one stream, any number of readers."""

import builtins
from dataclasses import dataclass, field
from typing import Literal

from packproof.harness.results.maps import Evidence

Tier = Literal["compile", "interpret", "eager", "gpu", "sanitizer"]
Status = Literal["passed", "failed", "inconclusive", "skipped", "error"]


@dataclass(frozen=True)
class Cell:
    """One entry of the plan: a property of one kernel at one dtype.

    beyond: what is asked of the kernel though it does not promise it, in a word; "" for a plain cell. counts: whether
    the run fails where the cell does.
    """

    op: str
    target: str
    property: str
    dtype: str
    device: str
    beyond: str = ""
    counts: bool = True

    @builtins.property
    def law(self) -> str:
        """What the cell asks, as tables name it."""
        return f"{self.property} ({self.beyond})" if self.beyond else str(self.property)


@dataclass(frozen=True)
class Failure:
    """The smallest case found that breaks a property.

    lengths: the layout. tensor: the output or "gradient of <input>" that is wrong, or "" where no tensor is to blame.
    lines: what happened, in a few lines for a person. example: number of the example that failed first; tried: cases
    tried while shrinking. replay: the file that replays it, or "". evidence: what was measured at that case.
    regime: how its values were drawn.
    """

    lengths: tuple[int, ...]
    tensor: str
    lines: tuple[str, ...]
    example: int
    tried: int
    replay: str = ""
    evidence: Evidence | None = None
    regime: str = "normal"


@dataclass(frozen=True)
class Limit:
    """A kind of call that a kernel refuses.

    text: what it says. note: what had been done to the pack, "" where it is called as it is. lengths: of the smallest
    such pack. count: calls refused so. gradients: it computes values, and refuses to differentiate.
    """

    text: str
    note: str
    lengths: tuple[int, ...]
    count: int
    gradients: bool = False


@dataclass(frozen=True)
class Verdict:
    """What came of one cell.

    status: "passed" where all that was asked was judged and held; "inconclusive" where a boundary class that the
    kernel's domain has was not judged, or every call was refused; "skipped" where the cell does not apply;
    "error" where packproof could not judge it, through no fault of the kernel.
    examples: drawn. judged: those for which the kernel was called and something compared. refused: those that it
    declined. classes: boundary classes of the examples judged; missing: what was asked for and not judged.
    reason: why it is no plain pass. limits: what the kernel refused. domain: the conditions found that it was judged
    within, where it declares none.
    """

    cell: Cell
    tier: Tier
    status: Status
    examples: int
    seconds: float
    judged: int = 0
    refused: int = 0
    classes: frozenset[str] = field(default_factory=frozenset)
    missing: tuple[str, ...] = ()
    reason: str = ""
    limits: tuple[Limit, ...] = ()
    domain: tuple[str, ...] = ()
    failure: Failure | None = None

    @property
    def failed(self) -> bool:
        """Whether the run fails for it."""
        return self.status == "failed" and self.cell.counts


@dataclass(frozen=True)
class RunStarted:
    """The plan stands: `cells` in the order in which they are listed; `notes` on what will not be tested."""

    cells: tuple[Cell, ...]
    profile: str
    seed: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class CellStarted:
    cell: Cell


@dataclass(frozen=True)
class Progress:
    """Sent now and then inside a cell."""

    cell: Cell
    examples: int


@dataclass(frozen=True)
class CellFinished:
    verdict: Verdict


@dataclass(frozen=True)
class RunFinished:
    """All that was found; `interrupted` where the run was ended early, `error` where packproof itself failed,
    `unwritten` where a report could not be written."""

    verdicts: tuple[Verdict, ...]
    seconds: float
    interrupted: bool = False
    error: str = ""
    unwritten: bool = False


Event = RunStarted | CellStarted | Progress | CellFinished | RunFinished
