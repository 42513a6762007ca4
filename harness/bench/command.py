"""The command: from command-line options to a bench, its reports and the exit code."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from packproof.harness.bench.again import PROCESSES, document_again, keep_the_shortest
from packproof.harness.bench.bench import BenchRequest, run_bench
from packproof.harness.bench.compare import TimingComparison, compare
from packproof.harness.bench.file import BenchFile, read, record
from packproof.harness.bench.implementations import is_baseline
from packproof.harness.bench.layouts import NAMED, SWEEPS, TOKENS, BenchLayout, from_file, from_text, named
from packproof.harness.bench.report import BenchReport
from packproof.harness.bench.results import Event, LayoutFinished, SizeProof
from packproof.harness.bench.sweep import Growth, Plot
from packproof.harness.results.names import known
from packproof.refs.errors import UsageError

_CPU_TOKENS = 2048


@dataclass(frozen=True)
class Outputs:
    """Where the results go. json, plot: files to write; compare: the file of an earlier bench; sweep: what is swept."""

    json: str | None = None
    compare: str | None = None
    plot: str | None = None
    sweep: str | None = None
    command: str = ""


@dataclass(frozen=True)
class BenchOutcome:
    """The outcome of a bench. timed: rows. wrong: verdicts on implementations under test; baselines do not count.
    noisy: rows that have no time because of noise."""

    timed: int
    wrong: int
    noisy: int
    comparison: TimingComparison | None


def run_command(request: BenchRequest, outputs: Outputs, say: Callable[[str], None]) -> BenchOutcome:
    """Run the bench and write its reports. Raises UsageError before the first timing if a file is unusable."""
    if outputs.plot is not None and outputs.sweep is None:
        raise UsageError("--plot draws a sweep; add --sweep tokens, sequences or longest")
    named = f"--compare: {outputs.compare}"
    old = record(read(outputs.compare, named), named) if outputs.compare is not None else None
    plot = Plot(outputs.plot) if outputs.plot is not None else None
    growth = Growth(outputs.sweep) if outputs.sweep is not None else None
    file = BenchFile(outputs.json, outputs.command)
    tally = _Tally()
    reports: list[Callable[[Event], None]] = [BenchReport(), file, tally, *([growth] if growth else [])]
    for event in run_bench(replace(request, earlier=(outputs.compare, old)) if old and outputs.compare else request):
        for report in reports:
            report(event)
    if growth:
        say(growth.text)
    if plot and growth:
        plot.draw(growth)
    comparison = compare(old, record(file.document, "this run"), outputs.compare) if old and outputs.compare else None
    for _ in range(PROCESSES - 1 if request.device == "cpu" and file.document["rows"] else 0):
        if not outputs.json and not (comparison and (comparison.slower or comparison.undecided)):
            break
        keep_the_shortest(file.document, document_again(request))
        if old and outputs.compare:
            comparison = compare(old, record(file.document, "this run"), outputs.compare)
    file.write()
    if comparison:
        say(f"\n{outputs.compare}: {comparison.text}")
    return BenchOutcome(tally.timed, tally.wrong, len(file.document["noisy"]), comparison)


class _Tally:
    """Counts what determines the exit code."""

    def __init__(self) -> None:
        self.timed = self.wrong = 0

    def __call__(self, event: Event) -> None:
        if isinstance(event, SizeProof):
            self.timed += event.status == "interpreted"  # the proof was timed
            self.wrong += event.status == "failed" and not is_baseline(event.implementation)
        if isinstance(event, LayoutFinished):
            self.timed += sum(bool(result.passes) for result in event.results)
            self.wrong += sum(bool(r.verdict) and not is_baseline(r.implementation) for r in event.results)


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
    """The layouts that the options select: named ones, unless lengths, a file or a sweep is given."""
    given = {"--layout": names, "--lengths": lengths, "--lengths-file": file, "--sweep": sweep}
    used = [name for name, value in given.items() if value is not None]
    if len(used) > 1:
        raise UsageError(f"{used[1]}: cannot be given together with {used[0]}; choose one of {', '.join(given)}")
    if tokens is not None and (lengths is not None or file is not None):
        raise UsageError(f"--tokens: the lengths of {used[0]} say how many tokens there are; leave one of the two out")
    total = tokens or (TOKENS if device == "cuda" else _CPU_TOKENS)
    if lengths is not None:
        return (from_text(lengths),)
    if file is not None:
        return (from_file(file),)
    if sweep is not None:
        return tuple(SWEEPS[known("sweep", sweep, SWEEPS)](total, seed))
    return tuple(named(names or list(NAMED), total))
