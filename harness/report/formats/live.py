"""The progress of a run in one line: cells, examples per second, remaining time, and the running case."""

import time
from collections.abc import Callable

from rich.console import Console
from rich.live import Live
from rich.text import Text

from packproof.base.names import short_dtype
from packproof.base.wording import plural
from packproof.harness.report import events
from packproof.properties.cases import shorten

_MOST_LENGTHS = 5  # lengths shown of the running case
_MIN_SECONDS = 2.0  # seconds: before them a rate means little


class ProgressLine:
    """Reads the events of a run. clock: seconds, from any start."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._start_time = clock()
        self._planned_cells = frozenset[events.Cell]()
        self._judged_examples: dict[events.Cell, int] = {}
        self._planned_examples: dict[events.Cell, int] = {}
        self._finished_cells: set[events.Cell] = set()
        self._current_case = ""

    def __call__(self, event: events.Event) -> None:
        match event:
            case events.RunStarted(cells):
                self._start_time, self._planned_cells = self._clock(), frozenset(cells)
            case events.Progress(cell, examples, planned, lengths):
                self._judged_examples[cell] = examples
                self._planned_examples[cell] = max(planned, examples)
                self._current_case = f"{_name(cell)} {shorten(lengths, _MOST_LENGTHS)}" if lengths else _name(cell)
            case events.FailureFound(verdict):
                self._current_case = f"{_name(verdict.cell)}, looking for the smallest layout"
            case events.CellFinished(verdict):
                self._finished_cells |= {verdict.cell} & self._planned_cells  # slack is no cell of the plan
                self._judged_examples[verdict.cell] = self._planned_examples[verdict.cell] = verdict.examples

    def __str__(self) -> str:
        n_finished, n_counting = (sum(c.counts for c in cells) for cells in (self._finished_cells, self._planned_cells))
        parts = [f"{n_finished} of {plural(n_counting, 'cell')}"]
        if self.rate:
            parts.append(f"{self.rate:.{0 if self.rate >= 10 else 1}f} examples/s")
        if (remaining := self.seconds_left) is not None:
            parts.append(f"about {duration_text(remaining)} left")
        return ", ".join(parts) + (f" · {self._current_case}" if self._current_case else "")

    @property
    def rate(self) -> float:
        """Examples per second, 0 until it is known."""
        seconds = self._clock() - self._start_time
        return sum(self._judged_examples.values()) / seconds if seconds >= _MIN_SECONDS else 0.0

    @property
    def seconds_left(self) -> float | None:
        """The remaining seconds at the present rate. A cell that has not started counts as an average started one."""
        if not (self.rate and self._planned_examples):
            return None
        mean = sum(self._planned_examples.values()) / len(self._planned_examples)
        planned = sum(self._planned_examples.values()) + mean * (len(self._planned_cells) - len(self._planned_examples))
        return max(planned - sum(self._judged_examples.values()), 0.0) / self.rate


def live_line(console: Console, progress: ProgressLine) -> Live:
    """The progress as the last line of a terminal, while it runs."""

    def line() -> Text:
        return Text(str(progress), no_wrap=True, overflow="ellipsis")

    return Live(console=console, transient=True, get_renderable=line, refresh_per_second=4)


def _name(cell: events.Cell) -> str:
    return f"{cell.law} {short_dtype(cell.dtype)}"


def duration_text(seconds: float) -> str:
    """A duration, without false precision: 8 s, 40 s, 3 min, 2 h."""
    if seconds < 10:
        return f"{max(round(seconds), 1)} s"
    if seconds < 90:
        return f"{round(seconds, -1):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 90 * 60 else f"{seconds / 3600:.0f} h"
