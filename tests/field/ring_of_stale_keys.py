"""Ring attention, forward and backward (huggingface/diffusers#14265).

Each step of the incorrect backward pass reads the keys and values saved at step 0: the rank's own.
"""

from itertools import pairwise

import torch
import torch.distributed as dist

import packproof
from packproof.parallel import ContiguousShares, simulated


def _gathered(x, sizes, group):
    longest = max(sizes)
    rows = torch.cat([x, x.new_zeros(longest - len(x), *x.shape[1:])]).contiguous()
    parts = [torch.empty_like(rows) for _ in sizes]
    dist.all_gather(parts, rows, group=group)
    return [part[:n] for part, n in zip(parts, sizes, strict=True)]


def _seen(rows, keys, seq_idx, causal):
    seen = (seq_idx[rows][:, None] == seq_idx[keys]) & (seq_idx[rows] >= 0)[:, None]
    return seen & (rows[:, None] >= keys) if causal else seen


def _folded(x, group_size):
    """(j, heads, c) summed over the query heads of each head of keys."""
    return x.unflatten(1, (-1, group_size)).sum(2)


class Ring(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, ranks, bounds, seq_idx, causal, stale):
        rank, sizes = ranks.rank(), [b - a for a, b in pairwise(bounds)]
        rows = torch.arange(bounds[rank], bounds[rank + 1], device=q.device)
        g, scale = q.shape[1] // k.shape[1], q.shape[-1] ** -0.5
        ks, vs = _gathered(k, sizes, ranks), _gathered(v, sizes, ranks)
        lse, out = q.new_full((q.shape[1], len(q)), -torch.inf), q.new_zeros(q.shape[1], len(q), v.shape[2])
        for step in range(ranks.size()):
            owner = (rank - step) % ranks.size()
            keys = torch.arange(bounds[owner], bounds[owner + 1], device=q.device)
            seen = _seen(rows, keys, seq_idx, causal)
            s = torch.einsum("ihc,jhc->hij", q, ks[owner].repeat_interleave(g, 1)) * scale
            s = torch.where(seen, s, -torch.inf)
            of_step = s.logsumexp(-1) if len(keys) else torch.full_like(lse, -torch.inf)
            p = torch.where(seen, (s - torch.where(of_step > -torch.inf, of_step, 0)[..., None]).exp(), 0)
            part = torch.einsum("hij,jhc->hic", p, vs[owner].repeat_interleave(g, 1))
            both = torch.logaddexp(lse, of_step)
            safe = torch.where(both > -torch.inf, both, 0)
            out = out * (lse - safe).exp()[..., None] + part * (of_step - safe).exp()[..., None]
            lse = both
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.call = ranks, bounds, seq_idx, causal, stale, sizes
        return out.transpose(0, 1).contiguous()

    @staticmethod
    def backward(ctx, dy):
        q, k, v, out, lse = ctx.saved_tensors
        ranks, bounds, seq_idx, causal, stale, sizes = ctx.call
        rank, g, scale = ranks.rank(), q.shape[1] // k.shape[1], q.shape[-1] ** -0.5
        rows = torch.arange(bounds[rank], bounds[rank + 1], device=q.device)
        ks, vs = _gathered(k, sizes, ranks), _gathered(v, sizes, ranks)
        dk, dv, dq = [torch.zeros_like(x) for x in ks], [torch.zeros_like(x) for x in vs], torch.zeros_like(q)
        do = dy.transpose(0, 1)
        D, safe = (do * out).sum(-1), torch.where(lse > -torch.inf, lse, 0)
        for step in range(ranks.size()):
            owner = (rank - step) % ranks.size()
            keys = torch.arange(bounds[owner], bounds[owner + 1], device=q.device)
            kk, vv = (k, v) if stale and len(k) == len(ks[owner]) else (ks[owner], vs[owner])
            kk, vv = kk.repeat_interleave(g, 1), vv.repeat_interleave(g, 1)
            s = torch.einsum("ihc,jhc->hij", q, kk) * scale
            p = torch.where(_seen(rows, keys, seq_idx, causal), (s - safe[..., None]).exp(), 0)
            ds = p * (torch.einsum("hic,jhc->hij", do, vv) - D[..., None]) * scale
            dq += torch.einsum("hij,jhc->ihc", ds, kk)
            dk[owner] += _folded(torch.einsum("hij,ihc->jhc", ds, q), g)
            dv[owner] += _folded(torch.einsum("hij,hic->jhc", p, do), g)
        summed = [torch.cat(parts).contiguous() for parts in (dk, dv)]
        for x in summed:
            dist.all_reduce(x, group=ranks)
        return dq, *(x[bounds[rank] : bounds[rank + 1]] for x in summed), None, None, None, None, None


def _adapted(*, stale):
    def run(ranks, *, q, k, v, cu_seqlens, cuts, causal=False):
        tokens = torch.tensor([len(q)], device=q.device)
        sizes = [torch.empty_like(tokens) for _ in range(ranks.size())]
        dist.all_gather(sizes, tokens, group=ranks)
        bounds = [0, *torch.cat(sizes).cumsum(0).tolist()]
        rows = torch.arange(bounds[-1], device=q.device)
        inside = rows < int(cu_seqlens[-1])
        seq_idx = torch.where(inside, torch.bucketize(rows, cu_seqlens.long(), right=True) - 1, -1)
        wide = torch.promote_types(q.dtype, torch.float32)
        return Ring.apply(q.to(wide), k.to(wide), v.to(wide), ranks, bounds, seq_idx, causal, stale).to(q.dtype)

    def called(q, k, v, *, cu_seqlens, causal=False):
        """What the kernel is called with."""

    return packproof.kernel(op="attention", slack=False)(simulated(ContiguousShares("attention", run), called))


correct = _adapted(stale=False)
incorrect = _adapted(stale=True)
