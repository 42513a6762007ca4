"""Which tokens of a pack each rank holds, as runs of them, and what follows for the documents on a rank."""

from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from packproof.refs.errors import ArgumentError, LayoutError, contradiction

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from packproof.parallel.watch import Watch

Run = tuple[int, int]  # tokens of the pack: the first, and the one after the last


def process_group(where: str, group: "ProcessGroup | DeviceMesh") -> ProcessGroup:
    """The group itself, or that of a mesh of one dimension. Raises ArgumentError for anything else."""
    if isinstance(group, ProcessGroup):
        return group
    if getattr(group, "ndim", 0) != 1 or not hasattr(group, "get_group"):
        raise ArgumentError(f"{where}: group is {group!r}, expected a process group or a DeviceMesh of one dimension")
    return group.get_group()


class Cut:
    """A pack that is cut over the ranks of a group: what `Shard` and `ZigZag` share.

    offsets: of the documents of the whole pack. cuts: the tokens at which it is cut, in order. runs: of each rank the
    tokens that it holds, run by run, in their order on the rank.
    """

    runs: tuple[tuple[Run, ...], ...]

    def __init__(
        self,
        cu_seqlens: Tensor | Sequence[int],
        group: "ProcessGroup | DeviceMesh",
        cuts: Sequence[int] | None,
        pieces: int,
        watch: "Watch | None",
    ) -> None:
        """pieces: into which each rank's tokens fall. Raises LayoutError and ArgumentError."""
        name = type(self).__name__
        self.group = process_group(name, group)
        self.rank, self.ranks, self.watch = self.group.rank(), self.group.size(), watch
        given = cu_seqlens.tolist() if isinstance(cu_seqlens, Tensor) else cu_seqlens
        self.offsets = tuple(int(offset) for offset in given)
        if not self.offsets or self.offsets[0] != 0 or any(a > b for a, b in pairwise(self.offsets)):
            raise LayoutError(f"{name}: cu_seqlens is {list(self.offsets)[:12]}, expected offsets from 0 on, in order")
        tokens, count = self.offsets[-1], pieces * self.ranks
        even = [tokens * k // count for k in range(1, count)]
        self.cuts = tuple(even if cuts is None else (int(cut) for cut in cuts))
        self._bounds = (0, *self.cuts, tokens)
        if len(self.cuts) != count - 1 or any(a > b for a, b in pairwise(self._bounds)):
            raise ArgumentError(
                f"{name}: cuts are {list(self.cuts)[:12]}, expected {count - 1} positions in order, for "
                f"{self.ranks} ranks and {tokens} tokens"
            )
        self.exchanges: dict[Any, Any] = {}  # what an op has found of them, once for all layers
        self._on_device: dict[tuple[torch.device, tuple[int, ...]], Tensor] = {}

    @property
    def tokens(self) -> int:
        """Tokens on this rank."""
        return sum(b - a for a, b in self.runs[self.rank])

    @cached_property
    def _portions(self) -> list[tuple[int, Run]]:
        """Of each document with tokens in a run of this rank: where it starts in the pack, and these tokens."""
        return [
            (a, (max(a, start), min(b, end))) for start, end in self.runs[self.rank] for a, b in self.inside(start, end)
        ]

    def inside(self, start: int, end: int) -> list[Run]:
        """The documents that have tokens in a run of the pack, whole."""
        return [(a, b) for a, b in pairwise(self.offsets) if max(a, start) < min(b, end)]

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """Tokens on this rank of each document that has some, once for each run of tokens."""
        return tuple(b - a for _, (a, b) in self._portions)

    @cached_property
    def positions(self) -> tuple[int, ...]:
        """The position in its document of the first of these tokens."""
        return tuple(a - start for start, (a, _) in self._portions)

    @cached_property
    def is_cut(self) -> bool:
        """Whether any document of the pack is cut: else ranks have nothing to tell each other."""
        return any(cut not in self.offsets for cut in self.cuts)

    def cu_seqlens(self, device: torch.device, offsets: Sequence[int] | None = None) -> Tensor:
        """Offsets (int32) on a device, by default those of the documents on this rank; made there once."""
        return self._moved(device, (0, *accumulate(self.lengths)) if offsets is None else tuple(offsets))

    def starts(self, device: torch.device) -> Tensor:
        """`positions` (int32) on a device: the argument `offsets` of `rope`."""
        return self._moved(device, self.positions)

    def _moved(self, device: torch.device, numbers: tuple[int, ...]) -> Tensor:
        if (device, numbers) not in self._on_device:
            self._on_device[device, numbers] = torch.tensor(numbers, dtype=torch.int32).to(device)
        return self._on_device[device, numbers]

    def require_tokens(self, op: str, name: str, x: Tensor) -> None:
        """ArgumentError unless a tensor has the tokens of this rank; rows after them are slack."""
        if x.ndim == 0 or len(x) < self.tokens:
            runs = " and ".join(f"{a} to {b}" for a, b in self.runs[self.rank])
            raise contradiction(
                f"{op}: {name} has shape {tuple(x.shape)} but rank {self.rank} of {self.ranks} holds {self.tokens} "
                f"tokens of the pack, {runs}"
            )


def without_tokens(x: Tensor) -> Tensor:
    """What an op returns for x on a rank without tokens: zeros, which backward goes through, whatever lies in slack."""
    return x.masked_fill(torch.ones_like(x, dtype=torch.bool), 0)
