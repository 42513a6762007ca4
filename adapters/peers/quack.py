"""quack (Dao-AILab): cross entropy in CuTe DSL, for Hopper and later GPUs. It reads 16 bytes at a time."""

from torch import Tensor

from packproof.adapters.peers.labels import adapt_loss, widened


def _cross_entropy(logits: Tensor, labels: Tensor, ignore_index: int = -100) -> Tensor:
    from quack.cross_entropy import cross_entropy as loss_of_rows  # noqa: PLC0415

    return widened(loss_of_rows(logits, labels.long(), ignore_index=ignore_index))


def _token_logprobs(logits: Tensor, labels: Tensor, ignore_index: int = -100) -> Tensor:
    from quack.cross_entropy import cross_entropy as loss_of_rows  # noqa: PLC0415

    return -widened(loss_of_rows(logits, labels.long(), ignore_index=ignore_index, reduction="none"))


def _linear_cross_entropy(x: Tensor, weight: Tensor, labels: Tensor, ignore_index: int = -100) -> Tensor:
    from quack.linear_cross_entropy import chunked_linear_cross_entropy  # noqa: PLC0415

    return widened(chunked_linear_cross_entropy(x, weight, labels.long(), ignore_index=ignore_index))


cross_entropy = adapt_loss(_cross_entropy, "cross_entropy", "nv % 8 == 0")
token_logprobs = adapt_loss(_token_logprobs, "token_logprobs", "nv % 8 == 0")
linear_cross_entropy = adapt_loss(
    _linear_cross_entropy, "linear_cross_entropy", "nv % 8 == 0", "d % 8 == 0", dtypes=("bfloat16", "float16")
)
