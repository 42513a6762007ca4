"""Segment sums: the log-decays between all pairs of tokens (Mamba-2, Dao & Gu 2024, listing 1)."""

import torch
from torch import Tensor


def segsum(x: Tensor) -> Tensor:
    """Sums over all segments: out[..., i, j] = x[..., j + 1] + ... + x[..., i], zero on the diagonal, -inf above it.

    x: (..., t), any float dtype. Returns (..., t, t) in that dtype. Every sum is formed from its own terms alone, so
    that exp(segsum(x)) keeps its accuracy however large the terms outside the segment are.
    """
    t = x.shape[-1]
    inside = torch.ones(t, t, dtype=torch.bool, device=x.device).tril(-1)
    terms = x[..., None].expand(*x.shape, t).masked_fill(~inside, 0)  # [..., i, j]: x_i where i > j
    return _lower(terms.cumsum(-2))


def segsum_unstable(x: Tensor) -> Tensor:
    """The same by differences of one cumulative sum: cheaper, but it loses the digits that the two sums have in common.

    The absolute error is that of the sums, about t * u * max|cumsum|, and exp makes it a relative error of the decay.
    With an infinite term it is NaN. It is here to show the difference; packproof never computes with it.
    """
    sums = x.cumsum(-1)
    return _lower(sums[..., :, None] - sums[..., None, :])


def _lower(sums: Tensor) -> Tensor:
    t = sums.shape[-1]
    return sums.masked_fill(torch.ones(t, t, dtype=torch.bool, device=sums.device).triu(1), -torch.inf)
