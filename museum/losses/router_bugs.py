"""Bugs in losses of routers over packs: whose tokens are counted, and how often."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from packproof import refs
from packproof.base.errors import copy_signature_of
from packproof.museum.losses.router_forms import choices, counted, probabilities
from packproof.museum.losses.vocabulary import sum_by_sequence
from packproof.museum.losses.vocabulary_forms import split

RING = 4


@copy_signature_of(refs.router_balance_loss_sequences)
def pack_as_one_sequence(logits: Tensor, mask: Tensor | None, cu_seqlens: Tensor, top: int, scores: str) -> Tensor:
    """A pack has no batch axis: the router takes it for one sequence, and each has its loss."""
    x, counts = counted(logits, mask, cu_seqlens)
    n, experts = counts.sum().clamp(min=1), x.shape[1]
    load, p = (counts @ rows / n for rows in (choices(x, top, "scattered"), probabilities(x, scores, "scattered")))
    return experts / top * (load * p).sum() * (sum_by_sequence(counts, cu_seqlens) > 0)


@copy_signature_of(refs.router_balance_loss_sequences)
def load_not_divided_by_the_choices(top: int, **others: Any) -> Tensor:
    """The load of the experts adds up to the number of choices, not to 1: the loss is that many times as large."""
    return top * refs.router_balance_loss_sequences(top=top, **others)


@copy_signature_of(refs.router_z_loss)
def tokens_of_padding_count(**arguments: Any) -> Tensor:
    """The router has no mask: uncounted tokens are in the mean."""
    return refs.router_z_loss(**{**arguments, "mask": None})


@copy_signature_of(refs.router_balance_loss_pack)
def padding_trimmed_at_the_end(
    logits: Tensor, mask: Tensor | None, cu_seqlens: Tensor, load: Tensor, scores: str
) -> Tensor:
    """Each sequence was padded to a multiple of 4 rows, and rows are cut off at the end of the pack: padding remains,
    and tokens of later sequences are lost.
    """
    x, counts = counted(logits, mask, cu_seqlens)
    padded = [pad(part, (0, 0, 0, -len(part) % RING)) for part in split(x, cu_seqlens)]
    rows = torch.cat([x[:0], *padded])[: len(x)]
    p = torch.where(counts[:, None] > 0, probabilities(rows, scores, "scattered"), 0)
    total: Tensor = x.shape[1] * (p @ load.to(p.dtype)).sum() / counts.sum().clamp(min=1)
    return total
