"""The cases of a cell past thresholds: which of them there is time for, and the end of one too large for this machine.

Each is judged only if its estimated time fits a share of the time of the cell's other cases. Cases of a family (one
long sequence, many short ones, many keys, many channels) come in order of size. Their times give the power of the size
by which a kernel or a reference slows down: attention as written in the paper takes 16 times as long for 4 times the
tokens.
"""

import math
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

from packproof.base.machine import seconds_waited
from packproof.harness.process import KILLED, CoreTime
from packproof.properties.calling import MachineLimit, Refusal
from packproof.properties.cases import Case
from packproof.properties.judgement import KernelUnderTest, judge_case
from packproof.properties.laws import Property, Violation
from packproof.properties.thresholds import CHANNELS, Reach, counts

_USUAL_POWER, _MAX_POWER = 2.0, 3.0  # before two cases of a family were judged, or while they take no time; ever
_TELLING_SECONDS = 0.25  # the ratio of shorter times tells how busy the machine is, not how a kernel slows down
_TOLERANCE = 1.6  # times the share: cases were selected by a rough cost
_WIDTH_FAULTS = ("raised", "launch")  # of a width that the kernel was not made for
_SLOWEST = 6  # times the limit of one call: a reference that takes longer is interrupted


class LargeCases:
    """The cases past thresholds in one cell.

    reach: how much time there is for them.
    """

    def __init__(self, core_time: CoreTime, reach: Reach) -> None:
        self._core_time, self._times = core_time, CaseTimes(reach.share, reach.seconds)
        self._cases: frozenset[Case] = frozenset()
        self._families_beyond_machine: set[str] = set()

    def replace(self, cases: Sequence[Case]) -> None:
        """Continue with these cases."""
        self._cases = frozenset(cases)

    def __contains__(self, case: Case) -> bool:
        return case.replace(configuration=0) in self._cases

    def affords(self, case: Case) -> bool:
        """Whether there is time for a case, and no smaller one of its family was too large for this machine."""
        return case not in self or (_family(case) not in self._families_beyond_machine and self._times.affords(case))

    def judge(self, kernel: KernelUnderTest, law: Property, case: Case) -> tuple[Violation | None, Refusal | None]:
        """As `judge_case`, timed. A large case for which the machine lacks time or memory is not judged."""
        start, waited = self._core_time.clock(), seconds_waited()
        if case not in self:
            violation, refusal = judge_case(kernel, law, case)
        else:
            violation, refusal = _judge_within_machine(kernel, law, case)
            if isinstance(refusal, MachineLimit):
                self._families_beyond_machine.add(_family(case))
        seconds = self._core_time.clock() - start - (seconds_waited() - waited)  # a busy machine skips no case
        self._times.record(case, seconds, is_large=case in self)
        return violation, refusal


def _judge_within_machine(
    kernel: KernelUnderTest, law: Property, case: Case
) -> tuple[Violation | None, Refusal | None]:
    try:
        with _time_limit(_SLOWEST * kernel.runner.time_limit):
            violation, refusal = judge_case(kernel, law, case)
    except MachineLimit as limit:
        return None, limit
    if violation is not None and violation.text.startswith(KILLED):
        return None, MachineLimit(f"{case.n_tokens:,} tokens: {violation.text}, as where memory has run out")
    if violation is not None and violation.fault in _WIDTH_FAULTS and _family(case) == CHANNELS:
        error = violation.text.partition("\n")[0]
        return None, MachineLimit(f"{counts(case)[CHANNELS]:,} channels: {error}")
    return violation, refusal


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Inside it MachineLimit is raised once the time is up; only in the main thread, which alone gets signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise MachineLimit(f"it took more than {seconds:g} s")

    previous = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


@dataclass
class CaseTimes:
    """The times of a cell's cases."""

    share: float
    """The time of all large cases, as a share of the time of the others."""
    least_seconds: float = 0.0
    """The time that there is for them at least."""
    _seconds: float = 0.0
    """Of the other cases."""
    _rows: int = 0
    """Of the other cases."""
    _large_seconds: float = 0.0
    _families: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    """The extent and seconds of the large cases of a family."""

    def record(self, case: Case, seconds: float, *, is_large: bool) -> None:
        """Note the time of a judged case."""
        if is_large:
            self._large_seconds += seconds
            self._families.setdefault(_family(case), []).append((_extent(case), seconds))
        else:
            self._seconds += seconds
            self._rows += _count_rows(case)

    def affords(self, case: Case) -> bool:
        """Whether there is time for a large case."""
        seconds = max(self.share * self._seconds, self.least_seconds)
        return self._large_seconds + self._estimate(case) <= _TOLERANCE * seconds

    def _estimate(self, case: Case) -> float:
        times = self._families.get(_family(case), [])
        if not times:
            return self._seconds * _count_rows(case) / max(self._rows, 1)
        last_extent, last_seconds = times[-1]
        first_extent, first_seconds = next((t for t in reversed(times) if 2 * t[0] <= last_extent), times[-1])
        power = _USUAL_POWER
        if first_extent < last_extent and min(first_seconds, last_seconds) > 0:  # less than it waited: no time at all
            power = math.log(last_seconds / first_seconds) / math.log(last_extent / first_extent)
        most = _MAX_POWER if last_seconds >= _TELLING_SECONDS else _USUAL_POWER
        return float(last_seconds * (_extent(case) / last_extent) ** min(max(power, 1.0), most))


def _family(case: Case) -> str:
    if counts(case)[CHANNELS] > max(case.n_tokens, len(case.lengths)):
        return CHANNELS
    return "keys" if case.key_lengths else "short sequences" if case.period else "one sequence"


def _extent(case: Case) -> int:
    """What the cases of a family grow by."""
    return counts(case)[CHANNELS] if _family(case) == CHANNELS else _count_rows(case)


def _count_rows(case: Case) -> int:
    return case.n_tokens + len(case.lengths) + sum(case.key_lengths or ())
