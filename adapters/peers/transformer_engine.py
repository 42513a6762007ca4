"""Transformer Engine: cross entropy of logits whose vocabulary may be cut over ranks; here it is whole."""

from torch import Tensor

from packproof.adapters.peers.labels import adapt_loss

_DTYPES = ("float32", "bfloat16")


def _cross_entropy(logits: Tensor, labels: Tensor, ignore_index: int = -100, label_smoothing: float = 0.0) -> Tensor:
    """The mean over rows, of a batch of one pack."""
    return _losses(logits, labels, label_smoothing, True, ignore_index)


def _token_logprobs(logits: Tensor, labels: Tensor, ignore_index: int = -100) -> Tensor:
    return -_losses(logits, labels, 0.0, False, ignore_index).squeeze(0)


def _losses(logits: Tensor, labels: Tensor, label_smoothing: float, reduce_loss: bool, ignore_index: int) -> Tensor:
    from transformer_engine.pytorch.cross_entropy import parallel_cross_entropy  # noqa: PLC0415

    batch = logits[None], labels.long()[None]
    losses: Tensor = parallel_cross_entropy(*batch, label_smoothing, reduce_loss, None, ignore_index)
    return losses


cross_entropy = adapt_loss(_cross_entropy, "cross_entropy", dtypes=_DTYPES)
token_logprobs = adapt_loss(_token_logprobs, "token_logprobs", dtypes=_DTYPES)
