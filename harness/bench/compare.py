"""The regression gate: a run against the file of an earlier one, row by row, with the noise of both allowed for."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from packproof.harness.bench.file import Place, Record
from packproof.harness.bench.results import figures
from packproof.refs.errors import UsageError

FLOOR = 0.05  # clocks and temperature move medians of one machine by a few percent between runs


@dataclass(frozen=True)
class TimingComparison:
    """rows: found in both runs. slower: a line for each regression."""

    rows: int
    slower: tuple[str, ...]

    @property
    def text(self) -> str:
        verdict = f"{len(self.slower)} slower than allowed" if self.slower else "none slower than allowed"
        return "\n".join([f"{self.rows} rows compared, {verdict}", *(f"  {line}" for line in self.slower)])


def compare(old: Record, new: Record, path: str) -> TimingComparison:
    """Every row of the new run that the old one has, too. A row that had a time and now has a verdict is a regression.

    A median may grow by the quartile distances of both runs, added as independent errors are, and by FLOOR at least. A
    regression shows in the lower quartile too: what else a machine does adds to times, but to few of the shortest.
    UsageError if the runs have nothing to compare.
    """
    if old.device != new.device:
        raise UsageError(f"--compare: {path} was measured on {old.device}, this run on {new.device}")
    shared = [key for key in new.times if key in old.times]
    lost = [key for key in old.times if key[0] in new.wrong]
    if not shared and not lost:
        raise UsageError(f"--compare: {path} has no row of this run: same ops, sizes, layouts and dtype needed")
    slower = [*_slower(old, new, shared), *(f"{_name(*key)}: had a time, is wrong now" for key in lost)]
    return TimingComparison(len(shared) + len(lost), tuple(slower))


def _slower(old: Record, new: Record, keys: list[tuple[Place, str]]) -> Iterator[str]:
    for key in keys:
        before, now = old.times[key], new.times[key]
        allowed = 1 + max(FLOOR, math.hypot(before.relative, now.relative))
        ratio = now.median / before.median
        if ratio > allowed and now.low / before.low > allowed:
            was, is_now = figures(before.median), figures(now.median)
            yield f"{_name(*key)}: {is_now} ms, was {was}: {ratio:.2f} x, allowed {allowed:.2f} x"


def _name(place: Place, pass_name: str) -> str:
    op, implementation, setting, dtype, layout, tokens, *_ = place
    return f"{op} · {implementation} · {pass_name} · {layout}, {tokens} tokens · {dtype} · {setting}"
