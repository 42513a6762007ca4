"""Judges the cells of one kernel and dtype: a property over its cases, until one breaks it or all held."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from packproof.harness.engine.failure import FoundViolation, ReplayInfo, failure_of
from packproof.harness.engine.own_faults import caught, not_judged
from packproof.harness.engine.plan import Unit
from packproof.harness.engine.probe import Found, probe
from packproof.harness.engine.request import PROFILES, Allowance
from packproof.harness.engine.target import CheckTarget
from packproof.harness.engine.violations import evaluated
from packproof.harness.results.coverage import NOT_ITS_OWN, Coverage
from packproof.harness.results.events import Cell, CellFinished, CellStarted, Event, Failure, Progress, Tier, Verdict
from packproof.harness.results.names import short
from packproof.harness.results.questions import question_of
from packproof.harness.worker.worker import Worker
from packproof.properties.call import OutsideDomain, Refused
from packproof.properties.case import Case
from packproof.properties.cases import Space, golden_cases, random_cases
from packproof.properties.catalogue import PROPERTIES
from packproof.properties.comparison import comparisons
from packproof.properties.kernel_under_test import KernelUnderTest
from packproof.properties.layouts import Lengths, classes
from packproof.properties.property import Property
from packproof.properties.violation import Violation
from packproof.refs.errors import PackproofError

_PROGRESS_SECONDS = 0.5
_FOR_A_QUESTION = Allowance(100, 5)
_SHARED = [law.name for law in PROPERTIES.values() if law.dtype_independent]


def evaluate_unit(unit: Unit) -> Iterator[Event]:
    """The events of its cells, one after another; those whose process cannot be started are not judged."""
    left = list(unit.cells)
    try:
        for event in _evaluated_together(unit):
            if isinstance(event, CellFinished):
                left.remove(event.verdict.cell)
            yield event
    except PackproofError as error:
        yield from not_judged(left, str(error))


def _evaluated_together(unit: Unit) -> Iterator[Event]:
    target, dtype = unit.target, unit.cells[0].dtype
    with target.worker() as worker:
        worker.open()  # first: a closure's process is a fork of this one, which has differentiated nothing yet
        evaluator, space = _evaluator(target, worker, dtype), target.space(dtype)
        failed: set[str] = set()
        for cell in unit.cells:
            extra = cell.beyond and not target.beyond
            if extra and cell.property in failed:
                reason = f"{cell.property} failed"
                yield CellFinished(Verdict(cell, evaluator.tier, "skipped", 0, 0.0, reason=reason))
                continue
            chosen = _with_question(evaluator, target, cell) if extra else evaluator
            for event in caught(cell, chosen.cell(cell, target.request.laws[cell.property], space)):
                if isinstance(event, CellFinished) and event.verdict.status == "failed":
                    failed.add(cell.property)
                yield event


def _evaluator(target: CheckTarget, worker: Worker, dtype: str) -> "Evaluator":
    request, declared, profile = target.request, target.declared, PROFILES[target.request.profile]
    known: Tier | None = "gpu" if request.device == "cuda" else None
    tier: Tier = known or ("interpret" if target.builtin else "eager")
    # interpreted calls are slow: the dtypes share the layouts that none of them decides
    share = (target.dtypes.index(dtype), len(target.dtypes)) if tier == "interpret" else None
    return Evaluator(
        kernel=KernelUnderTest(
            target.op, worker, declared.promises, gradients=target.gradients, domain=declared.domain
        ),
        effort=Effort(profile.examples[tier], profile.shrink, request.seed, share, target.empty_packs),
        replay=ReplayInfo(target.address, target.op_name, request.draw_configs, request.replay_dir),
        known_tier=known,
    )


def _with_question(evaluator: "Evaluator", target: CheckTarget, cell: Cell) -> "Evaluator":
    """The same for a promise that the kernel does not make: at the golden cases alone, unless the answer counts."""
    raised = question_of(cell.property, cell.beyond).raised(target.declared)
    assert raised is not None
    effort = evaluator.effort
    if not cell.counts:
        effort = replace(effort, examples=0, allowance=_FOR_A_QUESTION)
    return replace(evaluator, kernel=evaluator.kernel.with_promises(raised.promises), effort=effort)


@dataclass(frozen=True)
class Effort:
    """What the cells of one kernel and dtype may cost.

    examples: random cases after the golden ones. allowance: for making a failure small. seed: of the cases. share: the
    kth of n dtypes that share the cases of dtype-independent properties, one case for each layout: each dtype judges
    every nth, and each property deals them differently; None: every dtype judges all cases. empty_packs: whether packs
    without tokens are drawn for every property, or only for those whose law names them: a kernel that crashes at them
    is judged by the others all the same.
    """

    examples: int
    allowance: Allowance
    seed: int = 0
    share: tuple[int, int] | None = None
    empty_packs: bool = True


@dataclass
class Evaluator:
    """Judges the cells of one kernel and dtype.

    known_tier: None where the first calls show whether a kernel is interpreted. found: what a probe found of the
    kernel's domain, once it refused a call.
    """

    kernel: KernelUnderTest
    effort: Effort
    replay: ReplayInfo
    known_tier: Tier | None = None
    found: Found | None = None

    def cell(self, cell: Cell, law: Property, space: Space) -> Iterator[Event]:
        """Run one cell; the last event holds its verdict. Once the kernel refuses a plain call, its domain is looked
        for, and the cell begins again inside it."""
        yield CellStarted(cell)
        started, seen = time.monotonic(), Coverage()
        failure: Failure | None = None
        finished = False
        while not finished:
            finished = True
            inside = self._inside(space)
            last_report = started
            for case in self._cases(law, inside):
                violation, stopped = self._judged(law, inside, case, seen)
                if violation is not None:
                    failure = self._failure(FoundViolation(cell, law, inside, case, violation, seen.drawn))
                    break
                if self.found is None and _declines(stopped):
                    self.found = probe(self.kernel, inside, case)
                    seen, finished = seen.again(), False
                    break
                if time.monotonic() - last_report > _PROGRESS_SECONDS:
                    last_report = time.monotonic()
                    yield Progress(cell, seen.drawn)
        yield CellFinished(self._verdict(cell, law, inside, seen, failure, time.monotonic() - started))

    def _judged(
        self, law: Property, space: Space, case: Case, seen: Coverage
    ) -> tuple[Violation | None, Refused | None]:
        """Judge one case, and count it: the violation, and what the kernel declined."""
        self.kernel.refusals.clear()
        self.kernel.values_only.refusals.clear()
        with comparisons() as made:
            violation, stopped = evaluated(self.kernel, law, case)
        for refused in (*self.kernel.refusals, *self.kernel.values_only.refusals):
            if not isinstance(refused, OutsideDomain):
                seen.note(case, refused)
        met = classes(case.lengths, space.chunk, space.width(dict(case.sizes)))
        seen.count(case, met, compared=bool(made) or violation is not None, stopped=stopped)
        return violation, stopped

    def _failure(self, finding: FoundViolation) -> Failure:
        empty = self._draws_empty_packs(finding.law)
        return failure_of(self.kernel, finding, self.effort.allowance, self.replay, empty_packs=empty)

    def _inside(self, space: Space) -> Space:
        """The part of the space that lies inside the domain found."""
        if self.found is None:
            return space
        inside = replace(space, domain=space.domain & self.found.domain)
        self.kernel.domain = inside.domain
        if self.kernel.gradients and not inside.domain.allows_gradients:
            self.kernel.gradients = False
            self.kernel.renew()  # results so far have gradients
        return inside

    def _verdict(
        self, cell: Cell, law: Property, space: Space, seen: Coverage, failure: Failure | None, seconds: float
    ) -> Verdict:
        status, reasons = seen.status, list(seen.reasons())
        if failure:
            status, reasons = "failed", []
        elif self.found and self.found.others_only and not seen.judged:
            status, reasons = "skipped", [f"the kernel refuses {short(cell.dtype)} and takes {self.found.others_only}"]
        elif not seen.judged and not reasons:
            reasons = [_why_skipped(space, law, seen)]
        elif self.found and not self.found.domain.allows_gradients:
            reasons.append(f"gradients: refused ({', '.join(self.found.domain.texts)})")
        return Verdict(
            cell,
            self.tier,
            status,
            seen.drawn,
            seconds,
            judged=seen.judged,
            refused=seen.refused,
            classes=seen.classes,
            missing=seen.missing if status == "inconclusive" else (),
            reason="; ".join(reasons),
            limits=tuple(seen.limits.values()),
            domain=self.found.domain.texts if self.found else (),
            failure=failure,
        )

    def _cases(self, law: Property, space: Space) -> Sequence[Case]:
        effort = self.effort
        drawn = [*golden_cases(space, effort.seed), *random_cases(space, effort.examples, effort.seed)]
        cases = [c for c in law.suited(space, drawn) if c.n_tokens or self._draws_empty_packs(law)]
        return _dealt(law, cases, *effort.share) if effort.share and law.dtype_independent else cases

    def _draws_empty_packs(self, law: Property) -> bool:
        return self.effort.empty_packs or law.judges_empty_packs

    @property
    def tier(self) -> Tier:
        return self.known_tier or ("interpret" if self.kernel.interpreted else "eager")


def _dealt(law: Property, cases: Sequence[Case], dtype: int, dtypes: int) -> list[Case]:
    """The share of one of several dtypes: one case of each of its layouts, chosen by the place of the property."""
    place = _SHARED.index(law.name) if law.name in _SHARED else len(_SHARED)
    layouts: dict[Lengths, list[Case]] = {}
    for case in cases:
        layouts.setdefault(case.lengths, []).append(case)
    return [alike[place % len(alike)] for alike in layouts.values()][(dtype + place) % dtypes :: dtypes]


def _declines(stopped: Refused | None) -> bool:
    """Whether the kernel declined a call of the case as it is."""
    return stopped is not None and not (stopped.backward or stopped.note or isinstance(stopped, NOT_ITS_OWN))


def _why_skipped(space: Space, law: Property, seen: Coverage) -> str:
    """Why a cell in which the kernel refused no whole example was not judged."""
    stopped = [f"refused: {limit.text}" for limit in seen.limits.values()] + [str(outside) for outside in seen.outside]
    if stopped or seen.drawn:
        return next(iter(stopped), law.nothing_to_compare)
    return law.skip_reason(space) or f"no example is in the kernel's domain: {'; '.join(space.domain.texts)}"
