"""Times of untrusted kernels, by a clock out of their reach: the one of the judging process.

A run of many calls less a run of one is the time of the calls between. No process needs to be believed, and the time
to send tensors drops out. Each call has new values: an answer kept from an earlier one is wrong. The last is judged.
"""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import median

from packproof.harness.process import Worker
from packproof.properties.calling import Call, Result

_LEAST_SECONDS = 0.1  # of the calls of one measurement: many times the noise of a message
_MOST_CALLS = 4096
_ROUNDS = 4


@dataclass(frozen=True)
class Seconds:
    """Seconds of one call, over the rounds. Other work on the machine only adds to them."""

    least: float
    median: float
    most: float

    @classmethod
    def over(cls, values: list[float]) -> "Seconds":
        return cls(min(values), median(values), max(values))


class Contestant:
    """A worker with the call that it repeats. Its methods raise what `Worker.run` raises."""

    def __init__(self, worker: Worker, call: Call) -> None:
        self._worker, self._call = worker, call
        self.repeats = 2
        """Calls of one measurement."""
        self.last_result: Result | None = None
        """Of the last one of a measurement."""
        self._single = math.inf  # the least seconds of a run of one call
        self._whole: list[float] = []  # the seconds of runs of `repeats` calls

    def calibrate(self) -> None:
        """Warm up, then repeat the call until one measurement is long enough."""
        self._elapsed(1)
        while (
            seconds := self._elapsed(self.repeats) - self._run_one()
        ) < _LEAST_SECONDS and self.repeats < _MOST_CALLS:
            growth = min(max(1.2 * _LEAST_SECONDS / max(seconds, 1e-9), 2.0), 64.0)
            self.repeats = min(round(self.repeats * growth), _MOST_CALLS)

    def measure(self) -> None:
        """One round."""
        self._run_one()
        self._whole.append(self._elapsed(self.repeats))

    @property
    def seconds(self) -> Seconds:
        """Of one call, over the rounds so far."""
        return Seconds.over([max(seconds - self._single, 0.0) / (self.repeats - 1) for seconds in self._whole])

    def _run_one(self) -> float:
        self._single = min(self._single, self._elapsed(1))
        return self._single

    def _elapsed(self, repeats: int) -> float:
        call = replace(self._call, mode="repeated", repeats=repeats)
        start = time.perf_counter()
        self.last_result = self._worker.run(call)
        return time.perf_counter() - start


def time_in_turns(contestants: Mapping[str, Contestant]) -> dict[str, Seconds]:
    """The times of all, round after round, so that a busy moment of the machine meets each of them."""
    for contestant in contestants.values():
        contestant.calibrate()
    for _ in range(_ROUNDS):
        for contestant in contestants.values():
            contestant.measure()
    return {name: contestant.seconds for name, contestant in contestants.items()}
