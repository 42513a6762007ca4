"""A grade in a few lines of text."""

from collections.abc import Iterator

from packproof.grading.record import Grade, ProblemTimes
from packproof.grading.stopwatch import Seconds


def summary_lines(grade: Grade) -> Iterator[str]:
    """The times at each problem, then verdict, reason and reward."""
    for times in grade.measured.problems:
        yield from _problem_lines(times)
    walls = "within all walls" if grade.isolated else "not within all walls"
    secret = "" if grade.secret is None else f", secret {grade.secret}"
    yield f"{grade.submission}: {grade.verdict}, {grade.reason}"
    yield f"  {grade.contract} (sha256 {grade.contract_digest[:12]}), seed {grade.seed}{secret}, {walls}"
    speed = grade.measured.speed
    compared = f" (speed {speed:.3f}, by {grade.measured.speed_of})" if speed is not None else ""
    yield f"  reward {grade.reward:.4f}{compared or (grade.measured.speed_of and f' ({grade.measured.speed_of})')}"


def _problem_lines(times: ProblemTimes) -> Iterator[str]:
    yield times.problem
    if times.submission is not None:
        rows = {"submission": times.submission, "reference": times.reference, **times.peers}
        width = max(map(len, rows)) + 2
        yield from (f"  {name:<{width}}{_milliseconds(seconds)}" for name, seconds in rows.items() if seconds)
        floor = f"{1e3 * times.floor_seconds:.4g} ms"
        yield f"  {'floor':<{width}}{floor} ({times.floor_of}); the submission reaches {times.share_of_floor:.0%} of it"
    if times.note:
        yield f"  {times.note}"


def _milliseconds(seconds: Seconds) -> str:
    return f"{1e3 * seconds.median:.4g} ms (least {1e3 * seconds.least:.4g}, most {1e3 * seconds.most:.4g})"
