"""The basis of a verdict: the judged cases, their boundary classes, and the refused calls."""

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
)  # exceptions that end a case, but are no refusals by the kernel
LINE = re.compile(r"\([^()\s]+\.py:\d+\)")


def kind_of(refusal: str) -> str:
    """A key for one argument check of a kernel: its source line and its words, with every number as #."""
    at = LINE.search(refusal)
    return (at[0] if at else "") + re.sub("[0-9]+", "#", LINE.sub("", refusal))


@dataclass
class Coverage:
    """A running count of the cases of one cell."""

    drawn: int = 0
    """Cases drawn."""
    judged: int = 0
    """Cases judged: the kernel was called and something was compared."""
    refused: int = 0
    """Cases refused by the kernel."""
    values_only: int = 0
    """Judged cases of which the kernel refuses the gradients."""
    unreached: int = 0
    """Planned cases left when the time was up."""
    classes: frozenset[str] = frozenset()
    """Boundary classes of the judged cases."""
    differentiated: frozenset[str] = frozenset()
    """Boundary classes of the cases judged with gradients."""
    wanted: frozenset[str] = frozenset()
    """Boundary classes to judge: of the judged, refused, vacuous, slow and unreached cases."""
    boundary: bool = False
    """Whether a judged case has a boundary between two sequences."""
    too_large: list[MachineLimit] = field(default_factory=list)
    """Cases too large for this machine."""
    not_as_far: dict[str, MachineLimit | OutsideDomain] = field(default_factory=dict)
    """Changed packs, by the note of their change, too large for this machine or outside of the domain."""
    outside: list[OutsideDomain] = field(default_factory=list)
    """Cases outside of the kernel's domain."""
    vacuous: list[BoundVacuous] = field(default_factory=list)
    """Cases with an error bound too large to judge by."""
    not_compiled: list[NotCompiled] = field(default_factory=list)
    """Cases that torch.compile cannot compile."""
    slow: list[SlowToCompile] = field(default_factory=list)
    """Cases not compiled in time."""
    limits: dict[str, Limit] = field(default_factory=dict)
    """The refusals, by `refusal_key`."""
    tuned: tuple[Tuned, ...] = ()
    """The autotuned kernels of the judged cases, with their configurations."""
    weighed: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By tensor, two numbers of comparisons with the reference: decisive ones, and vacuous ones, with a budget as large
    as the values."""

    def weigh(self, tensor: str, *, judges: bool) -> None:
        """Count one comparison of a tensor.

        is_decisive: whether its budget is smaller than the values.
        """
        telling, silent = self.weighed.get(tensor, (0, 0))
        self.weighed[tensor] = (telling + judges, silent + (not judges))

    def count(self, case: Case, classes: frozenset[str], *, compared: bool, stopped: Refused | None) -> None:
        """Count one case.

        classes: its boundary classes.
        compared: whether something was compared.
        refusal: of the whole call, or of its gradients alone; None for a plain case.
        """
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
        """Count one case not reached in time."""
        self.unreached += 1
        self.wanted |= classes

    def note(self, case: Case, refused: Refused) -> None:
        """Record a refusal among the kernel's limits, with the smallest case of each kind.

        A limit of the machine or of the domain is not one of the kernel: it is recorded apart.
        """
        if isinstance(refused, MachineLimit | OutsideDomain):
            self.not_as_far[refused.note] = refused
            return
        key = refused.note + kind_of(str(refused))
        known = self.limits.get(key, Limit(str(refused), refused.note, case.lengths, 0, gradients=refused.backward))
        small = min(known.lengths, case.lengths, key=lambda ns: (sum(ns) + len(ns), len(ns), ns))
        text = str(refused) if small != known.lengths else known.text
        self.limits[key] = replace(known, lengths=small, text=text, count=known.count + 1)

    def again(self) -> "Coverage":
        """A fresh count of the same cell, with the limits found so far."""
        return Coverage(limits=self.limits)

    @property
    def missing(self) -> tuple[str, ...]:
        """The required boundary classes without a judged case, and `BOUNDARY` if no judged pack has one."""
        absent = self.wanted - self.classes
        if 0 < self.values_only < self.judged:
            absent |= self.wanted - self.differentiated
        return (*([] if self.boundary or self.not_compiled else [BOUNDARY]), *sorted(absent))

    @property
    def unseen(self) -> tuple[str, ...]:
        """The tensors without a decisive comparison."""
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
