"""Offsets of a rank, made from its slice of position_ids (PrimeIntellect-ai/prime-rl#2392).

The incorrect kernels take the first local position for an offset. Two of the four convolve by `refs.causal_conv1d`,
whose argument check raises; the others by plain torch, as in the report's traceback.
"""

from itertools import pairwise

import torch
import torch.distributed as dist
from torch.nn import functional

import packproof
from packproof import refs
from packproof.parallel import ContiguousShares, simulated


def _positions(cu_seqlens, n):
    rows = torch.arange(n, device=cu_seqlens.device)
    seq_idx = torch.bucketize(rows, cu_seqlens.long(), right=True) - 1
    return rows - cu_seqlens[seq_idx.clamp(max=len(cu_seqlens) - 2)].long()


def _gathered(x, group):
    """The rows of all ranks."""
    counts = [torch.empty(1, dtype=torch.long, device=x.device) for _ in range(group.size())]
    dist.all_gather(counts, torch.tensor([len(x)], device=x.device), group=group)
    longest = int(torch.cat(counts).max())
    parts = [x.new_empty(longest, x.shape[1]) for _ in counts]
    dist.all_gather(parts, torch.cat([x, x.new_zeros(longest - len(x), x.shape[1])]).contiguous(), group=group)
    return torch.cat([p[: int(c)] for p, c in zip(parts, counts, strict=True)])


def _adapted(convolve, local_offsets):
    """local_offsets(local positions): cu_seqlens of the rank."""

    def run(group, *, x, weight, cu_seqlens, cuts):
        rank, reach = group.rank(), weight.shape[1] - 1
        n = int(cu_seqlens[-1])
        start, end = (0, *cuts, n)[rank : rank + 2]
        rows = _gathered(x, group)
        positions = _positions(cu_seqlens, n)[start:end]
        y = x.new_zeros(len(x), weight.shape[0])
        if end > start:
            offsets = local_offsets(positions)
            states = x.new_zeros(len(offsets) - 1, x.shape[1], reach)
            known = min(int(positions[0]), reach)
            if known:
                states[0, :, reach - known :] = rows[start - known : start].T
            y[: end - start] = convolve(x[: end - start], weight, cu_seqlens=offsets, initial_states=states)
        return y

    def called(x, weight, *, cu_seqlens):
        """What the kernel is called with."""

    shares = ContiguousShares("causal_conv1d", run)
    return packproof.kernel(op="causal_conv1d", gradients=False)(simulated(shares, called))


def _in_torch(x, weight, *, cu_seqlens, initial_states):
    ys = []
    for j, (a, b) in enumerate(pairwise(cu_seqlens.tolist())):
        rows = torch.cat([initial_states[j], x[a:b].T], 1)[None]  # (1, d, w - 1 + n)
        ys.append(functional.conv1d(rows, weight[:, None], groups=weight.shape[0])[0].T)
    return torch.cat(ys)


def _from_the_first_row(positions):
    starts = (positions == 0).nonzero()[:, 0]
    starts = starts[starts > 0]
    return torch.cat([starts.new_zeros(1), starts, starts.new_tensor([len(positions)])]).int()


def _from_the_first_position(positions):
    starts = (positions == 0).nonzero()[:, 0]
    starts = starts[starts > 0]
    return torch.cat([positions[:1], positions[0] + starts, positions[:1] + len(positions)]).int()


correct = _adapted(refs.causal_conv1d, _from_the_first_row)
incorrect = _adapted(refs.causal_conv1d, _from_the_first_position)
correct_in_torch = _adapted(_in_torch, _from_the_first_row)
incorrect_in_torch = _adapted(_in_torch, _from_the_first_position)
