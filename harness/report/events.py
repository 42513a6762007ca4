"""The reports of a running check: one stream of frozen events for any number of readers."""

import builtins
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from packproof.base.provenance.computed import Computed
from packproof.base.tuned import Tuned
from packproof.harness.report.maps.measurements import Evidence
from packproof.properties.cases import Case
from packproof.properties.contracts import ContractFile, Term
from packproof.properties.thresholds import Crossed

Tier = Literal["declared", "compile", "interpret", "eager", "gpu", "sanitizer"]
Status = Literal["passed", "failed", "expected", "stale", "inconclusive", "skipped", "error"]


@dataclass(frozen=True)
class Cell:
    """One entry of the plan: a property of one kernel at one dtype."""

    op: str
    target: str
    """The kernel, as the user named it."""
    property: str
    dtype: str
    """Its long name, or "all" for a cell of all dtypes."""
    device: str
    unpromised: str = ""
    """The label of a property tested without a promise of the kernel, such as "NaN"; "" for a plain cell."""
    counts: bool = True
    """Whether the run fails if the cell fails."""

    @builtins.property
    def law(self) -> str:
        """The property, as tables name it."""
        return f"{self.property} ({self.unpromised})" if self.unpromised else str(self.property)


@dataclass(frozen=True)
class Failure:
    """The smallest failing case of a property."""

    lengths: tuple[int, ...]
    """The layout."""
    tensor: str
    """The wrong output or "gradient of <input>", "" if no tensor is at fault."""
    lines: tuple[str, ...]
    """The failure, in a few lines of text."""
    example: int
    """The number of the example that failed first."""
    cases_tried: int
    """The number of cases tried while shrinking."""
    replay: str = ""
    """The replay file, or ""."""
    evidence: Evidence | None = None
    """The measurements at this case."""
    regime: str = "normal"
    """How the values were drawn."""
    fault: str = ""
    """How the call ended without a result (FaultKind), "" for a wrong result."""
    note: str = ""
    """The change to the pack without which the case does not fail, "" if there is none."""
    cause: str = ""
    """A key, equal for failures of a kernel with one cause; "" if its text tells the cause."""
    case: str = ""
    """The smallest case as JSON, "" before it was looked for."""

    @builtins.property
    def smallest_case(self) -> Case:
        """The smallest case. There has to be one."""
        return Case.from_json(json.loads(self.case))


@dataclass(frozen=True)
class Limit:
    """A kind of call refused by a kernel."""

    text: str
    """The kernel's message."""
    note: str
    """The change to the pack, "" if there was none."""
    lengths: tuple[int, ...]
    """The lengths of the smallest refused pack."""
    count: int
    """The number of refused calls."""
    gradients: bool = False
    """Whether the kernel computes the values and refuses the gradients alone."""


@dataclass(frozen=True)
class Verdict:
    """The result of one cell.

    >>> import packproof
    >>> def lengths_that_break(verdicts: tuple[packproof.Verdict, ...]) -> list[tuple[int, ...]]:
    ...     return [verdict.failure.lengths for verdict in verdicts if verdict.failure]
    """

    cell: Cell
    """The property, kernel and dtype."""
    tier: Tier
    """How the kernel ran."""
    status: Status
    """The outcome.
    - "passed": everything requested was judged and held, as far as the machine could be asked (`unasked`);
    - "failed": the law was broken;
    - "inconclusive": a boundary class in the kernel's domain was not judged, or every call was refused;
    - "skipped": the cell does not apply;
    - "expected": it failed in accordance with the file of expected failures;
    - "stale": it did not, and its entry must be removed;
    - "error": packproof could not judge it, through no fault of the kernel.
    """
    examples: int
    """The number of drawn examples."""
    seconds: float
    """The time spent."""
    judged: int = 0
    """Examples with a call of the kernel and a comparison."""
    refused: int = 0
    """Examples declined by the kernel."""
    classes: frozenset[str] = field(default_factory=frozenset)
    """Boundary classes of the judged examples."""
    possible_classes: frozenset[str] = field(default_factory=frozenset)
    """Boundary classes that the kernel's domain allows."""
    missing: tuple[str, ...] = ()
    """Boundary classes requested and not judged."""
    reason: str = ""
    """Why the cell did not simply pass."""
    unasked: tuple[str, ...] = ()
    """What the machine lacked the memory or the time for, and why. A pass says nothing about it."""
    limits: tuple[Limit, ...] = ()
    """The calls refused by the kernel."""
    domain: tuple[str, ...] = ()
    """The inferred conditions of the judged calls, if the kernel declares none."""
    failure: Failure | None = None
    """The smallest failing case, or None."""
    thresholds: Crossed | None = None
    """The constants of the kernel's source and how far beyond them it was judged, where cases go past them."""
    tuned: tuple[Tuned, ...] = ()
    """The autotuned kernels, with their judged configurations."""
    perturbed_calls: int = 0
    """The calls made under perturbation, those of shrinking included."""
    computed: tuple[Computed, ...] = ()
    """Who computed the traced calls of the kernel in this dtype: launches, operators of torch, references."""
    terms: tuple[Term, ...] = ()
    """What decided how much was judged, and how strictly, and who said so."""

    @property
    def label(self) -> str:
        """The status as tables have it: "in part" for a pass that leaves something unasked."""
        return "in part" if self.status == "passed" and self.unasked else self.status

    @property
    def failed(self) -> bool:
        """Whether this verdict fails the run."""
        return self.status in ("failed", "stale") and self.cell.counts

    @property
    def held(self) -> bool:
        """Whether it passed, or failed as expected."""
        return self.status in ("passed", "expected")


@dataclass(frozen=True)
class RunStarted:
    """The plan is complete."""

    cells: tuple[Cell, ...]
    """The plan, in the order of the tables."""
    profile: str
    seed: int
    notes: tuple[str, ...] = ()
    """Remarks for the user, such as properties that the run will not test."""
    contract: ContractFile | None = None
    """The contract of its kernels, if there is one."""
    walls: Mapping[str, bool] = field(default_factory=dict)
    """Whether each wall between kernels and the machine holds, as a process tried before it imported the kernel."""


@dataclass(frozen=True)
class CellStarted:
    cell: Cell


@dataclass(frozen=True)
class Progress:
    """Sent as a cell begins, and from time to time while it runs."""

    cell: Cell
    examples: int
    """Examples judged so far."""
    planned: int = 0
    """The number of examples in all, 0 if it is not known."""
    lengths: tuple[int, ...] = ()
    """The layout of the next example."""


@dataclass(frozen=True)
class FailureFound:
    """A property does not hold."""

    first_verdict: Verdict
    """The verdict with the first failing case; CellFinished has the smallest."""


@dataclass(frozen=True)
class CellFinished:
    verdict: Verdict


@dataclass(frozen=True)
class Timings:
    """The time of one process since its last report."""

    seconds: Mapping[str, float]
    """Seconds by span."""


@dataclass(frozen=True)
class RunFinished:
    """The run is over."""

    verdicts: tuple[Verdict, ...]
    """The verdicts of all finished cells."""
    seconds: float
    interrupted: bool = False
    """Whether the user ended the run early."""
    error: str = ""
    """The internal error of packproof that ended the run, or ""."""
    write_failed: bool = False
    """Whether a report could not be written."""
    timings: Mapping[str, float] = field(default_factory=dict)
    """Seconds by span, summed over the processes."""


Event = RunStarted | CellStarted | Progress | FailureFound | CellFinished | Timings | RunFinished
