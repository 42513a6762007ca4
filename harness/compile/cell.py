"""Compile cells: each variant that a kernel's wrapper can choose, compiled for every target without a GPU."""

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from importlib.metadata import version

from packproof.harness.compile.variants import Compiled, compile_listings, of_one_listing
from packproof.harness.results.events import Cell, CellFinished, CellStarted, Event, Failure, Progress, Status, Verdict

_MOST_LINES = 8
_TUNED_WITH = "3.7."  # the variants were tuned with this Triton; other versions may spill a few bytes


def compile_cells(cells: Mapping[Cell, str], record: str | None = None) -> Iterator[tuple[Cell, Iterator[Event]]]:
    """Yield each cell with an iterator of its events. Exhaust the iterator before you take the next cell.

    cells: each cell with the name of the function that lists its variants.
    record: a file of known forms, not compiled again except for a sample. A form fails if its sample disagrees.
    """
    jobs = max(2, (os.cpu_count() or 1) // 4)
    with closing(compile_listings(list(cells.values()), jobs=jobs, record=record)) as results:
        for cell in cells:
            yield cell, _compiled(cell, of_one_listing(results))


def _compiled(cell: Cell, forms: Iterator[Compiled]) -> Iterator[Event]:
    """The events of one cell. The kernel fails if a form does not compile or needs more shared memory than there is.

    A form with more spills than declared is still correct. It fails with the Triton version of `_TUNED_TRITON`, and is
    reported as a note with any other version.
    """
    yield CellStarted(cell)
    started = time.monotonic()
    results: list[Compiled] = []
    for compiled in forms:
        results.append(compiled)
        yield Progress(cell, len(results))
    triton = version("triton")
    slow = [f"{r['variant']} on {r['target']} {r['slow']}" for r in results if r["slow"]]
    bad = [f"{r['variant']} on {r['target']}: {r['failure']}" for r in results if r["failure"]]
    bad += slow if triton.startswith(_TUNED_WITH) else []
    failure = Failure((), "", tuple(_first(bad)), 0, 0) if bad else None
    built = [r for r in results if not r["skipped"]]
    notes = sorted({f"{r['target']}: {r['skipped']}" for r in results if r["skipped"]})
    known = sum(not r["compiled"] for r in built)
    notes += [f"{known} of {len(built)} forms were known, of the same source and compiler"] if known else []
    notes += [f"with triton {triton} some forms are slower: {', '.join(_first(slow))}"] if slow else []
    status: Status = "failed" if bad else "passed" if built else "skipped"
    seconds = time.monotonic() - started
    yield CellFinished(
        Verdict(
            cell, "compile", status, len(built), seconds, judged=len(built), reason="; ".join(notes), failure=failure
        )
    )


def _first(lines: list[str]) -> list[str]:
    return [*lines[:_MOST_LINES], *([f"and {len(lines) - _MOST_LINES} more"] if len(lines) > _MOST_LINES else [])]
