"""Cuts that balance causal attention: each rank has an early and a late chunk of the pack."""

from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from packproof.base.errors import checked_init
from packproof.parallel.cut import Cut, Run
from packproof.parallel.simulated import Arguments, ContiguousShares, Outputs

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from packproof.parallel.watch import Watch


@checked_init
class ZigZag(Cut):
    """The part of a pack on this rank, in a zigzag of 2N chunks over N ranks: rank r has chunks r and 2N - 1 - r.

    Under a causal mask the last tokens of a document read the most keys. If one document is cut into contiguous pieces,
    the last rank has 2 - 1/N times the mean work; with a zigzag all ranks have the same. For `attention` and `rope`
    only: recurrent ops pass states from token to token and need a `Shard`. Make it once per pack, on every rank.

    cu_seqlens, group, watch: as in `Shard`.
    cuts: the first token of each chunk but chunk 0, in order. By default the sizes of chunks differ by at most one.

    Raises LayoutError for invalid offsets, and ArgumentError for cuts of a wrong number, out of order or out of range.

    >>> import torch
    >>> from packproof.parallel import ZigZag, run_ranks
    >>> def program(group):
    ...     cut = ZigZag(torch.tensor([0, 3, 8]), group)
    ...     return cut.rows.tolist(), cut.lengths, cut.positions
    >>> run_ranks(2, program)
    [([0, 1, 6, 7], (2, 2), (0, 3)), ([2, 3, 4, 5], (1, 1, 2), (2, 0, 1))]
    """

    def __init__(
        self,
        cu_seqlens: Tensor | Sequence[int],
        group: "ProcessGroup | DeviceMesh",
        cuts: Sequence[int] | None = None,
        *,
        watch: "Watch | None" = None,
    ) -> None:
        super().__init__(cu_seqlens, group, cuts, 2, watch)
        self.runs = _runs(self._bounds)

    @cached_property
    def rows(self) -> Tensor:
        """The rows of this rank in a tensor along the tokens of the whole pack, as an index."""
        return torch.cat([torch.arange(a, b) for a, b in self.runs[self.rank]])


class ZigZagShares(ContiguousShares):
    """Each rank holds two chunks of the pack, as in a `ZigZag`. All outputs of the op must be along tokens.

    Like `ContiguousShares`, but `run` gets the cuts of all chunks: the cuts of the call, and one in the middle of each
    piece between them. Reports count these pieces as ranks.

    >>> import torch
    >>> from packproof.parallel import ZigZagShares
    >>> shares = ZigZagShares("rope", run=lambda group, **arguments: arguments["x"])
    >>> whole = {"x": torch.arange(6.0)[:, None, None], "cu_seqlens": torch.tensor([0, 6])}
    >>> [(share["x"].flatten().tolist(), share["cuts"]) for share in shares.split(whole, (4,))]
    [([0.0, 1.0, 5.0], (2, 4, 5)), ([2.0, 3.0, 4.0], (2, 4, 5))]
    """

    def split(self, arguments: Arguments, cuts: tuple[int, ...]) -> list[Arguments]:
        chunks = _chunks(cuts, arguments)
        parts = super().split(arguments, chunks)
        names = [n for n, kind in self._inputs.items() if kind == "token" and isinstance(arguments.get(n), Tensor)]
        pairs = zip(parts[: len(cuts) + 1], reversed(parts), strict=False)
        return [
            {**early_chunk, **{n: torch.cat([early_chunk[n], late_chunk[n]]) for n in names}}
            for early_chunk, late_chunk in pairs
        ]

    def gather(self, results: list[Outputs], arguments: Arguments, cuts: tuple[int, ...]) -> Outputs:
        runs = _runs((0, *_chunks(cuts, arguments), self._tokens(arguments)))
        token_order = torch.cat([torch.arange(a, b) for rank_runs in runs for a, b in rank_runs])
        positions = token_order.argsort().to(results[0][0].device)
        return tuple(torch.cat(parts)[positions] for parts in zip(*results, strict=True))


def _runs(bounds: Sequence[int]) -> tuple[tuple[Run, ...], ...]:
    """The early and the late chunk of each rank.

    bounds: of the chunks.
    """
    chunks = list(pairwise(bounds))
    return tuple((chunks[r], chunks[-1 - r]) for r in range(len(chunks) // 2))


def _chunks(cuts: Sequence[int], arguments: Arguments) -> tuple[int, ...]:
    """The cuts, and one more in the middle of each piece."""
    halves = [(a, (a + b) // 2) for a, b in pairwise((0, *cuts, int(arguments["cu_seqlens"][-1])))]
    return tuple(cut for pair in halves for cut in pair)[1:]
