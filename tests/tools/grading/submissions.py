"""Submissions of a causal convolution: a correct one, and one for each way of being wrong."""

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from packproof.refs import causal_conv1d

_LARGE = 400  # tokens: no case of a check on a CPU that is not past a threshold has so many
_answers: dict[tuple[int, torch.Size], Tensor] = {}


def right(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, cu_seqlens: Tensor, activation: Any = None
) -> Tensor:
    """Each sequence by itself, in one call of torch."""
    d, w = weight.shape
    offsets = cu_seqlens.tolist()
    parts = []
    for start, end in pairwise(offsets):
        if end > start:
            rows = functional.pad(x[start:end].T[None], (w - 1, 0))
            part = functional.conv1d(rows, weight[:, None], bias, groups=d)[0].T
            parts.append(functional.silu(part) if activation == "silu" else part)
    return torch.cat([*parts, torch.zeros_like(x[offsets[-1] :])])


def leaky(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, cu_seqlens: Tensor, activation: Any = None
) -> Tensor:
    """The whole pack at once."""
    d, w = weight.shape
    rows = functional.pad(x.T[None], (w - 1, 0))
    y = functional.conv1d(rows, weight[:, None], bias, groups=d)[0].T
    return functional.silu(y) if activation == "silu" else y


def borrowed(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, cu_seqlens: Tensor, activation: Any = None
) -> Tensor:
    """The reference computes it."""
    return causal_conv1d(x, weight, bias, cu_seqlens=cu_seqlens, activation=activation)


def stale(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, cu_seqlens: Tensor, activation: Any = None
) -> Tensor:
    """Correct, but a large pack at the same address has the answer of the first call there."""
    if len(x) < _LARGE:
        return right(x, weight, bias, cu_seqlens=cu_seqlens, activation=activation)
    key = x.data_ptr(), x.shape
    fresh = right(x, weight, bias, cu_seqlens=cu_seqlens, activation=activation)
    if key not in _answers:
        _answers.clear()
        _answers[key] = fresh.detach()
    return _answers[key] + (fresh - fresh.detach())  # gradients are those of this call
