"""Correct losses of policies, each in three forms: other algebra, other orders of sums, backward passes by hand.

- `vectorised`: over the whole pack, as a maximum of two products; sums by index.
- `by_sequence`: one response after another; a response with a negative advantage is clipped from below alone.
- `own_backward`: a backward pass by hand, which computes the ratio again.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from packproof import refs
from packproof.base.errors import copy_signature_of
from packproof.museum.losses.vocabulary import sum_by_sequence
from packproof.museum.losses.vocabulary_forms import kernel_in_form, split

FORMS = ("vectorised", "by_sequence", "own_backward")


class _ClippedSurrogate(torch.autograd.Function):
    """-min(r A, clip(r) A) of tokens, of log r. The backward pass can be differentiated again."""

    @staticmethod
    def forward(ctx: Any, log_ratio: Tensor, advantages: Tensor, low: float, high: float) -> Tensor:
        ctx.save_for_backward(log_ratio, advantages)
        ctx.bounds = 1 - low, 1 + high
        return -by_sign(log_ratio.exp(), advantages, low, high)

    @staticmethod
    def backward(ctx: Any, *dy: Tensor) -> tuple[Tensor | None, ...]:
        (log_ratio, advantages), (low, high) = ctx.saved_tensors, ctx.bounds
        ratio = log_ratio.exp()
        is_clipped = torch.where(advantages < 0, ratio < low, ratio > high)
        return torch.where(is_clipped, 0, -dy[0] * advantages * ratio), None, None, None


class _MinusLogSigmoid(torch.autograd.Function):
    """-log σ(x). The backward pass can be differentiated again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return (-x).clamp(min=0) + (-x.abs()).exp().log1p()

    @staticmethod
    def backward(ctx: Any, *dy: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        gradient: Tensor = -dy[0] / (1 + x.exp())
        return gradient


def by_sign(ratio: Tensor, advantages: Tensor, low: float, high: float) -> Tensor:
    """min(r A, clip(r) A): a positive advantage is clipped from above alone, a negative one from below."""
    return advantages * torch.where(advantages < 0, ratio.clamp(min=1 - low), ratio.clamp(max=1 + high))


def _surrogate(form: str, log_ratio: Tensor, advantages: Tensor, low: float, high: float) -> Tensor:
    if form == "own_backward":
        loss: Tensor = _ClippedSurrogate.apply(log_ratio, advantages, low, high)  # type: ignore[no-untyped-call]
        return loss
    ratio = log_ratio.exp()
    if form == "by_sequence":
        return -by_sign(ratio, advantages, low, high)
    return torch.maximum(-advantages * ratio, -advantages * ratio.clamp(1 - low, 1 + high))


class Responses:
    """The tokens of a call without slack, in fp32 or fp64, 0 where they do not count."""

    def __init__(self, logprobs: Tensor, other: Tensor, mask: Tensor, cu_seqlens: Tensor) -> None:
        n, wide = int(cu_seqlens[-1]), torch.promote_types(logprobs.dtype, torch.float32)
        self.cu_seqlens, self.counts = cu_seqlens, mask[:n] != 0
        self.seq_idx = refs.seq_idx_from_cu_seqlens(cu_seqlens, n).long()
        self.logprobs = logprobs[:n].to(wide)
        self.gain = torch.where(self.counts, self.logprobs - other[:n].to(wide), 0)
        self.lengths = sum_by_sequence(self.counts.to(wide), cu_seqlens)

    def mean_gain(self) -> Tensor:
        """For each token, the mean of its response."""
        means = sum_by_sequence(self.gain, self.cu_seqlens) / self.lengths.clamp(min=1)
        return means[self.seq_idx]

    def divergence(self, form: str, ref_logprobs: Tensor) -> Tensor:
        distance = ref_logprobs[: len(self.gain)].to(self.gain.dtype) - self.logprobs
        distance = torch.where(self.counts, distance, 0)
        return distance.exp() - 1 - distance if form == "own_backward" else distance.expm1() - distance


def token_losses(
    form: str, responses: Responses, advantages: Tensor, ref_logprobs: Tensor | None, sequence_ratio: bool,
    clip_low: float, clip_high: float, beta: float,
) -> Tensor:  # fmt: skip
    """The loss of each token, 0 where it does not count."""
    log_ratio = responses.mean_gain() if sequence_ratio else responses.gain
    of_tokens = advantages.to(log_ratio.dtype)[responses.seq_idx]
    losses = _surrogate(form, log_ratio, of_tokens, clip_low, clip_high)
    if ref_logprobs is not None:
        losses = losses + beta * responses.divergence(form, ref_logprobs)
    return torch.where(responses.counts, losses, 0)


def _sums(form: str, losses: Tensor, cu_seqlens: Tensor) -> Tensor:
    """The sum of each response."""
    if form != "by_sequence" or len(cu_seqlens) < 2:
        return sum_by_sequence(losses, cu_seqlens)
    return torch.stack([part.sum() for part in split(losses, cu_seqlens)])


@copy_signature_of(refs.policy_loss, form="")
def policy_loss(
    form: str, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, mask: Tensor, ref_logprobs: Tensor | None,
    cu_seqlens: Tensor, **options: Any,
) -> Tensor:  # fmt: skip
    """Op `policy_loss`."""
    responses = Responses(logprobs, old_logprobs, mask, cu_seqlens)
    losses = token_losses(form, responses, advantages, ref_logprobs, **options)
    total = _sums(form, losses, cu_seqlens).sum() if form == "by_sequence" else losses.sum()
    return total / responses.lengths.sum().clamp(min=1)


@copy_signature_of(refs.policy_loss_sequences, form="")
def policy_loss_sequences(
    form: str, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, mask: Tensor, ref_logprobs: Tensor | None,
    cu_seqlens: Tensor, length_norm: bool, **options: Any,
) -> Tensor:  # fmt: skip
    """Op `policy_loss_sequences`; in one form the weight of each token comes before the sum."""
    responses = Responses(logprobs, old_logprobs, mask, cu_seqlens)
    losses = token_losses(form, responses, advantages, ref_logprobs, **options)
    lengths = responses.lengths.clamp(min=1) if length_norm else torch.ones_like(responses.lengths)
    n = (responses.lengths > 0).sum().clamp(min=1)
    if form == "vectorised":
        return (losses / (lengths * n)[responses.seq_idx]).sum()
    return (_sums(form, losses, cu_seqlens) / lengths).sum() / n


@copy_signature_of(refs.dpo_loss, form="")
def dpo_loss(
    form: str, logprobs: Tensor, ref_logprobs: Tensor, mask: Tensor, chosen_lengths: Tensor, cu_seqlens: Tensor,
    beta: float, label_smoothing: float,
) -> Tensor:  # fmt: skip
    """Op `dpo_loss`; in one form the responses are sequences of their own, in another one they differ by sign."""
    pairs = Responses(logprobs, ref_logprobs, mask, cu_seqlens)
    if form == "by_sequence":
        gains = [
            part[:n].sum() - part[n:].sum()
            for part, n in zip(split(pairs.gain, cu_seqlens), chosen_lengths.tolist(), strict=True)
        ]
        h = beta * (torch.stack(gains) if gains else pairs.gain[:0])
        return (1 - label_smoothing) * functional.softplus(-h) + label_smoothing * functional.softplus(h)
    if form == "own_backward":
        starts = cu_seqlens[:-1] + chosen_lengths.to(cu_seqlens.dtype)
        of_responses = torch.stack([cu_seqlens[:-1], starts], 1).flatten()
        sums = sum_by_sequence(pairs.gain, torch.cat([of_responses, cu_seqlens[-1:]])).view(-1, 2)
        h = beta * (sums[:, 0] - sums[:, 1])
        losses: list[Tensor] = [_MinusLogSigmoid.apply(x) for x in (h, -h)]  # type: ignore[no-untyped-call]
        return (1 - label_smoothing) * losses[0] + label_smoothing * losses[1]
    row = torch.arange(len(pairs.gain), device=mask.device)
    is_chosen = row - cu_seqlens.long()[:-1][pairs.seq_idx] < chosen_lengths.long()[pairs.seq_idx]
    h = sum_by_sequence(beta * torch.where(is_chosen, pairs.gain, -pairs.gain), cu_seqlens)
    return -(1 - label_smoothing) * functional.logsigmoid(h) - label_smoothing * functional.logsigmoid(-h)


OPS: dict[str, Callable[..., Any]] = {f.__name__: f for f in (policy_loss, policy_loss_sequences, dpo_loss)}


def __getattr__(name: str) -> Callable[..., Any]:
    """The kernel of an op in a form, such as `policy_loss_vectorised`."""
    return kernel_in_form(name, OPS, FORMS)
