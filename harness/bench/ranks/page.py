"""Files of `packproof bench ranks` as Markdown tables next to the cost model, and as a plot."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from packproof.harness.bench.file import read_json
from packproof.harness.bench.ranks import model
from packproof.harness.bench.ranks.row import Row
from packproof.harness.bench.sweep import plot_file
from packproof.harness.reports.table import markdown_table, numbers, texts
from packproof.harness.worker.records import from_row
from packproof.refs.errors import UsageError
from packproof.refs.wording import plural

_MOST_OFF = 0.15  # of the model
_LINKS = "two all-gathers"
_TIMES = numbers("one GPU, ms", "all, ms", "rate", "model, ms", "measured over it")
_COLUMNS = (*texts("op"), *numbers("tokens", "GPUs"), *_TIMES)
_PART_COLUMNS = (*texts("op"), *numbers("GPUs", "kernels, ms", "collectives, ms", "rest, ms"))


class MeasuredRow(Row):
    """A row of a file, with the predictions of the cost model."""

    @property
    def kernels(self) -> float:
        return model.kernel_ms(self.op, self.layout, self.ranks, self.single_rank_ms)

    @property
    def sent(self) -> float:
        return model.collective_ms(self.op, self.layout, self.ranks, self.tokens)

    @property
    def off(self) -> float:
        """The relative error of the model: measured over predicted time, minus 1."""
        return self.all_ranks_ms / (self.kernels + self.sent) - 1

    @property
    def collectives(self) -> float:
        return sum(ms for name, ms in self.parts.items() if name != "rank")

    @property
    def title(self) -> str:
        return f"{self.op}, {self.layout}"


def is_of_ranks(path: str) -> bool:
    """Whether a file, or the first of several, has times of ranks. Raises UsageError if it cannot be read."""
    first = path.partition(",")[0]
    data = read_json(first, first)
    rows = data.get("rows") if isinstance(data, dict) else None
    return isinstance(rows, list) and bool(rows) and all(isinstance(row, dict) and "parts" in row for row in rows)


def read_rows(path: str) -> tuple[list[MeasuredRow], list[Mapping[str, Any]]]:
    """The rows of the files, by their number of ranks, and the files. Raises UsageError if one is damaged."""
    rows, files = list[MeasuredRow](), list[Mapping[str, Any]]()
    for name in path.split(","):
        data = read_json(name, name)
        try:
            files.append(data)
            rows += [from_row(MeasuredRow, {**row, "parts": dict(row["parts"])}) for row in data["rows"]]
            _ = [(row.off, f"{row.collectives:.3f} {row.tokens:,} {row.parts['rank']:.3f}") for row in rows]
        except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
            why = f"{type(error).__name__}: {error}"
            raise UsageError(f"{name} is damaged, or not of `packproof bench ranks --json` ({why})") from None
    return sorted(rows, key=lambda row: row.ranks), files


def table(path: str) -> str:
    """The Markdown, between two comments with its origin."""
    rows, files = read_rows(path)
    return "\n".join([f"<!-- packproof table {path} -->", *_page(rows, files), "<!-- end of table -->"])


def _page(rows: Sequence[MeasuredRow], files: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for data in files:
        yield from _heading(data)
    yield ""
    yield from markdown_table(_COLUMNS, [_cells(row) for row in rows])
    far_rows = [row for row in rows if abs(row.off) > _MOST_OFF]
    if far_rows:
        yield ""
        yield f"More than {_MOST_OFF:.0%} from the model, part by part (model → measured; the rest is in no part):"
        yield ""
        yield from markdown_table(_PART_COLUMNS, [_part_cells(row) for row in far_rows])
    yield from _constants(rows)


def _heading(data: Mapping[str, Any]) -> Iterator[str]:
    where = data.get("environment", {})
    versions = ", ".join(f"{name} {where[name]}" for name in ("torch", "triton", "driver") if where.get(name))
    ranks = max(row["ranks"] for row in data["rows"])
    yield f"`{data.get('command', 'packproof bench ranks')}` on {ranks} × {data.get('device', 'GPU')}, {versions}."
    judged = data.get("judged", [])
    if judged:
        cases, failed = sum(v["cases"] for v in judged), sum(len(v["failed"]) for v in judged)
        compared, bits = sum(v["compared"] for v in judged), sum(v["bitwise"] for v in judged)
        yield f"`partition` with these ranks: {cases:,} cases, {compared:,} comparisons, {bits:,} of them bit for bit,"
        yield f"{plural(failed, 'failure')}."


def _cells(row: MeasuredRow) -> tuple[str, ...]:
    times = f"{row.single_rank_ms:.2f}", f"{row.all_ranks_ms:.2f}", f"{row.rate:.2f} x"
    return (row.title, f"{row.tokens:,}", str(row.ranks), *times, f"{row.kernels + row.sent:.2f}", f"{row.off:+.0%}")


def _part_cells(row: MeasuredRow) -> tuple[str, ...]:
    kernels = f"{row.kernels:.2f} → {row.parts['rank']:.2f}"
    collectives = f"{row.sent:.2f} → {row.collectives:.2f}"
    return row.title, str(row.ranks), kernels, collectives, f"{row.all_ranks_ms - row.predicted:.2f}"


def _constants(rows: Sequence[MeasuredRow]) -> Iterator[str]:
    """The assumed latency and bandwidth of links, next to measured ones from the smallest and the largest messages."""
    for ranks in dict.fromkeys(row.ranks for row in rows):
        found = {row.op: row.parts[_LINKS] for row in rows if row.ranks == ranks and _LINKS in row.parts}
        if {"causal_conv1d", "ssd"} <= found.keys():
            latency, more = found["causal_conv1d"] / 2, found["ssd"] - found["causal_conv1d"]
            moved = (ranks - 1) * sum(model.SSD.messages)
            measured = f"{moved / more / 1e6:.0f} GB/s measured" if more > 0 else "too fast to tell"
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

        rows, files = read_rows(path)
        most = max(model.NODE, *(row.ranks for row in rows))
        counts = [n for n in (2**k for k in range(11)) if n <= most]
        figure = Figure(figsize=(10, 4.5), layout="constrained")
        panels = dict(zip(("one document", "many documents"), figure.subplots(1, 2, sharey=True), strict=True))
        for layout, panel in panels.items():
            mine = [row for row in rows if row.layout == layout]
            for at, op in enumerate(dict.fromkeys(row.op for row in mine)):
                found = [row for row in mine if row.op == op]
                first, color = found[0], f"C{at}"
                panel.plot(
                    [r.ranks for r in found],
                    [r.single_rank_ms / r.all_ranks_ms for r in found],
                    "o",
                    color=color,
                    label=op,
                )
                panel.plot(counts, [_rate(first, n) for n in counts], color=color, linewidth=0.8)
            panel.set(title=layout, xlabel="GPUs", xscale="log", yscale="log", xticks=counts, yticks=counts)
            for axis in (panel.xaxis, panel.yaxis):
                axis.set_major_formatter("{x:.0f}")
                axis.set_minor_locator(mpl.ticker.NullLocator())
            panel.grid(alpha=0.3)
        panels["one document"].set_ylabel("times as fast as one GPU")
        panels["one document"].legend(fontsize="small", title="measured; lines: model", title_fontsize="small")
        figure.suptitle(str(files[0].get("device", "")), fontsize="medium")
        with mpl.rc_context({"svg.hashsalt": "packproof"}):
            figure.savefig(self._file, metadata={"Date": None} if self._file.suffix == ".svg" else {})


def _rate(row: MeasuredRow, ranks: int) -> float:
    """The model's speedup on this many ranks."""
    if ranks == 1:
        return 1.0
    took = model.kernel_ms(row.op, row.layout, ranks, row.single_rank_ms) + model.collective_ms(
        row.op, row.layout, ranks, row.tokens
    )
    return row.single_rank_ms / took
