"""Judges the cells of one kernel and dtype. A cell runs a property over its cases until one breaks it or all hold.

Cells alternate in rounds: the most telling cases of every property run before the rest of any.
"""

import math
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain

from packproof.harness.diagnosis.conventions import suggestions
from packproof.harness.engine.failure import FailingCase, ReplayInfo, shrunk_failure, unshrunk_failure
from packproof.harness.engine.own_faults import (
    error_verdicts,
    errors_as_verdicts,
    inconclusive_verdicts,
    report_internal_error,
)
from packproof.harness.engine.plan import Unit
from packproof.harness.engine.probe import InferredDomain, probe
from packproof.harness.engine.request import PROFILES, Allowance
from packproof.harness.engine.rounds import numbered, rounds, shared_out
from packproof.harness.engine.target import CheckTarget
from packproof.harness.engine.violations import judge_case
from packproof.harness.results.coverage import NOT_KERNEL_REFUSALS, Coverage
from packproof.harness.results.events import (
    Cell,
    CellFinished,
    CellStarted,
    Event,
    Failure,
    FailureFound,
    Progress,
    Tier,
    Verdict,
)
from packproof.harness.results.names import short_dtype
from packproof.harness.results.questions import find_question
from packproof.harness.worker.sharing import CoreTime
from packproof.harness.worker.worker import Worker
from packproof.properties.call import OutOfTime, OutsideDomain, Refusal
from packproof.properties.cases.case import Case
from packproof.properties.cases.domain import Domain
from packproof.properties.cases.space import Space, golden_cases, random_cases
from packproof.properties.cases.tuned import merge_tuned
from packproof.properties.comparison import record_comparisons
from packproof.properties.kernel_under_test import KernelUnderTest
from packproof.properties.laws.property import Property
from packproof.properties.stopwatch import span
from packproof.properties.violation import Violation
from packproof.refs.errors import PackproofError

_PROGRESS_SECONDS = 0.5
_LATE_SECONDS = 10.0  # for shrinking a failure, however little time remains
_LAST_CALL = 20.0  # seconds past the end of the run after which an open call is ended
_FOR_A_QUESTION = Allowance(100, 5)


def evaluate_unit(unit: Unit, core_time: CoreTime) -> Iterator[Event]:
    """The events of a unit's cells.

    Cells whose process cannot be started are errors. Cells not reached in time are inconclusive.
    """
    left = list(unit.cells)
    try:
        for event in _evaluated_together(unit, core_time):
            if isinstance(event, CellFinished):
                left.remove(event.verdict.cell)
            yield event
    except OutOfTime as error:
        yield from inconclusive_verdicts(left, str(error))
    except PackproofError as error:
        yield from error_verdicts(left, str(error))


def _evaluated_together(unit: Unit, core_time: CoreTime) -> Iterator[Event]:
    """Dtype after dtype, in one process."""
    with unit.target.worker(core_time.deadline + _LAST_CALL) as worker:
        if not core_time.is_over:
            with span("start"):
                worker.open()  # before any autograd here: the process of a closure is a fork of this one
        for dtype in dict.fromkeys(cell.dtype for cell in unit.cells):
            yield from _evaluated(unit.target, worker, [c for c in unit.cells if c.dtype == dtype], core_time)


def _evaluated(target: CheckTarget, worker: Worker, cells: Sequence[Cell], core_time: CoreTime) -> Iterator[Event]:
    """The cells of one dtype: properties of the plan first, memory-filling ones after them, unpromised ones last."""
    dtype, laws = cells[0].dtype, target.request.laws
    evaluator, space = _evaluator(target, worker, dtype, core_time), target.space(dtype)
    extra = [cell for cell in cells if cell.unpromised and not target.unpromised]
    plain = [cell for cell in cells if cell not in extra]
    large = [cell for cell in plain if laws[cell.property].fills_memory]
    others = [cell for cell in plain if cell not in large]
    failed: set[str] = set()
    first, last = (
        _in_rounds((cell, evaluator.cell(cell, laws[cell.property], space)) for cell in some)
        for some in (others, large)
    )
    for event in chain(first, last):
        if isinstance(event, CellFinished) and event.verdict.status == "failed":
            failed.add(event.verdict.cell.property)
        yield event
    asked = [cell for cell in extra if cell.property not in failed]
    for cell in extra:
        if cell not in asked:
            reason = f"{cell.property} failed"
            yield CellFinished(Verdict(cell, evaluator.tier, "skipped", 0, 0.0, reason=reason))
    chosen = [(cell, _with_question(evaluator, target, cell)) for cell in asked]
    yield from _in_rounds((cell, each.cell(cell, laws[cell.property], space)) for cell, each in chosen)


def _in_rounds(cells: Iterable[tuple[Cell, Iterator[Event | None]]]) -> Iterator[Event]:
    """The events of the cells, one round of each cell at a time. None ends a round."""
    running = deque(errors_as_verdicts(cell, events) for cell, events in cells)
    while running:
        cell = running.popleft()
        for event in cell:
            if event is None:
                running.append(cell)
                break
            yield event


def _evaluator(target: CheckTarget, worker: Worker, dtype: str, core_time: CoreTime) -> "Evaluator":
    request, declared, profile = target.request, target.declared, PROFILES[target.request.profile]
    on_gpu = request.device == "cuda"
    # on a CPU the dtypes share the cases of dtype-independent properties; a GPU is fast enough for all in each dtype
    share = None if on_gpu else (target.dtypes.index(dtype), len(target.dtypes))
    return Evaluator(
        kernel=KernelUnderTest(
            target.op,
            worker,
            declared.promises,
            gradients=target.gradients,
            domain=declared.domain,
            conventions=declared.conventions,
            takes_cuts=declared.takes_cuts,
        ),
        effort=Effort(profile.examples, profile.shrink, request.seed, share, target.empty_packs, core_time),
        replay=ReplayInfo(target.address, target.op_name, request.draw_configs, request.replay_dir),
        known_tier="gpu" if on_gpu else None,
    )


def _with_question(evaluator: "Evaluator", target: CheckTarget, cell: Cell) -> "Evaluator":
    """The same evaluator for a promise that the kernel does not make: golden cases only, unless the answer counts."""
    raised = find_question(cell.property, cell.unpromised).with_promise(target.declared)
    assert raised is not None
    effort = evaluator.effort
    if not cell.counts:
        effort = replace(effort, examples={}, allowance=_FOR_A_QUESTION)
    return replace(evaluator, kernel=replace(evaluator.kernel, promises=raised.promises), effort=effort)


@dataclass(frozen=True)
class Effort:
    """Limits on the work for the cells of one kernel and dtype."""

    examples: Mapping[Tier, int]
    """Random cases after the golden ones, by tier."""
    allowance: Allowance
    """For shrinking a failure."""
    seed: int = 0
    """Seed of the cases."""
    share: tuple[int, int] | None = None
    """(k, n): n dtypes share the cases of dtype-independent properties, one case for each layout. This dtype is the kth
    and judges every nth case, from a start that differs between properties. None: this dtype judges all cases.
    """
    empty_packs: bool = True
    """Whether packs without tokens are drawn for every property, or only for properties whose law names them. A kernel
    that crashes on them is still judged by all other properties.
    """
    core_time: CoreTime = field(default_factory=CoreTime)
    """The time in which further examples may begin."""


@dataclass
class _Course:
    """The progress of one cell."""

    space: Space
    """The part of its case space inside the domain, as far as `found` tells."""
    found: InferredDomain | None
    """The inferred domain when this course began."""
    golden: frozenset[Case]
    """The golden cases in the space."""
    tier: Tier
    """The tier its cases were chosen for."""
    left: list[list[Case]]
    """Rounds to come."""
    begun: list[Case]
    """Cases of earlier rounds."""
    planned: int
    """Number of cases in all."""
    seen: Coverage
    """Coverage so far."""
    reported: float = -math.inf
    """Time of the last progress event."""


@dataclass
class Evaluator:
    """Judges the cells of one kernel and dtype."""

    kernel: KernelUnderTest
    effort: Effort
    replay: ReplayInfo
    known_tier: Tier | None = None
    """None if only the first calls show whether a kernel is interpreted."""
    found: InferredDomain | None = None
    """The kernel's domain, inferred after it refused a call."""
    declined: Case | None = None
    """The first refused call."""
    _cases_in: dict[tuple[Domain, Tier], tuple[list[Case], list[Case]]] = field(default_factory=dict, init=False)
    _numbers_in: dict[tuple[Domain, Tier], dict[Case, int]] = field(default_factory=dict, init=False)

    def cell(self, cell: Cell, law: Property, space: Space) -> Iterator[Event | None]:
        """Run one cell. The last event holds its verdict; None ends a round, and other cells may run theirs.

        Once the kernel refuses a plain call, its domain is inferred, and every unfinished cell begins again inside it.
        """
        yield CellStarted(cell)
        clock = self.effort.core_time.clock
        resumed, seconds = clock(), 0.0
        course, failure = self._course(law, space, Coverage()), None
        while course.left and not self.effort.core_time.is_over:
            finding = yield from self._round(cell, law, course)
            if finding is not None:
                failure = unshrunk_failure(self.kernel, finding)
                yield FailureFound(self._verdict(cell, law, course, failure, seconds + clock() - resumed))
                failure = self._failure(finding)
                break
            if course.left:
                seconds += clock() - resumed
                yield None
                resumed = clock()
            if self.found is not course.found:
                course = self._course(law, space, course.seen.restarted())
            elif self.tier != course.tier:
                course = self._course(law, space, course.seen, course.begun)
        if failure is None:
            for case in chain.from_iterable(course.left):
                course.seen.count_unreached(course.space.boundary_classes(case))
        verdict = self._verdict(cell, law, course, failure, seconds)
        if verdict.status == "inconclusive" and self.declined is not None:
            with suppress(OutOfTime):
                other = suggestions(self.kernel, law, self.declined, space)
                verdict = replace(verdict, reason="; ".join(filter(None, [verdict.reason, *other])))
        yield CellFinished(replace(verdict, seconds=seconds + clock() - resumed))

    def _course(self, law: Property, space: Space, seen: Coverage, begun: Sequence[Case] = ()) -> _Course:
        """The course of a cell from its first round, or after the cases already begun."""
        inside = self._inside(space)
        golden = frozenset(self._drawn(inside)[0])
        every = rounds(self._cases(law, inside), golden, inside)
        left = [new for cases in every if (new := [case for case in cases if case not in begun])]
        planned = len(begun) + sum(map(len, left))
        return _Course(inside, self.found, golden, self.tier, left, list(begun), planned, seen)

    def _round(self, cell: Cell, law: Property, course: _Course) -> Generator[Event, None, FailingCase | None]:
        """Judge the next round, until a violation, or a refusal from which the kernel's domain is inferred."""
        space, seen, cases = course.space, course.seen, course.left[0]
        while cases and self.effort.core_time.wait_for_turn():
            case = cases.pop(0)
            if time.monotonic() - course.reported > _PROGRESS_SECONDS:
                course.reported = time.monotonic()
                yield Progress(cell, seen.examples, course.planned, case.lengths)
            try:
                configured = self._configured(case, course)
                violation, stopped = self._judged(law, space, configured, seen)
            except OutOfTime:
                cases.insert(0, case)
                return None
            course.begun.append(case)
            if violation is not None:
                untried = tuple(c for c in chain(*course.left) if c.n_tokens and c in course.golden)
                return FailingCase(cell, law, space, configured, violation, seen.examples, untried)
            if self.found is None and _declines(stopped):
                with suppress(OutOfTime):
                    self.found, self.declined = probe(self.kernel, space, case), case
                return None
        if not cases:
            course.left.pop(0)
        return None

    def _judged(
        self, law: Property, space: Space, case: Case, seen: Coverage
    ) -> tuple[Violation | None, Refusal | None]:
        """Judge one case and count it: the violation, and the refusal."""
        self.kernel.refusals.clear()
        with record_comparisons() as made:
            violation, stopped = judge_case(self.kernel, law, case)
        for refused in self.kernel.refusals:
            if not isinstance(refused, OutsideDomain):
                seen.record_refusal(case, refused)
        for compared in made:
            if compared.baseline_name == "reference":
                seen.count_comparison(str(compared.key), is_decisive=compared.is_conclusive)
        judged = violation is not None or any(compared.is_conclusive for compared in made)
        seen.count_case(case, space.boundary_classes(case), compared=judged, refusal=stopped)
        seen.tuned = merge_tuned(seen.tuned, self.kernel.tuned.get(case.configuration, ()) if made else ())
        return violation, stopped

    def _failure(self, finding: FailingCase) -> Failure:
        effort, empty = self.effort, self._draws_empty_packs(finding.law)
        seconds = min(effort.allowance.seconds, max((effort.core_time.deadline - time.monotonic()) / 4, _LATE_SECONDS))
        with span("shrink", inclusive=True):
            allowance = replace(effort.allowance, seconds=seconds)
            try:
                return shrunk_failure(self.kernel, finding, allowance, self.replay, empty_packs=empty)
            except Exception as error:  # the violation stands without it
                found = unshrunk_failure(self.kernel, finding)
                return replace(found, lines=(*found.lines, f"not made small: {report_internal_error(error)}"))

    def _inside(self, space: Space) -> Space:
        """The part of the space inside the inferred domain."""
        if self.found is None:
            return space
        inside = replace(space, domain=space.domain & self.found.domain)
        self.kernel.domain = inside.domain
        if self.kernel.gradients and not inside.domain.allows_gradients:
            self.kernel.gradients = False
        return inside

    def _verdict(self, cell: Cell, law: Property, course: _Course, failure: Failure | None, seconds: float) -> Verdict:
        seen = course.seen
        status, reasons = seen.status, list(seen.reasons())
        if failure:
            status, reasons = "failed", []
        elif self.found and self.found.accepted_dtypes and not seen.judged_examples:
            status, reasons = (
                "skipped",
                [f"the kernel refuses {short_dtype(cell.dtype)} and takes {self.found.accepted_dtypes}"],
            )
        elif not seen.judged_examples and not reasons:
            reasons = [_why_skipped(course.space, law, seen)]
        elif self.found and not self.found.domain.allows_gradients:
            reasons.append(f"gradients: refused ({', '.join(self.found.domain.texts)})")
        return Verdict(
            cell,
            self.tier,
            status,
            seen.examples,
            seconds,
            judged=seen.judged_examples,
            refused=seen.refused_examples,
            classes=seen.judged_classes,
            missing=seen.missing if status == "inconclusive" else (),
            reason="; ".join(reasons),
            limits=tuple(seen.limits.values()),
            domain=self.found.domain.texts if self.found else (),
            failure=failure,
            tuned=seen.tuned,
        )

    def _configured(self, case: Case, course: _Course) -> Case:
        """The case with a configuration number, once the kernel has launched an autotuned one."""
        if not self.kernel.tuned:
            return case
        key = course.space.domain, self.tier
        if key not in self._numbers_in:
            self._numbers_in[key] = numbered(*self._drawn(course.space), course.space)
        return case.replace(configuration=self._numbers_in[key].get(case, len(course.begun)))

    def _cases(self, law: Property, space: Space) -> Sequence[Case]:
        effort = self.effort
        golden, others = self._drawn(space)
        drawn = [*golden, *others]
        cases = [c for c in law.suited(space, drawn) if c.n_tokens or self._draws_empty_packs(law)]
        return shared_out(law, cases, *effort.share) if effort.share and law.dtype_independent else cases

    def _drawn(self, space: Space) -> tuple[list[Case], list[Case]]:
        """The golden and the random cases; every property selects from them."""
        key = space.domain, self.tier
        if key not in self._cases_in:
            with span("draw"):
                golden = list(golden_cases(space, self.effort.seed))
                others = random_cases(space, self.effort.examples.get(self.tier, 0), self.effort.seed)
                self._cases_in[key] = golden, others
        return self._cases_in[key]

    def _draws_empty_packs(self, law: Property) -> bool:
        return self.effort.empty_packs or law.judges_empty_packs

    @property
    def tier(self) -> Tier:
        return self.known_tier or ("interpret" if self.kernel.interpreted else "eager")


def _declines(stopped: Refusal | None) -> bool:
    """Whether the kernel declined a call of the case in its unchanged form."""
    return stopped is not None and not (stopped.backward or stopped.note or isinstance(stopped, NOT_KERNEL_REFUSALS))


def _why_skipped(space: Space, law: Property, seen: Coverage) -> str:
    """Why a cell was not judged, although the kernel refused no whole example."""
    refused = [f"refused: {limit.text}" for limit in seen.limits.values() if not limit.gradients]
    stopped = refused + [str(outside) for outside in seen.outside_domain]
    if stopped or seen.examples:
        return next(iter(stopped), law.nothing_to_compare)
    return law.skip_reason(space) or f"no example in the kernel's domain suits it: {'; '.join(space.domain.texts)}"
