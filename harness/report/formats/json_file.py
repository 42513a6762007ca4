"""A run as a JSON file. The file is rewritten after each finished cell, so an interrupted run loses nothing."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from hashlib import sha256
from typing import Any

from packproof.base.files import replace_text, writable_path
from packproof.base.records import to_row
from packproof.harness.report import events
from packproof.harness.report.causes import Faults, cause
from packproof.harness.report.wording.results import failure_text
from packproof.harness.report.wording.terms import terms_clause
from packproof.properties.declarations import find_question
from packproof.version import __version__

VERSION = 1


class JsonReport:
    """Writes one object with `version`, `target`, `op`, `device`, `verdict`, `terms`, `contract`, `results`,
    `promises`, `walls`, `timings`, the settings of the run, and the `digest` of all these.

    `target`, `op` and `device` are null if the run has several; every result has its own. `verdict` is "error" until
    the run has ended normally with something checked, unless a property failed. Raises UsageError at once if the file
    cannot be written.
    """

    def __init__(self, path: str) -> None:
        self._file = writable_path(path, "--json")
        self._run_started: events.RunStarted | None = None
        self._verdicts_by_cell: dict[events.Cell, events.Verdict] = {}

    def __call__(self, event: events.Event) -> None:
        match event:
            case events.RunStarted():
                self._run_started = event
                self._write(None)
            case events.CellFinished(verdict):
                self._verdicts_by_cell[verdict.cell] = verdict
                self._write(None)
            case events.RunFinished(verdicts):
                self._verdicts_by_cell |= {verdict.cell: verdict for verdict in verdicts}
                self._write(event)

    @property
    def _verdicts(self) -> list[events.Verdict]:
        """In the order of the plan; findings beside it come first."""
        order = {cell: number for number, cell in enumerate(self._run_started.cells if self._run_started else ())}
        return sorted(self._verdicts_by_cell.values(), key=lambda v: order.get(v.cell, -1))

    def _write(self, run_finished: events.RunFinished | None) -> None:
        if self._run_started is None:
            return
        cells = self._run_started.cells
        faults = Faults(verdict for verdict in self._verdicts if verdict.failure)
        document = {
            "version": VERSION,
            "packproof": __version__,
            "target": _only_value(cell.target for cell in cells),
            "op": _only_value(cell.op for cell in cells),
            "device": _only_value(cell.device for cell in cells),
            "profile": self._run_started.profile,
            "seed": self._run_started.seed,
            "notes": list(self._run_started.notes),
            "verdict": self._overall_verdict(run_finished),
            "terms_text": terms_clause(self._verdicts).removeprefix(", "),
            "terms": _terms(self._verdicts),
            "contract": to_row(contract) if (contract := self._run_started.contract) else None,
            "finished": run_finished is not None and not run_finished.interrupted and not run_finished.error,
            "error": run_finished.error if run_finished else "",
            "planned": sum(cell.counts for cell in cells),
            "seconds": round(run_finished.seconds, 3) if run_finished else None,
            "timings": {name: round(seconds, 3) for name, seconds in run_finished.timings.items()}
            if run_finished
            else {},
            "results": [_result(verdict, faults) for verdict in self._verdicts if verdict.cell.counts],
            "promises": [_answer(verdict) for verdict in self._verdicts if not verdict.cell.counts],
            "walls": dict(self._run_started.walls),
        }
        document["digest"] = digest(document)
        text = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
        replace_text(self._file, text, final=run_finished is not None)

    def _overall_verdict(self, run_finished: events.RunFinished | None) -> str:
        if any(verdict.failed for verdict in self._verdicts):
            return "failed"
        counted_verdicts = [verdict for verdict in self._verdicts if verdict.cell.counts]
        ended_normally = run_finished is not None and not run_finished.interrupted and not run_finished.error
        if any(verdict.status == "error" for verdict in self._verdicts):
            return "error"
        if ended_normally and any(verdict.status == "inconclusive" for verdict in counted_verdicts):
            return "inconclusive"
        return "passed" if ended_normally and any(verdict.held for verdict in counted_verdicts) else "error"


def digest(document: Mapping[str, Any]) -> str:
    """The SHA-256 of a document without its own `digest`, as JSON with sorted keys and without spaces."""
    rest = {key: value for key, value in document.items() if key != "digest"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"))
    return f"sha256:{sha256(text.encode()).hexdigest()}"


def _terms(verdicts: Iterable[events.Verdict]) -> list[dict[str, Any]]:
    """The terms of each kernel, with who set them."""
    kernels = dict.fromkeys((verdict.cell.target, verdict.cell.op, verdict.terms) for verdict in verdicts)
    return [{"target": target, "op": op, **to_row(term)} for target, op, terms in kernels for term in terms]


def _only_value(values: Iterable[str]) -> str | None:
    distinct = set(values)
    return distinct.pop() if len(distinct) == 1 else None


def _answer(verdict: events.Verdict) -> dict[str, Any]:
    """The result for an unpromised property at one dtype."""
    cell, failure = verdict.cell, verdict.failure
    holds = {"passed": True, "failed": False}.get(verdict.status)
    answer: dict[str, Any] = {
        "promise": find_question(cell.property, cell.unpromised).meaning,
        "target": cell.target,
        "property": cell.property,
        "dtype": cell.dtype,
        "holds": holds,
    }
    if failure:
        answer |= {"lengths": list(failure.lengths), "message": failure_text(verdict), "replay": failure.replay}
    return answer


def _result(verdict: events.Verdict, faults: Faults) -> dict[str, Any]:
    """The result of a cell.

    faults: of the run so far.
    """
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
    if cell.unpromised:
        result["beyond"] = cell.unpromised
    for name in ("missing", "unasked", "domain"):
        if texts := getattr(verdict, name):
            result[name] = list(texts)
    if verdict.limits:
        result["limits"] = [asdict(limit) for limit in verdict.limits]
    if verdict.tuned:
        result["tuned"] = [asdict(tuned) for tuned in verdict.tuned]
    if verdict.perturbed_calls:
        result["perturbed_calls"] = verdict.perturbed_calls
    if verdict.computed:
        result["computed_by"] = [asdict(computed) for computed in verdict.computed]
    if verdict.thresholds:
        result["thresholds"] = verdict.thresholds.to_json()
    if verdict.reason:
        result["reason"] = verdict.reason
    if failure:
        result |= {"lengths": list(failure.lengths), "tensor": failure.tensor, "message": failure_text(verdict)}
        if text := cause(failure):
            result["cause"] = text
        if telling := faults.telling(verdict):
            result["same_fault_as"] = {"property": telling.cell.property, "dtype": telling.cell.dtype}
        result |= {"example": failure.example, "tried": failure.cases_tried, "replay": failure.replay}
    return result
