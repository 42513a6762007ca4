"""The reward of a grade: one number in [0, 1], from the verdict and the measured times. docs/grading.md explains it."""

import math
from collections.abc import Sequence

from packproof.grading.record import ProblemTimes

_LEAST_SPEED = 1e-9  # a floor too short to be measured is 0
CORRECT = 0.5  # of a submission that is correct, whatever its speed


def speed_of(problems: Sequence[ProblemTimes]) -> float | None:
    """The speed in [0, 1], the geometric mean over the problems; None if nothing was timed.

    On a GPU the share of the floor, on a CPU r / (1 + r), where r is the time of the reference over that of the
    submission: 0.5 if it takes as long.
    """
    speeds = [speed for problem in problems if (speed := _speed(problem)) is not None]
    return math.exp(sum(map(math.log, speeds)) / len(speeds)) if speeds else None


def _speed(problem: ProblemTimes) -> float | None:
    if problem.submission is None or not problem.submission.least:
        return None
    if problem.reference is None:
        return max(min(problem.share_of_floor, 1.0), _LEAST_SPEED)
    ratio = problem.reference.least / problem.submission.least
    return max(ratio / (1 + ratio), _LEAST_SPEED)


def reward_of(verdict: str, speed: float | None) -> float:
    """0 unless the verdict is "passed", else 0.5, and the other half times the speed."""
    return round(CORRECT + (1 - CORRECT) * (speed or 0.0), 4) if verdict == "passed" else 0.0
