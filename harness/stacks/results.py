"""The events of a bench of stacks, as frozen data."""

from dataclasses import dataclass
from statistics import median
from typing import Literal

from packproof.harness.results.environment import Environment

# wrong: its loss is another one; failed: it raised an error; too large: for the memory of the GPU
Status = Literal["timed", "wrong", "failed", "too large", "cannot", "not installed"]
MOST_APART, MOST_APART_WIDE = 2.0, 0.25  # see run.py


@dataclass(frozen=True)
class StacksStarted:
    """What will run. lengths: of the documents. capacity: rows of a pass, at most. packages: versions of peers."""

    environment: Environment
    packages: dict[str, str]
    lengths: tuple[int, ...]
    capacity: int
    steps: int
    dtype: str
    seed: int


@dataclass(frozen=True)
class Trained:
    """One mode of one model.

    passes, rows: of a step. loss: before the first step, the mean over predictions. apart: how far the losses are from
    those of one document at a time at twice the precision, over how far the latter's own are in the dtype of the steps;
    apart_wide: the same for losses at twice the precision, None where they were not computed. losses: of the steps, the
    first of which is the warm-up. seconds: of each timed step. peak: the most bytes allocated meanwhile, None if
    unknown.
    """

    model: str
    mode: str
    status: Status
    reason: str = ""
    parameters: int = 0
    tokens: int = 0
    passes: int = 0
    rows: int = 0
    loss: float | None = None
    apart: float | None = None
    apart_wide: float | None = None
    losses: tuple[float, ...] = ()
    seconds: tuple[float, ...] = ()
    peak: int | None = None

    @property
    def bad(self) -> bool:
        """Whether packproof's own stack does not train, or not on the same loss. A peer does not count."""
        return self.status in ("wrong", "failed") and self.mode != "mamba_ssm"

    @property
    def step(self) -> float:
        """Seconds of a step, the median."""
        return median(self.seconds)

    @property
    def per_second(self) -> float:
        """Tokens of documents in a second: padding does not count."""
        return self.tokens / self.step

    @property
    def padding(self) -> float:
        """Rows without a token, of all."""
        return 1 - self.tokens / self.rows


@dataclass(frozen=True)
class StacksFinished:
    seconds: float


StackEvent = StacksStarted | Trained | StacksFinished
