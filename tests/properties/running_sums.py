"""simple_gla whose decays are differences of a running sum over the sequence: correct for gates of some strength."""

from itertools import pairwise

import torch
from torch import Tensor

import packproof


@packproof.kernel(op="simple_gla", promises=packproof.Promises(compute="fp32", cumsum=True))
def running_sums(q, k, v, g, *, cu_seqlens):
    return _attend(q, k, v, g, cu_seqlens)


@packproof.kernel(op="simple_gla", promises=packproof.Promises(compute="fp32", cumsum=True))
def limited_sums(q, k, v, g, *, cu_seqlens):
    return _attend(q, k, v, g.clamp(min=-110), cu_seqlens)


def _attend(q: Tensor, k: Tensor, v: Tensor, g: Tensor, cu_seqlens: Tensor) -> Tensor:
    heads = v.shape[1] // k.shape[1]
    ys = []
    for start, end in pairwise(cu_seqlens.tolist()):
        q_j, k_j = (x[start:end].repeat_interleave(heads, 1) for x in (q, k))
        sums = g[start:end].cumsum(0).mT
        earlier = torch.ones(end - start, end - start, dtype=torch.bool).tril()
        L = (sums[:, :, None] - sums[:, None]).masked_fill(~earlier, -torch.inf).exp()
        ys.append(torch.einsum("hij, ihc, jhc, jhp -> ihp", L, q_j, k_j, v[start:end]))
    rest = v.new_zeros(len(v) - int(cu_seqlens[-1]), *v.shape[1:])
    return torch.cat([*(y * q.shape[-1] ** -0.5 for y in ys), rest])
