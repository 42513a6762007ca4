"""What a bench says of its figures: one wording for the table, the comparison and the plot."""

from collections.abc import Iterable

from packproof.harness.bench.results import BenchResult, Ceilings, Pass, Spread, achieved
from packproof.harness.results.names import short

NAME_WIDTH = 22


def name_width(names: Iterable[str]) -> int:
    """Of the first column of a table: wider than usual where a name needs it."""
    return max(NAME_WIDTH, *map(len, names))


def heading(result: BenchResult) -> str:
    """Op, layout and setting of a group of results."""
    layout = result.layout
    count = f"{len(layout.lengths)} sequence{'s' if len(layout.lengths) != 1 else ''}"
    said = f"{count}, {layout.tokens} tokens, longest {layout.longest}"
    name = "" if layout.name in said else f"{layout.name}: "
    return f"{result.op} · {name}{said} · {short(result.dtype)}"


def figures(value: float) -> str:
    """Four figures, or all before the point."""
    return f"{value:.0f}" if value >= 1000 else f"{value:.4g}"


def rate(timed: Pass, ceilings: Ceilings, *, matmul: bool) -> tuple[str, str]:
    """What the pass achieves, and its part of the ceiling."""
    found = achieved(timed, ceilings, matmul=matmul)
    size, unit = (1e12, "TFLOP/s") if found.unit == "flop/s" else (1e9, "GB/s")
    return f"{found.per_second / size:.3g} {unit}", f"{found.of_ceiling:.0%}"


def microseconds(spread: Spread | None) -> str:
    """The median of a time of the host, which is small."""
    return "-" if spread is None else f"{1e3 * spread.median:.0f}"


def mebibytes(count: int | None) -> str:
    return "-" if count is None else f"{count / 2**20:.0f}"
