"""Attention on e4m3 operands, one descale for each block of 128 tokens of a sequence (ROCm/rocm-libraries#6536).

The incorrect kernel indexes the descales by its own tiles of 64 keys.
"""

from itertools import pairwise

import torch

import packproof
from packproof.refs import attention, join_sequences, split_sequences

BLOCK = 128
TILE = 64  # keys of an iteration, as for heads of 64


def quantize(x, cu_seqlens):
    """x: (t, h, k). Values (t, h, k) in e4m3, and for each sequence its descales (n_blocks, h): amax / 448."""
    values, descales = [], []
    for rows in split_sequences(x.detach().float(), cu_seqlens):
        blocks = torch.split(rows, BLOCK) if len(rows) else []
        # a product, since torch divides by a number in another way on a GPU: e4m3 would round some values elsewhere
        scales = [b.abs().amax((0, 2)).clamp(min=1e-12) * (1 / 448) for b in blocks]
        values += [(b / s[:, None]).to(torch.float8_e4m3fn) for b, s in zip(blocks, scales, strict=True)]
        descales.append(torch.stack(scales) if scales else rows.new_zeros(0, x.shape[1]))
    return torch.cat([*values, torch.zeros(0, *x.shape[1:], device=x.device).to(torch.float8_e4m3fn)]), descales


def restored(x, cu_seqlens):
    values, descales = quantize(x, cu_seqlens)
    padded = torch.cat([values.float(), x.new_zeros(len(x) - len(values), *x.shape[1:]).float()])
    pieces = zip(split_sequences(padded, cu_seqlens), descales, strict=True)
    return join_sequences([p * d.repeat_interleave(BLOCK, 0)[: len(p), :, None] for p, d in pieces], x.float()).to(
        x.dtype
    )


def attend(q, k, v, *, cu_seqlens, causal=False):
    q, k, v = (restored(x, cu_seqlens) for x in (q, k, v))
    return attention(q, k, v, cu_seqlens=cu_seqlens, causal=causal)


OP = packproof.Op(
    name="attention_fp8",
    reference=attend,
    inputs={"q": "t h k", "k": "t h k", "v": "t h k"},
    outputs={"y": "t h k"},
    options={"causal": (False, True)},
    sizes=({"h": 2, "k": 8},),
    constants=frozenset("qkv"),
    causal=False,  # a scale is that of a whole block, later tokens among them
)


def _tiled(q, k, v, cu_seqlens, causal, descale_index):
    """descale_index(first key of the tile, number of the tile): the row of the sequence's descales."""
    y = torch.zeros_like(v)
    (q8, dq), (k8, dk), (v8, dv) = (quantize(x, cu_seqlens) for x in (q, k, v))
    dks, dvs = (
        torch.cat([*d, torch.zeros(0, q.shape[1], device=q.device)]) for d in (dk, dv)
    )  # all sequences in one buffer
    base = 0
    for j, (a, b) in enumerate(pairwise(cu_seqlens.tolist())):
        n = b - a
        if n:
            qs = q8[a:b].float() * dq[j].repeat_interleave(BLOCK, 0)[:n, :, None]
            scores, values = [], []
            for tile, first_key in enumerate(range(0, n, TILE)):
                i = min(base + descale_index(first_key, tile), len(dks) - 1)
                keys = slice(a + first_key, min(a + first_key + TILE, b))
                scores.append(torch.einsum("ihc,jhc->hij", qs, k8[keys].float()) * dks[i][:, None, None])
                values.append(v8[keys].float() * dvs[i][:, None])
            s = torch.cat(scores, -1) * q.shape[-1] ** -0.5
            if causal:
                s = s.masked_fill(torch.ones(n, n, dtype=torch.bool, device=q.device).triu(1), -torch.inf)
            y[a:b] = torch.einsum("hij,jhc->ihc", s.softmax(-1), torch.cat(values)).to(v.dtype)
        base += -(-n // BLOCK)
    return y


def correct(q, k, v, *, cu_seqlens, causal=False):
    return _tiled(q, k, v, cu_seqlens, causal, lambda first_key, tile: first_key // BLOCK)


def incorrect(q, k, v, *, cu_seqlens, causal=False):
    return _tiled(q, k, v, cu_seqlens, causal, lambda first_key, tile: tile)
