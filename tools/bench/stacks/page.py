"""The file of a bench of stacks as a Markdown table, and as a plot of throughput and memory."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from packproof.bench.kernels.sweep import plot_file
from packproof.bench.stacks.report import (
    documents_text,
    find_timed_row,
    ratio_lines,
    read_stacks,
    row_cells,
    step_text,
)
from packproof.bench.stacks.results import StacksDocument, Trained
from packproof.bench.stacks.shapes import MODES
from packproof.harness.report.formats import markdown_table, numbers, texts

_TIMES = numbers("passes", "padding", "s a step", "tokens/s", "x", "peak, GiB")
_COLUMNS = (*texts("model", "mode"), *_TIMES, *numbers("loss", "apart", "loss after"))
_COLORS = {"single": "C7", "padded": "C1", "packed": "C0", "mamba_ssm": "C2"}


def table(path: str) -> str:
    """The Markdown, between two comments with its origin. Raises UsageError for a damaged file."""
    page = _page(read_stacks(path))
    return "\n".join([f"<!-- packproof table {path} -->", *page, "<!-- end of table -->"])


def _page(document: StacksDocument) -> Iterator[str]:
    start, rows, environment = document.started, document.rows, document.started.environment
    driver = f", driver {environment.driver}" if environment.driver else ""
    peers = "".join(f", {name} {version}" for name, version in start.packages.items())
    yield f"`{document.command}` on {environment.name}: packproof {document.packproof}, torch {environment.torch},"
    yield f"triton {environment.triton or 'none'}{peers}{driver}."
    yield f"{documents_text(start).capitalize()};"
    yield f"{step_text(start)}."
    yield ""
    yield from markdown_table(_COLUMNS, [_cells(row, rows) for row in rows])
    yield ""
    yield from (f"- {line}" for line in ratio_lines(rows))


def _cells(row: Trained, rows: Sequence[Trained]) -> tuple[str, ...]:
    if row.status != "timed":
        return row.model, row.mode, row.status
    return (f"{row.model}, {row.parameters / 1e9:.2f} B", *row_cells(row, rows))


class StacksPlot:
    """Tokens per second beside the memory peak, a bar for each model and mode.

    Raises UsageError at once if it cannot be drawn.
    """

    def __init__(self, path: str) -> None:
        self._file = plot_file(path)

    def draw(self, path: str) -> None:
        """Write the plot of a file: the same bytes for the same file. Raises UsageError for a damaged file."""
        import matplotlib as mpl  # noqa: PLC0415  (an optional dependency)
        from matplotlib.figure import Figure  # noqa: PLC0415

        document = read_stacks(path)
        start, rows = document.started, document.rows
        figure = Figure(figsize=(10, 4), layout="constrained")
        speed, memory = figure.subplots(1, 2)
        _bars(speed, rows, lambda row: row.per_second / 1e3)
        _bars(memory, rows, lambda row: (row.peak or 0) / 2**30)
        speed.set(title="throughput", ylabel="thousand tokens/s")
        memory.set(title="memory peak", ylabel="GiB")
        speed.legend(fontsize="small")
        figure.suptitle(f"{start.environment.name}, passes of at most {start.capacity:,} rows", fontsize="medium")
        with mpl.rc_context({"svg.hashsalt": "packproof"}):
            figure.savefig(self._file, metadata={"Date": None} if self._file.suffix == ".svg" else {})


def _bars(panel: Any, rows: Sequence[Trained], value: Callable[[Trained], float]) -> None:
    """A group of bars for each model, with a bar for each timed mode."""
    models = list(dict.fromkeys(row.model for row in rows))
    modes = [mode for mode in MODES if any(row.mode == mode for row in rows)]
    width = 0.8 / len(modes)
    for index, mode in enumerate(modes):
        timed = {x: row for x, model in enumerate(models) if (row := find_timed_row(rows, model, mode))}
        positions = [x + (index - (len(modes) - 1) / 2) * width for x in timed]
        bars = panel.bar(positions, [value(row) for row in timed.values()], width, label=mode, color=_COLORS[mode])
        panel.bar_label(bars, fmt="%.3g", fontsize="small")
    panel.set_xticks(range(len(models)), models)
    panel.grid(axis="y", alpha=0.3)
    panel.set_axisbelow(True)
