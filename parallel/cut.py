"""The tokens of a pack on each rank, as runs of consecutive tokens, and the documents among them."""

from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from packproof.base.errors import ArgumentError, LayoutError, contradiction

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from packproof.parallel.watch import Watch

Run = tuple[int, int]  # tokens of the pack: first, end (exclusive)


def process_group(owner: str, group: "ProcessGroup | DeviceMesh") -> ProcessGroup:
    """The group itself, or the group of a mesh of one dimension. Raises ArgumentError for anything else."""
    if isinstance(group, ProcessGroup):
        return group
    if getattr(group, "ndim", 0) != 1 or not hasattr(group, "get_group"):
        raise ArgumentError(f"{owner}: group is {group!r}, expected a process group or a DeviceMesh of one dimension")
    return group.get_group()


class Cut:
    """A pack cut over the ranks of a group: the common part of `Shard` and `ZigZag`."""

    offsets: tuple[int, ...]
    """Offsets of the documents in the whole pack."""
    cuts: tuple[int, ...]
    """Token positions of the cuts, in order."""
    runs: tuple[tuple[Run, ...], ...]
    """Tokens of each rank, run by run, in their order on the rank."""

    def __init__(
        self,
        cu_seqlens: Tensor | Sequence[int],
        group: "ProcessGroup | DeviceMesh",
        cuts: Sequence[int] | None,
        pieces: int,
        watch: "Watch | None",
    ) -> None:
        """Check the offsets and the cuts. Raises LayoutError and ArgumentError.

        pieces: number of runs on each rank.
        """
        name = type(self).__name__
        self.group = process_group(name, group)
        self.rank, self.ranks, self.watch = self.group.rank(), self.group.size(), watch
        values = cu_seqlens.tolist() if isinstance(cu_seqlens, Tensor) else cu_seqlens
        self.offsets = tuple(int(offset) for offset in values)
        if not self.offsets or self.offsets[0] != 0 or any(a > b for a, b in pairwise(self.offsets)):
            raise LayoutError(f"{name}: cu_seqlens is {list(self.offsets)[:12]}, expected offsets from 0 on, in order")
        tokens, n_pieces = self.offsets[-1], pieces * self.ranks
        even_cuts = [tokens * k // n_pieces for k in range(1, n_pieces)]
        self.cuts = tuple(even_cuts if cuts is None else (int(cut) for cut in cuts))
        self._bounds = (0, *self.cuts, tokens)
        if len(self.cuts) != n_pieces - 1 or any(a > b for a, b in pairwise(self._bounds)):
            raise ArgumentError(
                f"{name}: cuts are {list(self.cuts)[:12]}, expected {n_pieces - 1} positions in order, for "
                f"{self.ranks} ranks and {tokens} tokens"
            )
        self.exchanges: dict[Any, Any] = {}  # plans of an op's exchanges: made once, used by all layers
        self._on_device: dict[tuple[torch.device, tuple[int, ...]], Tensor] = {}

    @property
    def tokens(self) -> int:
        """Tokens on this rank."""
        return sum(b - a for a, b in self.runs[self.rank])

    @cached_property
    def _portions(self) -> list[tuple[int, Run]]:
        """(start of the document in the pack, its tokens) for each document in each run of this rank."""
        return [
            (a, (max(a, start), min(b, end)))
            for start, end in self.runs[self.rank]
            for a, b in self.documents_in(start, end)
        ]

    def documents_in(self, start: int, end: int) -> list[Run]:
        """The documents with tokens between `start` and `end`, as complete runs of the pack."""
        return [(a, b) for a, b in pairwise(self.offsets) if max(a, start) < min(b, end)]

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """Number of tokens of each document on this rank, for each run of tokens."""
        return tuple(b - a for _, (a, b) in self._portions)

    @cached_property
    def positions(self) -> tuple[int, ...]:
        """Position of the first of these tokens in its document."""
        return tuple(a - start for start, (a, _) in self._portions)

    @cached_property
    def is_cut(self) -> bool:
        """Whether a cut divides any document. If not, ranks exchange nothing."""
        return any(cut not in self.offsets for cut in self.cuts)

    def cu_seqlens(self, device: torch.device, offsets: Sequence[int] | None = None) -> Tensor:
        """Offsets (int32) on a device, copied there once; by default of the documents on this rank."""
        return self._to_device(device, (0, *accumulate(self.lengths)) if offsets is None else tuple(offsets))

    def starts(self, device: torch.device) -> Tensor:
        """`positions` (int32) on a device: the argument `offsets` of `rope`."""
        return self._to_device(device, self.positions)

    def _to_device(self, device: torch.device, numbers: tuple[int, ...]) -> Tensor:
        if (device, numbers) not in self._on_device:
            self._on_device[device, numbers] = torch.tensor(numbers, dtype=torch.int32).to(device)
        return self._on_device[device, numbers]

    def require_tokens(self, op: str, name: str, x: Tensor) -> None:
        """Raise ArgumentError if a tensor has fewer rows than this rank has tokens. Further rows are slack."""
        if x.ndim == 0 or len(x) < self.tokens:
            runs = " and ".join(f"{a} to {b}" for a, b in self.runs[self.rank])
            raise contradiction(
                f"{op}: {name} has shape {tuple(x.shape)} but rank {self.rank} of {self.ranks} holds {self.tokens} "
                f"tokens of the pack, {runs}"
            )


def empty_rank_output(x: Tensor) -> Tensor:
    """The output of an op on a rank without tokens: zeros with a graph to x, whatever its slack rows hold."""
    return x.masked_fill(torch.ones_like(x, dtype=torch.bool), 0)
