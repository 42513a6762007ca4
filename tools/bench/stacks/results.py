"""The events of a bench of stacks, as frozen data."""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Literal

from packproof.base.environment import Environment

# wrong: the loss differs; failed: it raised an error; too large: for the memory of the GPU
Status = Literal["timed", "wrong", "failed", "too large", "cannot", "not installed"]
MAX_LOSS_DISTANCE, MAX_WIDE_LOSS_DISTANCE = 2.0, 0.25  # see run.py


@dataclass(frozen=True)
class StacksStarted:
    """The plan of a bench of stacks."""

    environment: Environment
    packages: Mapping[str, str]
    """Versions of peers."""
    lengths: tuple[int, ...]
    """Of the documents, in tokens."""
    capacity: int
    """The maximum number of rows in a pass."""
    steps: int
    dtype: str
    seed: int


@dataclass(frozen=True)
class Trained:
    """The result of one mode of one model."""

    model: str
    mode: str
    status: Status
    reason: str = ""
    parameters: int = 0
    tokens: int = 0
    passes: int = 0
    """Forward passes of a step."""
    rows: int = 0
    """Rows of a step, padding included."""
    loss: float | None = None
    """Before the first step, the mean over predictions."""
    apart: float | None = None
    """The distance of the losses from exact ones, in units of the rounding of mode "single". Exact losses are those of
    one document at a time at twice the precision. The rounding is the distance of the same in the dtype of the steps.
    """
    apart_wide: float | None = None
    """The same for losses at twice the precision, None where they were not computed."""
    losses: tuple[float, ...] = ()
    """Of the steps. The first step is the warm-up."""
    seconds: tuple[float, ...] = ()
    """Of each timed step."""
    peak: int | None = None
    """The maximum of allocated bytes during the steps, None if unknown."""

    @property
    def bad(self) -> bool:
        """Whether packproof's own stack does not train, or not on the same loss. A peer does not count."""
        return self.status in ("wrong", "failed") and self.mode != "mamba_ssm"

    @property
    def step(self) -> float:
        """The median duration of a step in seconds."""
        return median(self.seconds)

    @property
    def per_second(self) -> float:
        """Tokens of documents per second. Padding does not count."""
        return self.tokens / self.step

    @property
    def padding(self) -> float:
        """The share of rows without a token."""
        return 1 - self.tokens / self.rows


@dataclass(frozen=True)
class StacksFinished:
    seconds: float


@dataclass(frozen=True)
class StacksDocument:
    """The content of a file of `packproof bench stack --json`."""

    kind: str
    version: int
    packproof: str
    command: str
    """The command that wrote the file."""
    started: StacksStarted
    rows: tuple[Trained, ...] = ()
    finished: bool = False


StackEvent = StacksStarted | Trained | StacksFinished
