"""Every convention tried on a model: one table, printed as it grows, and the last line with the exit code."""

from collections import Counter

from rich.console import Console
from rich.live import Live
from rich.text import Text

from packproof.base.wording import plural
from packproof.cli.ending import FAILED, INCONCLUSIVE, INTERNAL_ERROR, INTERRUPTED, SUCCESS, WRONG_CALL
from packproof.harness.report import Cell, CellFinished, Event, RunFinished, RunStarted, Verdict
from packproof.harness.report.formats import ProgressLine, live_line
from packproof.models import (
    ConventionOutcome,
    Key,
    OutcomeTable,
    Word,
    holding_conventions,
    key_of,
    outcome_of,
    outcomes_of,
)

_STYLES = {"holds": "green", "refused": "yellow", "not judged": "bold yellow"}
_ENDINGS = {SUCCESS: "green", INCONCLUSIVE: "bold yellow"}
_FAULT = "bold red"
_WIDTH = 80  # of the last line
_WORDS: tuple[Word, ...] = ("holds", "leaks", "ignored", "differs", "crashes", "refused", "not judged", "error")


class TableReport:
    """Reads the events of a run and prints a row for each convention, in the order of the plan.

    details: whether to print reasons in full, and below the table each failure.
    """

    def __init__(self, *, details: bool) -> None:
        self._console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
        self._details, self._progress = details, ProgressLine()
        self._live: Live | None = None
        self._unfinished_cells: dict[Key, set[Cell]] = {}
        self._verdicts: dict[Key, list[Verdict]] = {}
        self._unprinted: list[Key] = []

    def __call__(self, event: Event) -> None:
        self._progress(event)
        match event:
            case RunStarted():
                self._start(event)
            case CellFinished(verdict):
                self._verdicts[key_of(verdict.cell)].append(verdict)
                self._unfinished_cells[key_of(verdict.cell)].discard(verdict.cell)
                while self._unprinted and not self._unfinished_cells[self._unprinted[0]]:
                    self._print_row(outcome_of(self._verdicts[self._unprinted.pop(0)]))
            case RunFinished():
                self._finish(event)

    def _start(self, event: RunStarted) -> None:
        for cell in event.cells:
            self._unfinished_cells.setdefault(key_of(cell), set()).add(cell)
        self._verdicts = {key: [] for key in self._unfinished_cells}
        self._unprinted, self._table = list(self._unfinished_cells), OutcomeTable(event.cells)
        self._console.print(f"{event.cells[0].target}, profile {event.profile}, seed {event.seed}")
        for note in event.notes:
            self._console.print(note)
        self._console.print(f"\n{self._table.title()}")
        if self._console.is_terminal:
            self._live = live_line(self._console, self._progress)
            self._live.start()

    def _print_row(self, outcome: ConventionOutcome) -> None:
        row = Text(self._table.row(outcome), style=_STYLES.get(outcome.word, _FAULT))
        if not (self._details or outcome.word in ("leaks", "differs")):  # the name of a module is never cut
            row.truncate(self._console.width, overflow="ellipsis")
        self._console.print(row)

    def _finish(self, event: RunFinished) -> None:
        if self._live:
            self._live.stop()
        for outcome in outcomes_of(event.verdicts) if self._details else ():
            if outcome.failure_text:
                self._console.print(f"\n{outcome.failure_text}")


def print_conclusion(end: RunFinished, planned: int, *, details: bool) -> int:
    """Print the last line, and above it how to see more. Returns the exit code.

    planned: the number of conventions.
    details: whether they were printed.
    """
    outcomes = outcomes_of(end.verdicts)
    names = holding_conventions(outcomes)
    code, line = _conclusion(end, outcomes, names, planned)
    console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
    console.print()
    if not details and len(names) < planned:
        console.print("to see what is wrong: --convention NAME for one in full, --details for all")
    console.print(Text(line, style=_ENDINGS.get(code, _FAULT)))
    return code


def _conclusion(end: RunFinished, outcomes: list[ConventionOutcome], names: list[str], planned: int) -> tuple[int, str]:
    words = Counter(outcome.word for outcome in outcomes)
    counts = ", ".join(f"{word}: {words[word]}" for word in _WORDS if words[word]) or "nothing was judged"
    if end.error or words["error"]:
        return INTERNAL_ERROR, f"packproof itself failed: {end.error or counts}"
    if end.write_failed:
        return WRONG_CALL, f"a report could not be written; {counts}"
    if end.interrupted:
        return INTERRUPTED, "interrupted: not every convention was judged"
    if names:
        return SUCCESS, _line_of_names(f"{len(names)} of {plural(planned, 'convention')} hold: ", names)
    is_broken = words["leaks"] or words["ignored"] or words["differs"] or words["crashes"]
    return FAILED if is_broken else INCONCLUSIVE, f"no convention holds; {counts}"


def _line_of_names(start: str, names: list[str]) -> str:
    """As many of the names as one line has room for, and the number of the others."""
    for count in range(len(names), 1, -1):
        others = f" and {len(names) - count} more" if count < len(names) else ""
        line = f"{start}{', '.join(names[:count])}{others}"
        if len(line) <= _WIDTH:
            return line
    return f"{start}{names[0]}{f' and {len(names) - 1} more' if names[1:] else ''}"
