"""cut-cross-entropy (Apple): a projection and its cross entropy without the logits in memory."""

from torch import Tensor

from packproof.adapters.peers.labels import adapt_loss, widened


def _linear_cross_entropy(x: Tensor, weight: Tensor, labels: Tensor, ignore_index: int = -100) -> Tensor:
    """The mean over rows, with every gradient: by default the library leaves out those of small probabilities.

    Its `shift` knows one boundary, the end of the row, and is not offered.
    """
    from cut_cross_entropy import linear_cross_entropy as cut_loss  # noqa: PLC0415

    return widened(cut_loss(x, weight, labels.long(), ignore_index=ignore_index, filter_eps=None))


linear_cross_entropy = adapt_loss(_linear_cross_entropy, "linear_cross_entropy", dtypes=("bfloat16", "float16"))
