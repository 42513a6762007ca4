"""The result of a sweep: how the time of each implementation grows over the layouts, as tables and as a plot."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from packproof.base.errors import UsageError
from packproof.base.files import writable_path
from packproof.bench.kernels.layouts import BenchLayout
from packproof.bench.kernels.results import Event, LayoutFinished, figures, name_width
from packproof.harness.report.formats import Column, table_line, title_line

_FORMATS = (".png", ".svg")
_LINES = {"forward": "-", "backward": "--", "both": ":"}

Line = Mapping[int, float]  # milliseconds by the swept quantity

AXES: Mapping[str, Callable[[BenchLayout], int]] = {
    "tokens": lambda layout: layout.tokens,
    "sequences": lambda layout: len(layout.lengths),
    "longest": lambda layout: layout.longest,
}


@dataclass
class Growth:
    """Collects the events of a sweep."""

    sweep: str
    series: dict[str, dict[tuple[str, str], dict[int, float]]] = field(default_factory=dict)
    """By op, then by implementation and pass: milliseconds by the swept quantity."""

    def __call__(self, event: Event) -> None:
        if not isinstance(event, LayoutFinished):
            return
        for result in event.results:
            x = AXES[self.sweep](result.layout)
            for bench_pass in result.passes:
                line = self.series.setdefault(result.op, {}).setdefault((result.implementation, bench_pass.name), {})
                line[x] = bench_pass.device.median

    @property
    def text(self) -> str:
        """A table for each op: time relative to the smallest layout with a time.

        A sweep over tokens also has the time per token. It is constant if cost grows in proportion.
        """
        lines: list[str] = []
        for op, series in self.series.items():
            relative_series = {key: _relative_to_first(line) for key, line in series.items()}
            lines += _table(f"{op} · growth of the time with {self.sweep}", relative_series, "{:.2f}".format)
            if self.sweep == "tokens":
                per_token_series = {key: {x: 1e6 * ms / x for x, ms in line.items()} for key, line in series.items()}
                lines += _table(f"{op} · nanoseconds per token", per_token_series, figures)
        return "\n".join(lines)


def _relative_to_first(line: Line) -> Line:
    return {x: ms / line[min(line)] for x, ms in line.items()}


def _table(title: str, series: Mapping[tuple[str, str], Line], format_value: Callable[[float], str]) -> Iterator[str]:
    """A line for each implementation and pass, a column for each layout."""
    quantities = sorted({x for line in series.values() for x in line})
    name_column = Column("", name_width(implementation for implementation, _ in series) + 1)
    columns = (name_column, Column("pass", 9), *(Column(str(x), 9, right=True) for x in quantities))
    yield from ("", title, title_line(columns, "  "))
    for names, line in series.items():
        values = (format_value(line[x]) if x in line else "-" for x in quantities)
        yield table_line(columns, (*names, *values), "  ")


def plot_file(path: str) -> Path:
    """The file of a plot. Raises UsageError if it cannot be drawn."""
    file = writable_path(path, "--plot")
    if Path(path).suffix not in _FORMATS:
        raise UsageError(f"--plot: {path} has to end in {' or '.join(_FORMATS)}")
    if find_spec("matplotlib") is None:
        raise UsageError("--plot: needs matplotlib, which is not installed; pip install packproof[bench]")
    return file


class Plot:
    """A plot, drawn when the sweep is done. Raises UsageError at once if that will be impossible."""

    def __init__(self, path: str) -> None:
        self._file = plot_file(path)

    def draw(self, growth: Growth) -> None:
        """Write the plot of the sweep."""
        from matplotlib.figure import Figure  # noqa: PLC0415  (an optional dependency)

        figure = Figure(figsize=(6 * max(len(growth.series), 1), 4.5), layout="constrained")
        panels = figure.subplots(1, max(len(growth.series), 1), squeeze=False)[0]
        for panel, (op, series) in zip(panels, growth.series.items(), strict=False):
            names = list(dict.fromkeys(name for name, _ in series))
            for (name, pass_name), line in series.items():
                color = f"C{names.index(name)}"
                panel.plot(
                    list(line),
                    list(line.values()),
                    _LINES[pass_name],
                    color=color,
                    marker=".",
                    label=f"{name}, {pass_name}",
                )
            panel.set(title=op, xlabel=growth.sweep, ylabel="ms", xscale="log", yscale="log")
            panel.grid(alpha=0.3)
            panel.legend(fontsize="small")
        figure.savefig(self._file)
