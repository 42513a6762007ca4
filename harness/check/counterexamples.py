"""The smallest failing cases of a kernel, tried at the end of a run on the cells that have passed.

Each property and dtype draws cases of its own, and a fault found by one may hide from another. Within a unit the cells
try each other's cases between rounds; this is for the cases of other units, and for cells that had ended before.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from packproof.base.errors import OutOfTime
from packproof.base.names import FINDINGS, SLACK
from packproof.harness.check.cell import Evaluator
from packproof.harness.check.failure import CellViolation
from packproof.harness.check.own_faults import errors_as_verdicts
from packproof.harness.check.probing.probe import InferredDomain
from packproof.harness.check.rounds import suited_case
from packproof.harness.check.targets.target import CheckTarget
from packproof.harness.check.unit import make_evaluator
from packproof.harness.process import CoreTime
from packproof.harness.report import CellFinished, Event, Verdict
from packproof.harness.report.wording import cell_name
from packproof.properties.cases import Case, Domain
from packproof.properties.judgement import judge_case

_LAST_CALL = 5.0  # seconds past the end after which an open call is ended


@dataclass(frozen=True)
class CounterexampleTrial:
    """The passed cells and the failures of one kernel."""

    target: CheckTarget
    passed: tuple[Verdict, ...]
    failed: tuple[Verdict, ...]

    @property
    def cases(self) -> list[Case]:
        """The smallest cases, each once. Those of findings and packs without tokens are none of other laws."""
        verdicts = (v for v in self.failed if v.failure and v.failure.case and v.cell.property not in FINDINGS)
        cases = dict.fromkeys(v.failure.smallest_case for v in verdicts if v.failure)
        return [case for case in cases if case.n_tokens]

    @property
    def explained(self) -> dict[str, str]:
        """The cells of the known causes."""
        return {v.failure.cause: cell_name(v.cell) for v in self.failed if v.failure and v.failure.cause}

    def events(self, deadline: float) -> Iterator[Event]:
        """A failed verdict for each passed cell that fails at one of the cases, as far as time permits.

        deadline: by time.monotonic.
        """
        with suppress(OutOfTime), self.target.worker(deadline + _LAST_CALL) as worker:
            core_time = CoreTime(deadline, deadline)
            for verdict in self.passed:
                evaluator = make_evaluator(self.target, worker, verdict.cell.dtype, core_time)
                evaluator.known_faults.explained |= self.explained
                evaluator.excludes_slack = any(v.cell.property == SLACK for v in self.failed)
                evaluator.inferred = InferredDomain(Domain.of(verdict.domain)) if verdict.domain else None
                yield from errors_as_verdicts(verdict.cell, self._trial(evaluator, verdict))

    def _trial(self, evaluator: Evaluator, verdict: Verdict) -> Iterator[Event]:
        """The failed verdict of one cell, if there is one."""
        law = self.target.request.laws[verdict.cell.property]
        space = evaluator.supported_part(self.target.space(verdict.cell.dtype))
        for counterexample in self.cases:
            case = suited_case(law, counterexample, space)
            if case is None or not evaluator.core_time.wait_for_turn():
                continue
            violation = judge_case(evaluator.kernel, law, case)[0]
            if violation is not None:
                number = verdict.examples + 1
                finding = CellViolation(verdict.cell, law, space, case, violation, number, is_smallest=True)
                failure = evaluator.shrink(finding)
                yield CellFinished(
                    replace(verdict, status="failed", examples=number, judged=verdict.judged + 1, failure=failure)
                )
                return


def counterexample_trials(targets: Sequence[CheckTarget], verdicts: Sequence[Verdict]) -> Iterator[CounterexampleTrial]:
    """The trials of a run: one for each kernel with both failures and passed cells.

    verdicts: of the run, before a file of expected failures was applied.
    """
    for target in targets:
        own = [v for v in verdicts if v.cell.target == target.name and v.cell.unpromised == target.unpromised]
        failed = tuple(v for v in own if v.status == "failed" and v.failure)
        passed = tuple(v for v in own if v.status == "passed" and v.cell.property in target.request.laws)
        trial = CounterexampleTrial(target, passed, failed)
        if passed and trial.cases:
            yield trial
