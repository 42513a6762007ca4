"""What a call makes the host do beside launching: kernels that it compiles or tunes, and tensors that it reads."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Literal

WorkKind = Literal["compiles", "tunes", "reads"]
_MOST_DIFFERENCES = 3

_checks_arguments = ContextVar("checks_arguments", default=False)


@contextmanager
def argument_checks() -> Iterator[None]:
    """Inside, tensors are read that packproof's kernels read where they are on the host, and nowhere else."""
    token = _checks_arguments.set(True)
    try:
        yield
    finally:
        _checks_arguments.reset(token)


def checks_arguments() -> bool:
    """Whether it is inside of such a block."""
    return _checks_arguments.get()


@dataclass(frozen=True)
class HostWork:
    """One piece of such work."""

    kind: WorkKind
    """What is done.
    - "compiles": a kernel is needed in a compilation for `key`, by Triton or torch.compile;
    - "tunes": an autotuner needs its result for `key`;
    - "reads": the host waits for values of a tensor of the device, or copies them.
    """
    name: str
    """The kernel, or the function that reads."""
    key: str = ""
    """What tells compilations or results of an autotuner apart, as "BLOCK=64, NT=4, num_warps=4"."""
    line: str = ""
    """The line of the kernel that reads, as "my_kernels.py:31"; "" if there is none."""

    def __str__(self) -> str:
        at = f" at {self.line}" if self.line else ""
        return f"{self.kind} {self.name}{at}" + (f" for {self.key}" if self.key else "")


def work_text(work: HostWork, earlier: Iterable[HostWork]) -> str:
    """One piece of work; of its key, what differs from the keys of earlier calls."""
    if not work.key:
        return str(work)
    keys = [
        seen_work.key.split(", ") for seen_work in earlier if (seen_work.kind, seen_work.name) == (work.kind, work.name)
    ]
    if not keys:
        return str(work)
    parts = work.key.split(", ")
    differences = [part for part in parts if not any(part in key for key in keys)] or parts
    names = {part.partition("=")[0] for part in differences}
    seen = dict.fromkeys(part for key in keys for part in key if part.partition("=")[0] in names)
    before = f", after {', '.join(list(seen)[:_MOST_DIFFERENCES])}" if seen else ""
    return f"{work.kind} {work.name} for {', '.join(differences[:_MOST_DIFFERENCES])}{before}"
