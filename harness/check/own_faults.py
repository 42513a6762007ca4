"""Verdicts of cells without a result through no fault of the kernel.

A cell is an error if packproof failed in it (the run continues), and inconclusive if the run ended first.
"""

import traceback
from collections.abc import Iterator, Sequence
from typing import TypeVar

from packproof.base.errors import OutOfTime, PackproofError
from packproof.harness.report import Cell, CellFinished, Verdict

E = TypeVar("E")


def report_internal_error(error: Exception) -> str:
    """One line for an internal error of packproof; its traceback goes to stderr."""
    traceback.print_exception(error)
    text = str(error) if isinstance(error, PackproofError) else f"{type(error).__name__}: {error}"
    return f"packproof itself failed: {text}"


def error_verdicts(cells: Sequence[Cell], reason: str) -> Iterator[CellFinished]:
    """An "error" verdict for each cell."""
    for cell in cells:
        yield CellFinished(Verdict(cell, "eager", "error", 0, 0.0, reason=reason))


def inconclusive_verdicts(cells: Sequence[Cell], reason: str) -> Iterator[CellFinished]:
    """An "inconclusive" verdict for each cell."""
    for cell in cells:
        yield CellFinished(Verdict(cell, "eager", "inconclusive", 0, 0.0, reason=reason))


def errors_as_verdicts(cell: Cell, events: Iterator[E]) -> Iterator[E | CellFinished]:
    """The events of a cell. If packproof itself fails in it, the verdict is an error; the other cells run on.

    Raises OutOfTime, which ends them too.
    """
    try:
        yield from events
    except OutOfTime:
        raise
    except Exception as error:
        yield from error_verdicts([cell], report_internal_error(error))
