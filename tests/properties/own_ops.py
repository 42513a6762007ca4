"""Ops as users declare them, without `absolute`: a reference, a correct kernel, and two that are wrong, for each."""

# mypy: allow-untyped-defs, allow-incomplete-defs

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import packproof
from packproof.refs import join_sequences, seq_idx_from_cu_seqlens, split_sequences


def _pooled(pool: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    """The reference of a pooling: a row for each sequence, zeros for one without tokens."""

    def reference(x: Tensor, *, cu_seqlens: Tensor) -> Tensor:
        rows = [pool(piece) if len(piece) else piece.sum(0) for piece in split_sequences(x, cu_seqlens)]
        return torch.stack(rows) if rows else x[:0]

    return reference


def _mapped(f: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    """The reference of what has a row for each token."""
    return lambda x, *, cu_seqlens: join_sequences(map(f, split_sequences(x, cu_seqlens)), x)


def _op(name: str, reference: Callable[..., Tensor], output: str, **options: Any) -> packproof.Op:
    sizes = ({"d": 3}, {"d": 5})
    return packproof.Op(name, reference, {"x": "t d"}, {"y": output}, sizes=sizes, causal=False, **options)


MEAN = _op("segment_mean", _pooled(lambda x: x.mean(0)), "s d")
SOFTMAX = _op("segment_softmax", _mapped(lambda x: x.softmax(0)), "t d")
CUMSUM = _op("segment_cumsum", _mapped(lambda x: x.cumsum(0)), "t d")
LOGSUMEXP = _op("segment_logsumexp", _pooled(lambda x: x.logsumexp(0)), "s d")
MAX = _op("segment_max", _pooled(lambda x: x.amax(0)), "s d", draws={"x": "distinct"})


class Rows:
    """A pack as kernels see it: fp32 rows, zero in slack, and the sequence of each; slack is sequence s."""

    def __init__(self, x: Tensor, cu_seqlens: Tensor) -> None:
        self.dtype, self.s = x.dtype, len(cu_seqlens) - 1
        ids = seq_idx_from_cu_seqlens(cu_seqlens, len(x)).long()
        self.inside = (ids >= 0)[:, None]
        self.ids = torch.where(ids < 0, self.s, ids)
        self.x = torch.where(self.inside, x, 0).float()
        self.lengths = cu_seqlens.diff().to(torch.float32)[:, None]

    def sums(self, x: Tensor) -> Tensor:
        return x.new_zeros(self.s + 1, x.shape[1]).index_add(0, self.ids, x)

    def largest(self, x: Tensor) -> Tensor:
        index = self.ids[:, None].expand_as(x)
        return x.new_full((self.s + 1, x.shape[1]), -torch.inf).scatter_reduce(0, index, x, "amax")

    def per_token(self, y: Tensor) -> Tensor:
        return torch.where(self.inside, y, 0).to(self.dtype)

    def per_sequence(self, y: Tensor) -> Tensor:
        return torch.where(self.lengths > 0, y[: self.s], 0).to(self.dtype)


def mean(x, *, cu_seqlens):
    rows = Rows(x, cu_seqlens)
    return rows.per_sequence(rows.sums(rows.x)[:-1] / rows.lengths.clamp(min=1))


def mean_by_the_longest(x, *, cu_seqlens):
    rows = Rows(x, cu_seqlens)
    return (
        rows.per_sequence(rows.sums(rows.x)[:-1] / rows.lengths.amax(0, keepdim=True).clamp(min=1)) if rows.s else x[:0]
    )


def mean_takes_the_next_token(x, *, cu_seqlens):
    rows = Rows(x, cu_seqlens)
    rows.ids = torch.cat([rows.ids[:1], rows.ids[:-1]])
    return rows.per_sequence(rows.sums(rows.x)[:-1] / rows.lengths.clamp(min=1))


def _softmax(rows: Rows, top: Tensor) -> Tensor:
    e = torch.where(rows.inside, (rows.x - top).exp(), 0)
    return rows.per_token(e / rows.sums(e)[rows.ids].clamp(min=1e-30))


def softmax(x, *, cu_seqlens):
    rows = Rows(x, cu_seqlens)
    return _softmax(rows, rows.largest(rows.x.detach())[rows.ids])


def softmax_unshifted(x, *, cu_seqlens):
    rows = Rows(x, cu_seqlens)
    return _softmax(rows, torch.zeros_like(rows.x))


def softmax_of_the_pack(x, *, cu_seqlens):
    rows = Rows(x, cu_seqlens)
    rows.ids = torch.where(rows.ids < rows.s, 0, rows.ids)
    return _softmax(rows, rows.largest(rows.x.detach())[rows.ids])


def _cumsum(rows: Rows, cu_seqlens: Tensor, late: int = 0) -> Tensor:
    n = len(rows.x)
    starts = torch.cat([cu_seqlens.long(), cu_seqlens[-1:].long()])[rows.ids] + late
    place = torch.arange(n, device=cu_seqlens.device)
    below = (place[:, None] >= place) & (place >= starts[:, None].clamp(max=n))
    return rows.per_token(below.float() @ rows.x)


def cumsum(x, *, cu_seqlens):
    return _cumsum(Rows(x, cu_seqlens), cu_seqlens)


def cumsum_of_the_pack(x, *, cu_seqlens):
    rows = Rows(x, cu_seqlens)
    return rows.per_token(rows.x.cumsum(0))


def cumsum_loses_the_first(x, *, cu_seqlens):
    return _cumsum(Rows(x, cu_seqlens), cu_seqlens, late=1)


def _logsumexp(rows: Rows, top: Tensor) -> Tensor:
    e = torch.where(rows.inside, (rows.x - top[rows.ids]).exp(), 0)
    return rows.per_sequence((rows.sums(e).clamp(min=1e-30).log() + torch.where(top.isfinite(), top, 0))[:-1])


def logsumexp(x, *, cu_seqlens):
    rows = Rows(x, cu_seqlens)
    return _logsumexp(rows, rows.largest(rows.x.detach()))


def logsumexp_follows_the_maximum(x, *, cu_seqlens):
    rows = Rows(x, cu_seqlens)
    return _logsumexp(rows, rows.largest(rows.x)) + 1e-3 * logsumexp(x, cu_seqlens=cu_seqlens)


def logsumexp_counts_slack(x, *, cu_seqlens):
    rows = Rows(x, cu_seqlens)
    top = rows.largest(rows.x.detach())
    rows.ids = torch.where(rows.ids == rows.s, max(rows.s - 1, 0), rows.ids)
    rows.inside = torch.ones_like(rows.inside)
    return _logsumexp(rows, top)


def segment_max(x, *, cu_seqlens):
    rows = Rows(x, cu_seqlens)
    return rows.per_sequence(torch.where(rows.largest(rows.x).isfinite(), rows.largest(rows.x), 0)[:-1])


def max_with_the_next(x, *, cu_seqlens):
    rows = Rows(x, cu_seqlens)
    rows.ids = torch.cat([rows.ids[:1], rows.ids[:-1]])
    return rows.per_sequence(torch.where(rows.largest(rows.x).isfinite(), rows.largest(rows.x), 0)[:-1])


def max_spreads_its_gradient(x, *, cu_seqlens):
    rows = Rows(x, cu_seqlens)
    top = torch.where(rows.largest(rows.x).isfinite(), rows.largest(rows.x), 0).detach()[:-1]
    average = rows.sums(rows.x)[:-1] / rows.lengths.clamp(min=1)
    return rows.per_sequence(top + average - average.detach())


KERNELS: dict[str, tuple[packproof.Op, Any, tuple[Any, Any]]] = {
    "mean": (MEAN, mean, (mean_by_the_longest, mean_takes_the_next_token)),
    "softmax": (SOFTMAX, softmax, (softmax_unshifted, softmax_of_the_pack)),
    "cumsum": (CUMSUM, cumsum, (cumsum_of_the_pack, cumsum_loses_the_first)),
    "logsumexp": (LOGSUMEXP, logsumexp, (logsumexp_follows_the_maximum, logsumexp_counts_slack)),
    "max": (MAX, segment_max, (max_with_the_next, max_spreads_its_gradient)),
}
