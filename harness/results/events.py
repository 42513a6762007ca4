"""What a check reports while it runs: one stream of frozen events for any number of readers."""

import builtins
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from packproof.harness.results.maps import Evidence
from packproof.properties.cases.tuned import Tuned

Tier = Literal["compile", "interpret", "eager", "gpu", "sanitizer"]
Status = Literal["passed", "failed", "expected", "stale", "inconclusive", "skipped", "error"]


@dataclass(frozen=True)
class Cell:
    """One entry of the plan: a property of one kernel at one dtype.

    beyond: a short name of the property tested though the kernel does not promise it; "" for a plain cell. counts:
    whether the run fails if the cell fails.
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
        """What the cell tests, as tables name it."""
        return f"{self.property} ({self.beyond})" if self.beyond else str(self.property)


@dataclass(frozen=True)
class Failure:
    """The smallest case found that breaks a property.

    lengths: the layout. tensor: the output or "gradient of <input>" that is wrong, or "" if no tensor is at fault.
    lines: what happened, in a few lines of text. example: number of the example that failed first; tried: cases tried
    while shrinking. replay: the file that replays it, or "". evidence: what was measured at that case.
    regime: how its values were drawn. fault: how the call ended without a result (FaultKind), "" for a wrong one.
    note: what had been done to the pack, so that the layout alone does not fail; "" where it does.
    """

    lengths: tuple[int, ...]
    tensor: str
    lines: tuple[str, ...]
    example: int
    tried: int
    replay: str = ""
    evidence: Evidence | None = None
    regime: str = "normal"
    fault: str = ""
    note: str = ""


@dataclass(frozen=True)
class Limit:
    """A kind of call that a kernel refuses.

    text: the kernel's message. note: how the pack had been changed, "" if it was not. lengths: of the smallest such
    pack. count: calls refused this way. gradients: the kernel computes values and refuses to differentiate.
    """

    text: str
    note: str
    lengths: tuple[int, ...]
    count: int
    gradients: bool = False


@dataclass(frozen=True)
class Verdict:
    """The result of one cell.

    status: "passed" if everything requested was judged and held; "inconclusive" if a boundary class in the kernel's
    domain was not judged, or every call was refused; "skipped" if the cell does not apply; "expected" if it failed as
    the file of expected failures says; "stale" if it did not, so that its entry has to go; "error" if packproof could
    not judge it, through no fault of the kernel.
    examples: drawn. judged: examples for which the kernel was called and something was compared. refused: examples that
    it declined. classes: boundary classes of the judged examples; missing: what was requested and not judged. reason:
    why the cell did not simply pass. limits: what the kernel refused. domain: the inferred conditions within which it
    was judged, if it declares none. tuned: autotuned kernels, with the configurations by which they were judged.

    >>> import packproof
    >>> def lengths_that_break(verdicts: tuple[packproof.Verdict, ...]) -> list[tuple[int, ...]]:
    ...     return [verdict.failure.lengths for verdict in verdicts if verdict.failure]
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
    tuned: tuple[Tuned, ...] = ()

    @property
    def failed(self) -> bool:
        """Whether this verdict fails the run."""
        return self.status in ("failed", "stale") and self.cell.counts

    @property
    def held(self) -> bool:
        """Whether it is what the run was to show: a pass, or a failure that is expected."""
        return self.status in ("passed", "expected")


@dataclass(frozen=True)
class RunStarted:
    """The plan is complete. cells: in the order in which they are listed; notes: what will not be tested."""

    cells: tuple[Cell, ...]
    profile: str
    seed: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class CellStarted:
    cell: Cell


@dataclass(frozen=True)
class Progress:
    """Sent as a cell begins, and from time to time while it runs.

    examples: judged so far. planned: how many there will be, 0 where that is not known. lengths: of the next one.
    """

    cell: Cell
    examples: int
    planned: int = 0
    lengths: tuple[int, ...] = ()


@dataclass(frozen=True)
class FailureFound:
    """A property does not hold. so_far: the verdict with the failure as it was found; CellFinished has the smallest."""

    so_far: Verdict


@dataclass(frozen=True)
class CellFinished:
    verdict: Verdict


@dataclass(frozen=True)
class Timings:
    """Where the time of one process went since it last reported: seconds by span."""

    seconds: Mapping[str, float]


@dataclass(frozen=True)
class RunFinished:
    """All verdicts of the run. interrupted: it was ended early; error: how packproof itself failed; unwritten: a report
    could not be written. timings: seconds by span, summed over the processes."""

    verdicts: tuple[Verdict, ...]
    seconds: float
    interrupted: bool = False
    error: str = ""
    unwritten: bool = False
    timings: Mapping[str, float] = field(default_factory=dict)


Event = RunStarted | CellStarted | Progress | FailureFound | CellFinished | Timings | RunFinished
