"""Context-parallel implementations as a user might write them, and bugs to plant in them.

Simple ones, in which every rank tells the others all that it has: packproof's own are in `parallel/`.
"""

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup, all_gather, all_reduce

from packproof import refs
from packproof.parallel import ContiguousShares, simulated
from packproof.parallel.simulated import Arguments, Outputs

BUGS = {
    "halo from the wrong side": "causal_conv1d",
    "halo across a boundary on the cut": "causal_conv1d",
    "weight gradients not reduced": "causal_conv1d",
    "integer division of cu_seqlens": "causal_conv1d",
    "state not reset": "selective_scan",
    "state reset on every rank": "selective_scan",
    "decay of the rank missing": "selective_scan",
    "gradient from later ranks on the last rank only": "selective_scan",
    "empty rank skipped": "selective_scan",
    "final state from the wrong rank": "selective_scan",
    "positions that restart": "rope",
    "keys of another rank": "attention",
    "keys of the rank before only": "attention",
    "queries that restart": "attention",
    "gradients of keys not summed": "attention",
    "gradients of keys to the wrong rank": "attention",
}


class _AllGather(torch.autograd.Function):
    """(ranks, *x.shape); its gradient is the sum over ranks of what each has of this rank's part."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup, bug: str) -> Tensor:
        ctx.group, ctx.bug = group, bug
        parts = [torch.empty_like(x) for _ in range(group.size())]
        all_gather(parts, x.contiguous(), group=group)
        return torch.stack(parts)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        dy, rank = dy.contiguous(), ctx.group.rank()
        if ctx.bug != "gradients of keys not summed":
            all_reduce(dy, group=ctx.group)
        last = rank == ctx.group.size() - 1
        kept = last or ctx.bug != "gradient from later ranks on the last rank only"
        return dy[rank - (ctx.bug == "gradients of keys to the wrong rank")] * kept, None, None


class _Reduced(torch.autograd.Function):
    """A parameter as it is; its gradient is the sum over ranks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, dx: Tensor) -> Any:
        dx = dx.contiguous()
        all_reduce(dx, group=ctx.group)
        return dx, None


def _here(group: ProcessGroup, cu_seqlens: Tensor, cuts: tuple[int, ...], bug: str) -> tuple[Tensor, int]:
    """Offsets on this rank of all documents, most of them without tokens, and the token at which it begins."""
    start, end = (0, *cuts)[group.rank()], (*cuts, int(cu_seqlens[-1]))[group.rank()]
    if bug == "integer division of cu_seqlens":
        return (cu_seqlens // group.size()).clamp(max=end - start), start
    return cu_seqlens.clamp(start, end) - start, start


def _taking_part(y: Tensor, *tensors: Tensor) -> Tensor:
    """y, so that its backward pass reaches the exchanges that made these tensors on every rank, also where they add
    nothing to y: the others wait there."""
    return y + 0 * sum(x.sum() for x in tensors)


def conv(
    bug: str, group: ProcessGroup, *, x: Tensor, weight: Tensor, cu_seqlens: Tensor, cuts: tuple[int, ...]
) -> Tensor:
    if bug != "weight gradients not reduced":
        weight = _Reduced.apply(weight, group)
    offsets, start = _here(group, cu_seqlens, cuts, bug)
    reach, rank = weight.shape[1] - 1, group.rank()
    states = x.new_zeros(len(cu_seqlens) - 1, x.shape[1], reach)
    padded = torch.cat([x.new_zeros(reach, x.shape[1]), x[: int(offsets[-1])]])
    tails = _AllGather.apply(padded[len(padded) - reach :], group, bug)
    bounds = [0, *cuts, int(cu_seqlens[-1])]
    filled = [tails[r, max(reach - (bounds[r + 1] - bounds[r]), 0) :] for r in range(group.size())]
    before = torch.cat([x.new_zeros(reach, x.shape[1]), *filled[:rank]])
    if bug == "halo from the wrong side":
        before = torch.cat([x.new_zeros(reach, x.shape[1]), *filled[rank + 1 :]])
    halo = before[len(before) - reach :]
    for j, (a, b) in enumerate(zip(cu_seqlens[:-1].tolist(), cu_seqlens[1:].tolist(), strict=True)):
        known = start - a if bug != "halo across a boundary on the cut" else reach
        if a <= start < b and known > 0:
            inside = torch.arange(reach) >= reach - known
            states = torch.cat([states[:j], torch.where(inside[:, None], halo, 0).T[None], states[j + 1 :]])
    y = refs.causal_conv1d(x, weight, cu_seqlens=offsets, initial_states=states)
    return _taking_part(y, tails, weight)


def scan(
    bug: str, group: ProcessGroup, *, u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, cu_seqlens: Tensor,
    cuts: tuple[int, ...], return_final_states: bool = False,
) -> Tensor | Outputs:  # fmt: skip
    dtype, wide = u.dtype, torch.promote_types(u.dtype, torch.float32)
    u, delta, B, C = (x.to(wide) for x in (u, delta, B, C))  # the gradients of two passes are added before they round
    offsets, _ = _here(group, cu_seqlens, cuts, bug)
    _, own = refs.selective_scan(u, delta, A, B, C, cu_seqlens=offsets, return_final_states=True)
    steps = [delta[a:b].to(A.dtype).sum(0) for a, b in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)]
    decays = [(A * step[:, None]).exp() for step in steps]
    decay = torch.stack(decays) if decays else torch.zeros_like(own)
    if bug == "empty rank skipped" and not len(u):
        decay = decay * 0
    states, factors = _AllGather.apply(torch.stack([own, decay]), group, bug).unbind(1)
    h = torch.zeros_like(own)
    for rank in range(group.rank()):
        h = (h if bug == "decay of the rank missing" else factors[rank] * h) + states[rank]
    if bug == "state reset on every rank":
        h = 0 * h
    if bug == "state not reset":
        h = h.sum(0, keepdim=True).expand_as(h)
    y, final = refs.selective_scan(u, delta, A, B, C, cu_seqlens=offsets, initial_states=h, return_final_states=True)
    y = _taking_part(y.to(dtype), states)
    return (y, final) if return_final_states else y


def rope(
    bug: str, group: ProcessGroup, *, x: Tensor, cos: Tensor, sin: Tensor, cu_seqlens: Tensor, cuts: tuple[int, ...],
    interleaved: bool = False,
) -> Tensor:  # fmt: skip
    offsets, start = _here(group, cu_seqlens, cuts, bug)
    positions = (start - cu_seqlens[:-1]).clamp(min=0)
    positions = torch.where(offsets.diff() > 0, positions, 0)
    if bug == "positions that restart":
        positions = positions * 0
    return refs.rope(x, cos, sin, cu_seqlens=offsets, offsets=positions, interleaved=interleaved)


def attention(
    bug: str, group: ProcessGroup, *, q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, cuts: tuple[int, ...],
    causal: bool = False,
) -> Tensor:  # fmt: skip
    offsets, start = _here(group, cu_seqlens, cuts, bug)
    bounds, rank, dtype = [0, *cuts, int(cu_seqlens[-1])], group.rank(), q.dtype
    most, kv = max(b - a for a, b in pairwise(bounds)), torch.cat([k, v], -1)[: bounds[rank + 1] - start]
    wide = torch.promote_types(dtype, torch.float32)  # the gradients of the ranks are added before they round
    padded = torch.cat([kv, kv.new_zeros(most - len(kv), *kv.shape[1:])]).to(wide)
    every = [part[: b - a] for part, (a, b) in zip(_AllGather.apply(padded, group, bug), pairwise(bounds), strict=True)]
    whole = torch.cat(every[::-1] if bug == "keys of another rank" else every)
    starts, ends = cu_seqlens[:-1].clone(), cu_seqlens[1:].clone()
    if causal:
        ends = ends.clamp(max=bounds[rank + 1])
    if bug == "keys of the rank before only":
        starts = starts.clamp(min=min(bounds[max(rank - 1, 0)], int(cu_seqlens[-1])))
    if bug == "queries that restart":
        starts = starts.clamp(min=start)
    counts = torch.where(offsets.diff() > 0, (ends - starts).clamp(min=0), 0)
    rows = [torch.arange(int(a), int(a + n)) for a, n in zip(starts, counts, strict=True)]
    keys, values = whole[torch.cat([torch.arange(0), *rows])].split([k.shape[2], v.shape[2]], -1)
    keys_at = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    y = refs.attention(q.to(wide), keys, values, cu_seqlens=offsets, cu_seqlens_k=keys_at, causal=causal)
    return _taking_part(y.to(dtype), *every)


class _FromTheFirstRank(ContiguousShares):
    def gather(self, results: list[Outputs], arguments: Arguments, cuts: tuple[int, ...]) -> Outputs:
        y, *states = super().gather(results, arguments, cuts)
        return (y, results[0][1]) if states else (y,)


def _conv(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    return refs.causal_conv1d(x, weight, cu_seqlens=cu_seqlens)


def _scan(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, *, cu_seqlens: Tensor, return_final_states: bool = False
) -> Tensor | tuple[Tensor, Tensor]:
    return refs.selective_scan(u, delta, A, B, C, cu_seqlens=cu_seqlens, return_final_states=return_final_states)


def _rope(x: Tensor, cos: Tensor, sin: Tensor, *, cu_seqlens: Tensor, interleaved: bool = False) -> Tensor:
    return refs.rope(x, cos, sin, cu_seqlens=cu_seqlens, interleaved=interleaved)


def _attention(q: Tensor, k: Tensor, v: Tensor, *, cu_seqlens: Tensor, causal: bool = False) -> Tensor:
    return refs.attention(q, k, v, cu_seqlens=cu_seqlens, causal=causal)


_OWN: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "causal_conv1d": (conv, _conv),
    "selective_scan": (scan, _scan),
    "rope": (rope, _rope),
    "attention": (attention, _attention),
}


def own(op: str, bug: str = "") -> Callable[..., Any]:
    """The implementation of an op on simulated ranks, with one bug or none."""
    run, like = _OWN[op]
    shares = _FromTheFirstRank if bug == "final state from the wrong rank" else ContiguousShares
    return simulated(shares(op, partial(run, bug), reduces=op == "causal_conv1d"), like=like)
