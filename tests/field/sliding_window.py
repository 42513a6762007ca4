"""The sliding window of continuous batching (huggingface/transformers#41228).

The incorrect kernel cuts the window on the other side of the diagonal.
"""

from itertools import pairwise

import torch

import packproof


def _mask(n, m, window, dtype, device, *, cuts_below):
    """(n, m), added to the scores; window: tokens that a query sees, itself among them; 0 for no limit."""
    low = torch.full((n, m), torch.finfo(dtype).min, dtype=dtype, device=device)
    mask = torch.triu(low, diagonal=m - n + 1)
    if window > 0:
        mask = mask + torch.tril(low, m - n - window) if cuts_below else torch.tril(mask, m - n + window)
    return mask.clamp(min=torch.finfo(dtype).min)


def _sees_a_key(n, m, window, device):
    i, j = torch.arange(n, device=device)[:, None] + m - n, torch.arange(m, device=device)
    return ((j <= i) & ((j > i - window) if window > 0 else True)).any(-1)


def _attention(q, k, v, cu_q, cu_k, window, *, cuts_below):
    group, wide = q.shape[1] // k.shape[1], torch.promote_types(q.dtype, torch.float32)
    ys = [q.new_zeros(0, q.shape[1], v.shape[2])]
    for (a, b), (c, d) in zip(pairwise(cu_q.tolist()), pairwise(cu_k.tolist()), strict=True):
        n, m = b - a, d - c
        ks, vs = (x[c:d].repeat_interleave(group, 1).to(wide) for x in (k, v))
        s = torch.einsum("ihc,jhc->hij", q[a:b].to(wide), ks) * q.shape[-1] ** -0.5
        p = (s + _mask(n, m, window, wide, q.device, cuts_below=cuts_below)).softmax(-1) * _sees_a_key(
            n, m, window, q.device
        )[:, None]
        ys.append(torch.einsum("hij,jhc->ihc", p, vs).to(q.dtype))
    return torch.cat(ys)


@packproof.kernel(op="attention", slack=False, domain=["causal == True"])
def correct(q, k, v, *, cu_seqlens, cu_seqlens_k=None, causal=True, window_size=(-1, -1)):
    cu_k = cu_seqlens if cu_seqlens_k is None else cu_seqlens_k
    return _attention(q, k, v, cu_seqlens, cu_k, window_size[0] + 1, cuts_below=True)


@packproof.kernel(op="attention", slack=False, domain=["causal == True"])
def incorrect(q, k, v, *, cu_seqlens, cu_seqlens_k=None, causal=True, window_size=(-1, -1)):
    cu_k = cu_seqlens if cu_seqlens_k is None else cu_seqlens_k
    return _attention(q, k, v, cu_seqlens, cu_k, window_size[0] + 1, cuts_below=False)
