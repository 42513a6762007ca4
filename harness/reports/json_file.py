"""A run as a JSON file. The file is rewritten after each finished cell, so an interrupted run loses nothing."""

import json
from bisect import insort
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from packproof.harness.results import events
from packproof.harness.results.files import replace_text, writable
from packproof.harness.results.questions import question_of
from packproof.harness.results.wording import failure_text
from packproof.version import __version__

VERSION = 1


class JsonReport:
    """Writes one object with `version`, `target`, `op`, `device`, `verdict`, `results`, `promises`, `timings` and the
    settings of the run.

    `target`, `op` and `device` are null if the run has several; every result has its own. `verdict` is "error" until
    the run has ended normally with something checked, unless a property failed. Raises UsageError at once if the file
    cannot be written.
    """

    def __init__(self, path: str) -> None:
        self._file = writable(path, "--json")
        self._started: events.RunStarted | None = None
        self._verdicts: list[events.Verdict] = []
        self._place: dict[events.Cell, int] = {}

    def __call__(self, event: events.Event) -> None:
        match event:
            case events.RunStarted():
                self._started = event
                self._place = {cell: number for number, cell in enumerate(event.cells)}
                self._write(None)
            case events.CellFinished(verdict):
                insort(self._verdicts, verdict, key=lambda one: self._place[one.cell])
                self._write(None)
            case events.RunFinished():
                self._write(event)

    def _write(self, finished: events.RunFinished | None) -> None:
        if self._started is None:
            return
        cells = self._started.cells
        document = {
            "version": VERSION,
            "packproof": __version__,
            "target": _only(cell.target for cell in cells),
            "op": _only(cell.op for cell in cells),
            "device": _only(cell.device for cell in cells),
            "profile": self._started.profile,
            "seed": self._started.seed,
            "notes": list(self._started.notes),
            "verdict": self._verdict(finished),
            "finished": finished is not None and not finished.interrupted and not finished.error,
            "error": finished.error if finished else "",
            "planned": sum(cell.counts for cell in cells),
            "seconds": round(finished.seconds, 3) if finished else None,
            "timings": {name: round(spent, 3) for name, spent in finished.timings.items()} if finished else {},
            "results": [_result(verdict) for verdict in self._verdicts if verdict.cell.counts],
            "promises": [_answer(verdict) for verdict in self._verdicts if not verdict.cell.counts],
        }
        text = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
        replace_text(self._file, text, last=finished is not None)

    def _verdict(self, finished: events.RunFinished | None) -> str:
        if any(verdict.failed for verdict in self._verdicts):
            return "failed"
        counting = [verdict for verdict in self._verdicts if verdict.cell.counts]
        ended = finished is not None and not finished.interrupted and not finished.error
        if any(verdict.status == "error" for verdict in self._verdicts):
            return "error"
        if ended and any(verdict.status == "inconclusive" for verdict in counting):
            return "inconclusive"
        return "passed" if ended and any(verdict.held for verdict in counting) else "error"


def _only(values: Iterable[str]) -> str | None:
    different = set(values)
    return different.pop() if len(different) == 1 else None


def _answer(verdict: events.Verdict) -> dict[str, Any]:
    """The result for an unpromised property at one dtype."""
    cell, failure = verdict.cell, verdict.failure
    holds = {"passed": True, "failed": False}.get(verdict.status)
    answer: dict[str, Any] = {
        "promise": question_of(cell.property, cell.beyond).meaning,
        "target": cell.target,
        "property": cell.property,
        "dtype": cell.dtype,
        "holds": holds,
    }
    if failure:
        answer |= {"lengths": list(failure.lengths), "message": failure_text(verdict), "replay": failure.replay}
    return answer


def _result(verdict: events.Verdict) -> dict[str, Any]:
    cell, failure = verdict.cell, verdict.failure
    result: dict[str, Any] = {
        "op": cell.op,
        "target": cell.target,
        "device": cell.device,
        "tier": verdict.tier,
        "property": cell.property,
        "dtype": cell.dtype,
        "status": verdict.status,
        "examples": verdict.examples,
        "judged": verdict.judged,
        "refused": verdict.refused,
        "seconds": round(verdict.seconds, 3),
        "classes": sorted(verdict.classes),
    }
    if cell.beyond:
        result["beyond"] = cell.beyond
    if verdict.missing:
        result["missing"] = list(verdict.missing)
    if verdict.limits:
        result["limits"] = [asdict(limit) for limit in verdict.limits]
    if verdict.tuned:
        result["tuned"] = [asdict(tuned) for tuned in verdict.tuned]
    if verdict.domain:
        result["domain"] = list(verdict.domain)
    if verdict.reason:
        result["reason"] = verdict.reason
    if failure:
        result |= {"lengths": list(failure.lengths), "tensor": failure.tensor, "message": failure_text(verdict)}
        result |= {"example": failure.example, "tried": failure.tried, "replay": failure.replay}
    return result
