"""What packproof could not judge, by no fault of the kernel: the verdict is an error, and the run goes on."""

import traceback
from collections.abc import Iterator, Sequence

from packproof.harness.results.events import Cell, CellFinished, Event, Verdict
from packproof.refs.errors import PackproofError


def not_judged(cells: Sequence[Cell], why: str) -> Iterator[Event]:
    for cell in cells:
        yield CellFinished(Verdict(cell, "eager", "error", 0, 0.0, reason=why))


def caught(cell: Cell, events: Iterator[Event]) -> Iterator[Event]:
    """The events of a cell; where packproof itself fails in it, that is its verdict, and the others go on."""
    try:
        yield from events
    except Exception as error:
        traceback.print_exc()
        text = str(error) if isinstance(error, PackproofError) else f"{type(error).__name__}: {error}"
        yield from not_judged([cell], f"packproof itself failed: {text}")
