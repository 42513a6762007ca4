"""How a test of a kernel fails, and how pytest shows it: at the user's test, with the finding in its one line."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from packproof.harness.report import Verdict

MARKER = "@pytest.mark.packproof: "
_LONGEST = 100
_PLUGIN = Path(__file__).parent


class PlainFailure(pytest.fail.Exception):  # type: ignore[name-defined, misc]
    """Fails a test, or the collection of a module, with a text and no traceback.

    headline: the text in one line.
    """

    def __init__(self, text: str, headline: str = "") -> None:
        super().__init__(text, pytrace=False)
        line = headline or text.partition("\n")[0]
        self.headline = line if len(line) <= _LONGEST else f"{line[: _LONGEST - 3]}..."


class WrongCall(PlainFailure):
    """A test that cannot be collected because its marker or an option of the run is wrong.

    path: the file of the test.
    line: its line.
    problem: the error.
    """

    def __init__(self, path: Path, line: int, problem: str) -> None:
        super().__init__(f"{os.path.relpath(path)}:{line}: {problem}", problem.partition("\n")[0].removeprefix(MARKER))
        self.path, self.line = path, line


def headline(verdict: "Verdict") -> str:
    """A verdict in one line: kernel, property and, of a failure, its smallest layout and first violation."""
    from packproof.properties.cases import shorten  # noqa: PLC0415

    kernel, failure = verdict.cell.target.rpartition(":")[2], verdict.failure
    if failure is None:
        return f"{kernel} {verdict.cell.law} {verdict.status}: {verdict.reason}"
    tensor = f" ({failure.tensor})" if failure.tensor else ""
    layout_text = f" at {shorten(failure.lengths, 6)}" if failure.example else ""
    violation = failure.lines[1:2] if failure.example else ()  # the first line describes the example
    return f"{kernel} {verdict.cell.law}{tensor}{layout_text}: {(violation or failure.lines or ('failed',))[0]}"


def point_report_to(path: Path, line: int, report: Any, error: BaseException | None) -> None:
    """Point the report of a test or a module to this line, not into the plugin, with a PlainFailure's headline."""
    if isinstance(error, PlainFailure) and (crash := getattr(report.longrepr, "reprcrash", None)):
        crash.path, crash.lineno, crash.message = str(path), line, error.headline
    if report.outcome == "skipped" and isinstance(report.longrepr, tuple):
        skipped_in, _, reason = report.longrepr
        if Path(skipped_in).parent == _PLUGIN:
            report.longrepr = (str(path), line, reason)
