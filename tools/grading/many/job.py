"""A grade to be made somewhere: what a process or a host needs for it, and what comes back, as data."""

from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field

from packproof.version import __version__


@dataclass(frozen=True)
class GradeOptions:
    """How submissions are graded; see `packproof.grade`.

    >>> import packproof
    >>> packproof.GradeOptions(device="cpu", timed=False).arguments
    ['--device', 'cpu', '--untimed', '--isolate']
    """

    device: str | None = None
    """None for the GPU if there is one."""
    secret: str | None = None
    """The hidden cases are drawn with it and the submission; None for a drawn one, which the rows have."""
    timed: bool = True
    """Whether what has passed is timed; untimed it has half of the reward."""
    isolate: bool = True
    """Whether all walls are required; otherwise there is none."""

    @property
    def arguments(self) -> list[str]:
        """Options of the command."""
        device = ["--device", self.device] if self.device else []
        secret = ["--secret", self.secret] if self.secret else []
        walls = "--isolate" if self.isolate else "--no-isolate"
        return [*device, *secret, "--timed" if self.timed else "--untimed", walls]


@dataclass(frozen=True)
class GradeJob:
    """One call of `packproof grade`, in an empty folder with these files."""

    submission: str
    """Its target, as for `packproof grade`."""
    arguments: tuple[str, ...]
    """Options of the command, the contract or the task among them."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Contents by relative path, in base64."""
    cores: int = 0
    """How many cores of its own it gets, if as many are free; 0 for all that there are, shared."""
    gpu: str = ""
    """The value of CUDA_VISIBLE_DEVICES; "" leaves it as it is."""
    version: str = __version__
    """Of packproof, which has to be the same everywhere."""


@dataclass(frozen=True)
class GradeOutcome:
    """How such a call ended."""

    code: int
    """Its exit code; negative for the signal that ended it."""
    document: str = ""
    """The JSON of the grade, "" without one."""
    errors: str = ""
    """The end of what it wrote to stderr."""
    replays: Mapping[str, str] = field(default_factory=dict)
    """The text of the replay file of the counterexample, by its relative path."""
    host: str = ""
    seconds: float = 0.0


def encoded(data: bytes) -> str:
    """The contents of a file of a job."""
    return b64encode(data).decode()
