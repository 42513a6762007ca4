"""The basis of a verdict: the judged cases, their boundary classes, and the refused calls."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from packproof.base.tuned import Tuned
from packproof.base.wording import plural
from packproof.harness.report.events import Limit, Status
from packproof.properties.calling import (
    BrokenReference,
    FailedCompilation,
    MachineLimit,
    MissingModule,
    OutsideDomain,
    Refusal,
    SlowCompilation,
    VacuousBound,
)
from packproof.properties.cases import Case
from packproof.properties.thresholds import counts

BOUNDARY = "a boundary between two sequences"
NOT_KERNEL_REFUSALS = (
    BrokenReference,
    MachineLimit,
    OutsideDomain,
    VacuousBound,
    FailedCompilation,
    MissingModule,
)  # exceptions that end a case, but are no refusals by the kernel
SOURCE_LINE = re.compile(r"\([^()\s]+\.py:\d+\)")


def refusal_key(refusal: str) -> str:
    """A key for one argument check of a kernel: its source line and its words, with every number as #."""
    location = SOURCE_LINE.search(refusal)
    return (location[0] if location else "") + re.sub("[0-9]+", "#", SOURCE_LINE.sub("", refusal))


@dataclass
class Coverage:
    """A running count of the cases of one cell."""

    examples: int = 0
    """Cases drawn."""
    judged_examples: int = 0
    """Cases judged: the kernel was called and something was compared."""
    refused_examples: int = 0
    """Cases refused by the kernel."""
    values_only_examples: int = 0
    """Judged cases of which the kernel refuses the gradients."""
    unreached_examples: int = 0
    """Planned cases left when the time was up."""
    judged_classes: frozenset[str] = frozenset()
    """Boundary classes of the judged cases."""
    differentiated_classes: frozenset[str] = frozenset()
    """Boundary classes of the cases judged with gradients."""
    required_classes: frozenset[str] = frozenset()
    """Boundary classes to judge: of the judged, refused, vacuous, slow and unreached cases."""
    has_boundary: bool = False
    """Whether a judged case has a boundary between two sequences."""
    too_large: list[MachineLimit] = field(default_factory=list)
    """Cases too large for this machine."""
    unjudged_variants: dict[str, MachineLimit | OutsideDomain] = field(default_factory=dict)
    """Changed packs, by the note of their change, too large for this machine or outside of the domain."""
    outside_domain: list[OutsideDomain] = field(default_factory=list)
    """Cases outside of the kernel's domain."""
    vacuous_bounds: list[VacuousBound] = field(default_factory=list)
    """Cases with an error bound too large to judge by."""
    broken_references: list[BrokenReference] = field(default_factory=list)
    """Cases at which the op's own reference breaks the law."""
    not_compiled: list[FailedCompilation] = field(default_factory=list)
    """Cases that torch.compile cannot compile."""
    without_module: list[MissingModule] = field(default_factory=list)
    """Cases that need a module which is not installed."""
    slow_to_compile: list[SlowCompilation] = field(default_factory=list)
    """Cases not compiled in time."""
    limits: dict[str, Limit] = field(default_factory=dict)
    """The refusals, by `refusal_key`."""
    tuned: tuple[Tuned, ...] = ()
    """The autotuned kernels of the judged cases, with their configurations."""
    is_sweep: bool = False
    """Whether each of their configurations is asked for."""
    largest: dict[str, int] = field(default_factory=dict)
    """The largest judged size along each axis of thresholds."""
    comparison_counts: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By tensor, two numbers of comparisons with the reference: decisive ones, and vacuous ones, with a budget as large
    as the values."""

    def count_comparison(self, tensor: str, *, is_decisive: bool) -> None:
        """Count one comparison of a tensor.

        is_decisive: whether its budget is smaller than the values.
        """
        decisive, vacuous = self.comparison_counts.get(tensor, (0, 0))
        self.comparison_counts[tensor] = (decisive + is_decisive, vacuous + (not is_decisive))

    def count_case(self, case: Case, classes: frozenset[str], *, compared: bool, refusal: Refusal | None) -> None:
        """Count one case.

        classes: its boundary classes.
        compared: whether something was compared.
        refusal: of the whole call, or of its gradients alone; None for a plain case.
        """
        self.examples += 1
        if isinstance(refusal, SlowCompilation):
            self.slow_to_compile.append(refusal)
            self.required_classes |= classes
        elif isinstance(refusal, MachineLimit):
            self.too_large.append(refusal)
        elif isinstance(refusal, OutsideDomain):
            self.outside_domain.append(refusal)
        elif isinstance(refusal, VacuousBound):
            self.vacuous_bounds.append(refusal)
            self.required_classes |= classes
        elif isinstance(refusal, BrokenReference):
            self.broken_references.append(refusal)
        elif isinstance(refusal, FailedCompilation):
            self.not_compiled.append(refusal)
        elif isinstance(refusal, MissingModule):
            self.without_module.append(refusal)
            self.required_classes |= classes
        elif refusal is not None:
            self.record_refusal(case, refusal)
        if compared:
            self.judged_examples += 1
            self.largest = {axis: max(size, self.largest.get(axis, 0)) for axis, size in counts(case).items()}
            self.required_classes |= classes
            self.judged_classes |= classes
            self.has_boundary |= case.has_boundary
            if refusal is not None and refusal.backward:
                self.values_only_examples += 1
            else:
                self.differentiated_classes |= classes
        elif refusal is not None and not refusal.backward and not isinstance(refusal, NOT_KERNEL_REFUSALS):
            self.refused_examples += 1
            self.required_classes |= classes

    def count_unreached(self, classes: frozenset[str]) -> None:
        """Count one case not reached in time."""
        self.unreached_examples += 1
        self.required_classes |= classes

    def record_refusal(self, case: Case, refusal: Refusal) -> None:
        """Record a refusal among the kernel's limits, with the smallest case of each kind.

        A limit of the machine or of the domain is not one of the kernel: it is recorded apart.
        """
        if isinstance(refusal, MachineLimit | OutsideDomain):
            self.unjudged_variants[refusal.note] = refusal
            return
        key = refusal.note + refusal_key(str(refusal))
        previous = self.limits.get(key, Limit(str(refusal), refusal.note, case.lengths, 0, gradients=refusal.backward))
        smallest = min(previous.lengths, case.lengths, key=lambda ns: (sum(ns) + len(ns), len(ns), ns))
        text = str(refusal) if smallest != previous.lengths else previous.text
        self.limits[key] = replace(previous, lengths=smallest, text=text, count=previous.count + 1)

    def restarted(self) -> "Coverage":
        """A fresh count of the same cell, with the limits found so far."""
        return Coverage(limits=self.limits, is_sweep=self.is_sweep)

    @property
    def missing(self) -> tuple[str, ...]:
        """The required boundary classes without a judged case, and `BOUNDARY` if no judged pack has one."""
        missing_classes = self.required_classes - self.judged_classes
        if 0 < self.values_only_examples < self.judged_examples:
            missing_classes |= self.required_classes - self.differentiated_classes
        return (*([] if self.has_boundary or self.not_compiled else [BOUNDARY]), *sorted(missing_classes))

    @property
    def unjudged_tensors(self) -> tuple[str, ...]:
        """The tensors without a decisive comparison."""
        return tuple(tensor for tensor, (decisive, _) in self.comparison_counts.items() if not decisive)

    @property
    def unjudged_configurations(self) -> tuple[str, ...]:
        """The configurations without a judged case, of a cell that is asked for each."""
        kernels = self.tuned if self.is_sweep else ()
        return tuple(f"{t.kernel} with {config}" for t in kernels for config in t.offered if config not in t.ran)

    @property
    def unasked(self) -> tuple[str, ...]:
        """What the machine lacked the memory or the time for."""
        limits = {note: limit for note, limit in self.unjudged_variants.items() if isinstance(limit, MachineLimit)}
        examples = _share_text(self.too_large, plural(self.examples, "example"), "too large to be judged here")
        return (*([examples] if examples else []), *(f"not judged {note}: {limit}" for note, limit in limits.items()))

    @property
    def status(self) -> Status:
        """The status of the cell if nothing failed."""
        gaps = self.slow_to_compile, self.without_module, self.unjudged_tensors, self.broken_references
        if self.unreached_examples or any(gaps) or self.unjudged_configurations:
            return "inconclusive"
        if self.judged_examples:
            return "inconclusive" if self.missing else "passed"
        return "inconclusive" if self.refused_examples or self.vacuous_bounds else "skipped"

    def _uninformative_cases(self) -> Iterator[str]:
        """The numbers of cases that tell nothing of the kernel, with the reason."""
        for cases, template in (
            (self.broken_references, "no fault of the kernel in {}"),
            (self.vacuous_bounds, "{} cannot be judged"),
        ):
            if cases:
                share = f"{len(cases)} of {plural(self.examples, 'example')}"
                yield f"{template.format(share)}: {cases[0]}"

    def _configuration_reasons(self) -> Iterator[str]:
        """The configurations that a sweep has not judged."""
        if self.unjudged_configurations:
            yield f"not judged: {'; '.join(self.unjudged_configurations)}"
        elif self.is_sweep and not self.tuned:
            yield "no autotuned kernel was launched, and no configuration was judged"

    def reasons(self) -> Iterator[str]:
        """The reasons why the cell did not simply pass."""
        if self.unreached_examples:
            total = self.examples + self.unreached_examples
            yield f"out of time: {plural(self.examples, 'example')} of {total} reached"
        if self.refused_examples and not self.judged_examples:
            yield f"the kernel refused every call: {next(iter(self.limits.values())).text}"
        elif self.judged_examples and self.missing:
            yield f"not judged: {', '.join(self.missing)}"
        yield from self._configuration_reasons()
        yield from self._uninformative_cases()
        for tensor, (decisive, vacuous) in self.comparison_counts.items():
            if vacuous:
                share = f"{vacuous} of {plural(decisive + vacuous, 'example')}"
                yield f"{tensor} is not judged in {share}, where its error bound is as large as its values"
        examples_text = plural(self.examples, "example")
        if self.without_module:
            yield f"{len(self.without_module)} of {examples_text} not judged: {self.without_module[0]}"
        if self.slow_to_compile:
            yield f"{len(self.slow_to_compile)} of {examples_text} not judged in time: {self.slow_to_compile[0]}"
        if self.not_compiled:
            head, _, tail = str(self.not_compiled[0]).partition("\n")
            text = f"{head} {tail.partition(chr(10))[0].strip()}" if head.endswith(":") else head
            yield f"not promised: torch cannot compile it in {len(self.not_compiled)} of {examples_text}: {text}"
        if self.outside_domain and self.judged_examples:
            yield _share_text(self.outside_domain, examples_text, "outside of the kernel's domain")
        yield from self.unasked
        for note, limit in self.unjudged_variants.items():
            if not isinstance(limit, MachineLimit):
                yield f"not judged {note}: {limit}"
        if self.values_only_examples:
            text = next(limit.text for limit in self.limits.values() if limit.gradients)
            judged_text = plural(self.judged_examples, "example")
            share = (
                ""
                if self.values_only_examples == self.judged_examples
                else f" in {self.values_only_examples} of {judged_text}"
            )
            yield f"gradients: refused{share} ({text})"


def _share_text(refusals: Sequence[Refusal], examples_text: str, description: str) -> str:
    """How many of the examples are described so, and why the first one is; "" for none."""
    verb = "is" if len(refusals) == 1 else "are"
    return f"{len(refusals)} of {examples_text} {verb} {description}: {refusals[0]}" if refusals else ""
