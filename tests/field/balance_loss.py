"""Sequence-wise balance loss of a router (NVIDIA/Megatron-LM#6108).

In THD the router sees one row of tokens: the incorrect kernel takes the pack for one sequence.
"""

from dataclasses import replace

import torch

import packproof
from packproof.refs import split_sequences

TOP = 2


def balance(logits):
    """logits: (t, e) of one sequence. Returns e times the sum over experts of their share of choices times their mean
    probability."""
    if len(logits) == 0:
        return logits.sum()
    p = logits.softmax(-1)
    experts = logits.detach().topk(TOP, -1).indices
    f = p.new_zeros(p.shape[1]).scatter_add(0, experts.flatten(), p.new_ones(experts.numel())) / (TOP * len(p))
    return p.shape[1] * (f * p.mean(0)).sum()


def balance_losses(logits, *, cu_seqlens):
    """logits: (t, e). Returns (s,)."""
    losses = [balance(p) for p in split_sequences(logits, cu_seqlens)]
    return torch.stack(losses) if losses else logits.new_zeros(0)


def balance_loss(logits, *, cu_seqlens):
    """logits: (t, e). Returns (): what a trainer adds to its loss."""
    return balance_losses(logits, cu_seqlens=cu_seqlens).sum()


OP = packproof.Op(
    name="balance_losses",
    reference=balance_losses,
    inputs={"logits": "t e"},
    outputs={"loss": "s"},
    sizes=({"e": 4},),
    draws={"logits": "distinct"},
    causal=False,
)
SUM = replace(OP, name="balance_loss", reference=balance_loss, outputs={"loss": ""}, reductions={"loss": "sum"})


def correct(logits, *, cu_seqlens):
    n, s, e = int(cu_seqlens[-1]), len(cu_seqlens) - 1, logits.shape[1]
    x = logits[:n].to(torch.promote_types(logits.dtype, torch.float32))
    seq_idx = torch.repeat_interleave(torch.arange(s, device=x.device), cu_seqlens.diff().long())
    p = x.softmax(-1)
    experts = x.detach().topk(TOP, -1).indices
    where = seq_idx[:, None].expand_as(experts), experts
    f = p.new_zeros(s, e).index_put(where, p.new_ones(experts.shape), accumulate=True)
    P = p.new_zeros(s, e).index_add(0, seq_idx, p)
    lengths = cu_seqlens.diff().clamp(min=1).to(p.dtype)[:, None]
    return (e * (f / (TOP * lengths) * P / lengths).sum(-1)).to(logits.dtype)


def incorrect(logits, *, cu_seqlens):
    x = logits[: int(cu_seqlens[-1])].to(torch.promote_types(logits.dtype, torch.float32))
    return (balance(x) * (cu_seqlens.diff() > 0)).to(logits.dtype)


def correct_sum(logits, *, cu_seqlens):
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return correct(wide, cu_seqlens=cu_seqlens).sum().to(logits.dtype)


def incorrect_sum(logits, *, cu_seqlens):
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return incorrect(wide, cu_seqlens=cu_seqlens).sum().to(logits.dtype)
