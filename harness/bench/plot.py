"""A sweep as a picture: one panel for each op, time over what is swept, both on logarithmic scales."""

from importlib.util import find_spec
from pathlib import Path

from packproof.harness.bench.growth import Growth
from packproof.harness.results.files import writable
from packproof.refs.errors import UsageError

_FORMATS = (".png", ".svg")
_LINES = {"forward": "-", "backward": "--", "both": ":"}


class Plot:
    """A picture to be drawn once the sweep is done. Raises UsageError at once if that will not be possible."""

    def __init__(self, path: str) -> None:
        self._file = writable(path, "--plot")
        if Path(path).suffix not in _FORMATS:
            raise UsageError(f"--plot: {path} ends in neither of {', '.join(_FORMATS)}")
        if find_spec("matplotlib") is None:
            raise UsageError("--plot: needs matplotlib, which is not installed; pip install packproof[bench]")

    def draw(self, growth: Growth) -> None:
        """Write the picture of the sweep."""
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
