"""The command: from command-line options to a bench, its reports and the exit code.

Memory lies at other addresses in each process, so the same code takes a different time on a CPU. Such a bench therefore
runs in several processes: `python -m packproof.bench.kernels.command` reads a request as JSON and prints a document.
"""

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

from packproof.base.errors import PackproofError, UsageError
from packproof.base.names import require_known
from packproof.base.records import from_row, to_row
from packproof.bench.kernels.bench import BenchRequest, run_bench
from packproof.bench.kernels.compare import PROCESSES, TimingComparison, compare
from packproof.bench.kernels.file import BenchDocument, BenchFile, RowKey, TimedRow, read_bench
from packproof.bench.kernels.gpu_state import GpuState
from packproof.bench.kernels.implementations import is_baseline
from packproof.bench.kernels.layouts import (
    NAMED_LAYOUTS,
    SWEEPS,
    TOKENS,
    BenchLayout,
    from_file,
    from_text,
    named_layouts,
)
from packproof.bench.kernels.report import BenchReport
from packproof.bench.kernels.results import Event, LayoutFinished, SizeProof
from packproof.bench.kernels.sweep import Growth, Plot
from packproof.harness.process import visible_gpus

_CPU_TOKENS = 2048


@dataclass(frozen=True)
class Outputs:
    """Where the results go."""

    json: str | None = None
    """The JSON file to write."""
    compare: str | None = None
    """The file of a previous bench to compare with."""
    plot: str | None = None
    """The image of a sweep to draw."""
    sweep: str | None = None
    """The swept quantity."""
    command: str = ""
    """The command line, for the JSON file."""


@dataclass(frozen=True)
class BenchOutcome:
    """The outcome of a bench, for the exit code."""

    timed_rows: int
    """Rows with a time."""
    incorrect: int
    """Verdicts on implementations under test; baselines do not count."""
    noisy: int
    """Rows without a time because of noise."""
    comparison: TimingComparison | None


def run_command(request: BenchRequest, outputs: Outputs, write_line: Callable[[str], None]) -> BenchOutcome:
    """Run the bench and write its reports.

    Raises UsageError before the first timing if a file is unusable, or if a file is asked for and the GPU is in use by
    another process; PackproofError when the GPU slows itself down: the file ends before that layout.
    """
    if outputs.plot is not None and outputs.sweep is None:
        raise UsageError("--plot draws a sweep; add --sweep tokens, sequences or longest")
    previous = (
        (outputs.compare, read_bench(outputs.compare, f"--compare: {outputs.compare}"))
        if outputs.compare is not None
        else None
    )
    plot = Plot(outputs.plot) if outputs.plot is not None else None
    growth = Growth(outputs.sweep) if outputs.sweep is not None else None
    file = BenchFile(outputs.json, outputs.command)
    tally = _Tally()
    gpu = GpuState(next(iter(visible_gpus()), "0")) if request.device == "cuda" and outputs.json else None
    if gpu:
        gpu.require_unshared()
    observers = (BenchReport(), gpu, file, tally, growth)
    reports: list[Callable[[Event], None]] = [observer for observer in observers if observer]
    for event in run_bench(replace(request, previous_run=previous)):
        for report in reports:
            report(event)
    if growth:
        write_line(growth.text)
    if plot and growth:
        plot.draw(growth)
    comparison = _compare_with(previous, file.document)
    doubtful = comparison and (comparison.regressions or comparison.undecided)
    if request.device == "cpu" and file.document.rows and (outputs.json or doubtful):
        other_documents = [document_from_new_process(request) for _ in range(PROCESSES - 1)]
        file.document = with_median_rows(file.document, other_documents)
        comparison = _compare_with(previous, file.document)
    file.write()
    if comparison:
        write_line(f"\n{outputs.compare}: {comparison.text}")
    return BenchOutcome(tally.timed_rows, tally.incorrect, len(file.document.noisy), comparison)


def _compare_with(previous: tuple[str, BenchDocument] | None, document: BenchDocument) -> TimingComparison | None:
    return compare(previous[1], document, previous[0]) if previous else None


class _Tally:
    """Counts the results for the exit code."""

    def __init__(self) -> None:
        self.timed_rows = self.incorrect = 0

    def __call__(self, event: Event) -> None:
        if isinstance(event, SizeProof):
            self.timed_rows += event.status == "interpreted"  # the proof was timed
            self.incorrect += event.status == "failed" and not is_baseline(event.implementation)
        if isinstance(event, LayoutFinished):
            self.timed_rows += sum(bool(result.passes) for result in event.results)
            self.incorrect += sum(bool(r.verdict) and not is_baseline(r.implementation) for r in event.results)


def choose_layouts(
    device: str,
    *,
    names: Sequence[str] | None = None,
    lengths: str | None = None,
    file: str | None = None,
    sweep: str | None = None,
    tokens: int | None = None,
    seed: int = 0,
) -> tuple[BenchLayout, ...]:
    """The selected layouts: named ones, unless lengths, a file or a sweep is given."""
    options = {"--layout": names, "--lengths": lengths, "--lengths-file": file, "--sweep": sweep}
    used_options = [name for name, value in options.items() if value is not None]
    if len(used_options) > 1:
        raise UsageError(
            f"{used_options[1]}: cannot be given together with {used_options[0]}; choose one of {', '.join(options)}"
        )
    if tokens is not None and (lengths is not None or file is not None):
        raise UsageError(
            f"--tokens: the lengths of {used_options[0]} say how many tokens there are; leave one of the two out"
        )
    total = tokens or (TOKENS if device == "cuda" else _CPU_TOKENS)
    if lengths is not None:
        return (from_text(lengths),)
    if file is not None:
        return (from_file(file),)
    if sweep is not None:
        return tuple(SWEEPS[require_known("sweep", sweep, SWEEPS)](total, seed))
    return tuple(named_layouts(names or list(NAMED_LAYOUTS), total))


def document_from_new_process(request: BenchRequest) -> BenchDocument:
    """The document of the same bench in a fresh process. Raises PackproofError if that fails."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    process = subprocess.run(
        [sys.executable, "-m", "packproof.bench.kernels.command"],
        input=json.dumps(asdict(replace(request, previous_run=None))),
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if process.returncode:
        raise PackproofError(f"the bench ended in another process: {process.stderr.strip()[-500:]}")
    return from_row(BenchDocument, json.loads(process.stdout.splitlines()[-1]))


def with_median_rows(document: BenchDocument, other_documents: Sequence[BenchDocument]) -> BenchDocument:
    """The document with the median of all processes in each row, in units of fixed work.

    A row that was too noisy here is taken from another process if it has a time there.
    """
    rows_by_key: dict[RowKey, list[TimedRow]] = {}
    for run_document in (document, *other_documents):
        for row in run_document.rows:
            rows_by_key.setdefault((row.configuration, row.pass_name), []).append(row)
    medians = (sorted(rows, key=_time_over_fixed_work)[len(rows) // 2] for rows in rows_by_key.values())
    noisy = (row for row in document.noisy if all(row.configuration in other.noises for other in other_documents))
    return replace(document, rows=tuple(medians), noisy=tuple(noisy))


def _time_over_fixed_work(row: TimedRow) -> float:
    """The time of a row in units of the fixed work of the same rounds."""
    assert row.decile is not None, "only rows of a CPU are measured in several processes"
    times = row.decile.fixed_work.values()
    return row.decile.ms / math.exp(sum(map(math.log, times)) / max(len(times), 1))


def main() -> int:
    fields = json.load(sys.stdin)
    layouts = tuple(BenchLayout(layout["name"], tuple(layout["lengths"])) for layout in fields.pop("layouts"))
    lists = {name: tuple(value) for name, value in fields.items() if isinstance(value, list)}
    file = BenchFile(None, "")
    for event in run_bench(BenchRequest(layouts=layouts, **{**fields, **lists})):
        file(event)
    print(json.dumps(to_row(file.document)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
