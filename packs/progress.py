"""How far an iteration over packs has come, to resume it."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar

from packproof.base.arguments import whole_number
from packproof.base.errors import ArgumentError
from packproof.base.wording import kind

T = TypeVar("T")


class PackProgress:
    """The packs yielded by the last iteration."""

    def __init__(self) -> None:
        self.packs = 0
        self._skipped = 0

    def resume(self, n_packs: int) -> None:
        """Leave out so many packs of the next iteration."""
        self.packs = self._skipped = n_packs

    def follow(self, packs: Iterator[T]) -> Iterator[T]:
        """The packs of one iteration, without those left out, counted."""
        self.packs, self._skipped = self._skipped, 0
        for pack in islice(packs, self.packs, None):
            self.packs += 1
            yield pack


def read_state(owner: str, state: Mapping[str, Any], names: Sequence[str]) -> list[int]:
    """The numbers of a state. Raises ArgumentError for one of something else."""
    if not isinstance(state, Mapping) or set(state) != set(names):
        entries = ", ".join(map(str, state)) if isinstance(state, Mapping) else kind(state)
        raise ArgumentError(f"{owner}: state has {entries or 'no entry'}; expected {', '.join(names)}")
    return [whole_number(owner, f"state[{name!r}]", state[name], 0, ArgumentError) for name in names]
