"""The part of a pack on one rank: its documents, and their continuation on earlier and later ranks."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

from torch import Tensor
from torch.distributed import ProcessGroup

from packproof.base.errors import ArgumentError, checked_init
from packproof.parallel.cut import Cut

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from packproof.parallel.watch import Watch


@dataclass(frozen=True)
class Portion:
    """Documents of a rank for one call of a kernel."""

    rows: slice
    """Their rows on the rank."""
    offsets: tuple[int, ...]
    """Offsets of the documents, counted from the first of these rows."""
    enters: bool
    """Whether the only document of the portion began on an earlier rank."""
    leaves: bool
    """Whether the only document of the portion continues on a later rank."""


@checked_init
class Shard(Cut):
    """The part of a pack on this rank. Make it once per pack, on every rank, and pass it to all layers.

    cu_seqlens: offsets of the documents of the whole pack, int32 or int64 (s + 1,), the same on all ranks. They are
    read on the host: pass a CPU tensor, since one on a GPU waits for the device.
    group: the ranks, a process group or a `DeviceMesh` of one dimension.
    cuts: the first token of each rank but rank 0, in order. Equal cuts leave a rank without tokens. By default the
    numbers of tokens differ by at most one.
    watch: detects ranks missing from an exchange.

    Raises LayoutError for invalid offsets, and ArgumentError for cuts of a wrong number, out of order or out of range.

    >>> import torch
    >>> from packproof.parallel import Shard, run_ranks
    >>> def program(group):
    ...     shard = Shard(torch.tensor([0, 4, 9]), group, cuts=(1, 5))
    ...     return shard.lengths, shard.positions
    >>> run_ranks(3, program)  # the first document is on all three ranks, the second one on the last
    [((1,), (0,)), ((3, 1), (1, 0)), ((4,), (1,))]
    """

    def __init__(
        self,
        cu_seqlens: Tensor | Sequence[int],
        group: "ProcessGroup | DeviceMesh",
        cuts: Sequence[int] | None = None,
        *,
        watch: "Watch | None" = None,
    ) -> None:
        super().__init__(cu_seqlens, group, cuts, 1, watch)
        self.runs = tuple((run,) for run in pairwise(self._bounds))

    @property
    def rows(self) -> slice:
        """The rows of this rank in a tensor along the tokens of the whole pack."""
        return slice(self._bounds[self.rank], self._bounds[self.rank + 1])

    @cached_property
    def _documents(self) -> list[tuple[int, int]]:
        """The first and last token (exclusive) of each document with tokens on this rank, in the whole pack."""
        return self.documents_in(*self.runs[self.rank][0])

    @property
    def enters(self) -> bool:
        """Whether the first document on this rank began on an earlier one."""
        return bool(self.positions) and self.positions[0] > 0

    @property
    def leaves(self) -> bool:
        """Whether the last document on this rank continues on a later one."""
        return bool(self._documents) and self._documents[-1][1] > self._bounds[self.rank + 1]

    @cached_property
    def before(self) -> tuple[int, ...]:
        """The earlier ranks with tokens of the first document on this rank, in order; () if it starts here."""
        if not self.enters:
            return ()
        start = self._documents[0][0]
        return tuple(r for r in range(self.rank) if self._bounds[r] < self._bounds[r + 1] > start)

    @cached_property
    def after(self) -> tuple[int, ...]:
        """The later ranks with tokens of the last document on this rank, in order; () if it ends here."""
        if not self.leaves:
            return ()
        end = self._documents[-1][1]
        bounds = self._bounds
        return tuple(r for r in range(self.rank + 1, self.ranks) if bounds[r] < bounds[r + 1] and bounds[r] < end)

    def tails_before(self, rank: int, reach: int) -> list[tuple[int, slice, slice]]:
        """The halo of a rank: of the `reach` tokens before it, those of the document entering it.

        Returns (earlier rank, rows, halo rows) for each rank holding some of these tokens: `rows` index the earlier
        rank's own last `reach` tokens, `halo rows` the last `reach` tokens before this rank.
        """
        cut = self._bounds[rank]
        if self._bounds[rank + 1] == cut or cut in self.offsets:
            return []
        start = max(offset for offset in self.offsets if offset < cut)
        tails = []
        for earlier in range(rank):
            rank_start, rank_end = self._bounds[earlier], self._bounds[earlier + 1]
            first_token = max(cut - reach, start, rank_start)
            if first_token < rank_end:
                rows = slice(first_token - rank_end + reach, reach)
                tails.append((earlier, rows, slice(first_token - cut + reach, rank_end - cut + reach)))
        return tails

    @cached_property
    def pieces(self) -> tuple[Portion, ...]:
        """The entering document, the complete documents, and the leaving document, as separate portions.

        A kernel then needs states for the first and the last portion only.
        """
        n = len(self.lengths)
        if self.enters and self.leaves and n == 1:
            return (self._portion(0, 1, enters=True, leaves=True),)
        inner_start, inner_end = int(self.enters), n - int(self.leaves)
        inner_portions = [self._portion(0, inner_start, enters=True)] if inner_start else []
        inner_portions += [self._portion(inner_start, inner_end)] if inner_start < inner_end else []
        return (*inner_portions, *([self._portion(inner_end, n, leaves=True)] if inner_end < n else []))

    def _portion(
        self, first_document: int, end_document: int, *, enters: bool = False, leaves: bool = False
    ) -> Portion:
        starts = [0]
        for length in self.lengths:
            starts.append(starts[-1] + length)
        offsets = tuple(start - starts[first_document] for start in starts[first_document : end_document + 1])
        return Portion(slice(starts[first_document], starts[end_document]), offsets, enters, leaves)


def require_shard(op: str, shard: Cut) -> None:
    """Raise ArgumentError for any other kind of cut: a state needs the ranks in the order of the tokens."""
    if not isinstance(shard, Shard):
        raise ArgumentError(f"{op}: shard is a {type(shard).__name__}, expected a Shard, whose ranks follow each other")
