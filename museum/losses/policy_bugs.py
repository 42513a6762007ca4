"""Bugs in losses of policies over packed responses: what belongs to one response is taken from the whole pack."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from packproof import refs
from packproof.base.errors import copy_signature_of
from packproof.museum.losses.policy_forms import Responses, by_sign, policy_loss_sequences, token_losses
from packproof.museum.losses.vocabulary import sum_by_sequence


@copy_signature_of(refs.policy_loss_sequences)
def pack_as_one_response(cu_seqlens: Tensor, mask: Tensor, length_norm: bool, **others: Any) -> Tensor:
    """The mean over sequences is one over rows, and a pack is one row: a mean over its tokens."""
    responses = Responses(others["logprobs"], others["old_logprobs"], mask, cu_seqlens)
    total = token_losses("vectorised", responses, **_options(others)).sum()
    return total / responses.lengths.sum().clamp(min=1) if length_norm else total


@copy_signature_of(refs.policy_loss_sequences)
def empty_responses_in_the_mean(cu_seqlens: Tensor, mask: Tensor, **others: Any) -> Tensor:
    """The mean over sequences is divided by all rows of the batch, also empty ones."""
    loss = policy_loss_sequences(form="vectorised", mask=mask, cu_seqlens=cu_seqlens, **others)  # type: ignore[call-arg]
    counts = sum_by_sequence(mask[: int(cu_seqlens[-1])], cu_seqlens) > 0
    return loss * counts.sum() / max(len(counts), 1)


@copy_signature_of(refs.policy_loss)
def ratio_of_the_pack(
    logprobs: Tensor, old_logprobs: Tensor, mask: Tensor, cu_seqlens: Tensor, sequence_ratio: bool, **others: Any
) -> Tensor:
    """With `sequence_ratio` the mean of log r is that of the row, which is the pack: all responses have one ratio."""
    responses = Responses(logprobs, old_logprobs, mask, cu_seqlens)
    n = responses.lengths.sum().clamp(min=1)
    if sequence_ratio:
        responses.gain = (responses.gain.sum() / n).expand(len(responses.gain))
    options = {**_options(others), "sequence_ratio": False}
    return token_losses("vectorised", responses, **options).sum() / n


@copy_signature_of(refs.policy_loss)
def masked_after_the_exponential(
    logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, mask: Tensor, ref_logprobs: Tensor | None,
    cu_seqlens: Tensor, sequence_ratio: bool, clip_low: float, clip_high: float, beta: float,
) -> Tensor:  # fmt: skip
    """The loss is multiplied by the mask: the ratio of a token that does not count may be Inf, and 0 * Inf is NaN."""
    responses = Responses(logprobs, old_logprobs, mask, cu_seqlens)
    counts = responses.counts.to(responses.gain.dtype)
    gain = (
        responses.mean_gain() if sequence_ratio else responses.logprobs - old_logprobs[: len(counts)].to(counts.dtype)
    )
    of_tokens = advantages.to(gain.dtype)[responses.seq_idx]
    losses = -by_sign(gain.exp(), of_tokens, clip_low, clip_high)
    if ref_logprobs is not None:
        losses = losses + beta * responses.divergence("vectorised", ref_logprobs)
    return (losses * counts).sum() / counts.sum().clamp(min=1)


@copy_signature_of(refs.policy_loss)
def one_token_of_each_masked_response(
    logprobs: Tensor, old_logprobs: Tensor, mask: Tensor, cu_seqlens: Tensor, **others: Any
) -> Tensor:
    """The number of tokens is clamped from below response by response: one of which none counts adds 1 to it."""
    responses = Responses(logprobs, old_logprobs, mask, cu_seqlens)
    total = token_losses("vectorised", responses, **_options(others)).sum()
    return total / responses.lengths.clamp(min=1).sum().clamp(min=1)


@copy_signature_of(refs.dpo_loss)
def rejected_after_the_longest_chosen(
    logprobs: Tensor, ref_logprobs: Tensor, mask: Tensor, chosen_lengths: Tensor, cu_seqlens: Tensor,
    beta: float, label_smoothing: float,
) -> Tensor:  # fmt: skip
    """The chosen responses were padded to the longest one: its length is where each rejected response begins."""
    pairs = Responses(logprobs, ref_logprobs, mask, cu_seqlens)
    row = torch.arange(len(pairs.gain), device=mask.device)
    longest = chosen_lengths.long().amax() if len(chosen_lengths) else 0
    is_chosen = row - cu_seqlens.long()[:-1][pairs.seq_idx] < longest
    h = sum_by_sequence(beta * torch.where(is_chosen, pairs.gain, -pairs.gain), cu_seqlens)
    return -(1 - label_smoothing) * functional.logsigmoid(h) - label_smoothing * functional.logsigmoid(-h)


def _options(arguments: dict[str, Any]) -> dict[str, Any]:
    return {name: x for name, x in arguments.items() if name not in ("logprobs", "old_logprobs")}
