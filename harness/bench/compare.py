"""The regression gate: a run against the file of a previous one, row by row, allowing for the noise of both.

On a GPU a median may grow by the interquartile ranges of both runs, and by FLOOR in any case. On a CPU first deciles
are compared, relative to fixed work in the same rounds; within the noise a row is undecided.
"""

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from packproof.harness.bench.file import PLACE, Place, Record, RowKey, Timed
from packproof.harness.bench.results import Decile, Spread, figures
from packproof.refs.errors import UsageError
from packproof.refs.wording import counted

FLOOR = 0.05  # clocks and temperature shift medians by a few percent between runs on one machine
BETWEEN_RUNS = 1.12  # the same code in two runs on a CPU: each run has other memory addresses
DETECTED = 1.3  # the slowdown that a comparison on a CPU must not miss
# The noise compares two halves of the rounds. The first decile of all rounds has half of it, and the median over
# n processes 1.25 / sqrt(n) of that.
PROCESSES = 5
_LEFT = 0.5 * 1.25 / math.sqrt(PROCESSES)

Outcome = Literal["slower", "not slower", "undecided"]


@dataclass(frozen=True)
class TimingComparison:
    """The comparison of a run with a previous one."""

    rows: int
    """The number of rows in both runs."""
    slower: tuple[str, ...]
    """A line for each regression."""
    undecided: tuple[str, ...] = ()
    """A line for each row that is undecided because of noise."""
    missing: int = 0
    """The number of rows of this run that the file does not have."""

    @property
    def text(self) -> str:
        verdict = f"{len(self.slower)} slower than allowed" if self.slower else "none slower than allowed"
        undecided = f", {len(self.undecided)} undecided: too much noise" if self.undecided else ""
        missing = f"; {counted(self.missing, 'row')} of this run not in the file" if self.missing else ""
        lines = (f"  {line}" for line in (*self.slower, *self.undecided))
        return "\n".join([f"{counted(self.rows, 'row')} compared, {verdict}{undecided}{missing}", *lines])


def require_rows(old: Record, places: Collection[Mapping[str, object]], path: str) -> None:
    """UsageError, before anything runs, unless the file has a row of this run. The error names the differing fields.

    configurations: the fields of this run's rows that are known so far, by the names of CONFIGURATION_FIELDS.
    """
    known = list(next(iter(places)))
    there = [{name: value for name, value in zip(PLACE, place, strict=True) if name in known} for place, _ in old.times]
    if any(place in places for place in there):
        return
    values = {name: ({p[name] for p in there}, {p[name] for p in places}) for name in known}
    differing = [
        f"{PLACE[name]} {_some(before)} there and {_some(now)} here"
        for name, (before, now) in values.items()
        if not before & now
    ]
    what = "; ".join(differing) or f"no row has the same {', '.join(map(PLACE.__getitem__, known))} together"
    raise UsageError(
        f"--compare: {path} has no row of this run: {what}; repeat the command that wrote it: {old.command}"
    )


def require_device(old: Record, device: str, path: str) -> None:
    """UsageError if the file comes from another device, or from another number of threads."""
    if old.device != device:
        raise UsageError(f"--compare: {path} was measured on {old.device}, this run is on {device}")


def compare(old: Record, new: Record, path: str) -> TimingComparison:
    """Compare the rows of both runs. A row that had a time and now has a verdict is a regression.

    UsageError if the runs have no row in common.
    """
    require_device(old, new.device, path)
    shared = [key for key in new.times if key in old.times]
    lost = [key for key in old.times if key[0] in new.wrong]
    open_ = [key for key in old.times if key[0] in new.noisy]
    if not shared and not lost and not open_:
        raise UsageError(f"--compare: {path} has no row that was timed in this run: see above why not")
    outcomes = {key: outcome(old.times[key], new.times[key]) for key in shared}
    slower = [f"{_name(*key)}: {_figures(old.times[key], new.times[key])}" for key in _only(outcomes, "slower")]
    undecided = [f"{_name(*key)}: {_figures(old.times[key], new.times[key])}" for key in _only(outcomes, "undecided")]
    return TimingComparison(
        len(shared) + len(lost) + len(open_),
        (*slower, *(f"{_name(*key)}: had a time and is wrong now" for key in lost)),
        (*undecided, *(f"{_name(*key)}: {new.noisy[key[0]]}" for key in open_)),
        missing=len(new.times) - len(shared),
    )


def outcome(before: Timed, now: Timed) -> Outcome:
    """Compare two times of a row."""
    if before.decile is not None and now.decile is not None:
        return _of_deciles(before.decile, now.decile)
    ratio, allowed = now.spread.median / before.spread.median, _allowed(before.spread, now.spread)
    return "slower" if ratio > allowed and now.spread.low / before.spread.low > allowed else "not slower"


def _allowed(before: Spread, now: Spread) -> float:
    """The allowed ratio of medians.

    A regression has to show in the lower quartile too: other load rarely affects the shortest times.
    """
    return 1 + max(FLOOR, math.hypot(before.relative, now.relative))


def _of_deciles(before: Decile, now: Decile) -> Outcome:
    low, high = _range(before, now)
    if low > BETWEEN_RUNS:
        return "slower"
    return "not slower" if high < DETECTED / BETWEEN_RUNS else "undecided"


def _range(before: Decile, now: Decile) -> tuple[float, float]:
    """The least and the largest slowdown of the code itself.

    The times of fixed work say how much of the ratio is due to the machine, at least and at most. The more its kinds
    disagree, the wider the range.
    """
    ratio, noise = now.ms / before.ms, math.exp(_LEFT * math.hypot(math.log(before.noise), math.log(now.noise)))
    machine = _machine(before, now)
    return ratio / noise / max(machine), ratio * noise / min(machine)


def _machine(before: Decile, now: Decile) -> list[float]:
    """For each kind of fixed work, its time relative to the previous run."""
    return [now.beside[name] / before.beside[name] for name in now.beside if name in before.beside] or [1.0]


def _figures(before: Timed, now: Timed) -> str:
    """The times of both runs, their ratio and the allowed ratio, in one line."""
    if before.decile is None or now.decile is None:
        was, is_now = figures(before.spread.median), figures(now.spread.median)
        ratio, allowed = now.spread.median / before.spread.median, _allowed(before.spread, now.spread)
        return f"{is_now} ms, was {was}: {ratio:.2f} x, allowed {allowed:.2f} x"
    was, is_now = figures(before.decile.ms), figures(now.decile.ms)
    low, high = _range(before.decile, now.decile)
    machine = _machine(before.decile, now.decile)
    return (
        f"{is_now} ms, was {was}: {now.decile.ms / before.decile.ms:.2f} x, allowed {BETWEEN_RUNS:.2f} x; "
        f"beside it fixed work takes {min(machine):.2f} to {max(machine):.2f} x, which leaves {low:.2f} to {high:.2f} x"
    )


def _only(outcomes: Mapping[RowKey, Outcome], wanted: Outcome) -> Iterator[RowKey]:
    return (key for key, found in outcomes.items() if found == wanted)


def _name(place: Place, pass_name: str) -> str:
    op, implementation, setting, dtype, layout, tokens, *_ = place
    return f"{op} · {implementation} · {pass_name} · {layout}, {counted(int(tokens), 'token')} · {dtype} · {setting}"


def _some(values: Collection[object]) -> str:
    """One value, or two of them and the number of further ones."""
    shown = [repr(value) for value in sorted(values, key=str)]
    more = f" and {len(shown) - 2} more" if len(shown) > 2 else ""
    return ", ".join(shown[:2]) + more if shown else "none"
