"""Deliberately wrong kernels, one for each property: none may pass the property that it is named after."""

from typing import Any

import torch
from torch import Tensor

from packproof import refs

_calls = 0
_offsets: dict[int, list[int]] = {}


def reference(x: Tensor, cos: Tensor, sin: Tensor, **options: Any) -> Tensor:
    """One percent off in one channel of the last token."""
    y = refs.rope(x, cos, sin, **options)
    return torch.cat([y[:-1], y[-1:] * 1.01]) if len(y) else y


def packing(x: Tensor, cos: Tensor, sin: Tensor, *, cu_seqlens: Tensor, **options: Any) -> Tensor:
    """Positions count from the start of the pack."""
    whole = torch.tensor([0, int(cu_seqlens[-1])])
    longer = [torch.cat([t] * 40)[: max(len(x), 1)] for t in (cos, sin)]
    return refs.rope(x, *longer, cu_seqlens=whole, **options)


def isolation(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """The mean of the pack, a sum that nobody asked for, is added with a weight that rounds away unless it is large."""
    return refs.causal_conv1d(x, weight, cu_seqlens=cu_seqlens) + 0 * x.sum()


def causality(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """Convolves the reversed sequence: every output sees the future."""
    return refs.causal_conv1d(x.flip(0), weight, cu_seqlens=torch.tensor([0, len(x)])).flip(0)


def permutation(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """The first sequence of the pack counts double."""
    y = refs.causal_conv1d(x, weight, cu_seqlens=cu_seqlens)
    first = int(cu_seqlens[1]) if len(cu_seqlens) > 1 else 0
    return torch.cat([y[:first] * 2, y[first:]])


def carry(
    x: Tensor, weight: Tensor, *, cu_seqlens: Tensor, initial_states: Tensor, return_final_states: bool = False
) -> Any:
    """The state that goes on is the one that came in."""
    y = refs.causal_conv1d(x, weight, cu_seqlens=cu_seqlens, initial_states=initial_states)
    return (y, initial_states.clone()) if return_final_states else y


def determinism(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """Every second call is another one."""
    global _calls  # noqa: PLW0603
    _calls += 1
    return refs.causal_conv1d(x, weight, cu_seqlens=cu_seqlens) * (1 + _calls % 2)


def determinism_stale(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """Boundaries are remembered by the tensor object, which the caller may edit in place."""
    offsets = _offsets.setdefault(id(cu_seqlens), cu_seqlens.tolist())
    if offsets[-1] > len(x) or len(offsets) != len(cu_seqlens):
        offsets = cu_seqlens.tolist()
    return refs.causal_conv1d(x, weight, cu_seqlens=torch.tensor(offsets))


def memory(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """Leaves the last row as it was allocated."""
    y = torch.empty_like(x)
    if len(x):
        y[:-1] = refs.causal_conv1d(x, weight, cu_seqlens=cu_seqlens)[:-1]
    return y


def memory_input(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """Works in its input and leaves it changed."""
    y = refs.causal_conv1d(x, weight, cu_seqlens=cu_seqlens)
    with torch.no_grad():
        x.mul_(2)
    return y


def strides(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """Takes x for contiguous, whatever its strides."""
    flat = x.as_strided(x.shape, (x.shape[1], 1))
    return refs.causal_conv1d(flat, weight, cu_seqlens=cu_seqlens)


def metadata(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """Reads the offsets as 32-bit integers, whatever they are."""
    offsets = cu_seqlens.view(torch.int32)[: len(cu_seqlens)]
    return refs.causal_conv1d(x, weight, cu_seqlens=torch.cummax(offsets.clamp(max=len(x)), 0).values)
