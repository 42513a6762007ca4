"""B of the error budget from random roundings: for ops that are stable, although their absolute values are not.

The delta rule subtracts earlier values of its state. Its sum of absolute terms grows exponentially while the op itself
forgets its errors, so that sum is a useless bound. To first order an error is a sum over rounding events, each carried
on by the op's own derivative. If the events have random signs, the sum is about as large as its root mean square. It
exceeds λ times the root mean square with a probability below 2 exp(-λ²/2) (Hoeffding; Higham & Mary 2019, A New
Approach to Probabilistic Rounding Error Analysis, theorem 2.4). So `Signs.rounded` adds an event of random sign to each
intermediate value of a copy of the op, as large as the sum of its absolute terms. All copies run at once, as more
heads. B is the root mean square of their deviations, in units of roundoff. K_op = 4 and K_acc = 32 are the budget's λ.

Roundings of operands are drawn separately, for B_op (`Op.operands`). Operands are rounded to 16 bits, and a softmax of
large scores is far from linear in errors of that size. So these copies are rounded by as much as the kernel's operands.
Packs of thousands of tokens use B instead of B_op, since their scores would take minutes.
"""

# mypy: allow-untyped-calls

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from math import prod
from typing import Any

import torch
from torch import Tensor

from packproof.properties.bounds.signs import Signs
from packproof.properties.cases.sample import Sample
from packproof.properties.promises import Promises
from packproof.properties.roundings import Roundings
from packproof.properties.tensor_key import TensorKey
from packproof.refs.axes import KEYS

COPIES, COPIES_OF_LARGE = 64, 16
_LARGE = 4096  # elements of the states of all heads
AT_ONCE = 2**24  # elements of the states of all copies and tokens


def deviations(
    roundings: Roundings,
    sample: Sample,
    promises: Promises,
    run: Callable[[Callable[..., Any], Sample], Mapping[TensorKey, Tensor]],
    values: Mapping[TensorKey, Tensor],
    signs: Signs,
    copies: int | None = None,
) -> dict[TensorKey, Tensor]:
    """B of each output and gradient.

    run: calls a function on a sample, as the reference was called for `values`.
    copies: number of copies; None takes fewer where states are large.
    """
    total = {key: torch.zeros_like(value) for key, value in values.items()}
    function, count = roundings.make(promises, signs), 0
    for at_once in _batches(roundings, sample, copies):
        found = run(function, _copied(sample, roundings.heads, at_once))
        for key, value in values.items():
            axis = _head_axis(sample, roundings.heads, key.name)
            apart = found[key].unflatten(axis, (at_once, -1)) - value.unsqueeze(axis)
            total[key] += (apart / signs.unit).square().sum(axis)
        count += at_once
    return {key: (squares / count).sqrt() for key, squares in total.items()}


def size_of_one(roundings: Roundings, sample: Sample) -> int:
    """The elements of the states of one copy, of all heads and tokens."""
    return _size(roundings, sample) * sample.offsets[-1]


def _size(roundings: Roundings, sample: Sample) -> int:
    sizes = {**sample.sizes, KEYS: max(sample.key_lengths or sample.lengths, default=0)}
    return roundings.width * prod(sizes[axis] for axis in roundings.state)


def _batches(roundings: Roundings, sample: Sample, copies: int | None) -> Iterator[int]:
    left = copies or (COPIES if _size(roundings, sample) <= _LARGE else COPIES_OF_LARGE)
    most = max(1, AT_ONCE // max(1, size_of_one(roundings, sample)))
    while left:
        yield min(left, most)
        left -= min(left, most)


def _head_axis(sample: Sample, heads: Collection[str], name: str) -> int:
    return next(i for i, axis in enumerate(sample.axes[name]) if axis in heads)


def _copied(sample: Sample, heads: Collection[str], copies: int) -> Sample:
    """The sample with its heads repeated, one copy after another, so that each query head meets its own key head."""

    def tiled(name: str, x: Tensor) -> Tensor:
        return x.repeat(*(copies if axis in heads else 1 for axis in sample.axes[name]))

    return replace(
        sample,
        inputs={name: tiled(name, x) for name, x in sample.inputs.items()},
        cotangents={name: tiled(name, x) for name, x in sample.cotangents.items()},
    )
