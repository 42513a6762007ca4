"""The regression gate: a run against the file of a previous one, row by row, allowing for the noise of both.

On a GPU a median may grow by the interquartile ranges of both runs, and by FLOOR in any case. On a CPU first deciles
are compared, relative to fixed work in the same rounds; within the noise a row is undecided.
"""

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Literal

from packproof.base.errors import UsageError
from packproof.base.wording import plural
from packproof.bench.kernels.file import BenchDocument, Configuration, RowKey, RowTimes
from packproof.bench.kernels.results import Decile, Spread, figures

FLOOR = 0.05  # clocks and temperature shift medians by a few percent between runs on one machine
RATIO_BETWEEN_RUNS = 1.12  # the same code in two runs on a CPU: each run has other memory addresses
DETECTED_SLOWDOWN = 1.3  # the slowdown that a comparison on a CPU must not miss
# The noise compares two halves of the rounds. The first decile of all rounds has half of it, and the median over
# n processes 1.25 / sqrt(n) of that.
PROCESSES = 5
_REMAINING_NOISE = 0.5 * 1.25 / math.sqrt(PROCESSES)

_FIELD_TITLES = {"implementation": "kernel"}

Outcome = Literal["slower", "not slower", "undecided"]


@dataclass(frozen=True)
class TimingComparison:
    """The comparison of a run with a previous one."""

    rows: int
    """The number of rows in both runs."""
    regressions: tuple[str, ...]
    """A line for each regression."""
    undecided: tuple[str, ...] = ()
    """A line for each row that is undecided because of noise."""
    missing_rows: int = 0
    """The number of rows of this run that the file does not have."""

    @property
    def text(self) -> str:
        verdict = f"{len(self.regressions)} slower than allowed" if self.regressions else "none slower than allowed"
        undecided = f", {len(self.undecided)} undecided: too much noise" if self.undecided else ""
        missing = f"; {plural(self.missing_rows, 'row')} of this run not in the file" if self.missing_rows else ""
        lines = (f"  {line}" for line in (*self.regressions, *self.undecided))
        return "\n".join([f"{plural(self.rows, 'row')} compared, {verdict}{undecided}{missing}", *lines])


def require_rows(old: BenchDocument, configurations: Collection[Mapping[str, object]], path: str) -> None:
    """UsageError, before anything runs, unless the file has a row of this run. The error names the differing fields.

    configurations: the fields of this run's rows that are known so far, by name.
    """
    known_fields = list(next(iter(configurations)))
    file_configurations = [
        {name: value for name, value in asdict(configuration).items() if name in known_fields}
        for configuration, _ in old.times
    ]
    if any(configuration in configurations for configuration in file_configurations):
        return
    values = {
        name: ({p[name] for p in file_configurations}, {p[name] for p in configurations}) for name in known_fields
    }
    differing = [
        f"{_FIELD_TITLES.get(name, name)} {_abbreviated(file_values)} there and {_abbreviated(run_values)} here"
        for name, (file_values, run_values) in values.items()
        if not file_values & run_values
    ]
    difference = (
        "; ".join(differing)
        or f"no row has the same {', '.join(_FIELD_TITLES.get(name, name) for name in known_fields)} together"
    )
    raise UsageError(
        f"--compare: {path} has no row of this run: {difference}; repeat the command that wrote it: {old.command}"
    )


def require_device(old: BenchDocument, device: str, path: str) -> None:
    """UsageError if the file comes from another device, or from another number of threads."""
    if old.device != device:
        raise UsageError(f"--compare: {path} was measured on {old.device}, this run is on {device}")


def compare(old: BenchDocument, new: BenchDocument, path: str) -> TimingComparison:
    """Compare the rows of both runs. A row that had a time and now has a verdict is a regression.

    UsageError if the runs have no row in common.
    """
    require_device(old, new.device, path)
    shared_keys = [key for key in new.times if key in old.times]
    incorrect_keys = [key for key in old.times if key[0] in new.incorrect]
    noisy_keys = [key for key in old.times if key[0] in new.noises]
    if not shared_keys and not incorrect_keys and not noisy_keys:
        raise UsageError(f"--compare: {path} has no row that was timed in this run: see above why not")
    outcomes = {key: compare_times(old.times[key], new.times[key]) for key in shared_keys}
    slower = [
        f"{_name(*key)}: {_figures(old.times[key], new.times[key])}" for key in _keys_with_outcome(outcomes, "slower")
    ]
    undecided = [
        f"{_name(*key)}: {_figures(old.times[key], new.times[key])}"
        for key in _keys_with_outcome(outcomes, "undecided")
    ]
    return TimingComparison(
        len(shared_keys) + len(incorrect_keys) + len(noisy_keys),
        (*slower, *(f"{_name(*key)}: had a time and is wrong now" for key in incorrect_keys)),
        (*undecided, *(f"{_name(*key)}: {new.noises[key[0]]}" for key in noisy_keys)),
        missing_rows=len(new.times) - len(shared_keys),
    )


def compare_times(old: RowTimes, new: RowTimes) -> Outcome:
    """Compare two times of a row."""
    if old.decile is not None and new.decile is not None:
        return _compare_deciles(old.decile, new.decile)
    ratio, allowed = new.spread.median / old.spread.median, _allowed_ratio(old.spread, new.spread)
    return "slower" if ratio > allowed and new.spread.low / old.spread.low > allowed else "not slower"


def _allowed_ratio(old: Spread, new: Spread) -> float:
    """The allowed ratio of medians.

    A regression has to show in the lower quartile too: other load rarely affects the shortest times.
    """
    return 1 + max(FLOOR, math.hypot(old.relative, new.relative))


def _compare_deciles(old: Decile, new: Decile) -> Outcome:
    low, high = _slowdown_range(old, new)
    if low > RATIO_BETWEEN_RUNS:
        return "slower"
    return "not slower" if high < DETECTED_SLOWDOWN / RATIO_BETWEEN_RUNS else "undecided"


def _slowdown_range(old: Decile, new: Decile) -> tuple[float, float]:
    """The least and the largest slowdown of the code itself.

    The times of fixed work say how much of the ratio is due to the machine, at least and at most. The more its kinds
    disagree, the wider the range.
    """
    ratio, noise = new.ms / old.ms, math.exp(_REMAINING_NOISE * math.hypot(math.log(old.noise), math.log(new.noise)))
    machine = _machine_ratios(old, new)
    return ratio / noise / max(machine), ratio * noise / min(machine)


def _machine_ratios(old: Decile, new: Decile) -> list[float]:
    """For each kind of fixed work, its time relative to the previous run."""
    return [new.fixed_work[name] / old.fixed_work[name] for name in new.fixed_work if name in old.fixed_work] or [1.0]


def _figures(old: RowTimes, new: RowTimes) -> str:
    """The times of both runs, their ratio and the allowed ratio, in one line."""
    if old.decile is None or new.decile is None:
        old_ms, new_ms = figures(old.spread.median), figures(new.spread.median)
        ratio, allowed = new.spread.median / old.spread.median, _allowed_ratio(old.spread, new.spread)
        return f"{new_ms} ms, was {old_ms}: {ratio:.2f} x, allowed {allowed:.2f} x"
    old_ms, new_ms = figures(old.decile.ms), figures(new.decile.ms)
    low, high = _slowdown_range(old.decile, new.decile)
    machine = _machine_ratios(old.decile, new.decile)
    return (
        f"{new_ms} ms, was {old_ms}: {new.decile.ms / old.decile.ms:.2f} x, allowed {RATIO_BETWEEN_RUNS:.2f} x; "
        f"beside it fixed work takes {min(machine):.2f} to {max(machine):.2f} x, which leaves {low:.2f} to {high:.2f} x"
    )


def _keys_with_outcome(outcomes: Mapping[RowKey, Outcome], selected_outcome: Outcome) -> Iterator[RowKey]:
    return (key for key, row_outcome in outcomes.items() if row_outcome == selected_outcome)


def _name(configuration: Configuration, pass_name: str) -> str:
    kernel = f"{configuration.op} · {configuration.implementation} · {pass_name}"
    layout = f"{configuration.layout}, {plural(configuration.tokens, 'token')}"
    return f"{kernel} · {layout} · {configuration.dtype} · {configuration.setting}"


def _abbreviated(values: Collection[object]) -> str:
    """One value, or two of them and the number of further ones."""
    texts = [repr(value) for value in sorted(values, key=str)]
    remainder = f" and {len(texts) - 2} more" if len(texts) > 2 else ""
    return ", ".join(texts[:2]) + remainder if texts else "none"
