"""Files of `packproof bench ranks` as Markdown tables next to the cost model, and as a plot."""

from collections.abc import Iterator, Sequence

from packproof.base.files import damaged_error, read_json
from packproof.base.records import read_record
from packproof.base.wording import plural
from packproof.bench.kernels.file import WRITER as BENCH_WRITER
from packproof.bench.kernels.sweep import plot_file
from packproof.bench.ranks import model
from packproof.bench.ranks.row import RanksDocument, Row
from packproof.harness.report.formats import markdown_table, numbers, texts

_MOST_ERROR = 0.15  # of the model
WRITER = "`packproof bench ranks --json`"
_LINKS = "two all-gathers"
_TIMES = numbers("one GPU, ms", "all, ms", "rate", "model, ms", "measured over it")
_COLUMNS = (*texts("op"), *numbers("tokens", "GPUs"), *_TIMES)
_PART_COLUMNS = (*texts("op"), *numbers("GPUs", "kernels, ms", "collectives, ms", "rest, ms"))


def is_of_ranks(path: str) -> bool:
    """Whether a file, or the first of several, has times of ranks. Raises UsageError if it cannot be read."""
    first = path.partition(",")[0]
    data = read_json(first, first, BENCH_WRITER)
    rows = data.get("rows") if isinstance(data, dict) else None
    return isinstance(rows, list) and bool(rows) and all(isinstance(row, dict) and "parts" in row for row in rows)


def read_rows(path: str) -> tuple[list[Row], list[RanksDocument]]:
    """The rows of the files, by their number of ranks, and the files. Raises UsageError if one is damaged."""
    names = path.split(",")
    documents = [read_record(RanksDocument, name, name, WRITER) for name in names]
    for name, document in zip(names, documents, strict=True):
        for index, row in enumerate(document.rows):
            _require_model(row, f"rows[{index}]", name)
    return sorted((row for document in documents for row in document.rows), key=lambda row: row.ranks), documents


def _require_model(row: Row, row_name: str, label: str) -> None:
    """UsageError for a row outside of the cost model, or without the time of a rank."""
    try:
        _ = row.rate, row.model_error, row.parts["rank"]
    except (KeyError, ValueError, ZeroDivisionError) as error:
        problem = f"{row_name} does not fit the cost model ({type(error).__name__}: {error})"
        raise damaged_error(label, problem, WRITER) from None


def table(path: str) -> str:
    """The Markdown, between two comments with its origin."""
    rows, documents = read_rows(path)
    return "\n".join([f"<!-- packproof table {path} -->", *_page(rows, documents), "<!-- end of table -->"])


def _page(rows: Sequence[Row], documents: Sequence[RanksDocument]) -> Iterator[str]:
    for document in documents:
        yield from _heading(document)
    yield ""
    yield from markdown_table(_COLUMNS, [_cells(row) for row in rows])
    inaccurate_rows = [row for row in rows if abs(row.model_error) > _MOST_ERROR]
    if inaccurate_rows:
        yield ""
        yield f"More than {_MOST_ERROR:.0%} from the model, part by part (model → measured; the rest is in no part):"
        yield ""
        yield from markdown_table(_PART_COLUMNS, [_part_cells(row) for row in inaccurate_rows])
    yield from _constants(rows)


def _heading(document: RanksDocument) -> Iterator[str]:
    machine, judged = document.environment, document.judged
    packages = {"torch": machine.torch, "triton": machine.triton, "driver": machine.driver}
    versions = ", ".join(f"{name} {version}" for name, version in packages.items() if version)
    ranks = max(row.ranks for row in document.rows)
    yield f"`{document.command}` on {ranks} × {document.device}, {versions}."
    if judged:
        cases, failures = sum(v.cases for v in judged), sum(len(v.failed) for v in judged)
        compared, bitwise = sum(v.compared for v in judged), sum(v.bitwise for v in judged)
        counts = f"{cases:,} cases, {compared:,} comparisons, {bitwise:,} of them bit for bit"
        yield f"`partition` with these ranks: {counts},"
        yield f"{plural(failures, 'failure')}."


def _cells(row: Row) -> tuple[str, ...]:
    times = f"{row.single_rank_ms:.2f}", f"{row.all_ranks_ms:.2f}", f"{row.rate:.2f} x"
    return (row.title, f"{row.tokens:,}", str(row.ranks), *times, f"{row.model_ms:.2f}", f"{row.model_error:+.0%}")


def _part_cells(row: Row) -> tuple[str, ...]:
    kernels = f"{row.model_kernel_ms:.2f} → {row.parts['rank']:.2f}"
    collectives = f"{row.model_collective_ms:.2f} → {row.collective_ms:.2f}"
    return row.title, str(row.ranks), kernels, collectives, f"{row.all_ranks_ms - row.predicted:.2f}"


def _constants(rows: Sequence[Row]) -> Iterator[str]:
    """The assumed latency and bandwidth of links, next to measured ones from the smallest and the largest messages."""
    for ranks in dict.fromkeys(row.ranks for row in rows):
        link_ms = {row.op: row.parts[_LINKS] for row in rows if row.ranks == ranks and _LINKS in row.parts}
        if {"causal_conv1d", "ssd"} <= link_ms.keys():
            latency, extra_ms = link_ms["causal_conv1d"] / 2, link_ms["ssd"] - link_ms["causal_conv1d"]
            n_bytes = (ranks - 1) * sum(model.SSD.messages)
            measured = f"{n_bytes / extra_ms / 1e6:.0f} GB/s measured" if extra_ms > 0 else "too fast to tell"
            yield ""
            yield f"On {ranks} GPUs: α {model.LATENCY:.3f} ms assumed, {latency:.3f} ms measured (convolution); β"
            yield f"{model.bandwidth(ranks) / 1e6:.0f} GB/s assumed, {measured} (SSD beside it)."


class RanksPlot:
    """The speedup over one GPU by number of GPUs: measured, and by the model.

    Raises UsageError at once if it cannot be drawn.
    """

    def __init__(self, path: str) -> None:
        self._file = plot_file(path)

    def draw(self, path: str) -> None:
        """Write the plot of the files: the same bytes for the same files."""
        import matplotlib as mpl  # noqa: PLC0415  (an optional dependency)
        from matplotlib.figure import Figure  # noqa: PLC0415

        rows, documents = read_rows(path)
        most_ranks = max(model.NODE, *(row.ranks for row in rows))
        counts = [n for n in (2**k for k in range(11)) if n <= most_ranks]
        figure = Figure(figsize=(10, 4.5), layout="constrained")
        panels = dict(zip(("one document", "many documents"), figure.subplots(1, 2, sharey=True), strict=True))
        for layout, panel in panels.items():
            layout_rows = [row for row in rows if row.layout == layout]
            for index, op in enumerate(dict.fromkeys(row.op for row in layout_rows)):
                op_rows = [row for row in layout_rows if row.op == op]
                color = f"C{index}"
                panel.plot([r.ranks for r in op_rows], [r.rate for r in op_rows], "o", color=color, label=op)
                panel.plot(counts, [_model_rate(op_rows[0], n) for n in counts], color=color, linewidth=0.8)
            panel.set(title=layout, xlabel="GPUs", xscale="log", yscale="log", xticks=counts, yticks=counts)
            for axis in (panel.xaxis, panel.yaxis):
                axis.set_major_formatter("{x:.0f}")
                axis.set_minor_locator(mpl.ticker.NullLocator())
            panel.grid(alpha=0.3)
        panels["one document"].set_ylabel("times as fast as one GPU")
        panels["one document"].legend(fontsize="small", title="measured; lines: model", title_fontsize="small")
        figure.suptitle(documents[0].device, fontsize="medium")
        with mpl.rc_context({"svg.hashsalt": "packproof"}):
            figure.savefig(self._file, metadata={"Date": None} if self._file.suffix == ".svg" else {})


def _model_rate(row: Row, ranks: int) -> float:
    """The model's speedup on this many ranks."""
    if ranks == 1:
        return 1.0
    kernel_ms = model.kernel_ms(row.op, row.layout, ranks, row.single_rank_ms)
    return row.single_rank_ms / (kernel_ms + model.collective_ms(row.op, row.layout, ranks, row.tokens))
