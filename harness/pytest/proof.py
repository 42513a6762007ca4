"""The fixture `proof`: calling it checks one property of a kernel at one dtype."""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from packproof.harness.pytest.finding import PlainFailure, headline

if TYPE_CHECKING:
    from packproof.harness.check import CheckRequest
    from packproof.harness.report import RunFinished, Verdict


class Proof:
    """When called, checks one property of a kernel at one dtype; fails with the report or skips with the reason."""

    def __init__(self, request: "CheckRequest", record: Callable[[str, object], None]) -> None:
        self._request = request
        self._record_property = record
        self.called = False

    def __call__(self) -> None:
        self.called = True
        end = self._run_check()
        for verdict in end.verdicts:
            self._record_verdict(verdict)
        if end.interrupted:
            raise KeyboardInterrupt
        _require_passed(end)

    def _run_check(self) -> "RunFinished":
        from packproof.base.errors import OutOfTime, UsageError  # noqa: PLC0415
        from packproof.harness.check import run_check  # noqa: PLC0415
        from packproof.harness.report import RunFinished  # noqa: PLC0415

        try:
            with pytest.MonkeyPatch.context() as processes:
                for name, value in self._gpu().items():
                    processes.setenv(name, value)
                return [event for event in run_check(self._request) if isinstance(event, RunFinished)][-1]
        except (UsageError, OutOfTime) as error:
            problem = str(error)
        raise PlainFailure(problem)  # outside of the except: pytest then shows no cause

    def _gpu(self) -> dict[str, str]:
        """The environment that gives kernel processes one GPU, in a worker of pytest-xdist."""
        from packproof.harness.process import gpu_environment  # noqa: PLC0415

        worker = os.environ.get("PYTEST_XDIST_WORKER")
        return gpu_environment(int(worker.removeprefix("gw"))) if worker and self._request.device == "cuda" else {}

    def _record_verdict(self, verdict: "Verdict") -> None:
        """Record the verdict as properties of the test, which xdist passes on and --junitxml contains."""
        from packproof.base.names import short_dtype  # noqa: PLC0415
        from packproof.harness.report.wording import terms_clause  # noqa: PLC0415

        cell = verdict.cell
        facts: dict[str, Any] = {"op": cell.op, "target": cell.target, "property": cell.property}
        facts |= {"dtype": short_dtype(cell.dtype), "device": cell.device, "tier": verdict.tier}
        facts |= {"examples": verdict.examples, "judged": verdict.judged}
        if verdict.failure:
            facts |= {"lengths": list(verdict.failure.lengths), "replay": verdict.failure.replay}
        if clause := terms_clause([verdict]):
            facts["terms"] = clause.removeprefix(", ")
        for name, value in facts.items():
            self._record_property(name, value)


def _require_passed(end: "RunFinished") -> None:
    """PlainFailure unless a verdict is a pass and none is worse.

    An expected failure is an xfail, with its report in the test's output. If nothing could be judged, it is a skip.
    """
    from packproof.harness.report.wording import failure_text, failure_texts  # noqa: PLC0415

    if failures := [v for v in end.verdicts if v.failed]:
        raise PlainFailure("\n\n".join(failure_texts(failures)), headline(failures[0]))
    if end.error:
        raise PlainFailure(end.error)
    if errors := [v for v in end.verdicts if v.status == "error"]:
        raise PlainFailure("; ".join(v.reason for v in errors), headline(errors[0]))
    if inconclusive_verdicts := [v for v in end.verdicts if v.status == "inconclusive"]:
        raise PlainFailure(
            "inconclusive: " + "; ".join(v.reason for v in inconclusive_verdicts), headline(inconclusive_verdicts[0])
        )
    if expected_failures := [v for v in end.verdicts if v.status == "expected"]:
        print("\n\n".join(map(failure_text, expected_failures)))
        pytest.xfail(f"{expected_failures[0].reason.removeprefix('expected: ')}: {headline(expected_failures[0])}")
    if not any(verdict.status == "passed" for verdict in end.verdicts):
        pytest.skip("; ".join(verdict.reason for verdict in end.verdicts))
