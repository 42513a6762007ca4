"""Losses over the vocabulary of packed sequences: cross entropy, log-probabilities of tokens, entropy, KL divergence.

With logits x of a token, p = softmax(x) and the label y of the token:

    cross entropy     (1 - ε) (lse(x) - x[y]) + ε (lse(x) - mean(x)) + ζ lse(x)²       lse(x) = log Σ exp(x)
    log-probability   x[y] - lse(x)
    entropy           -Σ p log p
    KL(p ‖ q)         Σ p (log p - log q)

ε is `label_smoothing` (Szegedy et al. 2016, section 7) and ζ `z_loss` (Chowdhery et al. 2022, section 5). A token whose
label is `ignore_index` does not count. With `shift` the label of a token is that of the next token of its sequence, and
the last token of a sequence does not count. All compute in fp32, in fp64 for fp64 logits, and return that dtype.
"""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from packproof.base import signatures
from packproof.base.errors import ArgumentError, checked_call
from packproof.base.signatures import Signature
from packproof.refs.losses.checks import finite_number
from packproof.refs.recurrence import checked_arguments, to_compute_dtype


@checked_call
def cross_entropy(
    logits: Tensor,
    labels: Tensor,
    *,
    cu_seqlens: Tensor,
    shift: bool = False,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
) -> Tensor:
    """The mean of the cross entropy over the counted tokens of the pack; 0 without one.

    logits: (t, nv) in fp64, fp32, bf16 or fp16.
    labels: int32 or int64 (t,), from 0 to nv - 1, or ignore_index.
    cu_seqlens: int32 or int64 (s + 1,).

    Returns (), in fp32 or fp64. Raises ArgumentError and LayoutError.

    >>> import torch
    >>> from packproof.refs import cross_entropy
    >>> logits, labels = torch.zeros(5, 4), torch.tensor([1, -100, 2, 0, 3])
    >>> cross_entropy(logits, labels, cu_seqlens=torch.tensor([0, 2, 5]))  # log 4
    tensor(1.3863)
    """
    losses, counts = _token_losses(signatures.CROSS_ENTROPY, locals())
    return losses.sum() / counts.sum().clamp(min=1)


@checked_call
def cross_entropy_sum(
    logits: Tensor,
    labels: Tensor,
    *,
    cu_seqlens: Tensor,
    shift: bool = False,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
) -> Tensor:
    """The sum of the cross entropy over the counted tokens of the pack.

    Its arguments are as in `cross_entropy`. Returns (), in fp32 or fp64. Raises ArgumentError and LayoutError.

    >>> import torch
    >>> from packproof.refs import cross_entropy_sum
    >>> cross_entropy_sum(torch.zeros(2, 4), torch.tensor([1, 3]), cu_seqlens=torch.tensor([0, 2]))  # 2 log 4
    tensor(2.7726)
    """
    losses, _ = _token_losses(signatures.CROSS_ENTROPY_SUM, locals())
    return losses.sum()


@checked_call
def cross_entropy_sequences(
    logits: Tensor,
    labels: Tensor,
    *,
    cu_seqlens: Tensor,
    shift: bool = False,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
) -> Tensor:
    """The mean of the cross entropy over the tokens of each sequence that count; 0 without one.

    Its arguments are as in `cross_entropy`. Returns (s,), in fp32 or fp64. Raises ArgumentError and LayoutError.

    >>> import torch
    >>> from packproof.refs import cross_entropy_sequences
    >>> labels = torch.tensor([1, -100, 2])
    >>> cross_entropy_sequences(torch.zeros(3, 4), labels, cu_seqlens=torch.tensor([0, 1, 2, 3]))
    tensor([1.3863, 0.0000, 1.3863])
    """
    losses, counts = _token_losses(signatures.CROSS_ENTROPY_SEQUENCES, locals())
    rows = [slice(a, b) for a, b in pairwise(cu_seqlens.tolist())]
    means = [losses[r].sum() / counts[r].sum().clamp(min=1) for r in rows]
    return torch.stack(means) if means else losses[:0]


@checked_call
def linear_cross_entropy(
    x: Tensor,
    weight: Tensor,
    labels: Tensor,
    *,
    cu_seqlens: Tensor,
    shift: bool = False,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
) -> Tensor:
    """`cross_entropy` of the logits x weightᵀ, which kernels fuse with the loss so as not to store them.

    x: (t, d) in fp64, fp32, bf16 or fp16.
    weight: (nv, d), in x's dtype.

    The other arguments are as in `cross_entropy`. Returns (), in fp32 or fp64. Raises ArgumentError and LayoutError.

    >>> import torch
    >>> from packproof.refs import linear_cross_entropy
    >>> x, weight = torch.zeros(2, 3), torch.ones(4, 3)
    >>> linear_cross_entropy(x, weight, torch.tensor([1, 3]), cu_seqlens=torch.tensor([0, 2]))  # log 4
    tensor(1.3863)
    """
    checked = checked_arguments(signatures.LINEAR_CROSS_ENTROPY, locals())
    logits = to_compute_dtype(checked["x"][: int(cu_seqlens[-1])]) @ to_compute_dtype(checked["weight"]).T
    losses, counts = _losses_of_logits(signatures.LINEAR_CROSS_ENTROPY, {**checked, "logits": logits})
    return losses.sum() / counts.sum().clamp(min=1)


@checked_call
def token_logprobs(
    logits: Tensor,
    labels: Tensor,
    *,
    cu_seqlens: Tensor,
    shift: bool = False,
    ignore_index: int = -100,
) -> Tensor:
    """log p(label) of each token, 0 where the token does not count and in slack.

    Its arguments are as in `cross_entropy`. Returns (t,), in fp32 or fp64. Raises ArgumentError and LayoutError.

    >>> import torch
    >>> from packproof.refs import token_logprobs
    >>> logits, ids = torch.zeros(5, 4), torch.tensor([1, 3, 2, 0, 3])
    >>> token_logprobs(logits, ids, cu_seqlens=torch.tensor([0, 2, 5]), shift=True)
    tensor([-1.3863,  0.0000, -1.3863, -1.3863,  0.0000])
    """
    losses, counts = _token_losses(signatures.TOKEN_LOGPROBS, locals())
    return _with_slack(torch.where(counts, -losses, 0), logits)


@checked_call
def token_entropy(logits: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """The entropy of the softmax of each token's logits (t, nv), 0 in slack.

    Returns (t,), in fp32 or fp64. Raises ArgumentError and LayoutError.

    >>> import torch
    >>> from packproof.refs import token_entropy
    >>> token_entropy(torch.zeros(2, 4), cu_seqlens=torch.tensor([0, 2]))
    tensor([1.3863, 1.3863])
    """
    arguments = checked_arguments(signatures.TOKEN_ENTROPY, locals())
    logp = _log_softmax(arguments["logits"], cu_seqlens)
    return _with_slack(-(logp.exp() * logp).sum(-1), logits)


@checked_call
def kl_divergence(logits: Tensor, other_logits: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """KL(p ‖ q) of each token, p and q the softmax of both logits (t, nv), such as of a policy and a fixed model.

    Returns (t,), 0 in slack, in fp32 or fp64. Raises ArgumentError and LayoutError.

    >>> import torch
    >>> from packproof.refs import kl_divergence
    >>> logits = torch.tensor([[0.0, 0.0]])
    >>> kl_divergence(logits, logits + torch.tensor([0.0, 1.0]), cu_seqlens=torch.tensor([0, 1]))
    tensor([0.1201])
    """
    arguments = checked_arguments(signatures.KL_DIVERGENCE, locals())
    logp, logq = (_log_softmax(arguments[name], cu_seqlens) for name in ("logits", "other_logits"))
    return _with_slack((logp.exp() * (logp - logq)).sum(-1), logits)


@checked_call
def multi_token_cross_entropy(
    logits: Tensor, labels: Tensor, *, cu_seqlens: Tensor, ignore_index: int = -100
) -> Tensor:
    """The cross entropy of each head of a multi-token prediction, summed over the counted tokens of the pack.

    Head k, from 1, of a token predicts the k-th token after it in its sequence (Gloeckle et al. 2024, equation 2;
    DeepSeek-AI 2024, DeepSeek-V3, equation 24). The last k tokens of a sequence do not count for head k. For means,
    divide by the labels that count, as `shifted_labels` has them: each head has fewer.

    logits: (t, h, nv) in fp64, fp32, bf16 or fp16, of h heads.
    labels: int32 or int64 (t,), the ids of the tokens, or ignore_index.
    cu_seqlens: int32 or int64 (s + 1,).

    Returns (h,), in fp32 or fp64. Raises ArgumentError and LayoutError.

    >>> import torch
    >>> from packproof.refs import multi_token_cross_entropy
    >>> ids = torch.tensor([0, 1, 2, 3, 0])
    >>> multi_token_cross_entropy(torch.zeros(5, 2, 4), ids, cu_seqlens=torch.tensor([0, 2, 5]))  # 3 and 1 times log 4
    tensor([4.1589, 1.3863])
    """
    checked = checked_arguments(signatures.MULTI_TOKEN_CROSS_ENTROPY, locals())
    y = labels
    sums = []
    for head in checked["logits"].unbind(1):
        y = shifted_labels(y, cu_seqlens, shift=True, ignore_index=ignore_index)
        of_head = {**checked, "logits": head, "labels": y, "shift": False}
        sums.append(_losses_of_logits(signatures.MULTI_TOKEN_CROSS_ENTROPY, of_head)[0].sum())
    return torch.stack(sums) if sums else to_compute_dtype(logits)[:0].sum((0, 2))


def shifted_labels(labels: Tensor, cu_seqlens: Tensor, *, shift: bool, ignore_index: int) -> Tensor:
    """The label of each token of the sequences, ignore_index where it does not count."""
    ends, n = cu_seqlens.long(), int(cu_seqlens[-1])
    if not shift:
        return labels[:n].long()
    following = torch.cat([labels[1:n], labels[:1]])[:n].long()
    is_last = torch.isin(torch.arange(1, n + 1, device=labels.device), ends)
    return torch.where(is_last, ignore_index, following)


def tokens_that_count(
    *, labels: Tensor, cu_seqlens: Tensor, shift: bool = False, ignore_index: int = -100, **_: Any
) -> Tensor:
    """Whether each token of the sequences counts in a loss: True or False, for the arguments of `cross_entropy`."""
    return shifted_labels(labels, cu_seqlens, shift=shift, ignore_index=ignore_index) != ignore_index


def _token_losses(signature: Signature, arguments: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    """As `_losses_of_logits`, for the arguments of a call, which are checked."""
    return _losses_of_logits(signature, checked_arguments(signature, arguments))


def _losses_of_logits(signature: Signature, checked: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    """The cross entropy of each token of the sequences, 0 where it does not count, and whether it counts."""
    logits, cu_seqlens, ignore_index = checked["logits"], checked["cu_seqlens"], checked["ignore_index"]
    smoothing, z_loss = (
        finite_number(signature, name, checked.get(name, 0.0)) for name in ("label_smoothing", "z_loss")
    )
    y = shifted_labels(checked["labels"], cu_seqlens, shift=checked["shift"], ignore_index=ignore_index)
    counts = y != ignore_index
    _check_labels(signature, y[counts], logits.shape[-1])
    x = to_compute_dtype(logits[: len(y)])
    lse = x.logsumexp(-1)
    nll = lse - x.gather(-1, torch.where(counts, y, 0)[:, None])[:, 0]
    losses = (1 - smoothing) * nll + smoothing * (lse - x.mean(-1)) + z_loss * lse.square()
    return torch.where(counts, losses, 0), counts


def _log_softmax(logits: Tensor, cu_seqlens: Tensor) -> Tensor:
    x = to_compute_dtype(logits[: int(cu_seqlens[-1])])
    return x - x.logsumexp(-1, keepdim=True)


def _with_slack(y: Tensor, logits: Tensor) -> Tensor:
    return torch.cat([y, y.new_zeros(len(logits) - len(y))])


def _check_labels(signature: Signature, labels: Tensor, n: int) -> None:
    """Raises ArgumentError for a label outside of the vocabulary."""
    outside = labels[(labels < 0) | (labels >= n)]
    if len(outside):
        raise ArgumentError(
            f"{signature.op}: labels has {int(outside[0])} but 0 to {n - 1} was expected, or ignore_index for a token "
            "that does not count"
        )
