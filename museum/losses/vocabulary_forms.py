"""Correct losses over the vocabulary, each in four forms: other algebra, other orders of sums, other backward passes.

- `log_softmax`: torch's log-softmax, of which the label is gathered; sums over the whole pack.
- `online`: a running maximum and a running sum over blocks of the vocabulary; sequences one after another.
- `saved_lse`: a backward pass by hand, which computes the softmax again from the saved logsumexp; sums by sequence.
- `chunked`: the maximum is subtracted, in chunks of rows; the label is selected by a product with one-hot rows.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from packproof import refs
from packproof.base.errors import copy_signature_of
from packproof.museum.losses.vocabulary import cut, logits_and_targets, sum_by_sequence

FORMS = ("log_softmax", "online", "saved_lse", "chunked")
VOCABULARY_BLOCK, ROWS = 4, 5


class _SavedLse(torch.autograd.Function):
    """log Σ exp(x) along the last axis. The backward pass reads x and the result: it can be differentiated again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        lse = x.logsumexp(-1)
        ctx.save_for_backward(x, lse)
        return lse

    @staticmethod
    def backward(ctx: Any, *dy: Tensor) -> Tensor:
        x, lse = ctx.saved_tensors
        gradient: Tensor = dy[0][..., None] * (x - lse[..., None]).exp()
        return gradient


def _saved_lse(x: Tensor) -> Tensor:
    lse: Tensor = _SavedLse.apply(x)  # type: ignore[no-untyped-call]
    return lse


def _online_lse(x: Tensor) -> Tensor:
    largest, total = x.new_full(x.shape[:-1], float("-inf")), x.new_zeros(x.shape[:-1])
    for block in torch.split(x, VOCABULARY_BLOCK, -1):
        larger = torch.maximum(largest, block.detach().amax(-1))
        total = total * (largest - larger).exp() + (block - larger[..., None]).exp().sum(-1)
        largest = larger
    return largest + total.log()


def _shifted_lse(x: Tensor) -> Tensor:
    if not len(x):
        return x.sum(-1)
    largest = x.detach().amax(-1, keepdim=True)
    return largest[..., 0] + (x - largest).exp().sum(-1).log()


def _plain_lse(x: Tensor) -> Tensor:
    return x.logsumexp(-1)


LSE = {"log_softmax": _plain_lse, "online": _online_lse, "saved_lse": _saved_lse, "chunked": _shifted_lse}


def _in_chunks(f: Callable[..., Tensor], *rows: Tensor) -> Tensor:
    """f of chunks of rows, one after another."""
    parts = [f(*chunk) for chunk in zip(*(torch.split(x, ROWS) for x in rows), strict=True)]
    return torch.cat(parts) if parts else f(*rows)


def _losses(x: Tensor, y: Tensor, form: str, ignore_index: int, smoothing: float = 0.0, z_loss: float = 0.0) -> Tensor:
    """The cross entropy of each token, 0 where it does not count."""
    if form == "chunked" and len(x) > ROWS:
        options: dict[str, Any] = {"ignore_index": ignore_index, "smoothing": smoothing, "z_loss": z_loss}
        return _in_chunks(partial(_losses, form=form, **options), x, y)
    counts, lse = y != ignore_index, LSE[form](x)
    labels = torch.where(counts, y, 0)
    if form == "log_softmax":
        logp = x.log_softmax(-1)
        loss = -(1 - smoothing) * logp.gather(-1, labels[:, None])[:, 0] - smoothing * logp.mean(-1)
    elif form == "chunked":
        target = functional.one_hot(labels, x.shape[-1]).to(x.dtype)
        loss = lse - ((1 - smoothing) * target * x).sum(-1) - smoothing * x.sum(-1) / x.shape[-1]
    else:
        target = x[torch.arange(len(x), device=x.device), labels]
        loss = lse - (1 - smoothing) * target - smoothing * x.mean(-1)
    return torch.where(counts, loss + z_loss * lse * lse, 0)


def _total(x: Tensor, cu_seqlens: Tensor, form: str) -> Tensor:
    """The sum over the tokens of the pack."""
    if form == "saved_lse":
        return sum_by_sequence(x, cu_seqlens).sum()
    parts = [x] if form == "log_softmax" else torch.split(x, ROWS) if form == "chunked" else split(x, cu_seqlens)
    return sum((part.sum() for part in parts), x[:0].sum())


def split(x: Tensor, cu_seqlens: Tensor) -> list[Tensor]:
    return [x[a:b] for a, b in pairwise(cu_seqlens.tolist())]


def _mean(losses: Tensor, counts: Tensor, cu_seqlens: Tensor, form: str) -> Tensor:
    """The mean over the tokens that count; the division comes before the sum in one form, after it in the others."""
    n = counts.sum().clamp(min=1)
    return _total(losses / n, cu_seqlens, form) if form == "chunked" else _total(losses, cu_seqlens, form) / n


def _terms(label_smoothing: float = 0.0, z_loss: float = 0.0) -> dict[str, float]:
    return {"smoothing": label_smoothing, "z_loss": z_loss}


@copy_signature_of(refs.cross_entropy, form="")
def cross_entropy(
    form: str, logits: Tensor, labels: Tensor, cu_seqlens: Tensor, shift: bool, ignore_index: int, **terms: float
) -> Tensor:
    """Op `cross_entropy`."""
    x, y = logits_and_targets(logits, labels, cu_seqlens, shift, ignore_index)
    return _mean(_losses(x, y, form, ignore_index, **_terms(**terms)), y != ignore_index, cu_seqlens, form)


@copy_signature_of(refs.cross_entropy_sum, form="")
def cross_entropy_sum(
    form: str, logits: Tensor, labels: Tensor, cu_seqlens: Tensor, shift: bool, ignore_index: int, **terms: float
) -> Tensor:
    """Op `cross_entropy_sum`."""
    x, y = logits_and_targets(logits, labels, cu_seqlens, shift, ignore_index)
    return _total(_losses(x, y, form, ignore_index, **_terms(**terms)), cu_seqlens, form)


@copy_signature_of(refs.cross_entropy_sequences, form="")
def cross_entropy_sequences(
    form: str, logits: Tensor, labels: Tensor, cu_seqlens: Tensor, shift: bool, ignore_index: int, **terms: float
) -> Tensor:
    """Op `cross_entropy_sequences`; in one form the sums of sequences are a product with a matrix of their tokens."""
    x, y = logits_and_targets(logits, labels, cu_seqlens, shift, ignore_index)
    losses, counts = _losses(x, y, form, ignore_index, **_terms(**terms)), (y != ignore_index).to(x.dtype)
    if form == "online":
        parts = zip(split(losses, cu_seqlens), split(counts, cu_seqlens), strict=True)
        means = [loss.sum() / n.sum().clamp(min=1) for loss, n in parts]
        return torch.stack(means) if means else losses[:0]
    if form == "chunked":
        seq_idx = refs.seq_idx_from_cu_seqlens(cu_seqlens, len(x)).long()
        rows = seq_idx == torch.arange(len(cu_seqlens) - 1, device=x.device)[:, None]
        return (rows.to(x.dtype) / (rows * counts).sum(1, keepdim=True).clamp(min=1)) @ losses
    return sum_by_sequence(losses, cu_seqlens) / sum_by_sequence(counts, cu_seqlens).clamp(min=1)


@copy_signature_of(refs.linear_cross_entropy, form="")
def linear_cross_entropy(
    form: str, x: Tensor, weight: Tensor, labels: Tensor, cu_seqlens: Tensor, ignore_index: int, **options: Any
) -> Tensor:
    """Op `linear_cross_entropy`; in one form the logits of a chunk of rows alone are in memory."""
    wide = torch.promote_types(x.dtype, torch.float32)
    rows, w = x[: int(cu_seqlens[-1])].to(wide), weight.to(wide)
    if form != "chunked":
        logits = functional.linear(rows, w) if form == "log_softmax" else rows @ w.T
        kernel: Callable[..., Tensor] = partial(OPS["cross_entropy"], form=form)
        return kernel(logits, labels, cu_seqlens=cu_seqlens, ignore_index=ignore_index, **options)
    shift = options.pop("shift")
    y = logits_and_targets(rows, labels, cu_seqlens, shift, ignore_index)[1]

    def losses(rows: Tensor, y: Tensor) -> Tensor:
        return _losses(rows @ w.T, y, form, ignore_index, **_terms(**options))

    return _mean(_in_chunks(losses, rows, y), y != ignore_index, cu_seqlens, form)


def _with_slack(x: Tensor, like: Tensor) -> Tensor:
    return functional.pad(x, (0, len(like) - len(x)))


@copy_signature_of(refs.token_logprobs, form="")
def token_logprobs(
    form: str, logits: Tensor, labels: Tensor, cu_seqlens: Tensor, shift: bool, ignore_index: int
) -> Tensor:
    """Op `token_logprobs`."""
    x, y = logits_and_targets(logits, labels, cu_seqlens, shift, ignore_index)
    return _with_slack(-_losses(x, y, form, ignore_index), logits)


@copy_signature_of(refs.token_entropy, form="")
def token_entropy(form: str, logits: Tensor, cu_seqlens: Tensor) -> Tensor:
    """Op `token_entropy`: -Σ p log p, or lse - Σ p x."""
    x = cut(logits, logits[:, 0], cu_seqlens)[0]
    lse = LSE[form](x)
    logp = x.log_softmax(-1) if form == "log_softmax" else x - lse[:, None]
    if form == "saved_lse":
        entropy = lse - (logp.exp() * x).sum(-1)
    elif form == "chunked":
        entropy = -torch.einsum("tn, tn -> t", logp.exp(), logp)
    else:
        entropy = -(logp.exp() * logp).sum(-1)
    return _with_slack(entropy, logits)


@copy_signature_of(refs.kl_divergence, form="")
def kl_divergence(form: str, logits: Tensor, other_logits: Tensor, cu_seqlens: Tensor) -> Tensor:
    """Op `kl_divergence`: Σ p (log p - log q), or the difference of two sums of it."""
    x, z = (cut(rows, rows[:, 0], cu_seqlens)[0] for rows in (logits, other_logits))
    if form == "log_softmax":
        kl = functional.kl_div(z.log_softmax(-1), x.log_softmax(-1), log_target=True, reduction="none").sum(-1)
        return _with_slack(kl, logits)
    lse_x, lse_z = LSE[form](x), LSE[form](z)
    p = (x - lse_x[:, None]).exp()
    if form == "saved_lse":
        kl = (p * (x - z)).sum(-1) - lse_x + lse_z
    else:
        kl = (p * ((x - lse_x[:, None]) - (z - lse_z[:, None]))).sum(-1)
    return _with_slack(kl, logits)


@copy_signature_of(refs.multi_token_cross_entropy, form="")
def multi_token_cross_entropy(
    form: str, logits: Tensor, labels: Tensor, cu_seqlens: Tensor, ignore_index: int
) -> Tensor:
    """Op `multi_token_cross_entropy`; the heads are rows of one call, or sequences are sliced."""
    x, y = cut(logits, labels, cu_seqlens)
    n, heads = x.shape[:2]
    if form == "online":
        return _heads_of_sequences(x, y, cu_seqlens, ignore_index)
    row = torch.arange(n, device=x.device)
    ends = cu_seqlens.long()[1:][refs.seq_idx_from_cu_seqlens(cu_seqlens, n).long()]
    later = row[:, None] + torch.arange(1, heads + 1, device=x.device)
    targets = torch.where(later < ends[:, None], y[later.clamp(max=max(n - 1, 0))], ignore_index) if n else later
    if form == "saved_lse":
        return _losses(x.flatten(0, 1), targets.flatten(), form, ignore_index).view(n, heads).sum(0)
    sums = [_total(_losses(x[:, k], targets[:, k], form, ignore_index), cu_seqlens, form) for k in range(heads)]
    return torch.stack(sums)


def _heads_of_sequences(x: Tensor, y: Tensor, cu_seqlens: Tensor, ignore_index: int) -> Tensor:
    total = x[:0].sum((0, 2))
    for rows, labels in zip(split(x, cu_seqlens), split(y, cu_seqlens), strict=True):
        heads = zip(range(1, x.shape[1] + 1), rows.unbind(1), strict=True)
        parts = [_losses(head[:-k], labels[k:], "online", ignore_index) for k, head in heads]
        total = total + torch.stack([part.sum() for part in parts])
    return total


OPS: dict[str, Callable[..., Any]] = {
    f.__name__: f
    for f in (
        *(cross_entropy, cross_entropy_sum, cross_entropy_sequences, linear_cross_entropy),
        *(token_logprobs, token_entropy, kl_divergence, multi_token_cross_entropy),
    )
}


def kernel_in_form(name: str, ops: Mapping[str, Callable[..., Any]], forms: Sequence[str]) -> Callable[..., Any]:
    """The kernel called `op_form`. Raises AttributeError."""
    for form in forms:
        op = name.removesuffix(f"_{form}")
        if op != name and op in ops:
            return partial(ops[op], form=form)
    raise AttributeError(f"the museum has no loss called {name!r} in one of the forms {', '.join(forms)}")


def __getattr__(name: str) -> Callable[..., Any]:
    """The kernel of an op in a form, such as `cross_entropy_online`."""
    return kernel_in_form(name, OPS, FORMS)
