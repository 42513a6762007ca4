"""flash-linear-attention: its cross entropies and its KL divergence."""

import torch
from torch import Tensor

from packproof.adapters.peers.labels import adapt_loss, widened


def _cross_entropy(
    logits: Tensor, labels: Tensor, ignore_index: int = -100, label_smoothing: float = 0.0, z_loss: float = 0.0
) -> Tensor:
    """The losses of rows, and their mean by torch: the library's module, which takes it, runs on a GPU alone."""
    from fla.modules.fused_cross_entropy import cross_entropy_loss  # noqa: PLC0415

    options = {"ignore_index": ignore_index, "label_smoothing": label_smoothing, "lse_square_scale": z_loss}
    losses: Tensor = cross_entropy_loss(logits, labels.long(), **options)[0]
    return losses.sum() / (labels != ignore_index).sum().clamp(min=1)


def _token_logprobs(logits: Tensor, labels: Tensor, ignore_index: int = -100) -> Tensor:
    from fla.modules.fused_cross_entropy import cross_entropy_loss  # noqa: PLC0415

    losses: Tensor = cross_entropy_loss(logits, labels.long(), ignore_index=ignore_index)[0]
    return -losses


def _linear_cross_entropy(
    x: Tensor, weight: Tensor, labels: Tensor, ignore_index: int = -100, label_smoothing: float = 0.0
) -> Tensor:
    """The mean over rows, of a projection in chunks of them; both gradients are computed in the forward pass."""
    from fla.modules.fused_linear_cross_entropy import fused_linear_cross_entropy_loss  # noqa: PLC0415

    options = {"ignore_index": ignore_index, "label_smoothing": label_smoothing}
    return widened(fused_linear_cross_entropy_loss(x, labels.long(), weight, **options))


def _kl_divergence(logits: Tensor, other_logits: Tensor) -> Tensor:
    """Called row by row with the identity as projection: it returns a mean over rows. Its teacher has no gradient."""
    from fla.modules.fused_kl_div import fused_kl_div_loss  # noqa: PLC0415

    identity = torch.eye(logits.shape[1], dtype=logits.dtype, device=logits.device)
    rows = zip(torch.split(other_logits.detach(), 1), torch.split(logits.detach(), 1), strict=True)
    return widened(torch.stack([fused_kl_div_loss(q, p, identity, identity) for q, p in rows]))


cross_entropy = adapt_loss(_cross_entropy, "cross_entropy")
token_logprobs = adapt_loss(_token_logprobs, "token_logprobs")
linear_cross_entropy = adapt_loss(_linear_cross_entropy, "linear_cross_entropy")
kl_divergence = adapt_loss(_kl_divergence, "kl_divergence", gradients=False)
