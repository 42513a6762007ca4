"""The time of large cases: each is judged only if its estimate fits a share of the time of the cell's other cases.

Cases of a family (one long sequence, many short ones, many keys) come in order of size. Their times give the power of
the size by which a kernel or a reference slows down: attention as written in the paper takes 16 times as long for 4
times the tokens.
"""

import math
from dataclasses import dataclass, field

from packproof.properties.cases import Case

_MAX_POWER = 3.0
_TOLERANCE = 1.6  # times the share: cases were selected by a rough cost, and a busy machine takes longer


@dataclass
class CaseTimes:
    """The times of a cell's cases."""

    share: float
    """The time of all large cases, as a share of the time of the others."""
    _seconds: float = 0.0
    """Of the other cases."""
    _rows: int = 0
    """Of the other cases."""
    _large_seconds: float = 0.0
    _families: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    """The rows and seconds of the large cases of a family."""

    def record(self, case: Case, seconds: float, *, is_large: bool) -> None:
        """Note the time of a judged case."""
        if is_large:
            self._large_seconds += seconds
            self._families.setdefault(_family(case), []).append((_count_rows(case), seconds))
        else:
            self._seconds += seconds
            self._rows += _count_rows(case)

    def affords(self, case: Case) -> bool:
        """Whether there is time for a large case."""
        return self._large_seconds + self._estimate(case) <= _TOLERANCE * self.share * self._seconds

    def _estimate(self, case: Case) -> float:
        rows, times = _count_rows(case), self._families.get(_family(case), [])
        if not times:
            return self._seconds * rows / max(self._rows, 1)
        last_rows, last_seconds = times[-1]
        first_rows, first_seconds = next((t for t in reversed(times) if 2 * t[0] <= last_rows), times[-1])
        power = 1.0
        if first_rows < last_rows and first_seconds > 0:
            power = math.log(last_seconds / first_seconds) / math.log(last_rows / first_rows)
        return float(last_seconds * (rows / last_rows) ** min(max(power, 1.0), _MAX_POWER))


def _family(case: Case) -> str:
    return "keys" if case.key_lengths else "short sequences" if case.period else "one sequence"


def _count_rows(case: Case) -> int:
    return case.n_tokens + len(case.lengths) + sum(case.key_lengths or ())
