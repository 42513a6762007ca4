"""Losses of a pack as users declare them: cross entropy in four reductions, and kernels that reduce in another way."""

# mypy: allow-untyped-defs, allow-incomplete-defs

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional

import packproof

IGNORED = -100


def _of_tokens(logits: Tensor, labels: Tensor, cu_seqlens: Tensor) -> tuple[Tensor, Tensor]:
    """-log p(label) of each token, and whether it counts."""
    n = int(cu_seqlens[-1])
    logits, labels = logits[:n], labels[:n].long()
    counts = labels != IGNORED
    nll = -logits.log_softmax(-1).gather(-1, torch.where(counts, labels, 0)[:, None])[:, 0]
    return torch.where(counts, nll, 0), counts


def _sums(logits: Tensor, labels: Tensor, cu_seqlens: Tensor) -> list[tuple[Tensor, int]]:
    """The loss of each sequence with tokens that count, and their number."""
    nll, counts = _of_tokens(logits, labels, cu_seqlens)
    parts = [(nll[a:b].sum(), int(counts[a:b].sum())) for a, b in pairwise(cu_seqlens.tolist())]
    return [(total, n) for total, n in parts if n]


def total(logits, labels, *, cu_seqlens):
    return _of_tokens(logits, labels, cu_seqlens)[0].sum()


def mean(logits, labels, *, cu_seqlens):
    nll, counts = _of_tokens(logits, labels, cu_seqlens)
    return nll.sum() / max(int(counts.sum()), 1)


def mean_of_means(logits, labels, *, cu_seqlens):
    means = [part / n for part, n in _sums(logits, labels, cu_seqlens)]
    return torch.stack(means).mean() if means else logits[:0].sum()


def largest(logits, labels, *, cu_seqlens):
    sums = [part for part, _ in _sums(logits, labels, cu_seqlens)]
    return torch.stack(sums).amax() if sums else logits[:0].sum()


def loss_op(reference: Callable[..., Tensor], reduction: str, **fields) -> packproof.Op:
    return packproof.Op(
        **{
            "name": reference.__name__,
            "reference": reference,
            "inputs": {"logits": "t n", "labels": "t"},
            "outputs": {"loss": ""},
            "sizes": ({"n": 5}, {"n": 3}),
            "draws": {"labels": "label|n"},
            "constants": frozenset({"labels"}),
            "causal": False,
            "reductions": {"loss": reduction},
            "counted": "labels",
            **fields,
        }
    )


SUM, MEAN = loss_op(total, "sum"), loss_op(mean, "mean over tokens")
MEAN_OF_MEANS, LARGEST = loss_op(mean_of_means, "mean over sequences"), loss_op(largest, "maximum")


class Losses:
    """-log p of the tokens in fp32, by torch."""

    def __init__(self, logits: Tensor, labels: Tensor, cu_seqlens: Tensor) -> None:
        n, self.dtype = int(cu_seqlens[-1]), logits.dtype
        x, labels = logits[:n].to(torch.promote_types(logits.dtype, torch.float32)), labels[:n].long()
        self.nll = functional.cross_entropy(x, labels, reduction="none")
        self.counts = (labels != IGNORED).to(x.dtype)
        self.seq_idx = torch.repeat_interleave(
            torch.arange(len(cu_seqlens) - 1, device=x.device), cu_seqlens.diff().long()
        )
        self.sequences = len(cu_seqlens) - 1

    def by_sequence(self, x: Tensor) -> Tensor:
        return x.new_zeros(self.sequences).index_add(0, self.seq_idx, x)


def _means(losses: Losses) -> Tensor:
    return losses.by_sequence(losses.nll) / losses.by_sequence(losses.counts).clamp(min=1)


def by_sum(logits, labels, *, cu_seqlens):
    return Losses(logits, labels, cu_seqlens).nll.sum().to(logits.dtype)


def by_token(logits, labels, *, cu_seqlens):
    losses = Losses(logits, labels, cu_seqlens)
    return (losses.nll.sum() / losses.counts.sum().clamp(min=1)).to(logits.dtype)


def by_row(logits, labels, *, cu_seqlens):
    losses = Losses(logits, labels, cu_seqlens)
    return (losses.nll.sum() / max(len(losses.nll), 1)).to(logits.dtype)


def by_sequence(logits, labels, *, cu_seqlens):
    losses = Losses(logits, labels, cu_seqlens)
    sequences = (losses.by_sequence(losses.counts) > 0).sum().clamp(min=1)
    return (_means(losses).sum() / sequences).to(logits.dtype)


def by_sums_of_means(logits, labels, *, cu_seqlens):
    return _means(Losses(logits, labels, cu_seqlens)).sum().to(logits.dtype)


def by_largest(logits, labels, *, cu_seqlens):
    losses = Losses(logits, labels, cu_seqlens)
    sums = losses.by_sequence(losses.nll)[losses.by_sequence(losses.counts) > 0]
    return (sums.amax() if len(sums) else losses.nll.sum() * 0).to(logits.dtype)


def by_chunk_of_three(logits, labels, *, cu_seqlens):
    """The means of chunks of the pack, summed (NVIDIA-NeMo/Automodel#3803)."""
    losses = Losses(logits, labels, cu_seqlens)
    chunks = zip(losses.nll.split(3), losses.counts.split(3), strict=True)
    means = [nll.sum() / counts.sum().clamp(min=1) for nll, counts in chunks]
    return sum(means, losses.nll[:0].sum()).to(losses.dtype)


def _nll(logits, labels, cu_seqlens, shift=False, ignore_index=IGNORED, label_smoothing=0.0, z_loss=0.0):
    """The cross entropy of each token by torch, and whether it counts."""
    n = int(cu_seqlens[-1])
    x, y = logits[:n].to(torch.promote_types(logits.dtype, torch.float32)), labels[:n].long()
    if shift:
        y = y.roll(-1)
        y[cu_seqlens[1:][cu_seqlens.diff() > 0].long() - 1] = ignore_index
    terms = {"ignore_index": ignore_index, "label_smoothing": label_smoothing}
    nll = functional.cross_entropy(x, y, reduction="none", **terms)
    return nll + z_loss * torch.where(y == ignore_index, 0, x.logsumexp(-1).square()), y != ignore_index


def _with_slack(y: Tensor, logits: Tensor) -> Tensor:
    return functional.pad(y, (0, len(logits) - len(y)))


def cross_entropy(logits, labels, *, cu_seqlens, shift=False, ignore_index=IGNORED, label_smoothing=0.0, z_loss=0.0):
    nll, counts = _nll(logits, labels, cu_seqlens, shift, ignore_index, label_smoothing, z_loss)
    return nll.sum() / counts.sum().clamp(min=1)


def linear_cross_entropy(x, weight, labels, *, cu_seqlens, shift=False):
    wide = torch.promote_types(x.dtype, torch.float32)
    rows = x[: int(cu_seqlens[-1])].to(wide)  # without slack: 0 * NaN is NaN in the gradient of the weight
    return cross_entropy(rows @ weight.to(wide).T, labels, cu_seqlens=cu_seqlens, shift=shift)


def cross_entropy_sum(logits, labels, *, cu_seqlens, shift=False, label_smoothing=0.0):
    return _nll(logits, labels, cu_seqlens, shift, label_smoothing=label_smoothing)[0].sum()


def cross_entropy_sequences(logits, labels, *, cu_seqlens, shift=False):
    nll, counts = _nll(logits, labels, cu_seqlens, shift)
    sums = [(nll[a:b].sum(), counts[a:b].sum().clamp(min=1)) for a, b in pairwise(cu_seqlens.tolist())]
    return torch.stack([part / n for part, n in sums]) if sums else nll


def token_logprobs(logits, labels, *, cu_seqlens, shift=False, ignore_index=IGNORED):
    return _with_slack(-_nll(logits, labels, cu_seqlens, shift, ignore_index)[0], logits)


def token_entropy(logits, *, cu_seqlens):
    x = logits[: int(cu_seqlens[-1])].to(torch.promote_types(logits.dtype, torch.float32))
    return _with_slack(x.logsumexp(-1) - (x.softmax(-1) * x).sum(-1), logits)


def kl_divergence(logits, other_logits, *, cu_seqlens):
    wide = torch.promote_types(logits.dtype, torch.float32)
    logp, logq = (x[: int(cu_seqlens[-1])].to(wide).log_softmax(-1) for x in (logits, other_logits))
    return _with_slack(functional.kl_div(logq, logp, log_target=True, reduction="none").sum(-1), logits)


CORRECT: dict[str, tuple[packproof.Op | str, Callable[..., Tensor]]] = {
    "sum": (SUM, by_sum),
    "mean": (MEAN, by_token),
    "mean of means": (MEAN_OF_MEANS, by_sequence),
    "largest": (LARGEST, by_largest),
    **{f.__name__: (f.__name__, f) for f in (cross_entropy, cross_entropy_sum, cross_entropy_sequences)},
    **{f.__name__: (f.__name__, f) for f in (linear_cross_entropy, token_logprobs, token_entropy, kl_divergence)},
}
