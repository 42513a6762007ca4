"""All that is known of a failure at its smallest case: lines for the report, the key of its cause, measurements."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from packproof.base.axes import SLOTS
from packproof.harness.check.diagnosis.cause import cause_key, slack_cause
from packproof.harness.check.diagnosis.conventions import suggestions
from packproof.harness.check.diagnosis.detached import detached_advice
from packproof.harness.check.diagnosis.diagnose import SLACK_HINT, diagnose
from packproof.harness.check.diagnosis.measure import measure
from packproof.harness.check.diagnosis.missing_declaration import missing_declaration
from packproof.harness.check.diagnosis.reduction import NO_REDUCTION, reduction_line
from packproof.harness.check.diagnosis.rows import UnwrittenRows, unwritten_rows, unwritten_rows_line, wrong_rows_lines
from packproof.harness.check.diagnosis.ties import tie_hint
from packproof.harness.check.diagnosis.without_effect import without_effect
from packproof.harness.check.own_faults import report_internal_error
from packproof.harness.report.maps import Evidence
from packproof.properties.calling import PagePlacement, TensorKey
from packproof.properties.cases import Case, Sample, Space
from packproof.properties.judgement import KernelUnderTest
from packproof.properties.laws import Property, Violation, number
from packproof.properties.snippets import PastedLines


@dataclass(frozen=True)
class SmallestFailure:
    """A violation at the smallest case."""

    kernel: KernelUnderTest
    law: Property
    case: Case
    """The smallest case."""
    violation: Violation
    """The violation there."""
    space: Space
    """The space of the kernel's cases."""
    first_case: Case
    """The case before it was made smaller."""
    pasted: PastedLines | None = None
    """The kernel in lines to paste; None if it is not declared by a user."""
    by_slack: bool = False
    """Whether only slack rows break the law."""


@dataclass(frozen=True)
class FailureExplanation:
    """What is known of a failure."""

    cause: str
    """The key of its cause (`cause_key`)."""
    lines: tuple[str, ...]
    """Lines for the report, after those of the violation."""
    evidence: Evidence | None = None
    """The measurements."""


def explain(failure: SmallestFailure, spaces: Sequence[Space], explained: dict[str, str]) -> FailureExplanation:
    """The explanation of a failure, in full for the first one of each cause.

    spaces: of the dtypes of the check.
    explained: the cells of causes that were explained, by key; the cell of a failure without changes to the pack is
    added by the caller.
    """
    kernel, case, violation = failure.kernel, failure.case, failure.violation
    sample = kernel.sample(case)
    unwritten = unwritten_rows(kernel, sample, violation)
    is_alone = violation.other == "alone"
    unwritten_alone = unwritten_rows(kernel, sample.alone(violation.sequence), violation) if is_alone else {}
    if failure.by_slack:
        cause = slack_cause(kernel, case, violation, spaces)
    else:
        cause = cause_key(kernel, failure.law, case, violation, spaces=spaces, unwritten={*unwritten, *unwritten_alone})
    if cause in explained:
        return FailureExplanation(cause, (f"the same fault as in {explained[cause]}",))
    evidence, lines = _measured(failure)
    rows_lines = _unwritten_lines(violation, unwritten, unwritten_alone)
    is_written = not rows_lines
    if is_written and evidence:
        rows_lines = wrong_rows_lines(violation, evidence.rows, case.n_tokens + case.slack)
    lines = [*rows_lines, *lines, *_place_in_pages(kernel, sample, violation)]
    if evidence and evidence.factor is not None and violation.other == "reference":
        multiple = f"{number(evidence.factor)} x the reference" if evidence.factor else "0"
        lines.append(f"each wrong element is {multiple}")
    if ties := tie_hint(kernel, case, violation):
        return FailureExplanation(cause, (*lines, *ties), evidence)
    origin = SLACK_HINT if failure.by_slack else diagnose(kernel, case, violation) if is_written else ""
    reduction = reduction_line(kernel, case, violation)
    is_named = bool(reduction) and NO_REDUCTION not in reduction[0]  # then other sequences count by their shares alone
    lines += [origin] if origin and not is_named else []
    lines += reduction
    lines += without_effect(kernel, case, violation)
    lines += detached_advice(kernel, case, violation, failure.space)
    lines += suggestions(kernel, failure.law, case, failure.space)
    lines += missing_declaration(kernel, failure.law, case, violation, failure.space, failure.pasted)
    return FailureExplanation(cause, tuple(lines), evidence)


def _unwritten_lines(
    violation: Violation,
    unwritten: Mapping[TensorKey, UnwrittenRows],
    unwritten_alone: Mapping[TensorKey, UnwrittenRows],
) -> list[str]:
    """A line with the rows of the wrong tensor that were never written; empty without such rows.

    unwritten: by tensor, in the pack.
    unwritten_alone: by tensor, in the run of the sequence alone.
    """
    tensor, j = violation.tensor, violation.sequence
    if tensor and tensor in unwritten:
        return [unwritten_rows_line(tensor, unwritten[tensor])]
    if tensor and tensor in unwritten_alone:
        line = unwritten_rows_line(tensor, unwritten_alone[tensor])
        return [f"with sequence {j} alone, {line}"]
    return []


def _measured(failure: SmallestFailure) -> tuple[Evidence | None, list[str]]:
    """The measurements; if they fail, None and a line that says so."""
    try:
        return measure(failure.kernel, failure.law, failure.case, failure.violation, failure.first_case), []
    except Exception as error:  # the failure stands without it
        return None, [f"not measured: {report_internal_error(error)}"]


def _place_in_pages(kernel: KernelUnderTest, sample: Sample, violation: Violation) -> Iterator[str]:
    """Where the keys of a sequence, or the slot of a pool, lie in the pages of a cache."""
    if kernel.page_sizes and violation.slot >= 0:
        [size] = kernel.page_sizes
        row = PagePlacement.row_of_slot(violation.slot, sample.sizes[SLOTS], size)
        yield f"slot {violation.slot} is row {row % size} of page {row // size}, of {size} rows each (slot {row} there)"
    elif kernel.page_sizes and violation.sequence >= 0:
        shared = PagePlacement.SHARED in violation.note
        yield PagePlacement.of(sample.key_offsets, kernel.page_sizes, shared=shared).describe(violation.sequence)
