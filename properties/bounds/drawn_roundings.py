"""B of the error budget by drawing roundings: for ops that are stable, though not in absolute values.

Where an op subtracts what it stored, as the delta rule does, the sum of absolute terms grows exponentially while the op
itself forgets its errors: it is a bound, and says nothing. To first order an error is a sum over rounding events, each
carried on by the op's own derivative. If the events have random signs, that sum is of the size of its root mean square,
and beyond λ times it with a probability below 2 exp(-λ²/2) (Hoeffding; Higham & Mary 2019, A New Approach to
Probabilistic Rounding Error Analysis, theorem 2.4). So `rounded` adds an event of either sign, of the size of the sum
of its absolute terms, to each intermediate value of a copy of the op; all copies run at once, as more heads. B is the
root mean square of what their results deviate by, in units of roundoff; K_op = 4 and K_acc = 32 are the budget's λ.

Rounded operands of other ops are drawn apart, for B_op (`Op.operands`). Their roundoff is that of 16 bits, where a
softmax of large scores is far from linear in their errors: copies are rounded by as much as a kernel's operands are.
Packs of thousands of tokens, whose scores would take minutes, keep B for it.
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
    """B of each output and gradient. run: what a function makes of a sample, as `values` is of the reference. copies:
    how many; None: fewer where states are large."""
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
    """The sample with so many copies of its heads, one copy after another, so that each finds its own key heads."""

    def tiled(name: str, x: Tensor) -> Tensor:
        return x.repeat(*(copies if axis in heads else 1 for axis in sample.axes[name]))

    return replace(
        sample,
        inputs={name: tiled(name, x) for name, x in sample.inputs.items()},
        cotangents={name: tiled(name, x) for name, x in sample.cotangents.items()},
    )
