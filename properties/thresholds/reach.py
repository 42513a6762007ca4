"""How far the cases of a profile go past thresholds, and how far they came."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from packproof.properties.cases.case import Case

TOKENS, SEQUENCES, LENGTH, KEYS, CHANNELS = ("tokens", "sequences", "longest sequence", "keys", "channels")


@dataclass(frozen=True)
class Reach:
    """How far the cases of a profile go."""

    source: int = 0
    """The largest constant of a kernel's source that is a threshold; 0 for no cases at all."""
    tokens: int = 0
    """The largest power of two that is a threshold of the number of tokens."""
    sequences: int = 0
    """The same for the number of sequences."""
    share: float = 0.0
    """The time of all cases, as a share of the time of the drawn ones of the same property and dtype."""
    seconds: float = 0.0
    """The least time of all cases: the drawn ones may have their answers from other properties, in no time."""


@dataclass(frozen=True)
class Crossed:
    """The constants of a kernel's source and the largest judged cases."""

    constants: tuple[int, ...]
    """Of the source, in order."""
    largest: Mapping[str, int]
    """The largest judged size along each axis."""

    def axes(self, constant: int) -> tuple[str, ...]:
        """The axes with a judged case past a constant."""
        return tuple(axis for axis, size in self.largest.items() if size > constant)

    def missing(self, constant: int) -> tuple[str, ...]:
        """The axes without one."""
        return tuple(axis for axis, size in self.largest.items() if size <= constant)

    def to_json(self) -> list[dict[str, Any]]:
        """Each constant, with the axes on which it was passed and those on which it was not."""
        return [
            {"constant": n, "passed": list(self.axes(n)), "not_passed": list(self.missing(n))} for n in self.constants
        ]

    def __str__(self) -> str:
        groups = chain(_groups("past", self.constants, self.axes), _groups("not past", self.constants, self.missing))
        return f"constants of its source: judged {'; '.join(groups)}"


def _groups(verb: str, constants: Sequence[int], axes_of_constant: Callable[[int], tuple[str, ...]]) -> Iterator[str]:
    """The constants with the same axes, as text."""
    by_axes: dict[tuple[str, ...], list[int]] = {}
    for constant in constants:
        by_axes.setdefault(axes_of_constant(constant), []).append(constant)
    for axes, members in by_axes.items():
        if axes:
            yield f"{verb} {', '.join(f'{n:,}' for n in members)} in {', '.join(axes)}"


def counts(case: Case) -> dict[str, int]:
    """The size of a case along each axis."""
    keys = case.lengths if case.key_lengths is None else case.key_lengths
    longest = max(case.lengths, default=0)
    channels = max((size for _, size in case.sizes if isinstance(size, int)), default=0)
    return {
        TOKENS: case.n_tokens,
        SEQUENCES: len(case.lengths),
        LENGTH: longest,
        KEYS: max(keys, default=0),
        CHANNELS: channels,
    }
