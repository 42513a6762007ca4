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
from packproof.base.errors import checked_call
from packproof.parallel.cut import Cut, Run
from packproof.parallel.exchange import all_to_all
from packproof.refs.attention_options import reaches

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
    attend: Callable[..., Any] = kernel or kernels.attention
    sink_arguments, options = (() if sinks is None else (sinks,)), {"softmax_scale": softmax_scale, "softcap": softcap}
    if not shard.is_cut:
        cu_seqlens = shard.cu_seqlens(q.device)
        y: Tensor = attend(
            q, k, v, *sink_arguments, cu_seqlens=cu_seqlens, causal=causal, window_size=window_size, **options
        )
        return y
    exchange = cached_exchange(shard, reaches(window_size, causal=causal))
    *key_values, anchor = _fetch_key_values(exchange, k[: shard.tokens], v[: shard.tokens])
    ys, calls = [], exchange.calls[shard.rank]
    for call, queries, keys, values in zip(
        calls, q.split([*map(len, calls), len(q) - shard.tokens]), key_values[::2], key_values[1::2], strict=False
    ):
        cu_seqlens = shard.cu_seqlens(q.device, call.offsets)
        cu_seqlens_k = shard.cu_seqlens(q.device, call.key_offsets)
        offsets = {"cu_seqlens": cu_seqlens, "cu_seqlens_k": cu_seqlens_k}
        ys.append(attend(queries, keys, values, *sink_arguments, **offsets, window_size=call.window, **options))
    heads = q.shape[1], v.shape[2]
    return torch.cat([*ys, q.new_zeros(len(q) - shard.tokens, *heads), anchor.view(0, *heads)])


@dataclass(frozen=True)
class _KernelCall:
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


def _kernel_calls(cut: Cut, rank: int, left_reach: float, right_reach: float) -> Iterator[_KernelCall]:
    """The kernel calls of a rank, in the order of its tokens.

    A document with visible keys on later ranks gets a call of its own: its last query is not aligned with its last key,
    so its window is shifted by the difference.
    """
    for start, end in cut.runs[rank]:
        parts = []
        for document_start, document_end in cut.documents_in(start, end):
            a, b = max(document_start, start), min(document_end, end)
            skipped = max(a - document_start - left_reach, 0) // _TILE * _TILE
            parts.append(((a, b), (document_start + int(skipped), int(min(document_end, b + right_reach)))))
        joint_documents = parts[:-1] if parts and parts[-1][1][1] > parts[-1][0][1] else parts
        for group in filter(None, (joint_documents, parts[len(joint_documents) :])):
            (tokens, keys), lookahead = zip(*group, strict=True), group[-1][1][1] - group[-1][0][1]
            window = (
                -1 if left_reach == math.inf else int(left_reach) + lookahead,
                -1 if right_reach == math.inf else int(right_reach) - lookahead,
            )
            yield _KernelCall(_span(tokens), _span(keys), _offsets(tokens), _offsets(keys), window)


def _span(runs: Sequence[Run]) -> Run:
    return runs[0][0], runs[-1][1]


def _offsets(runs: Sequence[Run]) -> tuple[int, ...]:
    return (0, *accumulate(b - a for a, b in runs))


class _Segment(NamedTuple):
    """Consecutive keys of one call, held by one rank."""

    call_index: int
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

    def __init__(self, cut: Cut, left_reach: float, right_reach: float) -> None:
        self.cut = cut
        self.calls = [tuple(_kernel_calls(cut, rank, left_reach, right_reach)) for rank in range(cut.ranks)]
        ranks = range(cut.ranks)
        self.outgoing = [list(self._segments(cut.rank, reader)) for reader in ranks]
        self.incoming = [list(self._segments(source, cut.rank)) for source in ranks]

    def _segments(self, source: int, reader: int) -> Iterator[_Segment]:
        for index, call in enumerate(self.calls[reader]):
            row, (start, end) = 0, call.keys
            for a, b in self.cut.runs[source]:
                overlap_start, overlap_end = max(a, start), min(b, end)
                if overlap_start < overlap_end:
                    yield _Segment(index, overlap_start - start, row + overlap_start - a, overlap_end - overlap_start)
                row += b - a

    def fetch(self, kv: Tensor) -> list[Tensor]:
        """The rows of keys and values for each kernel call of this rank, from all ranks."""
        sent_rows = _cat(
            [kv[s.row : s.row + s.length] for segments_of_rank in self.outgoing for s in segments_of_rank], kv
        )
        received_rows = all_to_all(
            self.cut,
            sent_rows,
            _row_counts(self.outgoing),
            _row_counts(self.incoming),
            "keys and values of attention, forward",
        )
        parts_by_call: list[dict[int, Tensor]] = [{} for _ in self.calls[self.cut.rank]]
        segments = [s for segments_of_source in self.incoming for s in segments_of_source]
        for s, part in zip(segments, received_rows.split([s.length for s in segments]), strict=True):
            parts_by_call[s.call_index][s.start] = part
        return [_cat([parts[start] for start in sorted(parts)], kv) for parts in parts_by_call]

    def return_gradients(self, gradients: Sequence[Tensor], like: Tensor) -> Tensor:
        """The gradient of this rank's rows, summed over the kernel calls of all ranks.

        like: the rows.
        """
        sent_rows = _cat(
            [
                gradients[s.call_index][s.start : s.start + s.length]
                for segments_of_source in self.incoming
                for s in segments_of_source
            ],
            like,
        )
        label = "gradients of keys and values of attention, backward"
        received_rows = all_to_all(self.cut, sent_rows, _row_counts(self.incoming), _row_counts(self.outgoing), label)
        total = like.new_zeros(like.shape, dtype=torch.promote_types(like.dtype, torch.float32))
        segments = [s for segments_of_rank in self.outgoing for s in segments_of_rank]
        for s, part in zip(segments, received_rows.split([s.length for s in segments]), strict=True):
            total[s.row : s.row + s.length] += part
        return total.to(like.dtype)


def _row_counts(segments: Sequence[Sequence[_Segment]]) -> list[int]:
    """Number of rows, by rank."""
    return [sum(s.length for s in rank_segments) for rank_segments in segments]


def _cat(parts: Sequence[Tensor], like: Tensor) -> Tensor:
    return torch.cat([like[:0], *parts])


def cached_exchange(cut: Cut, reach: tuple[float, float]) -> KeyExchange:
    """The exchange for these reaches, made once for all layers of a pack."""
    if reach not in cut.exchanges:
        cut.exchanges[reach] = KeyExchange(cut, *reach)
    exchange: KeyExchange = cut.exchanges[reach]
    return exchange


class _FetchKeyValues(torch.autograd.Function):
    """Keys and values of each call, and an empty tensor.

    The empty tensor joins the graph of every rank's output, so that backward, and its exchange, runs on every rank.
    """

    @staticmethod
    def forward(ctx: Any, exchange: KeyExchange, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        ctx.exchange, ctx.shapes = exchange, (k.shape, v.shape)
        widths = [math.prod(shape[1:]) for shape in ctx.shapes]
        key_values = exchange.fetch(torch.cat([k.flatten(1), v.flatten(1)], 1))
        parts = (part for kv in key_values for part in zip(kv.split(widths, 1), (k, v), strict=True))
        return *(x.reshape(-1, *like.shape[1:]) for x, like in parts), k.new_empty(0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *incoming: Tensor) -> Any:
        *call_gradients, anchor_gradient = incoming
        pairs = zip(call_gradients[::2], call_gradients[1::2], strict=True)
        gradients = [torch.cat([dk.flatten(1), dv.flatten(1)], 1) for dk, dv in pairs]
        widths = [math.prod(shape[1:]) for shape in ctx.shapes]
        rows = anchor_gradient.new_empty(ctx.shapes[0][0], sum(widths))
        key_value_gradients = ctx.exchange.return_gradients(gradients, rows).split(widths, 1)
        return None, *(x.reshape(shape) for x, shape in zip(key_value_gradients, ctx.shapes, strict=True))


_fetch_key_values: Callable[..., Any] = _FetchKeyValues.apply
