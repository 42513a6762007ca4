"""Bugs in losses over packed sequences: labels of another sequence, and reductions over the wrong tokens."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from packproof import refs
from packproof.base.errors import copy_signature_of
from packproof.museum.custom_backward import Outputs, graft

CHUNK = 32


def next_labels(labels: Tensor, cu_seqlens: Tensor, ignore_index: int) -> Tensor:
    """The label of the next token of the same sequence; ignore_index for the last one."""
    rolled = labels.roll(-1)
    is_last = torch.isin(torch.arange(1, len(labels) + 1, device=labels.device), cu_seqlens.long())
    return torch.where(is_last, ignore_index, rolled)


def cut(logits: Tensor, labels: Tensor, cu_seqlens: Tensor) -> tuple[Tensor, Tensor]:
    """Without slack, in fp32 or fp64; labels as int64."""
    n = int(cu_seqlens[-1])
    return logits[:n].to(torch.promote_types(logits.dtype, torch.float32)), labels[:n].long()


def logits_and_targets(
    logits: Tensor, labels: Tensor, cu_seqlens: Tensor, shift: bool, ignore_index: int
) -> tuple[Tensor, Tensor]:
    """As `cut`, with the labels shifted inside each sequence if requested."""
    x, y = cut(logits, labels, cu_seqlens)
    return x, next_labels(y, cu_seqlens, ignore_index) if shift else y


def token_losses(x: Tensor, y: Tensor, ignore_index: int, label_smoothing: float = 0.0, z_loss: float = 0.0) -> Tensor:
    """The cross entropy of each token, 0 where it does not count."""
    loss = functional.cross_entropy(x, y, ignore_index=ignore_index, label_smoothing=label_smoothing, reduction="none")
    return loss + z_loss * torch.where(y == ignore_index, 0, x.logsumexp(-1).square())


def sum_by_sequence(x: Tensor, cu_seqlens: Tensor) -> Tensor:
    seq_idx = refs.seq_idx_from_cu_seqlens(cu_seqlens, len(x)).long()
    return x.new_zeros(len(cu_seqlens) - 1).index_add(0, seq_idx, x)


@copy_signature_of(refs.cross_entropy_sum)
def labels_of_the_next_sequence(
    logits: Tensor, labels: Tensor, cu_seqlens: Tensor, shift: bool, ignore_index: int, **terms: Any
) -> Tensor:
    """The labels are shifted over the whole row: the last token of a sequence predicts the first of the next one."""
    x, y = cut(logits, labels, cu_seqlens)
    if shift:
        y = functional.pad(y[1:], (0, min(len(y), 1)), value=ignore_index)
    return token_losses(x, y, ignore_index, **terms).sum()


@copy_signature_of(refs.token_logprobs)
def ids_rolled_over_the_pack(
    logits: Tensor, labels: Tensor, cu_seqlens: Tensor, shift: bool, ignore_index: int
) -> Tensor:
    """The ids of the pack are rolled: a last token has the label of the next sequence, the very last of the first."""
    x, y = cut(logits, labels, cu_seqlens)
    logprobs = -token_losses(x, y.roll(-1) if shift else y, ignore_index)
    return functional.pad(logprobs, (0, len(logits) - len(x)))


@copy_signature_of(refs.cross_entropy)
def mean_of_means(
    logits: Tensor, labels: Tensor, cu_seqlens: Tensor, shift: bool, ignore_index: int, **terms: Any
) -> Tensor:
    """Each sequence is a micro-batch with a mean of its own, and the means are averaged: short ones weigh too much."""
    x, y = logits_and_targets(logits, labels, cu_seqlens, shift, ignore_index)
    counts = sum_by_sequence((y != ignore_index).to(x.dtype), cu_seqlens)
    means = sum_by_sequence(token_losses(x, y, ignore_index, **terms), cu_seqlens) / counts.clamp(min=1)
    return means.sum() / (counts > 0).sum().clamp(min=1)


@copy_signature_of(refs.cross_entropy)
def sum_of_the_means_of_chunks(
    logits: Tensor, labels: Tensor, cu_seqlens: Tensor, shift: bool, ignore_index: int, **terms: Any
) -> Tensor:
    """Chunks of 32 rows save memory, and their means are summed: the loss grows with the number of chunks."""
    x, y = logits_and_targets(logits, labels, cu_seqlens, shift, ignore_index)
    loss = x[:0].sum()
    for rows in zip(torch.split(x, CHUNK), torch.split(y, CHUNK), strict=True):
        counts = (rows[1] != ignore_index).sum().clamp(min=1)
        loss = loss + token_losses(*rows, ignore_index, **terms).sum() / counts
    return loss


@copy_signature_of(refs.cross_entropy)
def labels_counted_before_the_shift(
    logits: Tensor, labels: Tensor, cu_seqlens: Tensor, shift: bool, ignore_index: int, **terms: Any
) -> Tensor:
    """The sum is divided by the number of labels before the shift: the first of each sequence is no target."""
    x, y = cut(logits, labels, cu_seqlens)
    counts = (y != ignore_index).sum().clamp(min=1)
    y = next_labels(y, cu_seqlens, ignore_index) if shift else y
    return token_losses(x, y, ignore_index, **terms).sum() / counts


@copy_signature_of(refs.cross_entropy)
def shifted_twice(
    logits: Tensor, labels: Tensor, cu_seqlens: Tensor, shift: bool, ignore_index: int, **terms: Any
) -> Tensor:
    """The model shifts the labels, and so does the loss that it calls: a token predicts the one after the next."""
    x, y = cut(logits, labels, cu_seqlens)
    for _ in range(2 * shift):
        y = next_labels(y, cu_seqlens, ignore_index)
    return token_losses(x, y, ignore_index, **terms).sum() / (y != ignore_index).sum().clamp(min=1)


@copy_signature_of(refs.cross_entropy)
def nothing_counts(
    logits: Tensor, labels: Tensor, cu_seqlens: Tensor, shift: bool, ignore_index: int, **terms: Any
) -> Tensor:
    """The number of labels is 0 where all are those of a prompt: 0 / 0 is NaN, and it reaches every parameter."""
    x, y = logits_and_targets(logits, labels, cu_seqlens, shift, ignore_index)
    return token_losses(x, y, ignore_index, **terms).sum() / (y != ignore_index).sum()


@copy_signature_of(refs.cross_entropy)
def smoothing_of_ignored_tokens(
    logits: Tensor,
    labels: Tensor,
    cu_seqlens: Tensor,
    shift: bool,
    ignore_index: int,
    label_smoothing: float,
    z_loss: float,
) -> Tensor:
    """The smooth part of the loss is that of all tokens, those that do not count too."""
    x, y = logits_and_targets(logits, labels, cu_seqlens, shift, ignore_index)
    sharp = token_losses(x, y, ignore_index, z_loss=z_loss / max(1 - label_smoothing, 1e-6))
    smooth = x.logsumexp(-1) - x.mean(-1)
    total = (1 - label_smoothing) * sharp + label_smoothing * smooth
    return total.sum() / (y != ignore_index).sum().clamp(min=1)


@copy_signature_of(refs.cross_entropy_sequences)
def first_incoming_gradient_for_all(cu_seqlens: Tensor, **others: Any) -> Outputs:
    """The backward pass loads one number of the incoming gradients, the first, and scales every row by it."""
    losses = refs.cross_entropy_sequences(cu_seqlens=cu_seqlens, **others)
    return graft(losses, _GradientOfTheFirst.apply(losses)) if len(losses) else losses  # type: ignore[no-untyped-call]


class _GradientOfTheFirst(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, losses: Tensor) -> Tensor:
        return losses.clone()

    @staticmethod
    def backward(ctx: Any, *incoming: Tensor) -> Tensor:
        return incoming[0][:1].expand_as(incoming[0]).clone()


@copy_signature_of(refs.multi_token_cross_entropy)
def rolled_by_padded_offsets(logits: Tensor, labels: Tensor, cu_seqlens: Tensor, ignore_index: int) -> Tensor:
    """The labels are rolled sequence by sequence, at the offsets of a layout whose sequences have even lengths."""
    lengths = cu_seqlens.long().diff()
    padded = functional.pad(((lengths + 1) // 2 * 2).cumsum(0), (1, 0))
    return _heads(logits, labels, cu_seqlens, padded, ignore_index)


@copy_signature_of(refs.multi_token_cross_entropy)
def rolled_over_the_pack(logits: Tensor, labels: Tensor, cu_seqlens: Tensor, ignore_index: int) -> Tensor:
    """The labels of each head are rolled over the pack, as over one sequence."""
    return _heads(logits, labels, cu_seqlens, cu_seqlens[[0, -1]].long(), ignore_index)


@copy_signature_of(refs.multi_token_cross_entropy)
def zeros_at_boundaries(logits: Tensor, labels: Tensor, cu_seqlens: Tensor, ignore_index: int) -> Tensor:
    """The function that rolls ids rolls the labels too, and fills the last place with 0: token 0 is trained there."""
    return _heads(logits, labels, cu_seqlens, cu_seqlens.long(), ignore_index, fill=0)


def _heads(
    logits: Tensor, labels: Tensor, cu_seqlens: Tensor, offsets: Tensor, ignore_index: int, fill: int | None = None
) -> Tensor:
    """The summed cross entropy of each head. The labels are rolled once more for each, at these offsets."""
    x, y = cut(logits, labels, cu_seqlens)
    is_last = torch.isin(torch.arange(1, len(y) + 1, device=y.device), offsets)
    sums = []
    for head in x.unbind(1):
        y = torch.where(is_last, ignore_index if fill is None else fill, y.roll(-1))
        sums.append(token_losses(head, y, ignore_index).sum())
    return torch.stack(sums)
