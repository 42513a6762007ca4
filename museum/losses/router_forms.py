"""Correct losses of routers, each in three forms: other orders of sums, other ways to choose the largest.

- `scattered`: over the whole pack, by topk and by index.
- `by_sequence`: one sequence after another, by sorting.
- `one_hot`: products with rows of zeros and ones; exponentials by hand, and the K-th largest as a threshold.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from packproof import refs
from packproof.base.errors import copy_signature_of
from packproof.museum.losses.vocabulary_forms import LSE, kernel_in_form, split

FORMS = ("scattered", "by_sequence", "one_hot")
_LSE = {"scattered": LSE["log_softmax"], "by_sequence": LSE["saved_lse"], "one_hot": LSE["chunked"]}


def counted(logits: Tensor, mask: Tensor | None, cu_seqlens: Tensor) -> tuple[Tensor, Tensor]:
    """The logits without slack in fp32 or fp64, and 1 for each token that counts."""
    n, wide = int(cu_seqlens[-1]), torch.promote_types(logits.dtype, torch.float32)
    x = logits[:n].to(wide)
    return x, torch.ones_like(x[:, 0]) if mask is None else mask[:n].to(wide)


def choices(x: Tensor, top: int, form: str) -> Tensor:
    """1 for each choice of a token, 0 for the other experts."""
    x = x.detach()
    if form == "by_sequence":
        chosen = x.argsort(-1, descending=True)[:, :top]
        return torch.zeros_like(x).index_put((torch.arange(len(x), device=x.device)[:, None], chosen), x.new_ones(()))
    if form == "one_hot":
        return (x >= x.sort(-1).values[:, x.shape[1] - top, None]).to(x.dtype)
    return torch.zeros_like(x).scatter_(-1, x.topk(top, -1).indices, 1.0)


def probabilities(x: Tensor, scores: str, form: str) -> Tensor:
    if scores == "sigmoid":
        s = 1 / (1 + (-x).exp()) if form == "one_hot" else x.sigmoid()
        return s * (1 / s.sum(-1, keepdim=True)) if form == "by_sequence" else s / s.sum(-1, keepdim=True)
    return x.softmax(-1) if form == "scattered" else (x - _LSE[form](x)[:, None]).exp()


@copy_signature_of(refs.router_load, form="")
def router_load(form: str, logits: Tensor, mask: Tensor | None, cu_seqlens: Tensor, top: int) -> Tensor:
    """Op `router_load`."""
    x, counts = counted(logits, mask, cu_seqlens)
    if form == "one_hot":
        return counts @ choices(x, top, form)
    return (counts[:, None] * choices(x, top, form)).sum(0)


@copy_signature_of(refs.router_balance_loss_pack, form="")
def router_balance_loss_pack(
    form: str, logits: Tensor, load: Tensor, mask: Tensor | None, cu_seqlens: Tensor, scores: str
) -> Tensor:
    """Op `router_balance_loss_pack`: f times the sum of P over tokens, or the sum over tokens of f times P."""
    x, counts = counted(logits, mask, cu_seqlens)
    p, f, n = probabilities(x, scores, form), load.to(x.dtype), counts.sum().clamp(min=1)
    if form == "one_hot":
        return x.shape[1] * torch.dot(counts / n, p @ f)
    sums = torch.where(counts[:, None] > 0, p, 0)
    parts = [sums] if form == "scattered" else split(sums, cu_seqlens)
    return x.shape[1] * (f * sum((part.sum(0) for part in parts), p[:0].sum(0)) / n).sum()


@copy_signature_of(refs.router_balance_loss_sequences, form="")
def router_balance_loss_sequences(
    form: str, logits: Tensor, mask: Tensor | None, cu_seqlens: Tensor, top: int, scores: str
) -> Tensor:
    """Op `router_balance_loss_sequences`."""
    x, counts = counted(logits, mask, cu_seqlens)
    experts, s = x.shape[1], len(cu_seqlens) - 1
    chosen, p = choices(x, top, form), probabilities(x, scores, form)
    if form == "by_sequence":
        losses = []
        for rows in split(torch.arange(len(x), device=x.device)[counts > 0], _offsets_of(counts, cu_seqlens)):
            length = max(len(rows), 1)
            losses.append(experts * (chosen[rows].sum(0) / (top * length) * (p[rows].sum(0) / length)).sum())
        return torch.stack(losses) if losses else x[:0].sum(1)
    seq_idx = refs.seq_idx_from_cu_seqlens(cu_seqlens, len(x)).long()
    if form == "one_hot":
        tokens = (seq_idx == torch.arange(s, device=x.device)[:, None]) * counts
        f, P, n = tokens @ chosen, tokens @ p, tokens.sum(1)
    else:
        f, P = (x.new_zeros(s, experts).index_add(0, seq_idx, rows * counts[:, None]) for rows in (chosen, p))
        n = x.new_zeros(s).index_add(0, seq_idx, counts)
    return experts / top * (f * P).sum(1) / n.clamp(min=1) ** 2


def _offsets_of(counts: Tensor, cu_seqlens: Tensor) -> Tensor:
    """The offsets of the tokens that count alone."""
    before = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    return before[cu_seqlens.long()].long()


@copy_signature_of(refs.router_z_loss, form="")
def router_z_loss(form: str, logits: Tensor, mask: Tensor | None, cu_seqlens: Tensor) -> Tensor:
    """Op `router_z_loss`."""
    x, counts = counted(logits, mask, cu_seqlens)
    lse, n = _LSE[form](x), counts.sum().clamp(min=1)
    if form == "one_hot":
        return torch.dot(counts, lse**2) / n
    losses = torch.where(counts > 0, lse * lse, 0)
    if form == "by_sequence":
        return sum((part.sum() / n for part in split(losses, cu_seqlens)), losses[:0].sum())
    return losses.sum() / n


OPS: dict[str, Callable[..., Any]] = {
    f.__name__: f for f in (router_load, router_balance_loss_pack, router_balance_loss_sequences, router_z_loss)
}


def __getattr__(name: str) -> Callable[..., Any]:
    """The kernel of an op in a form, such as `router_load_scattered`."""
    return kernel_in_form(name, OPS, FORMS)
