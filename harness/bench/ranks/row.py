"""A time of an op on ranks: what `packproof bench ranks` measures, writes and reads again."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """Milliseconds of an op on a layout, forward and backward: on one rank, on all, and the parts of the latter."""

    op: str
    layout: str
    ranks: int
    tokens: int
    one: float
    all: float
    parts: Mapping[str, float]

    @property
    def predicted(self) -> float:
        return sum(self.parts.values())

    @property
    def rate(self) -> float:
        """How many times as fast as one rank."""
        return self.one / self.all
