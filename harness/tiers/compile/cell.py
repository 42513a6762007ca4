"""Compile cells: each variant that a kernel's wrapper can choose, compiled for every target without a GPU."""

import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from importlib.metadata import version

from packproof.base.machine import available_cores
from packproof.harness.report import Cell, CellFinished, CellStarted, Event, Failure, Progress, Status, Verdict
from packproof.harness.tiers.compile.variants import CompileResult, compile_listings, next_listing_results

_MAX_LINES = 8
_TUNED_TRITON = "3.7."  # the variants were tuned with this Triton; other versions may spill a few bytes


def compile_cells(cells: Mapping[Cell, str], record: str | None = None) -> Iterator[tuple[Cell, Iterator[Event]]]:
    """Yield each cell with an iterator of its events. Exhaust the iterator before you take the next cell.

    cells: each cell with the name of the function that lists its variants.
    record: a file of known forms, not compiled again except for a sample. A form fails if its sample disagrees.
    """
    jobs = max(2, available_cores() // 4)
    with closing(compile_listings(list(cells.values()), jobs=jobs, record=record)) as results:
        for cell in cells:
            yield cell, _cell_events(cell, next_listing_results(results))


def _cell_events(cell: Cell, forms: Iterator[CompileResult]) -> Iterator[Event]:
    """The events of one cell. The kernel fails if a form does not compile or needs more shared memory than there is.

    A form with more spills than declared is still correct. It fails with the Triton version of `_TUNED_TRITON`, and is
    reported as a note with any other version.
    """
    yield CellStarted(cell)
    start_time = time.monotonic()
    results: list[CompileResult] = []
    for result in forms:
        results.append(result)
        yield Progress(cell, len(results))
    triton = version("triton")
    spill_lines = [f"{r['variant']} on {r['target']} {r['slow']}" for r in results if r["slow"]]
    failure_lines = [f"{r['variant']} on {r['target']}: {r['failure']}" for r in results if r["failure"]]
    failure_lines += spill_lines if triton.startswith(_TUNED_TRITON) else []
    failure = Failure((), "", tuple(_truncate_lines(failure_lines)), 0, 0) if failure_lines else None
    supported_results = [r for r in results if not r["skipped"]]
    notes = sorted({f"{r['target']}: {r['skipped']}" for r in results if r["skipped"]})
    n_cached = sum(not r["compiled"] for r in supported_results)
    notes += (
        [f"{n_cached} of {len(supported_results)} forms were known, of the same source and compiler"]
        if n_cached
        else []
    )
    notes += (
        [f"with triton {triton} some forms are slower: {', '.join(_truncate_lines(spill_lines))}"]
        if spill_lines
        else []
    )
    status: Status = "failed" if failure_lines else "passed" if supported_results else "skipped"
    seconds = time.monotonic() - start_time
    yield CellFinished(
        Verdict(
            cell,
            "compile",
            status,
            len(supported_results),
            seconds,
            judged=len(supported_results),
            reason="; ".join(notes),
            failure=failure,
        )
    )


def _truncate_lines(lines: list[str]) -> list[str]:
    return [*lines[:_MAX_LINES], *([f"and {len(lines) - _MAX_LINES} more"] if len(lines) > _MAX_LINES else [])]
