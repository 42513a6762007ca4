"""From a stream of events to reports and an exit code; without a stream, a message and an exit code."""

import sys
import time
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from packproof.base.errors import PackproofError, UsageError
from packproof.base.files import WriteError
from packproof.base.wording import printable
from packproof.harness.report import CellFinished, Event, RunFinished, Verdict, formats

SUCCESS, FAILED, WRONG_CALL, INTERNAL_ERROR, INCONCLUSIVE, INTERRUPTED = 0, 1, 2, 3, 4, 130

Report = Callable[[Event], None]


def follow(stream: Iterator[Event], reports: Sequence[Report]) -> RunFinished:
    """Send every event to every report until the run ends, normally, by Ctrl-C or by a bug of packproof."""
    verdicts: list[Verdict] = []
    sinks = Reports(reports)
    start = time.monotonic()
    stream_started = False

    def forward_events(stream: Iterator[Event]) -> RunFinished | None:
        """Send every event but the last, and return the last."""
        nonlocal stream_started
        for event in stream:
            stream_started = True
            if isinstance(event, RunFinished):
                return event
            if isinstance(event, CellFinished):
                verdicts.append(event.verdict)
            sinks.send(event)
        return None

    try:
        try:
            end = forward_events(stream)
        except KeyboardInterrupt as interrupt:
            end = forward_events(_events_after_interrupt(stream, interrupt))
            end = end or RunFinished(tuple(verdicts), time.monotonic() - start, interrupted=True)
        if end is None:
            raise RuntimeError("the stream of events ended without RunFinished")
    except Exception as error:
        if isinstance(error, PackproofError) and not stream_started:
            raise
        traceback.print_exc()
        end = RunFinished(tuple(verdicts), time.monotonic() - start, error=error_summary(error))
    return sinks.finish(end)


def _events_after_interrupt(stream: Iterator[Event], interrupt: KeyboardInterrupt) -> Iterator[Event]:
    """Throw a Ctrl-C into the stream and yield the remaining events. A stream that has ended already yields none."""
    if isinstance(stream, Generator):
        with suppress(KeyboardInterrupt, StopIteration):
            yield stream.throw(interrupt)
            yield from stream


class Reports:
    """Independent reports. If one cannot be written, it is dropped with a message."""

    def __init__(self, reports: Sequence[Report]) -> None:
        self._reports = list(reports)
        self._unwritten, self._error = False, ""

    def send(self, event: Event) -> None:
        for report in list(self._reports):
            try:
                report(event)
            except Exception as error:
                self._reports.remove(report)
                if isinstance(error, WriteError):
                    self._unwritten = True
                    say(f"a report could not be written: {error}", WRONG_CALL)
                else:
                    traceback.print_exc()
                    self._error = error_summary(error)

    def finish(self, end: RunFinished) -> RunFinished:
        """Send the last event, and return it with the errors of the reports."""
        self.send(end)
        return replace(end, write_failed=self._unwritten, error=end.error or self._error)


def file_reports(*, json: str | None = None, junit: str | None = None, html: str | None = None) -> list[Report]:
    """The reports for these files. Imports only the reports that are requested.

    Raises UsageError if two of the paths are one file.
    """
    paths = {"--json": json, "--junit": junit, "--html": html}
    options_by_path: dict[Path, str] = {}
    for option, path in paths.items():
        if path is not None and (first_option := options_by_path.setdefault(Path(path).absolute(), option)) != option:
            raise UsageError(f"{first_option} and {option}: both are {path}; expected a file for each")
    reports: list[Report] = []
    if json is not None:
        reports.append(formats.JsonReport(json))
    if junit is not None:
        reports.append(formats.JunitReport(junit))
    if html is not None:
        reports.append(formats.HtmlReport(html))
    return reports


def exit_code(end: RunFinished) -> int:
    """The exit code of a run. If no cell applies to the kernel, nothing was checked: the call was wrong."""
    statuses = {verdict.status for verdict in end.verdicts if verdict.cell.counts}
    any_refused = any(verdict.refused for verdict in end.verdicts)
    if any(verdict.failed for verdict in end.verdicts):
        return FAILED
    if end.error or any(verdict.status == "error" for verdict in end.verdicts):
        return INTERNAL_ERROR
    if end.write_failed:
        return WRONG_CALL
    if end.interrupted:
        return INTERRUPTED
    any_held = bool(statuses & {"passed", "expected"})
    if "inconclusive" in statuses or (any_refused and not any_held):
        return INCONCLUSIVE
    return SUCCESS if any_held else WRONG_CALL


def say(text: str, code: int) -> int:
    print(f"packproof: {printable(text)}", file=sys.stderr)
    return code


def error_summary(error: Exception) -> str:
    """Type and first line of an error; the traceback is on stderr."""
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
