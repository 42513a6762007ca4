"""Segment sums: the log-decays between all pairs of tokens (Mamba-2, Dao & Gu 2024, listing 1)."""

import torch
from torch import Tensor

from packproof.base.arguments import check_floats
from packproof.base.errors import ArgumentError, checked_call


@checked_call
def segsum(x: Tensor) -> Tensor:
    """Sums over all segments: out[..., i, j] = x[..., j + 1] + ... + x[..., i], zero on the diagonal, -inf above it.

    x: (..., t), any float dtype. Returns (..., t, t) in that dtype. Every sum is formed from its own terms alone:
    exp(segsum(x)) stays accurate for arbitrarily large terms outside the segment. Raises ArgumentError.

    >>> import torch
    >>> from packproof.refs import segsum
    >>> segsum(torch.tensor([1.0, 2.0, 3.0]))
    tensor([[0., -inf, -inf],
            [2., 0., -inf],
            [5., 3., 0.]])
    """
    _check("segsum", x)
    t = x.shape[-1]
    is_term = torch.ones(t, t, dtype=torch.bool, device=x.device).tril(-1)
    terms = x[..., None].expand(*x.shape, t).masked_fill(~is_term, 0)  # [..., i, j]: x_i where i > j
    return _mask_upper_triangle(terms.cumsum(-2))


@checked_call
def segsum_unstable(x: Tensor) -> Tensor:
    """`segsum` by differences of one cumulative sum: cheaper, but it loses the common digits of the two sums.

    The absolute error is about t * u * max|cumsum|; exp makes it a relative error of the decay. An infinite term gives
    NaN. Exists to show the difference; packproof never computes with it.

    >>> import torch
    >>> from packproof.refs import segsum, segsum_unstable
    >>> segsum_unstable(torch.tensor([1e8, 1.0, 1.0]))[2, 1], segsum(torch.tensor([1e8, 1.0, 1.0]))[2, 1]
    (tensor(0.), tensor(1.))
    """
    _check("segsum_unstable", x)
    sums = x.cumsum(-1)
    return _mask_upper_triangle(sums[..., :, None] - sums[..., None, :])


def _mask_upper_triangle(sums: Tensor) -> Tensor:
    t = sums.shape[-1]
    return sums.masked_fill(torch.ones(t, t, dtype=torch.bool, device=sums.device).triu(1), -torch.inf)


def _check(function: str, x: Tensor) -> None:
    check_floats(function, "x", x)
    if not x.ndim:
        raise ArgumentError(f"{function}: x has no axis but (..., t) was expected")
