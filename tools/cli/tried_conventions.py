"""Every convention tried on a model, in files: one that does not hold was not promised, and is no failure."""

from dataclasses import replace

from packproof.cli.ending import Report
from packproof.harness.report import CellFinished, Event, RunFinished, Verdict
from packproof.harness.report.wording import headline
from packproof.models import holding_conventions, outcomes_of


class TriedConventions:
    """Passes the events of a run to a report, so that it agrees with the last line and the exit code.

    A verdict of a convention that does not hold becomes "skipped". It stays as it is if the run has ended and no
    convention holds.
    """

    def __init__(self, report: Report) -> None:
        self._report = report

    def __call__(self, event: Event) -> None:
        match event:
            case CellFinished(verdict):
                event = CellFinished(_not_promised(verdict))
            case RunFinished(verdicts) if not _is_verdict_on_all(event):
                event = replace(event, verdicts=tuple(map(_not_promised, verdicts)))
        self._report(event)


def _is_verdict_on_all(end: RunFinished) -> bool:
    """Whether the run says that no convention holds."""
    outcomes = outcomes_of(end.verdicts)
    cut_short = end.error or end.interrupted or any(outcome.word == "error" for outcome in outcomes)
    return not (cut_short or holding_conventions(outcomes))


def _not_promised(verdict: Verdict) -> Verdict:
    if verdict.status not in ("failed", "inconclusive"):
        return verdict
    return replace(verdict, status="skipped", reason=verdict.reason or headline(verdict))
