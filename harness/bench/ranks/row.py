"""A time of an op on ranks, as measured, written and read by `packproof bench ranks`."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """Milliseconds of an op on a layout, forward and backward."""

    op: str
    layout: str
    ranks: int
    tokens: int
    """Tokens of the whole pack."""
    single_rank_ms: float
    """Milliseconds on one rank."""
    all_ranks_ms: float
    """Milliseconds on all ranks."""
    parts: Mapping[str, float]
    """Milliseconds of each part of the time on all ranks."""

    @property
    def predicted(self) -> float:
        """The sum of the parts."""
        return sum(self.parts.values())

    @property
    def rate(self) -> float:
        """The speedup over one rank."""
        return self.single_rank_ms / self.all_ranks_ms
