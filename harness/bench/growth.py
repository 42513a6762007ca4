"""What a sweep shows: how the time of each implementation grows from layout to layout."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from packproof.harness.bench.layouts import Layout
from packproof.harness.bench.results import Event, LayoutFinished
from packproof.harness.bench.wording import NAME_WIDTH

AXES: Mapping[str, Callable[[Layout], int]] = {
    "tokens": lambda layout: layout.tokens,
    "sequences": lambda layout: len(layout.lengths),
    "longest": lambda layout: layout.longest,
}


@dataclass
class Growth:
    """Collects the events of a sweep. series: op, then implementation and pass, then milliseconds by what is swept."""

    sweep: str
    series: dict[str, dict[tuple[str, str], dict[int, float]]] = field(default_factory=dict)

    def __call__(self, event: Event) -> None:
        if not isinstance(event, LayoutFinished):
            return
        for result in event.results:
            x = AXES[self.sweep](result.layout)
            for timed in result.passes:
                line = self.series.setdefault(result.op, {}).setdefault((result.implementation, timed.name), {})
                line[x] = timed.device.median

    @property
    def text(self) -> str:
        """A table for each op: time over that of the first layout at which the implementation has one."""
        lines = []
        for op, of_op in self.series.items():
            swept = sorted({x for line in of_op.values() for x in line})
            lines += ["", f"{op} · growth of the time with {self.sweep}"]
            lines.append(f"  {'':<{NAME_WIDTH}} {'pass':<9}" + "".join(f"{x:>9}" for x in swept))
            for (implementation, name), line in of_op.items():
                first = line[min(line)]
                cells = (f"{line[x] / first:.2f}" if x in line else "-" for x in swept)
                lines.append(f"  {implementation:<{NAME_WIDTH}} {name:<9}" + "".join(f"{cell:>9}" for cell in cells))
        return "\n".join(lines)
