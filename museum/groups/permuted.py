"""Dispatch and combine by a sort of pairs: 3 correct, 5 with bugs of permutations, dropped pairs and their gradients.

A pair is a token and one of its experts. Sorted by expert, pairs are the rows that experts compute.
"""

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from packproof.museum.variants import kernel_lookup


def _ranks(experts: Tensor, n_experts: int) -> Tensor:
    """How many earlier pairs of a sequence have the same expert (n k,)."""
    one_hot = torch.nn.functional.one_hot(experts.flatten(), n_experts)
    before: Tensor = (one_hot.cumsum(0) - one_hot).gather(1, experts.flatten()[:, None])[:, 0]
    return before


def _is_sent(experts: Tensor, offsets: list[int], n_experts: int, capacity: int | None, bug: str) -> Tensor:
    """Whether each pair is sent to its expert (n k,)."""
    if capacity is None:
        return torch.ones(experts.numel(), dtype=torch.bool)
    limit = capacity + 1 if bug == "one_pair_too_many" else capacity
    parts = [_ranks(experts[a:b], n_experts) < limit for a, b in pairwise(offsets)]
    return torch.cat([torch.ones(0, dtype=torch.bool), *parts])


class _Dispatch(torch.autograd.Function):
    """Rows of pairs from tokens, with its gradient by hand."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, pairs: Tensor, top: int, bug: str) -> Tensor:
        ctx.save_for_backward(pairs)
        ctx.shape, ctx.top, ctx.bug = x.shape, top, bug
        return x[pairs // top]

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None, None]:
        (pairs,) = ctx.saved_tensors
        tokens, dx = pairs // ctx.top, dy.new_zeros(ctx.shape)
        if ctx.bug == "one_gradient_of_a_token":  # the last row of a token overwrites the others
            dx[tokens] = dy
        else:
            dx.index_add_(0, tokens, dy)
        if ctx.bug == "gradient_of_dropped_unwritten":
            dropped = torch.ones(len(dx), dtype=torch.bool).index_fill(0, tokens, False)
            dx[dropped] = torch.empty_like(dx[dropped])
        return dx, None, None, None


def _sorted_pairs(experts: Tensor, sent: Tensor, n_experts: int, bug: str) -> Tensor:
    """The pairs that are sent, by expert. Dropped ones come after them, or before them with a bug of signed numbers."""
    of_pairs = torch.where(sent, experts.flatten(), -1 if bug == "dropped_pairs_first" else n_experts)
    order = of_pairs.argsort(stable=True)
    if bug == "permutation_for_its_inverse":
        order = order.argsort(stable=True)
    return order[: int(sent.sum())]


def dispatch_combine(
    x: Tensor,
    logits: Tensor,
    gain: Tensor,
    *,
    cu_seqlens: Tensor,
    top: int = 2,
    normalize: bool = False,
    capacity: int | None = None,
    bug: str = "",
    form: str = "sorted",
) -> Tensor:
    """Op `dispatch_combine` in fp32 (fp64 for fp64), with the named bug."""
    wide, offsets = torch.promote_types(x.dtype, torch.float32), cu_seqlens.tolist()
    rows, gains = x[: offsets[-1]].to(wide), gain.to(wide)
    p = logits[: offsets[-1]].to(wide).softmax(-1)
    experts = p.detach().topk(top, -1).indices
    weights = p.gather(-1, experts)
    if normalize:
        weights = weights / weights.sum(-1, keepdim=True)
    sent = _is_sent(experts, offsets, len(gain), capacity, bug)
    y = _FORMS[form](rows, experts, weights, sent, gains, bug)
    return torch.cat([y, rows.new_zeros(len(x) - len(y), x.shape[1])]).to(x.dtype)


def _by_sort(x: Tensor, experts: Tensor, weights: Tensor, sent: Tensor, gain: Tensor, bug: str) -> Tensor:
    pairs = _sorted_pairs(experts, sent, len(gain), bug)
    counts = torch.bincount(experts.flatten()[sent], minlength=len(gain))
    expert_of_row = torch.arange(len(gain)).repeat_interleave(counts)
    rows = _Dispatch.apply(x, pairs, experts.shape[1], bug) * gain[expert_of_row]  # type: ignore[no-untyped-call]
    parts = rows * weights.flatten()[pairs, None]
    return torch.zeros_like(x).index_add(0, pairs // experts.shape[1], parts)


def _dense(x: Tensor, experts: Tensor, weights: Tensor, sent: Tensor, gain: Tensor, _bug: str) -> Tensor:
    """The weights of all experts, times their gains: 0 for those that do not take a token."""
    share = x.new_zeros(len(x), len(gain)).scatter_add(-1, experts, weights * sent.view_as(weights))
    return x * (share @ gain)


def _by_choice(x: Tensor, experts: Tensor, weights: Tensor, sent: Tensor, gain: Tensor, _bug: str) -> Tensor:
    """Choice after choice of all tokens."""
    y = torch.zeros_like(x)
    for i in range(experts.shape[1]):
        part = x * gain[experts[:, i]] * weights[:, i, None]
        y = y + torch.where(sent.view_as(weights)[:, i, None], part, 0)
    return y


_FORMS = {"sorted": _by_sort, "dense": _dense, "choices": _by_choice}

__getattr__ = kernel_lookup(
    dispatch_combine,
    {"correct": {}, "dense": {"form": "dense"}, "by_choice": {"form": "choices"}},
    (
        *("permutation_for_its_inverse", "dropped_pairs_first", "one_pair_too_many", "one_gradient_of_a_token"),
        "gradient_of_dropped_unwritten",
    ),
)
