"""Attention by tiles, as kernels compute it, and bugs in which tiles a block of queries goes over, and which it masks.

A block of queries goes over the tiles of keys from the first to the last that any of them sees; those that all of them
see whole need no mask and come first.
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, einsum

from packproof.properties.cases.layouts import DEFAULT_CHUNK
from packproof.properties.declarations.promises import Promises

BUGS = (
    "a query that sees nothing of a tile",
    "the first tile that the second query sees",
    "a tile of which the last query does not see the first key is not masked",
    "a tile of which the first query does not see the last key is not masked",
)
PROMISES = Promises(compute="fp32", chunk=DEFAULT_CHUNK)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sinks: Tensor | None = None,
    *,
    cu_seqlens: Tensor,
    cu_seqlens_k: Tensor | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softmax_scale: float | None = None,
    softcap: float = 0.0,
    return_lse: bool = False,
    bug: str = "",
    size: int = DEFAULT_CHUNK,
) -> Any:
    """Op `attention` in fp32 (fp64 for fp64), with the named bug."""
    acc = torch.promote_types(q.dtype, torch.float32)
    scale = q.shape[2] ** -0.5 if softmax_scale is None else softmax_scale
    sinks = None if sinks is None else sinks.to(acc)  # once: its gradient is summed before it is rounded
    key_offsets = (cu_seqlens if cu_seqlens_k is None else cu_seqlens_k).tolist()
    found_y, found_lse = [q.new_zeros(0, q.shape[1], v.shape[2])], [torch.zeros(0, q.shape[1], dtype=acc)]
    for (start, end), keys in zip(pairwise(cu_seqlens.tolist()), pairwise(key_offsets), strict=True):
        k_, v_ = (x[slice(*keys)].to(acc).repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
        for first in range(start, end, size):
            queries = q[first : min(first + size, end)].to(acc) * scale
            place = torch.arange(first - end, first - end + len(queries)) + len(k_)
            left, right = window_size[0], 0 if causal else window_size[1]
            low = (place - left if left >= 0 else place * 0).clamp(0, len(k_))
            high = (place + right + 1 if right >= 0 else place * 0 + len(k_)).clamp(0, len(k_))
            y, lse = block(queries, k_, v_, sinks, low, high, softcap, bug, size)
            found_y.append(y.to(q.dtype))
            found_lse.append(lse)
    slack = len(q) - int(cu_seqlens[-1])
    y, lse = (torch.cat([*found, found[0].new_zeros(slack, *found[0].shape[1:])]) for found in (found_y, found_lse))
    return (y, lse) if return_lse else y


def block(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sinks: Tensor | None,
    low: Tensor,
    high: Tensor,
    softcap: float,
    bug: str,
    size: int,
) -> tuple[Tensor, Tensor]:
    """The values and logarithms of queries that see the keys from low to before high."""
    top = q.new_full(q.shape[:2], -torch.inf) if sinks is None else sinks.expand(q.shape[:2])
    total, acc = (top > -torch.inf).to(q), q.new_zeros(*q.shape[:2], v.shape[2])
    for key, masked in tiles(low, high, bug, size):
        s = einsum("ihk,jhk->ihj", q, k[key : key + size])
        s = softcap * torch.tanh(s / softcap) if softcap else s
        if masked:
            j = key + torch.arange(s.shape[2])
            s = torch.where(((j >= low[:, None]) & (j < high[:, None]))[:, None], s, -torch.inf)
        new = torch.maximum(top, s.amax(2))
        shown = new if bug == BUGS[0] else torch.where(new > -torch.inf, new, 0)
        weights, fade = torch.exp(s - shown[..., None]), torch.exp(top - shown)
        total, acc = (
            total * fade + weights.sum(2),
            acc * fade[..., None] + einsum("ihj,jhv->ihv", weights, v[key : key + size]),
        )
        top = new
    sees = total > 0
    safe = torch.where(sees, total, 1)
    return torch.where(sees[..., None], acc / safe[..., None], 0), torch.where(sees, top + safe.log(), -torch.inf)


def tiles(low: Tensor, high: Tensor, bug: str, size: int) -> Iterator[tuple[int, bool]]:
    """Where each tile begins, and whether it is masked."""
    end = int(high[-1])
    begin = (int(low[0]) + (bug == BUGS[1])) // size * size
    whole = min(-(((bug == BUGS[2]) - int(low[-1])) // size) * size, end)
    whole_end = max((int(high[0]) + (bug == BUGS[3])) // size * size, whole)
    yield from ((key, False) for key in range(whole, whole_end, size))
    yield from ((key, True) for key in (*range(begin, whole, size), *range(whole_end, end, size)))


def planted(bug: str) -> Callable[..., Any]:
    """The kernel with this bug, "" for the correct one."""
    return partial(attention, bug=bug)
