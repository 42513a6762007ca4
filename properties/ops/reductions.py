"""Outputs that are reductions over the pack, such as a loss: how the value of a pack follows from its sequences.

With a value v[j] of each sequence alone, and the number n[j] of its tokens that count, the value of a pack is

    sum                   Σ v[j]
    mean over tokens      Σ n[j] v[j] / Σ n[j]
    mean over sequences   Σ v[j] / the number of sequences with n[j] > 0
    maximum               max v[j], of those with n[j] > 0

So the gradient of a sequence's inputs is that of the sequence alone, times its share: 1, n[j] / Σ n, 1 / the number of
sequences, or 1 for the largest and 0 for all others.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from packproof.base import reductions
from packproof.base.reductions import MEAN_OVER_SEQUENCES, MEAN_OVER_TOKENS, SUM, Reduction

if TYPE_CHECKING:  # commands that run no kernel start without torch
    from torch import Tensor

IGNORED_LABEL = -100  # where the op has no option `ignore_index`


def ignored_label(options: Mapping[str, Any]) -> int:
    """The label of tokens that do not count."""
    return int(options.get("ignore_index", IGNORED_LABEL))


def count_tokens(
    counted: "str | Callable[..., Tensor] | None",
    labels: frozenset[str],
    offsets: Sequence[int],
    inputs: "Mapping[str, Tensor]",
    metadata: "Mapping[str, Tensor]",
    options: Mapping[str, Any],
) -> list[float]:
    """How many tokens of each sequence count.

    counted: the field of the op.
    labels: the inputs that are labels; any other is a mask.
    offsets: the first token of each sequence, then the end of the last one.
    """
    if counted is None or (isinstance(counted, str) and counted not in inputs):
        return [float(b - a) for a, b in pairwise(offsets)]
    if callable(counted):
        counts = counted(**inputs, **metadata, **options)
    else:
        x = inputs[counted]
        counts = x != ignored_label(options) if counted in labels else x
    return [float(counts[a:b].double().sum()) for a, b in pairwise(offsets)]


def normaliser(kind: str, counts: Sequence[float]) -> float:
    """What a sum over sequences is divided by."""
    if kind == MEAN_OVER_TOKENS:
        return sum(counts)
    return float(sum(n > 0 for n in counts)) if kind == MEAN_OVER_SEQUENCES else 1.0


def shares(kind: Reduction, counts: Sequence[float], values: "Sequence[Tensor]") -> list[float]:
    """The share of each sequence in the value of the pack; all zero where nothing counts.

    values: of the sequences alone.
    """
    if kind == SUM:  # what a sequence adds without a token that counts is in the sum, too
        return [1.0] * len(counts)
    return reductions.shares(kind, counts, [float(v.double().sum()) for v in values])


def index_of_largest(counts: Sequence[float], values: "Sequence[Tensor]") -> int:
    """The sequence with the largest value, of those that count; -1 where none does."""
    candidates = [j for j, n in enumerate(counts) if n > 0]
    return max(candidates, key=lambda j: float(values[j].double().sum()), default=-1)


def combine(values: "Sequence[Tensor]", weights: Sequence[float]) -> "Tensor":
    """The value of a pack from those of its sequences, in float64. A sequence without a share is left out.

    weights: the shares of the sequences.
    """
    total = reductions.combine([v.double() for v in values], weights)
    return values[0].double().new_zeros(values[0].shape) if isinstance(total, int) else total
