"""A bench on the terminal, 100 columns wide: the machine, the proofs, then a table for each op and layout."""

from collections.abc import Iterator, Mapping, Sequence

from rich.console import Console
from rich.text import Text

from packproof.base.names import short_dtype
from packproof.base.wording import plural
from packproof.bench.kernels.results import (
    NAME_WIDTH,
    BenchFinished,
    BenchResult,
    BenchStarted,
    Ceilings,
    Event,
    LayoutFinished,
    Pass,
    PassName,
    SizeProof,
    figures,
    heading,
    mebibytes,
    microseconds,
    name_width,
    rate,
)
from packproof.harness.report.formats import Column, table_line, title_line

_STYLES = {"passed": "green", "failed": "bold red"}
_NUMBER_WIDTHS = {"ms": 8, "quartiles": 16, "rate": 14, "of": 6, "host µs": 9, "peak": 6, "x": 7}
_COLUMNS = (Column("pass", 9), *(Column(title, width, right=True) for title, width in _NUMBER_WIDTHS.items()))


class BenchReport:
    """Prints the events of one bench to a console."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
        self._ceilings = Ceilings(0.0)
        self._op = ""

    def __call__(self, event: Event) -> None:
        match event:
            case BenchStarted():
                self._start(event)
            case SizeProof():
                self._proof(event)
            case LayoutFinished(results, matmul):
                if results:
                    self._table(results, matmul=matmul)
            case BenchFinished(seconds):
                self._console.print(f"\n{seconds:.1f} s")

    def _start(self, event: BenchStarted) -> None:
        machine, self._ceilings = event.environment, event.ceilings
        driver = f", driver {machine.driver}" if machine.driver else f", {plural(machine.threads, 'thread')}"
        self._console.print(f"{machine.name} · torch {machine.torch}, triton {machine.triton or 'none'}{driver}")
        matmul = "" if event.ceilings.matmul is None else f", bf16 matmul {event.ceilings.matmul / 1e12:.0f} TFLOP/s"
        self._console.print(f"ceilings: copy {event.ceilings.copy / 1e9:.3g} GB/s{matmul} · seed {event.seed}")

    def _proof(self, proof: SizeProof) -> None:
        if proof.op != self._op:
            self._op = proof.op
            self._console.print(f"\n{proof.op} · {short_dtype(proof.dtype)} · {proof.setting}")
        conclusion, *details = proof.text.splitlines() or [""]
        line = Text(f"  {proof.implementation:<{NAME_WIDTH}} ")
        if proof.examples:
            speed = f"{proof.examples / proof.seconds:.3g} examples/s" if proof.seconds else ""
            failed = proof.status == "failed"
            line.append("FAILED " if failed else "proven ", style=_STYLES["failed" if failed else "passed"])
            line.append(f"{proof.tier:<10}{speed:<18}{conclusion}")
        else:
            line.append(conclusion)
        line.rstrip()
        self._console.print(line)
        for text in details:
            self._console.print(f"    {text}")

    def _table(self, results: Sequence[BenchResult], *, matmul: bool) -> None:
        """One line for each implementation and pass. x: its time over that of the first implementation."""
        self._console.print(f"\n{heading(results[0])}")
        name_column = Column("", name_width(result.implementation for result in results) + 1)
        columns = (name_column, *_COLUMNS)
        self._console.print(title_line(columns, "  "))
        base_times = {timed.name: timed.device.median for timed in next((r.passes for r in results if r.passes), ())}
        for result in results:
            name = f"  {name_column.pad(result.implementation)}"
            if result.verdict:
                reason = result.verdict.partition("\n")[0]
                line = Text(name).append("FAILED ", style=_STYLES["failed"])
                self._console.print(line.append(f"{reason}; no time"))
            if result.limit:
                self._console.print(f"{name}not timed: {result.limit.partition(chr(10))[0]}")
            if result.noise:
                self._console.print(f"{name}not timed: {result.noise}")
            for timed in result.passes:
                cells = self._pass_cells(timed, base_times, matmul=matmul)
                self._console.print(table_line(columns, (result.implementation, *cells), "  "))
        for footnote in _footnotes(results):
            self._console.print(f"  {footnote}")

    def _pass_cells(self, timed: Pass, base_times: Mapping[PassName, float], *, matmul: bool) -> tuple[str, ...]:
        speed, share = rate(timed, self._ceilings, matmul=matmul)
        return (
            timed.name,
            figures(timed.device.median),
            f"{figures(timed.device.low)}..{figures(timed.device.high)}",
            speed,
            share,
            microseconds(timed.host),
            mebibytes(timed.peak_bytes),
            f"{timed.device.median / base_times[timed.name]:.2f}" if timed.name in base_times else "",
        )


def _footnotes(results: Sequence[BenchResult]) -> Iterator[str]:
    """The noise of the times, and the memory kept for the backward pass."""
    noises = [timed.decile.noise for result in results for timed in result.passes if timed.decile]
    if noises:
        yield f"noise, the same code against itself: up to {max(noises):.2f} x"
    for result in results:
        if result.kept_bytes is not None:
            per_channel = result.kept_bytes_per_channel
            share = f"{per_channel:.3g} byte{'s' * (per_channel != 1)} per token and channel"
            yield f"{result.implementation}: {mebibytes(result.kept_bytes)} MiB kept for backward, {share}"
