"""How a loss of a pack follows from those of its sequences: the reductions, and the share of each sequence.

A sequence's share is the factor of its loss in that of the pack, and so of its gradient.
"""

from collections.abc import Sequence
from typing import Any, Literal, get_args

Reduction = Literal["sum", "mean over tokens", "mean over sequences", "maximum"]
REDUCTIONS: tuple[Reduction, ...] = get_args(Reduction)
SUM, MEAN_OVER_TOKENS, MEAN_OVER_SEQUENCES, MAXIMUM = REDUCTIONS


def shares(reduction: Reduction, counts: Sequence[float], values: Sequence[float] = ()) -> list[float]:
    """The share of each sequence. One without a token that counts has none, whatever its value is.

    counts: how many tokens of each sequence count.
    values: the value of each sequence, for the maximum: the first largest one has the whole share.

    >>> shares("mean over tokens", [3, 0, 1])
    [0.75, 0.0, 0.25]
    >>> shares("maximum", [3, 0, 1], [2.0, 9.0, 5.0])
    [0.0, 0.0, 1.0]
    """
    tokens, sequences = sum(counts), sum(count > 0 for count in counts)
    if reduction == SUM:
        return [float(count > 0) for count in counts]
    if reduction == MEAN_OVER_TOKENS:
        return [count / tokens if tokens else 0.0 for count in counts]
    if reduction == MEAN_OVER_SEQUENCES:
        return [(count > 0) / sequences if sequences else 0.0 for count in counts]
    largest = max((i for i, count in enumerate(counts) if count > 0), key=lambda i: values[i], default=-1)
    return [float(i == largest) for i in range(len(counts))]


def combine(values: Sequence[Any], sequence_shares: Sequence[float]) -> Any:
    """The value of the pack, of numbers or tensors. The value of a sequence without a share is not read: it may be NaN.

    >>> combine([1.0, float("nan"), 5.0], shares("mean over tokens", [3, 0, 1]))
    2.0
    """
    return sum(share * value for share, value in zip(sequence_shares, values, strict=True) if share)
