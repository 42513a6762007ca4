"""What a verdict rests on: the cases that were judged, their boundary classes, and what the kernel refused."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from packproof.harness.results.events import Limit, Status
from packproof.properties.call import BoundVacuous, MachineLimit, NotCompiled, OutsideDomain, Refused, SlowToCompile
from packproof.properties.cases.case import Case
from packproof.properties.cases.tuned import Tuned
from packproof.refs.wording import counted

BOUNDARY = "a boundary between two sequences"
NOT_ITS_OWN = (
    MachineLimit,
    OutsideDomain,
    BoundVacuous,
    NotCompiled,
)  # they stop a case, but are not refusals by the kernel
LINE = re.compile(r"\([^()\s]+\.py:\d+\)")


def kind_of(refusal: str) -> str:
    """The key of one argument check in a kernel: its line and its words, without the numbers it names."""
    at = LINE.search(refusal)
    return (at[0] if at else "") + re.sub("[0-9]+", "#", LINE.sub("", refusal))


@dataclass
class Coverage:
    """A running count of the cases of one cell. drawn, judged, refused, values_only and unreached are counts;
    values_only: judged, but the kernel refuses the gradients; unreached: planned when the time was up.

    weighed: by tensor, how many comparisons with the reference there were by a budget that judges, and how many by one
    that is as large as the values.
    classes: boundary classes of the judged cases; differentiated: of the cases judged with gradients; wanted: of the
    judged and the refused cases. tuned: the autotuned kernels of the judged cases, with their configurations.
    """

    drawn: int = 0
    judged: int = 0
    refused: int = 0
    values_only: int = 0
    unreached: int = 0
    classes: frozenset[str] = frozenset()
    differentiated: frozenset[str] = frozenset()
    wanted: frozenset[str] = frozenset()
    boundary: bool = False
    too_large: list[MachineLimit] = field(default_factory=list)
    not_as_far: dict[str, MachineLimit | OutsideDomain] = field(default_factory=dict)
    outside: list[OutsideDomain] = field(default_factory=list)
    vacuous: list[BoundVacuous] = field(default_factory=list)
    not_compiled: list[NotCompiled] = field(default_factory=list)
    slow: list[SlowToCompile] = field(default_factory=list)
    limits: dict[str, Limit] = field(default_factory=dict)
    tuned: tuple[Tuned, ...] = ()
    weighed: dict[str, tuple[int, int]] = field(default_factory=dict)

    def weigh(self, tensor: str, *, judges: bool) -> None:
        """Count one comparison of a tensor."""
        telling, silent = self.weighed.get(tensor, (0, 0))
        self.weighed[tensor] = (telling + judges, silent + (not judges))

    def count(self, case: Case, classes: frozenset[str], *, compared: bool, stopped: Refused | None) -> None:
        """Count one case. stopped: the refusal of the whole call, or of its gradients alone."""
        self.drawn += 1
        if isinstance(stopped, SlowToCompile):
            self.slow.append(stopped)
            self.wanted |= classes
        elif isinstance(stopped, MachineLimit):
            self.too_large.append(stopped)
        elif isinstance(stopped, OutsideDomain):
            self.outside.append(stopped)
        elif isinstance(stopped, BoundVacuous):
            self.vacuous.append(stopped)
            self.wanted |= classes
        elif isinstance(stopped, NotCompiled):
            self.not_compiled.append(stopped)
        elif stopped is not None:
            self.note(case, stopped)
        if compared:
            self.judged += 1
            self.wanted |= classes
            self.classes |= classes
            self.boundary |= case.has_boundary
            if stopped is not None and stopped.backward:
                self.values_only += 1
            else:
                self.differentiated |= classes
        elif stopped is not None and not stopped.backward and not isinstance(stopped, NOT_ITS_OWN):
            self.refused += 1
            self.wanted |= classes

    def leave_out(self, classes: frozenset[str]) -> None:
        """Count one case that will not be judged, for lack of time."""
        self.unreached += 1
        self.wanted |= classes

    def note(self, case: Case, refused: Refused) -> None:
        """Record a refusal among the kernel's limits, with the smallest case of each kind. What the machine cannot
        hold, or its domain excludes, is none of them."""
        if isinstance(refused, MachineLimit | OutsideDomain):
            self.not_as_far[refused.note] = refused
            return
        key = refused.note + kind_of(str(refused))
        known = self.limits.get(key, Limit(str(refused), refused.note, case.lengths, 0, gradients=refused.backward))
        small = min(known.lengths, case.lengths, key=lambda ns: (sum(ns) + len(ns), len(ns), ns))
        text = str(refused) if small != known.lengths else known.text
        self.limits[key] = replace(known, lengths=small, text=text, count=known.count + 1)

    def again(self) -> "Coverage":
        """A fresh count of the same cell that keeps the limits found so far."""
        return Coverage(limits=self.limits)

    @property
    def missing(self) -> tuple[str, ...]:
        """What was requested and not judged: boundary classes, and any pack with a boundary."""
        absent = self.wanted - self.classes
        if 0 < self.values_only < self.judged:
            absent |= self.wanted - self.differentiated
        return (*([] if self.boundary or self.not_compiled else [BOUNDARY]), *sorted(absent))

    @property
    def unseen(self) -> tuple[str, ...]:
        """The tensors of which no comparison says anything."""
        return tuple(tensor for tensor, (telling, _) in self.weighed.items() if not telling)

    @property
    def status(self) -> Status:
        """The status of the cell if nothing failed."""
        if self.unreached or self.slow or self.unseen:
            return "inconclusive"
        if self.judged:
            return "inconclusive" if self.missing else "passed"
        return "inconclusive" if self.refused or self.vacuous else "skipped"

    def reasons(self) -> Iterator[str]:
        """The reasons why the cell did not simply pass."""
        if self.unreached:
            yield f"out of time: {counted(self.drawn, 'example')} of {self.drawn + self.unreached} reached"
        if self.refused and not self.judged:
            yield f"the kernel refused every call: {next(iter(self.limits.values())).text}"
        elif self.judged and self.missing:
            yield f"not judged: {', '.join(self.missing)}"
        if self.vacuous:
            yield f"{len(self.vacuous)} of {counted(self.drawn, 'example')} cannot be judged: {self.vacuous[0]}"
        for tensor, (telling, silent) in self.weighed.items():
            if silent:
                share = f"{silent} of {counted(telling + silent, 'example')}"
                yield f"{tensor} is not judged in {share}, where its error bound is as large as its values"
        drawn = counted(self.drawn, "example")
        if self.slow:
            yield f"{len(self.slow)} of {drawn} not judged in time: {self.slow[0]}"
        if self.not_compiled:
            first, _, more = str(self.not_compiled[0]).partition("\n")
            text = f"{first} {more.partition(chr(10))[0].strip()}" if first.endswith(":") else first
            yield f"not promised: torch cannot compile it in {len(self.not_compiled)} of {drawn}: {text}"
        for stopped, what in (
            (self.outside if self.judged else [], "outside of the kernel's domain"),
            (self.too_large, "too large to be judged here"),
        ):
            if stopped:
                yield f"{len(stopped)} of {drawn} {'is' if len(stopped) == 1 else 'are'} {what}: {stopped[0]}"
        for note, limit in self.not_as_far.items():
            yield f"not judged {note}: {limit}"
        if self.values_only:
            text = next(limit.text for limit in self.limits.values() if limit.gradients)
            judged = counted(self.judged, "example")
            share = "" if self.values_only == self.judged else f" in {self.values_only} of {judged}"
            yield f"gradients: refused{share} ({text})"
