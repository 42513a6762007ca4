"""The compile cell: every variant that a kernel's wrapper can choose, ahead of time for every target, with no GPU."""

import time
from collections.abc import Iterator

from packproof.harness.compile_tier import Compiled, compile_variants
from packproof.harness.events import Cell, CellFinished, CellStarted, Event, Failure, Progress, Status, Verdict
from packproof.harness.own import OwnKernel

_MOST_LINES = 8


def compile_cell(cell: Cell, own: OwnKernel) -> Iterator[Event]:
    """Compile; the kernel fails if a variant does not compile, spills, or needs more shared memory than there is."""
    yield CellStarted(cell)
    started = time.monotonic()
    results: list[Compiled] = []
    for compiled in compile_variants(own.module):
        results.append(compiled)
        yield Progress(cell, len(results))
    bad = [r for r in results if r["failure"]]
    lines = [f"{r['variant']} on {r['target']}: {r['failure']}" for r in bad[:_MOST_LINES]]
    lines += [f"and {len(bad) - _MOST_LINES} more"] if len(bad) > _MOST_LINES else []
    failure = Failure((), "", tuple(lines), 0, 0) if bad else None
    built = [r for r in results if not r["skipped"]]
    reason = "; ".join(sorted({f"{r['target']}: {r['skipped']}" for r in results if r["skipped"]}))
    status: Status = "failed" if bad else "passed" if built else "skipped"
    seconds = time.monotonic() - started
    yield CellFinished(Verdict(cell, "compile", status, len(built), seconds, reason=reason, failure=failure))
