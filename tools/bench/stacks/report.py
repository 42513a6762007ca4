"""A bench of stacks on the terminal, 100 columns wide, row by row as they come; and as a JSON file."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from packproof.base.errors import UsageError
from packproof.base.files import read_json, replace_text, writable_path
from packproof.base.names import short_dtype
from packproof.base.records import parse_record, to_row
from packproof.base.wording import plural
from packproof.bench.kernels.file import WRITER as BENCH_WRITER
from packproof.bench.stacks.results import StackEvent, StacksDocument, StacksFinished, StacksStarted, Trained
from packproof.harness.report.formats import Column, table_line, title_line
from packproof.version import __version__

KIND, VERSION = "stacks", 1
WRITER = "`packproof bench stack --json`"
_TIME_WIDTHS = {"passes": 7, "padding": 9, "s/step": 9, "tokens/s": 10, "x": 7, "peak GiB": 10}
_LOSS_WIDTHS = {"loss": 9, "apart": 7, "after": 9}
_MODE = Column("mode", 11)
_COLUMNS = (_MODE, *(Column(name, width, right=True) for name, width in (_TIME_WIDTHS | _LOSS_WIDTHS).items()))


class StacksReport:
    """Prints the events of one bench of stacks."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self.rows: list[Trained] = []

    def __call__(self, event: StackEvent) -> None:
        match event:
            case StacksStarted():
                for line in start_lines(event):
                    self._say(line)
            case Trained():
                if not any(row.model == event.model for row in self.rows):
                    self._say(f"\n{event.model}")
                    self._say(title_line(_COLUMNS, "  "))
                self.rows.append(event)
                self._say(self._line(event))
            case StacksFinished(seconds):
                self._say("")
                for line in ratio_lines(self.rows):
                    self._say(line)
                self._say(f"\n{seconds:.1f} s")

    def _line(self, row: Trained) -> str:
        if row.status != "timed":
            return f"  {_MODE.pad(row.mode)}{row.status}: {row.reason}"
        return table_line(_COLUMNS, row_cells(row, self.rows), "  ")


def start_lines(event: StacksStarted) -> Iterator[str]:
    """The environment, the documents and the steps of a bench, as lines."""
    environment = event.environment
    driver = f", driver {environment.driver}" if environment.driver else f", {plural(environment.threads, 'thread')}"
    peers = "".join(f", {name} {peer_version}" for name, peer_version in event.packages.items())
    yield f"{environment.name} · torch {environment.torch}, triton {environment.triton or 'none'}{peers}{driver}"
    yield documents_text(event)
    yield f"{step_text(event)} · seed {event.seed}"
    if environment.device == "cpu":
        yield "without a GPU references train tiny stacks: the command works, and nothing is said of speed"


def documents_text(event: StacksStarted) -> str:
    """The documents of a step, and the rows of a pass."""
    lengths = event.lengths
    bounds = f"{min(lengths):,} to {max(lengths):,} tokens, mean {sum(lengths) / len(lengths):.0f}"
    return f"a step: {plural(len(lengths), 'document')} of {bounds}, in passes of at most {event.capacity:,} rows"


def step_text(event: StacksStarted) -> str:
    """The dtype, the passes of a step and the number of steps."""
    steps = plural(event.steps, "step")
    return f"{short_dtype(event.dtype)}, forward, backward, one fused AdamW update; median of {steps}"


def row_cells(row: Trained, rows: Sequence[Trained]) -> tuple[str, ...]:
    """The cells of a timed row: mode, passes, padding, seconds, tokens per second, x, peak; the loss, apart, after."""
    single = find_timed_row(rows, row.model, "single")
    speedup = f"{row.per_second / single.per_second:.2f}" if single else "-"
    peak = "-" if row.peak is None else f"{row.peak / 2**30:.1f}"
    distance = "-" if row.apart is None else f"{row.apart:.2f}"
    loss = "-" if row.loss is None else f"{row.loss:.5f}"
    times = str(row.passes), f"{row.padding:.1%}", f"{row.step:.3f}", f"{row.per_second:,.0f}", speedup
    return (row.mode, *times, peak, loss, distance, f"{row.losses[-1]:.5f}")


def find_timed_row(rows: Sequence[Trained], model: str, mode: str) -> Trained | None:
    """The row of a mode, None if it was not timed."""
    return next((row for row in rows if (row.model, row.mode, row.status) == (model, mode, "timed")), None)


def ratio_lines(rows: Sequence[Trained]) -> Iterator[str]:
    """Tokens per second of packs over those of the other modes, one line per model."""
    for model in dict.fromkeys(row.model for row in rows):
        packed = find_timed_row(rows, model, "packed")
        other_rows = [row for row in rows if row.model == model and row.status == "timed" and row is not packed]
        if packed and other_rows:
            comparisons = ", ".join(
                f"{packed.per_second / other_row.per_second:.2f} x {other_row.mode}" for other_row in other_rows
            )
            yield f"{model}: tokens per second, packed is {comparisons}"


class StacksFile:
    """Collects the events into a document. With a path it rewrites the file after each event.

    Raises UsageError at once if the file cannot be written.
    """

    document: StacksDocument
    """From the event StacksStarted on."""

    def __init__(self, path: str | None, command: str) -> None:
        self._file = writable_path(path, "--json") if path is not None else None
        self._command = command

    def __call__(self, event: StackEvent) -> None:
        match event:
            case StacksStarted():
                self.document = StacksDocument(KIND, VERSION, __version__, self._command, event)
            case Trained():
                self.document = replace(self.document, rows=(*self.document.rows, event))
            case StacksFinished():
                self.document = replace(self.document, finished=True)
        if self._file:
            text = json.dumps(to_row(self.document), indent=1, ensure_ascii=False) + "\n"
            replace_text(self._file, text, final=self.document.finished)


def is_of_stacks(path: str) -> bool:
    """Whether StacksFile wrote the file. Raises UsageError if it cannot be read."""
    data = read_json(path, path, BENCH_WRITER)
    return isinstance(data, dict) and data.get("kind") == KIND


def read_stacks(path: str) -> StacksDocument:
    """The document in a file. Raises UsageError for a damaged file or another version."""
    data = read_json(path, path, WRITER)
    if data.get("version") != VERSION:
        raise UsageError(f"{path} was not written by {WRITER} in version {VERSION}")
    return parse_record(StacksDocument, data, path, WRITER)
