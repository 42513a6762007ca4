"""Who computed a call: the launches of kernels and the operators of torch that its process has seen."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Computer = Literal["triton", "cuda", "extension", "operator", "torch", "outside", "reference", "nothing"]
Pass = Literal["forward", "backward"]
_MOST_NAMES = 3  # of one kind, in a line


@dataclass(frozen=True)
class Computed:
    """A kernel or an operator that has computed a part of a call."""

    kind: Computer
    """What it is.
    - "triton", "cuda": a launch from Python, which packproof can leave out;
    - "extension": a kernel on a GPU that was launched in another way;
    - "operator", "torch": an operator registered with torch, and one of torch's own;
    - "outside": where values went that left torch, such as numpy, or a thread;
    - "reference": a reference of packproof, or that of the op;
    - "nothing": nothing was seen in the pass.
    """
    name: str
    """Such as "my_kernels._conv_fwd" or "aten::mm"."""
    during: Pass
    """The pass in which it ran."""
    is_own: bool = False
    """Whether it is code of the kernel under test rather than of a library."""
    line: str = ""
    """The line of the kernel that called it, as "my_kernels.py:31"; "" if there is none."""

    @property
    def is_launch(self) -> bool:
        """Whether packproof can leave it out."""
        return self.kind in ("triton", "cuda")

    def __str__(self) -> str:
        return f"{self.kind} {self.name}" + (f" at {self.line}" if self.line else "") + f" ({self.during})"


def observed(items: Iterable[Computed]) -> tuple[Computed, ...]:
    """The items of several calls, each once. A pass in which one call shows nothing has what the others show."""
    distinct = dict.fromkeys(items)
    visible_passes = {item.during for item in distinct if item.kind != "nothing"}
    return tuple(item for item in distinct if item.kind != "nothing" or item.during not in visible_passes)


def computed_text(items: Iterable[Computed]) -> str:
    """All in one line: "triton my_kernels._conv_fwd (forward), torch aten::mm (backward)"; "" for none."""
    return ", ".join(
        f"{kind} {_shortened(names)} ({during})" for (kind, during), names in _names_by_pass(observed(items)).items()
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
