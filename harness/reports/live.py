"""The progress of a run in one line: cells, examples per second, remaining time, and the running case."""

import time
from collections.abc import Callable

from packproof.harness.results import events
from packproof.harness.results.names import short
from packproof.properties.cases.case import shorten
from packproof.refs.wording import counted

_FEW = 5  # lengths shown of the running case
_SOON = 2.0  # seconds: before them a rate means little


class Headway:
    """Reads the events of a run. clock: seconds, from any start."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = clock()
        self._total = 0
        self._judged: dict[events.Cell, int] = {}
        self._planned: dict[events.Cell, int] = {}
        self._done: set[events.Cell] = set()
        self._now = ""

    def __call__(self, event: events.Event) -> None:
        match event:
            case events.RunStarted(cells):
                self._began, self._total = self._clock(), len(cells)
            case events.Progress(cell, examples, planned, lengths):
                self._judged[cell] = examples
                self._planned[cell] = max(planned, examples)
                self._now = f"{_name(cell)} {shorten(lengths, _FEW)}" if lengths else _name(cell)
            case events.FailureFound(verdict):
                self._now = f"{_name(verdict.cell)}, looking for the smallest layout"
            case events.CellFinished(verdict):
                self._done.add(verdict.cell)
                self._judged[verdict.cell] = self._planned[verdict.cell] = verdict.examples

    def __str__(self) -> str:
        words = [f"{len(self._done)} of {counted(self._total, 'cell')}"]
        if self.rate:
            words.append(f"{self.rate:.{0 if self.rate >= 10 else 1}f} examples/s")
        if (left := self.seconds_left) is not None:
            words.append(f"about {in_words(left)} left")
        return ", ".join(words) + (f" · {self._now}" if self._now else "")

    @property
    def rate(self) -> float:
        """Examples per second, 0 until it is known."""
        seconds = self._clock() - self._began
        return sum(self._judged.values()) / seconds if seconds >= _SOON else 0.0

    @property
    def seconds_left(self) -> float | None:
        """The remaining seconds at the present rate. A cell that has not started counts as an average started one."""
        if not (self.rate and self._planned):
            return None
        mean = sum(self._planned.values()) / len(self._planned)
        planned = sum(self._planned.values()) + mean * (self._total - len(self._planned))
        return max(planned - sum(self._judged.values()), 0.0) / self.rate


def _name(cell: events.Cell) -> str:
    return f"{cell.law} {short(cell.dtype)}"


def in_words(seconds: float) -> str:
    """A duration, without false precision: 8 s, 40 s, 3 min, 2 h."""
    if seconds < 10:
        return f"{max(round(seconds), 1)} s"
    if seconds < 90:
        return f"{round(seconds, -1):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 90 * 60 else f"{seconds / 3600:.0f} h"
