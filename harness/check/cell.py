"""Judges one cell: runs a property over its cases, in rounds, until one breaks it or all hold."""

import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from packproof.base.errors import OutOfMemory, OutOfTime
from packproof.base.names import SLACK, short_dtype
from packproof.base.provenance.computed import observed
from packproof.base.stopwatch import span
from packproof.base.tuned import merge_tuned
from packproof.harness.check.diagnosis.conventions import suggestions
from packproof.harness.check.diagnosis.slack import (
    CHECKED_WITHOUT,
    WITHOUT_SLACK,
    fails_as_sequence,
    fails_by_slack,
    slack_cell,
)
from packproof.harness.check.failure import CellViolation, KnownFaults, ReplayInfo, shrunk_failure, unshrunk_failure
from packproof.harness.check.large_cases import LargeCases
from packproof.harness.check.own_faults import report_internal_error
from packproof.harness.check.probing.probe import InferredDomain, probe
from packproof.harness.check.provenance import ProvenanceTrial, provenance_cell
from packproof.harness.check.request import Allowance
from packproof.harness.check.rounds import CaseSelection, CellProgress, suited_case
from packproof.harness.check.targets.reference_trial import fault_of_reference
from packproof.harness.process import CoreTime
from packproof.harness.report import (
    NOT_KERNEL_REFUSALS,
    Cell,
    CellFinished,
    CellStarted,
    Coverage,
    Event,
    Failure,
    FailureFound,
    Progress,
    Status,
    Tier,
    Verdict,
)
from packproof.properties.calling import BrokenReference, OutsideDomain, Refusal
from packproof.properties.cases import Case, Domain, Space
from packproof.properties.judgement import KernelUnderTest, record_comparisons
from packproof.properties.laws import REFERENCE, Property, Violation
from packproof.properties.thresholds import Crossed, axes_of

_PROGRESS_SECONDS = 0.5
_LATE_SECONDS = 10.0  # for shrinking a failure, however little time remains


@dataclass
class Evaluator:
    """What the cells of one kernel and dtype share."""

    kernel: KernelUnderTest
    selection: CaseSelection
    """The cases of every cell."""
    allowance: Allowance
    """For shrinking a failure."""
    replay: ReplayInfo
    known_tier: Tier | None = None
    """None if only the first calls show whether a kernel is interpreted."""
    core_time: CoreTime = field(default_factory=CoreTime)
    """The time in which further examples may begin."""
    inferred: InferredDomain | None = None
    """The kernel's domain, inferred after it refused a call."""
    refused_case: Case | None = None
    """The first refused call."""
    known_faults: KnownFaults = field(default_factory=KnownFaults)
    """The faults that this process has found in the kernel."""
    excludes_slack: bool = False
    """Whether slack was found to break the kernel, and the check goes on without it."""
    provenance: ProvenanceTrial = field(default_factory=ProvenanceTrial)
    """Who computed."""
    every_configuration: bool = False
    """Whether each configuration of autotuned kernels is judged, by the property reference."""

    def run_cell(self, cell: Cell, law: Property, space: Space) -> Iterator[Event | None]:
        """The events of a cell. The last one holds its verdict; None ends a round, and other cells may run theirs.

        Once the kernel refuses a plain call, its domain is inferred, and every unfinished cell begins again inside it.
        """
        yield from CellRun(self, cell, law, space).events()

    @property
    def tier(self) -> Tier:
        """The tier of what made the output."""
        is_interpreted = self.kernel.interpreted and not self.provenance.is_idle
        return self.known_tier or ("interpret" if is_interpreted else "eager")

    def infer_domain(self, space: Space, case: Case) -> None:
        """Probe the kernel, as far as there is time, once it refused the case."""
        with suppress(OutOfTime):
            self.inferred, self.refused_case = probe(self.kernel, space, case), case

    @property
    def restrictions(self) -> Domain:
        """The conditions of all further cases, beside the declared domain."""
        inferred = self.inferred.domain if self.inferred else Domain()
        return inferred & WITHOUT_SLACK if self.excludes_slack else inferred

    def supported_part(self, space: Space) -> Space:
        """The part of the space inside the restrictions. The kernel is restricted to it."""
        if not self.restrictions:
            return space
        supported = replace(space, domain=space.domain & self.restrictions)
        self.kernel.domain = supported.domain
        if self.kernel.gradients and not supported.domain.allows_gradients:
            self.kernel.gradients = False
        return supported

    def shrink(self, finding: CellViolation) -> Failure:
        """The failure of a violation, as small as the allowance and the remaining time permit."""
        seconds = max((self.core_time.deadline - time.monotonic()) / 4, _LATE_SECONDS)
        allowance = replace(self.allowance, seconds=min(self.allowance.seconds, seconds))
        empty_packs = self.selection.draws_empty_packs(finding.law)
        with span("shrink", inclusive=True):
            try:
                return shrunk_failure(
                    self.kernel,
                    finding,
                    allowance,
                    self.replay,
                    empty_packs=empty_packs,
                    known_faults=self.known_faults,
                )
            except OutOfTime as error:  # the violation stands without it
                reason = str(error)
            except Exception as error:
                reason = report_internal_error(error)
            failure = unshrunk_failure(self.kernel, finding)
            return replace(failure, lines=(*failure.lines, f"not made small: {reason}"))


class CellRun:
    """The judging of one cell."""

    def __init__(self, evaluator: Evaluator, cell: Cell, law: Property, space: Space) -> None:
        self._evaluator, self._kernel = evaluator, evaluator.kernel
        self._cell, self._law, self._space = cell, law, space
        self._coverage = Coverage(is_sweep=evaluator.every_configuration and law is REFERENCE)
        self._large_cases = LargeCases(evaluator.core_time, evaluator.selection.reach)
        self._tried_counterexamples: set[Case] = set()
        self._is_of_other_fault = False
        self._passed_cases: list[Case] = []  # since the last round

    def events(self) -> Iterator[Event | None]:
        """See `Evaluator.run_cell`."""
        yield CellStarted(self._cell)
        core_time, failure, slack_finding = self._evaluator.core_time, None, None
        self._start = core_time.clock()  # each pause moves it on
        self._progress = self._plan_rounds()
        while self._progress.rounds and not core_time.is_over:
            finding = self._try_counterexamples() or (yield from self._run_round())
            if finding is not None and self._reveals_slack(finding):
                self._evaluator.excludes_slack = True  # all cells of the kernel go on without
                if self._is_of_other_fault:
                    slack_finding = finding
                elif failure := (yield from self._slack_failure(finding)):
                    break
            elif finding is not None:
                if not finding.is_smallest:
                    yield FailureFound(self._verdict(unshrunk_failure(self._kernel, finding)))
                failure = self._evaluator.shrink(finding)
                break
            yield from self._judge_provenance()
            if self._progress.rounds:
                pause = core_time.clock()
                yield None
                self._start += core_time.clock() - pause
            self._renew_rounds()
        if failure is None and slack_finding is not None:  # no other fault was met
            failure = yield from self._slack_failure(slack_finding)
        if failure is None:
            for case in self._progress.remaining:
                if case not in self._large_cases:  # the report says how far these came
                    self._coverage.count_unreached(self._classes(case))
        verdict = self._verdict(failure)
        reason = self._with_suggestions(verdict)
        yield CellFinished(replace(verdict, reason=reason, seconds=core_time.clock() - self._start))

    def _reveals_slack(self, finding: CellViolation) -> bool:
        """Whether slack alone breaks the kernel here. The promises that it does not make keep their slack."""
        if self._evaluator.excludes_slack or self._cell.unpromised:
            return False
        arguments = (self._kernel, finding.law, finding.case, finding.violation, finding.space)
        try:
            if not fails_by_slack(*arguments):
                return False
            self._is_of_other_fault = fails_as_sequence(*arguments)
        except OutOfTime:
            return False
        return True

    def _slack_failure(self, finding: CellViolation) -> Generator[Event, None, Failure | None]:
        """Report slack as a finding of its own. If its cause is another fault, the failure is one of this cell."""
        domain, self._kernel.domain = self._kernel.domain, finding.space.domain
        failure = self._evaluator.shrink(replace(finding, by_slack=True))
        self._kernel.domain = domain
        if failure.cause != SLACK:
            return failure
        tier = self._evaluator.tier
        verdict = Verdict(slack_cell(self._cell), tier, "failed", 1, 0.0, judged=1, reason=CHECKED_WITHOUT)
        yield CellFinished(replace(verdict, failure=failure))
        return None

    def _judge_provenance(self) -> Iterator[Event]:
        """Report as a finding of its own that the kernel's own launches do not make its output."""
        evaluator, progress = self._evaluator, self._progress
        cases, self._passed_cases = self._passed_cases, []
        with suppress(OutOfTime):
            trial, are_last = evaluator.provenance, not progress.rounds
            for finding in trial.judge(self._cell, progress.space, self._kernel, cases, are_last=are_last):
                verdict = Verdict(provenance_cell(self._cell), evaluator.tier, "failed", 1, 0.0, judged=1)
                computed = observed(self._kernel.computed)
                yield CellFinished(replace(verdict, computed=computed, failure=evaluator.shrink(finding)))

    def _plan_rounds(self, started_cases: Sequence[Case] = ()) -> CellProgress:
        """The rounds of the cell, without the cases already started."""
        evaluator, tier = self._evaluator, self._evaluator.tier
        space = evaluator.supported_part(self._space)
        rounds = [
            new_cases
            for cases in evaluator.selection.rounds(self._law, space, tier)
            if (new_cases := [case for case in cases if case not in started_cases])
        ]
        selection, planned = evaluator.selection, len(started_cases) + sum(map(len, rounds))
        golden = selection.golden(space, tier)
        self._large_cases.replace(selection.past_thresholds(space, tier))
        return CellProgress(evaluator.restrictions, tier, space, golden, rounds, list(started_cases), planned)

    def _renew_rounds(self) -> None:
        """Begin again inside new restrictions; continue with the cases of another tier once it is known."""
        if self._evaluator.restrictions != self._progress.restrictions:
            self._coverage = self._coverage.restarted()
            self._progress = self._plan_rounds()
        elif self._evaluator.tier != self._progress.tier:
            self._progress = self._plan_rounds(self._progress.started_cases)
        elif self._coverage.is_sweep and not (self._progress.rounds or self._progress.configured):
            self._progress.add_configurations(merge_tuned(*self._kernel.tuned.values()))

    def _run_round(self) -> Generator[Event, None, CellViolation | None]:
        """Judge the next round, until a violation, or a refusal from which the kernel's domain is inferred."""
        progress, cases = self._progress, self._progress.rounds[0]
        while cases and self._evaluator.core_time.wait_for_turn():
            case = cases.pop(0)
            if time.monotonic() - progress.reported > _PROGRESS_SECONDS:
                progress.reported = time.monotonic()
                yield Progress(self._cell, self._coverage.examples, progress.planned, case.lengths)
            if not self._large_cases.affords(case):
                progress.planned -= 1
                continue
            try:
                configured_case = self._with_configuration(case)
                violation, refusal = self._judge(configured_case)
            except OutOfMemory:
                raise
            except OutOfTime:
                cases.insert(0, case)
                return None
            progress.started_cases.append(case)
            if violation is not None:
                untried = tuple(c for c in progress.remaining if c.n_tokens and c in progress.golden)
                number = self._coverage.examples
                return CellViolation(self._cell, self._law, progress.space, configured_case, violation, number, untried)
            # a limit of size is reported; the other cases are inside it
            if self._evaluator.inferred is None and _declines(refusal) and case not in self._large_cases:
                self._evaluator.infer_domain(progress.space, case)
                return None
        if not cases:
            progress.rounds.pop(0)
        return None

    def _try_counterexamples(self) -> CellViolation | None:
        """Judge the smallest cases of faults that other cells of this process have found since the last round."""
        known_cases = () if self._cell.unpromised else self._evaluator.known_faults.cases
        for counterexample in known_cases:
            case = suited_case(self._law, counterexample, self._progress.space)
            if case is None or case in self._tried_counterexamples:
                continue
            self._tried_counterexamples.add(case)
            try:
                violation, _ = self._judge(case)
            except OutOfTime:
                return None
            if violation is not None:
                number = self._coverage.examples
                return CellViolation(
                    self._cell, self._law, self._progress.space, case, violation, number, is_smallest=True
                )
        return None

    def _classes(self, case: Case) -> frozenset[str]:
        """The boundary classes of a case; none of a large one, since no class needs thousands of sequences."""
        return frozenset() if case in self._large_cases else self._progress.space.boundary_classes(case)

    def _with_configuration(self, case: Case) -> Case:
        """The case with a configuration number, once the kernel has launched an autotuned one."""
        selection, progress = self._evaluator.selection, self._progress
        if case in progress.configured or not self._kernel.tuned:
            return case
        number = selection.configuration(case, progress.space, self._evaluator.tier, len(progress.started_cases))
        return case.replace(configuration=number)

    def _judge(self, case: Case) -> tuple[Violation | None, Refusal | None]:
        """Judge one case and count it: the violation, and the refusal."""
        kernel, coverage = self._kernel, self._coverage
        kernel.refusals.clear()
        with record_comparisons() as comparisons:
            violation, refusal = self._large_cases.judge(kernel, self._law, case)
        if violation is not None and (text := fault_of_reference(kernel.op, self._law, case, violation)):
            violation, refusal = None, BrokenReference(text)
        for partial_refusal in kernel.refusals:
            if not isinstance(partial_refusal, OutsideDomain):
                coverage.record_refusal(case, partial_refusal)
        for comparison in comparisons:
            if comparison.baseline_name == "reference":
                coverage.count_comparison(str(comparison.key), is_decisive=comparison.is_conclusive)
        compared = violation is not None or any(comparison.is_conclusive for comparison in comparisons)
        coverage.count_case(case, self._classes(case), compared=compared, refusal=refusal)
        if compared and violation is None and refusal is None:
            self._passed_cases.append(case)
        coverage.tuned = merge_tuned(coverage.tuned, kernel.tuned.get(case.configuration, ()) if comparisons else ())
        return violation, refusal

    def _verdict(self, failure: Failure | None) -> Verdict:
        coverage, inferred = self._coverage, self._evaluator.inferred
        status, reasons = self._status_if_nothing_failed, list(coverage.reasons())
        if failure:
            status, reasons = "failed", []
        elif inferred and inferred.accepted_dtypes and not coverage.judged_examples:
            refused_dtype = short_dtype(self._cell.dtype)
            status = "skipped"
            reasons = [f"the kernel refuses {refused_dtype} and takes {inferred.accepted_dtypes}"]
        elif not coverage.judged_examples and not reasons:
            reasons = [self._skip_reason()]
        elif inferred and not inferred.domain.allows_gradients:
            reasons.append(f"gradients: refused ({', '.join(inferred.domain.texts)})")
        return Verdict(
            self._cell,
            self._evaluator.tier,
            status,
            coverage.examples,
            self._evaluator.core_time.clock() - self._start,
            judged=coverage.judged_examples,
            refused=coverage.refused_examples,
            classes=coverage.judged_classes,
            possible_classes=self._space.possible_classes,
            missing=coverage.missing if status == "inconclusive" else (),
            reason="; ".join(reasons),
            unasked=() if failure else coverage.unasked,
            limits=tuple(coverage.limits.values()),
            domain=inferred.domain.texts if inferred else (),
            failure=failure,
            thresholds=None if failure else self._thresholds(),
            tuned=coverage.tuned,
            perturbed_calls=self._kernel.perturbed_calls.get(self._law.name, 0),
            computed=observed(self._kernel.computed),
        )

    @property
    def _status_if_nothing_failed(self) -> Status:
        """That of its coverage. Who may decline no call passes with none: lack of memory can be a kernel's excuse."""
        may_pass = self._kernel.may_refuse or not self._coverage.unasked
        return self._coverage.status if may_pass else "inconclusive"

    def _thresholds(self) -> Crossed | None:
        """The constants of the kernel's source and how far beyond them it was judged, in a cell with such cases."""
        selection = self._evaluator.selection
        if not (selection.reach.source and selection.constants and self._law.crosses_thresholds):
            return None
        largest = {axis: self._coverage.largest.get(axis, 0) for axis in axes_of(self._progress.space)}
        return Crossed(selection.constants, largest)

    def _skip_reason(self) -> str:
        """Why the cell was not judged, although the kernel refused no whole example."""
        coverage, space = self._coverage, self._progress.space
        refusals = [f"refused: {limit.text}" for limit in coverage.limits.values() if not limit.gradients]
        refusals += [str(outside) for outside in coverage.outside_domain]
        if refusals or coverage.examples:
            return next(iter(refusals), self._law.nothing_to_compare)
        texts = "; ".join(space.domain.texts)
        return self._law.skip_reason(space) or f"no example in the kernel's domain suits it: {texts}"

    def _with_suggestions(self, verdict: Verdict) -> str:
        """The reason of a verdict. After a refusal it names conventions in which the call would be accepted."""
        reasons, refused_case = [verdict.reason], self._evaluator.refused_case
        if verdict.status == "inconclusive" and refused_case is not None:
            with suppress(OutOfTime):
                reasons += suggestions(self._kernel, self._law, refused_case, self._space)
        return "; ".join(filter(None, reasons))


def _declines(refusal: Refusal | None) -> bool:
    """Whether the kernel declined a call of the case in its unchanged form."""
    return refusal is not None and not (refusal.backward or refusal.note or isinstance(refusal, NOT_KERNEL_REFUSALS))
