"""What was not judged, by no fault of the kernel: an error where packproof failed, and the run goes on; inconclusive
where the run ended first."""

import traceback
from collections.abc import Iterator, Sequence
from typing import TypeVar

from packproof.harness.results.events import Cell, CellFinished, Verdict
from packproof.refs.errors import PackproofError

E = TypeVar("E")


def said(error: Exception) -> str:
    """One line for a fault of packproof, whose traceback goes to stderr."""
    traceback.print_exception(error)
    text = str(error) if isinstance(error, PackproofError) else f"{type(error).__name__}: {error}"
    return f"packproof itself failed: {text}"


def not_judged(cells: Sequence[Cell], why: str) -> Iterator[CellFinished]:
    for cell in cells:
        yield CellFinished(Verdict(cell, "eager", "error", 0, 0.0, reason=why))


def not_reached(cells: Sequence[Cell], why: str) -> Iterator[CellFinished]:
    for cell in cells:
        yield CellFinished(Verdict(cell, "eager", "inconclusive", 0, 0.0, reason=why))


def caught(cell: Cell, events: Iterator[E]) -> Iterator[E | CellFinished]:
    """The events of a cell; where packproof itself fails in it, that is its verdict, and the others go on."""
    try:
        yield from events
    except Exception as error:
        yield from not_judged([cell], said(error))
