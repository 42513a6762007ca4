"""Who computed a call: the launches of kernels and the operators of torch that its process has seen."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Computer = Literal["triton", "cuda", "operator", "torch", "reference", "outside"]
Pass = Literal["forward", "backward"]
_MOST_NAMES = 3  # of one kind, in a line


@dataclass(frozen=True)
class Computed:
    """A kernel or an operator that has computed a part of a call."""

    kind: Computer
    """The launch of a Triton or CUDA kernel, an operator registered with torch, one of torch's own, a reference of
    packproof or of the op, or what cannot be seen outside of torch."""
    name: str
    """Such as "my_kernels._conv_fwd" or "aten::mm"."""
    during: Pass
    """The pass in which it ran."""
    own: bool = False
    """Whether it is code of the kernel under test rather than of a library."""
    line: str = ""
    """The line of the kernel that called it, as "my_kernels.py:31"; "" if there is none."""

    @property
    def is_launch(self) -> bool:
        """Whether it is a kernel of the target's author or of a library, launched from Python."""
        return self.kind in ("triton", "cuda")

    def __str__(self) -> str:
        return f"{self.kind} {self.name}" + (f" at {self.line}" if self.line else "") + f" ({self.during})"


def computed_text(items: Iterable[Computed]) -> str:
    """All in one line: "triton my_kernels._conv_fwd (forward), torch aten::mm (backward)"; "" for none."""
    return ", ".join(
        f"{kind} {_shortened(names)} ({during})" for (kind, during), names in _names_by_pass(items).items()
    )


def _names_by_pass(items: Iterable[Computed]) -> dict[tuple[Computer, str], list[str]]:
    """The names by kind and pass; a name of both has the pass "forward and backward"."""
    passes: dict[tuple[Computer, str], dict[Pass, None]] = {}
    for item in items:
        passes.setdefault((item.kind, item.name), {})[item.during] = None
    names: dict[tuple[Computer, str], list[str]] = {}
    for (kind, name), during in passes.items():
        names.setdefault((kind, " and ".join(sorted(during, reverse=True))), []).append(name)
    return names


def _shortened(names: list[str]) -> str:
    more = len(names) - _MOST_NAMES
    return ", ".join(names) if more < 2 else f"{', '.join(names[:_MOST_NAMES])} and {more} more"
