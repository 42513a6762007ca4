"""Attention over keys in splits, as decode kernels compute it: 1 correct, 5 with bugs of keys beside their queries.

The keys of each sequence are divided into SPLITS parts; each has its own softmax, and the partial results are merged.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, einsum
from torch.nn.functional import pad

from packproof.museum.variants import kernel_lookup

SPLITS = 4
SPLIT = 32  # keys of a split, where the number of splits follows from the keys

_splits_of_first_call: dict[tuple[Any, ...], int] = {}


class _SelectedRows(torch.autograd.Function):
    """The selected rows of y in a new buffer; the others are never written."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, selected: Tensor) -> Tensor:
        ctx.save_for_backward(selected)
        out = torch.empty_like(y)
        out[selected] = y[selected]
        return out

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor, None]:
        (selected,) = ctx.saved_tensors
        return torch.where(selected[:, None, None], d, 0), None


class _SavedForQueries(torch.autograd.Function):
    """The sinks; what their gradient needs is saved only if queries, keys or values need one."""

    @staticmethod
    def forward(ctx: Any, sinks: Tensor, is_saved: bool) -> Tensor:
        if is_saved:
            ctx.factor = 1
        return sinks.clone()

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor, None]:
        return ctx.factor * d, None


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sinks: Tensor | None = None,
    *,
    cu_seqlens: Tensor,
    cu_seqlens_k: Tensor | None = None,
    bug: str = "",
) -> Tensor:
    """Op `attention` without masks, in fp32 (fp64 for fp64), with the named bug."""
    wide = torch.promote_types(q.dtype, torch.float32)
    offsets_k = cu_seqlens if cu_seqlens_k is None else cu_seqlens_k
    if sinks is not None and bug == "sinks_saved_for_queries":
        sinks = _SavedForQueries.apply(sinks, q.requires_grad or k.requires_grad or v.requires_grad)  # type: ignore[no-untyped-call]
    ys = [q.new_zeros(0, q.shape[1], v.shape[2], dtype=wide)]
    for (a, b), (c, d) in zip(pairwise(cu_seqlens.tolist()), pairwise(offsets_k.tolist()), strict=True):
        keys, values = (x[c:d].to(wide).repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
        queries = q[a:b].to(wide) * max(q.shape[2], 1) ** -0.5
        n_splits, size = SPLITS, -(-len(keys) // SPLITS)
        if bug == "splits_of_the_first_call":
            shape, n_splits = (*q.shape[1:], v.shape[2], len(cu_seqlens)), -(-int(offsets_k.diff().amax()) // SPLIT)
            n_splits, size = _splits_of_first_call.setdefault(shape, max(n_splits, 1)), SPLIT
        ys.append(
            _attend(queries, list(_split(keys, n_splits, size)), list(_split(values, n_splits, size)), sinks, bug)
        )
    y = pad(torch.cat(ys), (0, 0, 0, 0, 0, len(q) - int(cu_seqlens[-1]))).to(q.dtype)
    if bug == "rows_without_keys_unwritten":
        has_keys = (offsets_k.diff() > 0).repeat_interleave(cu_seqlens.diff().long())
        written: Tensor = _SelectedRows.apply(y, pad(has_keys, (0, len(q) - len(has_keys)), value=True))  # type: ignore[no-untyped-call]
        return written
    return y


def _split(x: Tensor, count: int, size: int) -> Iterator[Tensor]:
    """The rows in `count` parts of `size`; the last ones may be shorter or empty."""
    return (x[i * size : (i + 1) * size] for i in range(count))


def _attend(queries: Tensor, keys: list[Tensor], values: list[Tensor], sinks: Tensor | None, bug: str) -> Tensor:
    """(i, h, v) of the queries (i, h, k) of one sequence."""
    shape = queries.shape[:2]
    y, lse = queries.new_zeros(*shape, values[0].shape[2]), queries.new_full(shape, -torch.inf)
    if sinks is not None:
        lse = sinks.to(queries).expand(shape)
    is_guarded = bug not in ("empty_states_merged", "divided_by_no_keys")
    for split_keys, split_values in zip(keys, values, strict=True):
        if len(split_keys) or bug == "empty_states_merged":
            part = _partial_result(queries, split_keys, split_values)
            y, lse = _merge((y, lse), part, is_guarded=is_guarded)
    if bug == "divided_by_no_keys" and sinks is None and not any(map(len, keys)):
        return y / y.new_zeros(())
    return y


def _partial_result(queries: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """The result of a split, and the logarithm of its sum; 0 and -inf of no keys."""
    if not len(keys):
        return queries.new_zeros(*queries.shape[:2], values.shape[2]), queries.new_full(queries.shape[:2], -torch.inf)
    scores = einsum("ihk,jhk->ihj", queries, keys)
    return einsum("ihj,jhv->ihv", scores.softmax(-1), values), scores.logsumexp(-1)


def _merge(state: tuple[Tensor, Tensor], part: tuple[Tensor, Tensor], *, is_guarded: bool) -> tuple[Tensor, Tensor]:
    """Two results, weighted by their sums. Unguarded, -inf - -inf is NaN."""
    (y, lse), (part_y, part_lse) = state, part
    top = torch.maximum(lse, part_lse).detach()
    shift = torch.where(top == -torch.inf, 0, top) if is_guarded else top
    weight, part_weight = (lse - shift).exp(), (part_lse - shift).exp()
    total = weight + part_weight
    divisor = torch.where(total > 0, total, 1) if is_guarded else total
    merged = (y * weight[..., None] + part_y * part_weight[..., None]) / divisor[..., None]
    return merged, shift + total.log()


__getattr__ = kernel_lookup(
    attention,
    {"correct": {}},
    (
        "divided_by_no_keys",
        "empty_states_merged",
        "rows_without_keys_unwritten",
        "splits_of_the_first_call",
        "sinks_saved_for_queries",
    ),
)
