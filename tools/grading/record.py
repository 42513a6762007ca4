"""A grade as data and as JSON: what follows from submission, contract and secret, apart from what was measured."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from typing import Any, Literal

from packproof.grading.stopwatch import Seconds

VERSION = 1

GradeVerdict = Literal["passed", "failed", "inconclusive", "error"]


@dataclass(frozen=True)
class Counterexample:
    """The smallest case in which a property does not hold."""

    property: str
    dtype: str
    lengths: tuple[int, ...]
    """The layout."""
    tensor: str
    """The wrong output or gradient, "" if no tensor is at fault."""
    lines: tuple[str, ...]
    """The failure, in a few lines of text."""
    replay: str
    """The file for `packproof replay`, or ""."""


@dataclass(frozen=True)
class JudgedProperty:
    """The status of one property in one dtype."""

    property: str
    dtype: str
    status: str


@dataclass(frozen=True)
class ProblemTimes:
    """The times at one problem. All passes together: with gradients, forward and backward."""

    problem: str
    """Sizes and layout, in a line."""
    submission: Seconds | None = None
    """None if it was not timed; `note` says why."""
    reference: Seconds | None = None
    """On a CPU only: it goes token by token."""
    peers: Mapping[str, Seconds] = field(default_factory=dict)
    """By name."""
    floor_seconds: float = 0.0
    """The least time in which this machine moves the bytes of the call, or makes its products."""
    floor_of: Literal["bytes", "operations"] = "bytes"
    """Which of both it is: the larger one."""
    bytes: int = 0
    """The least that the call moves."""
    operations: int = 0
    """0 if the op counts none."""
    note: str = ""
    """What was not timed, and why."""

    @property
    def share_of_floor(self) -> float:
        """The floor as a fraction of the time of the submission."""
        return self.floor_seconds / self.submission.least if self.submission and self.submission.least else 0.0

    @property
    def is_below_floor(self) -> bool:
        """Whether every round was faster than the machine can be."""
        return self.submission is not None and self.submission.most < self.floor_seconds


@dataclass(frozen=True)
class Measured:
    """Figures of this run alone."""

    problems: tuple[ProblemTimes, ...] = ()
    speed: float | None = None
    """In [0, 1]; None if nothing was timed."""
    reward: float = 0.0
    """In [0, 1]; see docs/grading.md."""
    speed_of: str = ""
    """What the speed is compared with, or why there is none."""


@dataclass(frozen=True)
class Grade:
    """The grade of one submission. Without `measured`, the same submission, contract and secret give the same one.

    >>> import packproof
    >>> packproof.Grade("k.py:f", "", "c.json", "", "rope", "cpu", True, None, 1, "failed", "packing").reward
    0.0
    """

    submission: str
    """Its name."""
    submission_digest: str
    """SHA-256 of its file, or of the sources of its package."""
    contract: str
    """The path of the contract."""
    contract_digest: str
    """SHA-256 of its file."""
    op: str
    """The name of the op."""
    device: str
    """ "cpu" or "cuda"."""
    isolated: bool
    """Whether each wall stood around the submission."""
    secret: str | None
    """The secret that was drawn; None if the caller gave one."""
    seed: int
    """Of cases and timed problems, from the digests and the secret."""
    verdict: GradeVerdict
    """The outcome: "passed", "failed", "inconclusive" or "error"."""
    reason: str
    """Why, in a line."""
    counterexample: Counterexample | None = None
    """The smallest failing case."""
    results: tuple[JudgedProperty, ...] = ()
    """The status of each property in each dtype."""
    problems: tuple[str, ...] = ()
    """The timed problems, drawn by the seed."""
    measured: Measured = field(default_factory=Measured)
    """Times, speed and reward."""

    @property
    def reward(self) -> float:
        """In [0, 1]: 0 unless every judged property holds. docs/grading.md has each term."""
        return self.measured.reward

    def to_json(self) -> dict[str, Any]:
        """`grade`, with its own `digest`, and `measured`."""
        grade = asdict(self)
        measured = grade.pop("measured")
        for times, row in zip(self.measured.problems, measured["problems"], strict=True):
            row["share_of_floor"] = round(times.share_of_floor, 4)
        grade["digest"] = f"sha256:{sha256(json.dumps(grade, sort_keys=True).encode()).hexdigest()}"
        return {"version": VERSION, "grade": grade, "measured": measured}


def grade_text(grade: Grade) -> str:
    """The contents of its file."""
    return json.dumps(grade.to_json(), indent=1, ensure_ascii=False) + "\n"
