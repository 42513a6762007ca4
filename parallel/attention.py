"""Attention of a pack cut over ranks: each rank fetches the keys and values visible to its queries.

Queries of a rank see keys of their documents on other ranks: on earlier ranks, and on later ranks too if the mask is
not causal. One exchange fetches exactly these keys and values. In backward, one exchange returns their gradients to the
rank of the token. It adds them in fp32, in the order of ranks, and rounds once.
"""

# mypy: allow-untyped-calls

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from packproof import kernels
from packproof.parallel.cut import Cut, Run
from packproof.parallel.exchange import swapped
from packproof.refs.attention_options import reaches
from packproof.refs.errors import checked_call

_TILE = 128  # keys out of reach are dropped by whole tiles, so that a kernel's blocks keep their boundaries


@checked_call
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sinks: Tensor | None = None,
    *,
    shard: Cut,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softmax_scale: float | None = None,
    softcap: float = 0.0,
    kernel: Callable[..., Any] | None = None,
) -> Tensor:
    """`packproof.kernels.attention` of the queries on this rank, with the values of the whole pack: y (t, hq, v).

    Each pass has one exchange of keys and values. Every rank has to run both passes, including one without tokens.

    q: (t, hq, k), the rank's tokens; further rows are slack.
    k: (t, hk, k), as q.
    v: (t, hk, v), as q.
    sinks: (hq,), the same on all ranks. Their gradient is this rank's part of the sum over ranks.
    shard: a `Shard`, or a `ZigZag` to balance the work under a causal mask.
    kernel: replaces packproof's own; has the signature of `packproof.refs.attention`.

    >>> import torch
    >>> from packproof import parallel, refs
    >>> q, v, cu_seqlens = torch.zeros(5, 1, 2), torch.arange(1.0, 6)[:, None, None], torch.tensor([0, 2, 5])
    >>> def program(group):
    ...     shard = parallel.Shard(cu_seqlens, group)
    ...     mine = (x[shard.rows] for x in (q, q, v))
    ...     return parallel.attention(*mine, shard=shard, causal=True, kernel=refs.attention)
    >>> torch.cat(parallel.run_ranks(2, program)).flatten()  # equal scores: the mean of what is visible
    tensor([1.0000, 1.5000, 3.0000, 3.5000, 4.0000])
    """
    for name, x in {"q": q, "k": k, "v": v}.items():
        shard.require_tokens("attention", name, x)
    made: Callable[..., Any] = kernel or kernels.attention
    given, options = (() if sinks is None else (sinks,)), {"softmax_scale": softmax_scale, "softcap": softcap}
    if not shard.is_cut:
        cu_seqlens = shard.cu_seqlens(q.device)
        y: Tensor = made(q, k, v, *given, cu_seqlens=cu_seqlens, causal=causal, window_size=window_size, **options)
        return y
    exchange = exchange_of(shard, reaches(window_size, causal=causal))
    *read, reached = _fetched(exchange, k[: shard.tokens], v[: shard.tokens])
    ys, reads = [], exchange.reads[shard.rank]
    for one, queries, keys, values in zip(
        reads, q.split([*map(len, reads), len(q) - shard.tokens]), read[::2], read[1::2], strict=False
    ):
        cu_seqlens = shard.cu_seqlens(q.device, one.offsets)
        cu_seqlens_k = shard.cu_seqlens(q.device, one.key_offsets)
        offsets = {"cu_seqlens": cu_seqlens, "cu_seqlens_k": cu_seqlens_k}
        ys.append(made(queries, keys, values, *given, **offsets, window_size=one.window, **options))
    heads = q.shape[1], v.shape[2]
    return torch.cat([*ys, q.new_zeros(len(q) - shard.tokens, *heads), reached.view(0, *heads)])


@dataclass(frozen=True)
class _Read:
    """One call of the kernel: the queries of consecutive documents, and their keys."""

    tokens: Run
    """Tokens of the queries, in the pack."""
    keys: Run
    """Tokens of the keys, in the pack."""
    offsets: tuple[int, ...]
    """Offsets of the documents among the queries."""
    key_offsets: tuple[int, ...]
    """Offsets of the documents among the keys."""
    window: tuple[int, int]
    """(left, right), relative to the last key."""

    def __len__(self) -> int:
        return self.tokens[1] - self.tokens[0]


def _reads(cut: Cut, rank: int, left: float, right: float) -> Iterator[_Read]:
    """The kernel calls of a rank, in the order of its tokens.

    A document with visible keys on later ranks gets a call of its own: its last query is not aligned with its last key,
    so its window is shifted by the difference.
    """
    for start, end in cut.runs[rank]:
        parts = []
        for first, last in cut.inside(start, end):
            a, b = max(first, start), min(last, end)
            skipped = max(a - first - left, 0) // _TILE * _TILE
            parts.append(((a, b), (first + int(skipped), int(min(last, b + right)))))
        whole = parts[:-1] if parts and parts[-1][1][1] > parts[-1][0][1] else parts
        for some in filter(None, (whole, parts[len(whole) :])):
            (tokens, keys), ahead = zip(*some, strict=True), some[-1][1][1] - some[-1][0][1]
            window = (-1 if left == math.inf else int(left) + ahead, -1 if right == math.inf else int(right) - ahead)
            yield _Read(_joined(tokens), _joined(keys), _offsets(tokens), _offsets(keys), window)


def _joined(runs: Sequence[Run]) -> Run:
    return runs[0][0], runs[-1][1]


def _offsets(runs: Sequence[Run]) -> tuple[int, ...]:
    return (0, *accumulate(b - a for a, b in runs))


class _Segment(NamedTuple):
    """Consecutive keys of one call, held by one rank."""

    read: int
    """Index of the call, on the rank of its queries."""
    start: int
    """First of these tokens, counted in the keys of the call."""
    row: int
    """First of these tokens, counted in the rows of the rank holding them."""
    length: int
    """Number of tokens."""


class KeyExchange:
    """The keys and values exchanged between ranks.

    left_reach, right_reach: how far a query sees, inf for no limit.
    """

    def __init__(self, cut: Cut, left: float, right: float) -> None:
        self.cut = cut
        self.reads = [tuple(_reads(cut, rank, left, right)) for rank in range(cut.ranks)]
        ranks = range(cut.ranks)
        self.lent = [list(self._segments(cut.rank, reader)) for reader in ranks]
        self.read = [list(self._segments(source, cut.rank)) for source in ranks]

    def _segments(self, source: int, reader: int) -> Iterator[_Segment]:
        for j, read in enumerate(self.reads[reader]):
            row, (start, end) = 0, read.keys
            for a, b in self.cut.runs[source]:
                first, last = max(a, start), min(b, end)
                if first < last:
                    yield _Segment(j, first - start, row + first - a, last - first)
                row += b - a

    def fetched(self, kv: Tensor) -> list[Tensor]:
        """The rows of keys and values for each kernel call of this rank, from all ranks."""
        out = _cat([kv[s.row : s.row + s.length] for lent in self.lent for s in lent], kv)
        back = swapped(self.cut, out, _rows(self.lent), _rows(self.read), "keys and values of attention, forward")
        found: list[dict[int, Tensor]] = [{} for _ in self.reads[self.cut.rank]]
        every = [s for source in self.read for s in source]
        for s, part in zip(every, back.split([s.length for s in every]), strict=True):
            found[s.read][s.start] = part
        return [_cat([parts[start] for start in sorted(parts)], kv) for parts in found]

    def returned(self, gradients: Sequence[Tensor], like: Tensor) -> Tensor:
        """The gradient of this rank's rows, summed over the kernel calls of all ranks.

        like: the rows.
        """
        out = _cat([gradients[s.read][s.start : s.start + s.length] for source in self.read for s in source], like)
        what = "gradients of keys and values of attention, backward"
        back = swapped(self.cut, out, _rows(self.read), _rows(self.lent), what)
        total = like.new_zeros(like.shape, dtype=torch.promote_types(like.dtype, torch.float32))
        every = [s for lent in self.lent for s in lent]
        for s, part in zip(every, back.split([s.length for s in every]), strict=True):
            total[s.row : s.row + s.length] += part
        return total.to(like.dtype)


def _rows(segments: Sequence[Sequence[_Segment]]) -> list[int]:
    """Number of rows, by rank."""
    return [sum(s.length for s in some) for some in segments]


def _cat(parts: Sequence[Tensor], like: Tensor) -> Tensor:
    return torch.cat([like[:0], *parts])


def exchange_of(cut: Cut, reach: tuple[float, float]) -> KeyExchange:
    """The exchange for these reaches, made once for all layers of a pack."""
    if reach not in cut.exchanges:
        cut.exchanges[reach] = KeyExchange(cut, *reach)
    exchange: KeyExchange = cut.exchanges[reach]
    return exchange


class _Fetched(torch.autograd.Function):
    """Keys and values of each call, and an empty tensor.

    The empty tensor joins the graph of every rank's output, so that backward, and its exchange, runs on every rank.
    """

    @staticmethod
    def forward(ctx: Any, exchange: KeyExchange, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        ctx.exchange, ctx.shapes = exchange, (k.shape, v.shape)
        widths = [math.prod(shape[1:]) for shape in ctx.shapes]
        found = exchange.fetched(torch.cat([k.flatten(1), v.flatten(1)], 1))
        parts = (part for kv in found for part in zip(kv.split(widths, 1), (k, v), strict=True))
        return *(x.reshape(-1, *like.shape[1:]) for x, like in parts), k.new_empty(0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *incoming: Tensor) -> Any:
        *of_reads, none = incoming
        pairs = zip(of_reads[::2], of_reads[1::2], strict=True)
        gradients = [torch.cat([dk.flatten(1), dv.flatten(1)], 1) for dk, dv in pairs]
        widths = [math.prod(shape[1:]) for shape in ctx.shapes]
        rows = none.new_empty(ctx.shapes[0][0], sum(widths))
        both = ctx.exchange.returned(gradients, rows).split(widths, 1)
        return None, *(x.reshape(shape) for x, shape in zip(both, ctx.shapes, strict=True))


_fetched: Callable[..., Any] = _Fetched.apply
