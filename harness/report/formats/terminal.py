"""A run on the terminal: progress, each failure at once, and at the end a table and one line."""

import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.live import Live
from rich.text import Text

from packproof.base.names import FINDINGS, short_dtype
from packproof.base.wording import plural
from packproof.harness.report import events
from packproof.harness.report.causes import Faults, cause
from packproof.harness.report.formats.live import ProgressLine, live_line
from packproof.harness.report.formats.scoreboard import Board, boards
from packproof.harness.report.formats.table import Column, table_line, title_line
from packproof.harness.report.formats.wrapping import wrapped
from packproof.harness.report.wording.conclusions import (
    computed_lines,
    first_refusal_lines,
    limits_lines,
    perturbed_lines,
    tuned_lines,
)
from packproof.harness.report.wording.results import (
    cell_name,
    cell_title,
    failure_text,
    fault_text,
    first_failure_lines,
    layout_classes_text,
    regime_lines,
    share_text,
    summary,
    timings_lines,
)
from packproof.harness.report.wording.terms import own_terms_text

_QUIET_SECONDS = 10.0  # seconds without output, after which a line shows the progress
_COUNTS = (Column("tier", 11), Column("judged", 12, right=True), Column("seconds", 9, right=True))
_STRONGEST = ("reference", "packing")  # their failures are printed at once, others when all cells are known
_STYLES = {
    "passed": "green",
    "failed": "bold red",
    "expected": "yellow",
    "stale": "bold red",
    "inconclusive": "bold yellow",
    "in part": "bold yellow",
    "skipped": "yellow",
    "error": "bold red",
}


class TerminalReport:
    """Reads the events of one run and writes to a console.

    A terminal shows one live line with the running case. Elsewhere each finished cell is a plain line unless it was
    skipped, and after ten seconds without output a line shows the progress.

    console: default, standard output.
    timings: whether to show where the time went.
    quiet: whether to show no more than failures, and the last line.
    clock: returns seconds, from any start.
    """

    def __init__(
        self,
        console: Console | None = None,
        *,
        timings: bool = False,
        quiet: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console = console or Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
        self._timings, self._quiet, self._clock = timings, quiet, clock
        self._planned: tuple[events.Cell, ...] = ()
        self._progress = ProgressLine(clock)
        self._live: Live | None = None
        self._last_print = clock()
        self._restricted: set[tuple[str, str]] = set()  # kernels with a domain that was found and printed
        self._faults = Faults()
        self._shown: dict[int, events.Verdict] = {}  # the failures that were printed, by the ids of their faults

    def __call__(self, event: events.Event) -> None:
        self._progress(event)
        match event:
            case events.RunStarted():
                self._start(event)
            case events.FailureFound(verdict) if verdict.failed and not self._quiet:
                self._print(Text("\n".join(first_failure_lines(verdict)), style=_STYLES["failed"]))
            case events.CellFinished(verdict):
                self._finish_cell(verdict)
            case events.RunFinished():
                self._finish(event)
        if (
            not (self._live or self._quiet)
            and self._clock() - self._last_print >= _QUIET_SECONDS
            and not isinstance(event, events.RunFinished)
        ):
            self._print(str(self._progress))

    def _start(self, event: events.RunStarted) -> None:
        self._planned = event.cells
        if self._quiet:
            return
        cells = plural(sum(cell.counts for cell in event.cells), "cell")
        self._print(f"{cells}, profile {event.profile}, seed {event.seed}")
        if event.contract:
            self._print(f"contract {event.contract.path}, sha256 {event.contract.digest}")
        for note in event.notes:
            self._print(note)
        if self._console.is_terminal:
            self._live = live_line(self._console, self._progress)
            self._live.start()

    def _print(self, *texts: str | Text) -> None:
        lines = [Text(text) if isinstance(text, str) else text for text in texts]
        if self._console.is_terminal:
            lines = [wrapped(line, self._console.width) for line in lines]
        self._console.print(*lines, sep="\n")  # at once: the live line would come between two
        self._last_print = self._clock()

    def _finish_cell(self, verdict: events.Verdict) -> None:
        kernel = (verdict.cell.op, verdict.cell.target)
        if not self._quiet and verdict.domain and verdict.limits and kernel not in self._restricted:
            self._restricted.add(kernel)
            self._print(*first_refusal_lines(verdict))
        fault = self._faults.add(verdict) if verdict.failed or verdict.status == "expected" else None
        shown = self._shown.get(id(fault))
        has_line = verdict.examples or verdict.status not in ("inconclusive", "skipped")
        if not (self._live or self._quiet) and verdict.cell.counts and has_line:
            self._print(cell_line(verdict, shown))
        if fault and not shown and _stands_alone(verdict):
            self._shown[id(fault)] = verdict
            self._show_failure(failure_text(verdict), verdict.status)

    def _show_failure(self, text: str, status: events.Status) -> None:
        head, _, body = text.partition("\n")
        self._print(Text(f"\n{head}", style=_STYLES[status]), Text(f"{body}\n"))

    def _finish(self, event: events.RunFinished) -> None:
        if self._live:
            self._live.stop()
        for fault in self._faults:
            if id(fault) not in self._shown:
                self._show_failure(fault_text(fault), fault.telling.status)
            elif lines := fault.other_cells_lines(self._shown[id(fault)]):
                self._print("", f"{cell_title(self._shown[id(fault)].cell)}, shown above", *(f"    {x}" for x in lines))
        for line in regime_lines(verdict for verdict in event.verdicts if verdict.cell.counts):
            self._print(line)
        tables = [] if self._quiet else boards(event.verdicts)
        for board in tables:
            self._table(board)
            if len(tables) > 1 and (text := own_terms_text(board.verdicts)):  # of one kernel, the last line says it
                self._print(f"  on its own terms: {text}")
        if self._timings:
            self._print("", *timings_lines(event.timings))
        failed = event.error or any(verdict.failed or verdict.status == "error" for verdict in event.verdicts)
        incomplete = event.interrupted or any(v.status == "inconclusive" and v.cell.counts for v in event.verdicts)
        style = _STYLES["failed" if failed else "inconclusive" if incomplete else "passed"]
        line = summary(event, sum(cell.counts for cell in self._planned))
        self._print(Text(f"\n{line}", style=style))

    def _table(self, board: Board) -> None:
        """Properties by dtypes of one kernel, the reasons for skips, and the layout classes."""
        self._print(f"\n{board.op} · {board.target} · {board.device}")
        rows = [row for row in board.rows if not row.is_skipped]
        law_column = Column("", max((len(row.law) for row in rows), default=0) + 2)
        status_width = max(9, 2 + max(len(v.label) for v in board.verdicts))
        dtype_columns = [Column(short_dtype(dtype), status_width) for dtype in board.dtypes]
        if rows:
            self._print(title_line((law_column, *dtype_columns, *_COUNTS), "  "))
        for row in rows:
            line = Text(f"  {law_column.pad(row.law)}")
            for column, verdict in zip(dtype_columns, row.verdicts, strict=True):
                label = verdict.label if verdict else "-"
                line.append(column.pad(label), style=_STYLES.get(label, ""))
            self._print(line.append(table_line(_COUNTS, (row.tiers, row.share, f"{row.seconds:.1f}"))))
        for text in _remarks(board):
            self._print(f"  {text}")


def _remarks(board: Board) -> Iterator[str]:
    """The lines below the table of a kernel."""
    yield from filter(None, [board.skipped_text])
    for names, reason in board.reasons_of_judged:
        yield f"{names}: {reason}"
    if any(v.classes for v in board.verdicts):
        yield layout_classes_text(board.verdicts)
    yield from computed_lines(board.verdicts)
    yield from (str(v.thresholds) for v in board.verdicts if v.thresholds)
    yield from tuned_lines(board.verdicts)
    yield from perturbed_lines(board.verdicts)
    yield from limits_lines(board.verdicts)
    if board.answers:
        yield "checked though not promised:"
    yield from (f"  {answer}" for answer in board.answers)


def _stands_alone(verdict: events.Verdict) -> bool:
    """Whether no failure of another cell tells more about the fault, or is likely to."""
    cell, failure = verdict.cell, verdict.failure
    if failure is None:
        return False
    explains_itself = bool(failure.tensor and not (failure.note or verdict.reason))
    return cell.property in FINDINGS or not cause(failure) or (explains_itself and cell.property in _STRONGEST)


def cell_line(verdict: events.Verdict, shown: events.Verdict | None = None) -> Text:
    """A finished cell in one line.

    shown: the failure of the same fault that was printed.
    """
    work = (
        verdict.reason if verdict.status in ("skipped", "error") else f"{share_text(verdict)}, {verdict.seconds:.1f} s"
    )
    line = Text(f"{verdict.label:<8}", style=_STYLES[verdict.label])
    work += f"; {verdict.reason}" if verdict.label in ("inconclusive", "in part") else ""
    work += f"; the same fault as in {cell_name(shown.cell)}" if shown else ""
    return line.append(f" {cell_title(verdict.cell):<36} {verdict.tier:<10} {work}", style="none")
