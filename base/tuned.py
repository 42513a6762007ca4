"""The configurations with which an autotuned kernel has run. Its verdict covers these and no others."""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Tuned:
    """An autotuned kernel, and its configurations as text: in one call, in one cell, or in a whole run."""

    kernel: str
    """The name of its function."""
    ran: tuple[str, ...]
    """The configurations that were run."""
    offered: tuple[str, ...]
    """The configurations left by its own pruning in any of its calls."""
    declared: int
    """Number of configurations that it declares."""

    def __str__(self) -> str:
        pruned = self.declared - len(self.offered)
        tail = f" ({pruned} more pruned by the kernel)" if pruned > 0 else ""
        return f"{len(self.ran)} of {len(self.offered)} of {self.kernel}{tail}"


def merge_tuned(*groups: Iterable[Tuned]) -> tuple[Tuned, ...]:
    """Each kernel of the groups once, with all its configurations in any of them."""
    kernels: dict[str, Tuned] = {}
    for tuned in (tuned for group in groups for tuned in group):
        previous = kernels.setdefault(tuned.kernel, tuned)
        kernels[tuned.kernel] = dataclasses.replace(
            previous,
            ran=tuple(dict.fromkeys((*previous.ran, *tuned.ran))),
            offered=tuple(dict.fromkeys((*previous.offered, *tuned.offered))),
            declared=max(previous.declared, tuned.declared),
        )
    return tuple(kernels.values())
