"""Losses of policies over packed responses: clipped policy gradients (PPO, GRPO and their kin), preferences (DPO).

With the log-probability ℓ of a token under the policy, ℓ_old under the policy that sampled it, ℓ_ref under a fixed one,
and the advantage A of its response, the loss of a token is

    -min(r A, clip(r, 1 - ε_low, 1 + ε_high) A) + β (exp(ℓ_ref - ℓ) - (ℓ_ref - ℓ) - 1)        r = exp(ℓ - ℓ_old)

The first term is equation 7 of PPO (Schulman et al. 2017), with two bounds as in equation 8 of DAPO (Yu et al. 2025);
the second is equation 4 of GRPO (Shao et al. 2024). With `sequence_ratio`, r is one number for a response, the
exponential of the mean of ℓ - ℓ_old over its tokens (GSPO, Zheng et al. 2025, equation 7). All compute in fp32, in fp64
for fp64 log-probabilities, and return that dtype. ℓ is what `token_logprobs` returns.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from packproof.base import signatures
from packproof.base.errors import ArgumentError, checked_call
from packproof.base.signatures import Signature
from packproof.refs.losses.checks import finite_number, tokens_in_mask
from packproof.refs.recurrence import SOFTPLUS_LINEAR, checked_arguments, sequence_slices, to_compute_dtype


@checked_call
def policy_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    ref_logprobs: Tensor | None = None,
    *,
    cu_seqlens: Tensor,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    beta: float = 0.0,
    sequence_ratio: bool = False,
) -> Tensor:
    """The mean over the counted tokens of the pack (DAPO, Yu et al. 2025, equation 8); 0 without one.

    logprobs: (t,) in fp64, fp32, bf16 or fp16.
    old_logprobs, ref_logprobs: (t,), in the dtype of logprobs or fp32. They have no gradient.
    advantages: (s,), one for each response, in the dtype of logprobs or fp32. They have no gradient.
    mask: int32 or int64 (t,), 1 for a counted token, 0 for one of a prompt.
    cu_seqlens: int32 or int64 (s + 1,).
    clip_low, clip_high: ε_low and ε_high.
    beta: β; without ref_logprobs there is no second term.

    Returns (), in fp32 or fp64. Raises ArgumentError and LayoutError.

    >>> import torch
    >>> from packproof.refs import policy_loss
    >>> old, mask = torch.zeros(5), torch.tensor([0, 1, 0, 1, 1])
    >>> policy_loss(old, old, torch.tensor([3.0, 6.0]), mask, cu_seqlens=torch.tensor([0, 2, 5]))  # (3 + 6 + 6) / 3
    tensor(-5.)
    """
    parts = _losses_of_responses(signatures.POLICY_LOSS, locals())
    count = sum(len(losses) for losses in parts)
    return sum((losses.sum() for losses in parts), _zero(logprobs)) / max(count, 1)


@checked_call
def policy_loss_sequences(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    ref_logprobs: Tensor | None = None,
    *,
    cu_seqlens: Tensor,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    beta: float = 0.0,
    sequence_ratio: bool = False,
    length_norm: bool = True,
) -> Tensor:
    """The mean over responses of the mean over their tokens (GRPO, Shao et al. 2024, equation 3).

    length_norm: False for the mean over responses of the sum over their tokens (Dr. GRPO, Liu et al. 2025).

    The other arguments are as in `policy_loss`. A response of which no token counts is left out. Returns (), in fp32
    or fp64. Raises ArgumentError and LayoutError.

    >>> import torch
    >>> from packproof.refs import policy_loss_sequences
    >>> old, mask = torch.zeros(5), torch.tensor([0, 1, 0, 1, 1])
    >>> pack = {"cu_seqlens": torch.tensor([0, 2, 5])}
    >>> policy_loss_sequences(old, old, torch.tensor([3.0, 6.0]), mask, **pack)  # (3 + 6) / 2
    tensor(-4.5000)
    >>> policy_loss_sequences(old, old, torch.tensor([3.0, 6.0]), mask, length_norm=False, **pack)  # (3 + 12) / 2
    tensor(-7.5000)
    """
    responses = [losses for losses in _losses_of_responses(signatures.POLICY_LOSS_SEQUENCES, locals()) if len(losses)]
    values = [losses.mean() if length_norm else losses.sum() for losses in responses]
    return sum(values, _zero(logprobs)) / max(len(values), 1)


@checked_call
def dpo_loss(
    logprobs: Tensor,
    ref_logprobs: Tensor,
    mask: Tensor,
    chosen_lengths: Tensor,
    *,
    cu_seqlens: Tensor,
    beta: float = 0.1,
    label_smoothing: float = 0.0,
) -> Tensor:
    """The loss of each pair of a chosen and a rejected response, which lie one after the other (DPO).

    -(1 - ε) log σ(h) - ε log σ(-h), with h = β Σ (ℓ - ℓ_ref) over the tokens of the chosen response that count, less
    that over those of the rejected one: equation 7 of Rafailov et al. 2023; ε is the share of swapped labels (Mitchell
    2023, equation 3). A sequence of this op is a pair, because the loss of a pair is none of its responses alone.

    logprobs: (t,) in fp64, fp32, bf16 or fp16.
    ref_logprobs: (t,), in the dtype of logprobs or fp32. They have no gradient.
    mask: int32 or int64 (t,), 1 for a counted token, 0 for one of a prompt.
    chosen_lengths: int32 or int64 (s,), the tokens of each pair that belong to the chosen response and its prompt.
    cu_seqlens: int32 or int64 (s + 1,), the offsets of the pairs.
    beta: β.
    label_smoothing: ε.

    Returns (s,), in fp32 or fp64. Raises ArgumentError and LayoutError.

    >>> import torch
    >>> from packproof.refs import dpo_loss
    >>> ones, pairs = torch.ones(4, dtype=torch.int32), torch.tensor([0, 4])
    >>> dpo_loss(torch.tensor([3.0, 4.0, 1.0, 1.0]), torch.zeros(4), ones, torch.tensor([2]), cu_seqlens=pairs)
    tensor([0.4741])
    """
    signature = signatures.DPO_LOSS
    checked = checked_arguments(signature, locals())
    beta, smoothing = (finite_number(signature, name, checked[name]) for name in ("beta", "label_smoothing"))
    x, reference, counts = _tokens(signature, checked, "logprobs", "ref_logprobs")
    gains = torch.where(counts, x - reference, 0)
    losses = []
    for rows, n in zip(sequence_slices(cu_seqlens), chosen_lengths.tolist(), strict=True):
        if not 0 <= n <= (length := rows.stop - rows.start):
            raise ArgumentError(
                f"dpo_loss: chosen_lengths has {n} but 0 to {length}, the tokens of the pair, was expected"
            )
        h = beta * (gains[rows][:n].sum() - gains[rows][n:].sum())
        losses.append((1 - smoothing) * _minus_log_sigmoid(h) + smoothing * _minus_log_sigmoid(-h))
    return torch.stack(losses) if losses else gains[:0]


def _tokens(signature: Signature, checked: Mapping[str, Any], *names: str) -> tuple[Tensor, Tensor, Tensor]:
    """Two inputs without slack in the dtype of the computation, and which tokens count."""
    n = int(checked["cu_seqlens"][-1])
    wide = to_compute_dtype(checked["logprobs"]).dtype
    x, other = (checked[name][:n].to(wide) for name in names)
    return x, other, tokens_in_mask(signature, checked["mask"], n)


def _losses_of_responses(signature: Signature, arguments: Mapping[str, Any]) -> list[Tensor]:
    """The losses of the tokens of each response that count."""
    checked = checked_arguments(signature, arguments)
    low, high, beta = (finite_number(signature, name, checked[name]) for name in ("clip_low", "clip_high", "beta"))
    x, old, counts = _tokens(signature, checked, "logprobs", "old_logprobs")
    reference = None if checked["ref_logprobs"] is None else checked["ref_logprobs"].to(x.dtype)
    advantages, losses = checked["advantages"].to(x.dtype), []
    for j, rows in enumerate(sequence_slices(checked["cu_seqlens"])):
        selected = torch.arange(rows.start, rows.stop, device=x.device)[counts[rows]]
        gain = x[selected] - old[selected]
        if checked["sequence_ratio"] and len(gain):
            gain = gain.mean().expand(len(gain))
        ratio = gain.exp()
        loss = -torch.minimum(ratio * advantages[j], ratio.clamp(1 - low, 1 + high) * advantages[j])
        if reference is not None and beta:
            distance = reference[selected] - x[selected]
            loss = loss + beta * (distance.exp() - distance - 1)
        losses.append(loss)
    return losses


def _minus_log_sigmoid(x: Tensor) -> Tensor:
    return functional.softplus(-x, threshold=SOFTPLUS_LINEAR)


def _zero(logprobs: Tensor) -> Tensor:
    """0 with a graph, in the dtype of the computation, even if no token counts."""
    return to_compute_dtype(logprobs[:0]).sum()
