"""The regression gate: a run against the file of an earlier one, row by row, allowing for the noise of both."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from packproof.harness.bench.file import Place, Record
from packproof.harness.bench.results import figures
from packproof.refs.errors import UsageError
from packproof.refs.wording import counted

FLOOR = 0.05  # clocks and temperature shift medians by a few percent between runs on one machine


@dataclass(frozen=True)
class TimingComparison:
    """rows: number found in both runs. slower: a line for each regression."""

    rows: int
    slower: tuple[str, ...]

    @property
    def text(self) -> str:
        verdict = f"{len(self.slower)} slower than allowed" if self.slower else "none slower than allowed"
        return "\n".join([f"{counted(self.rows, 'row')} compared, {verdict}", *(f"  {line}" for line in self.slower)])


def compare(old: Record, new: Record, path: str) -> TimingComparison:
    """Compare the rows that both runs have. A row that had a time and now has a verdict is a regression.

    A median may grow by the interquartile ranges of both runs, added as independent errors, and at least by FLOOR. A
    regression has to show in the lower quartile too: other load on the machine rarely affects the shortest times.
    UsageError if the runs have nothing to compare.
    """
    if old.device != new.device:
        raise UsageError(f"--compare: {path} was measured on {old.device}, this run on {new.device}")
    shared = [key for key in new.times if key in old.times]
    lost = [key for key in old.times if key[0] in new.wrong]
    if not shared and not lost:
        raise UsageError(
            f"--compare: {path} has no row of this run; the ops, sizes, layouts and dtype have to be the same"
        )
    slower = [*_slower(old, new, shared), *(f"{_name(*key)}: had a time and is wrong now" for key in lost)]
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
    return f"{op} · {implementation} · {pass_name} · {layout}, {counted(int(tokens), 'token')} · {dtype} · {setting}"
