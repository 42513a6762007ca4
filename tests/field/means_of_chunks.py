"""Mean cross entropy in chunks of rows (NVIDIA-NeMo/Automodel#3803).

The incorrect kernel sums the means of the chunks: the loss grows with their number.
"""

import torch
from torch.nn import functional

import packproof

CHUNK = 32


def mean_cross_entropy(logits, labels, *, cu_seqlens):
    """logits: (t, n), labels: (t,), -100 for a token that does not count. Returns (1,)."""
    n = int(cu_seqlens[-1])
    logits, labels = logits[:n], labels[:n].long()
    counts = labels != -100
    logp = logits.log_softmax(-1).gather(-1, torch.where(counts, labels, 0)[:, None])[:, 0]
    return (-torch.where(counts, logp, 0).sum() / max(int(counts.sum()), 1)).reshape(1)


OP = packproof.Op(
    name="mean_cross_entropy",
    reference=mean_cross_entropy,
    inputs={"logits": "t n", "labels": "t"},
    outputs={"loss": "1"},
    sizes=({"n": 5},),
    draws={"labels": "label|n"},
    constants=frozenset({"labels"}),
    causal=False,
    reductions={"loss": "mean over tokens"},
    counted="labels",
)


def _chunks(logits, labels, cu_seqlens):
    """The sum of the loss and the number of labels of each chunk."""
    n, wide = int(cu_seqlens[-1]), torch.promote_types(logits.dtype, torch.float32)
    for x, y in zip(logits[:n].to(wide).split(CHUNK), labels[:n].long().split(CHUNK), strict=True):
        yield functional.cross_entropy(x, y, reduction="sum"), (y != -100).sum()


def correct(logits, labels, *, cu_seqlens):
    count = (labels[: int(cu_seqlens[-1])] != -100).sum().clamp(min=1)
    sums = [loss for loss, _ in _chunks(logits, labels, cu_seqlens)]
    return (sum(sums, logits[:0].sum().float()) / count).reshape(1).to(logits.dtype)


def incorrect(logits, labels, *, cu_seqlens):
    means = [loss / count.clamp(min=1) for loss, count in _chunks(logits, labels, cu_seqlens)]
    return sum(means, logits[:0].sum().float()).reshape(1).to(logits.dtype)
