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

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from math import prod
from typing import Any

import torch
from torch import Tensor

from packproof.base.axes import KEYS
from packproof.properties.bounds.roundings import Roundings
from packproof.properties.bounds.signs import Signs
from packproof.properties.calling.tensor_key import TensorKey
from packproof.properties.cases.sample import Sample
from packproof.properties.declarations.promises import Promises

COPIES, COPIES_OF_LARGE_STATES = 64, 16
_LARGE_STATE = 4096  # elements of the states of all heads
MAX_ELEMENTS_AT_ONCE = 2**24  # elements of the states of all copies and tokens


def deviations(
    roundings: Roundings,
    sample: Sample,
    promises: Promises,
    run: Callable[[Callable[..., Any], Sample], Mapping[TensorKey, Tensor]],
    values: Mapping[TensorKey, Tensor],
    signs: Signs,
    copies: int,
) -> dict[TensorKey, Tensor]:
    """B of each output and gradient.

    run: calls a function on a sample, as the reference was called for `values`.
    """
    sums_of_squares = {key: torch.zeros_like(value) for key, value in values.items()}
    function, count = roundings.make(promises, signs), 0
    max_batch = max(1, MAX_ELEMENTS_AT_ONCE // max(1, elements_per_copy(roundings, sample)))
    while count < copies:
        batch = min(copies - count, max_batch)
        results = run(function, _with_copied_heads(sample, roundings.heads, batch))
        for key, value in values.items():
            axis = _head_axis(sample, roundings.heads, key.name)
            deviation = results[key].unflatten(axis, (batch, -1)) - value.unsqueeze(axis)
            sums_of_squares[key] += (deviation / signs.unit).square().sum(axis)
        count += batch
    return {key: (sum_of_squares / count).sqrt() for key, sum_of_squares in sums_of_squares.items()}


def default_copies(roundings: Roundings, sample: Sample) -> int:
    """The number of copies: fewer where states are large."""
    return COPIES if _state_elements(roundings, sample) <= _LARGE_STATE else COPIES_OF_LARGE_STATES


def elements_per_copy(roundings: Roundings, sample: Sample) -> int:
    """The elements of the states of one copy, of all heads and tokens."""
    return _state_elements(roundings, sample) * sample.offsets[-1]


def _state_elements(roundings: Roundings, sample: Sample) -> int:
    sizes = {**sample.sizes, KEYS: max(sample.key_lengths or sample.lengths, default=0)}
    return roundings.width * prod(sizes[axis] for axis in roundings.state)


def _head_axis(sample: Sample, heads: Collection[str], name: str) -> int:
    return next(i for i, axis in enumerate(sample.axes[name]) if axis in heads)


def _with_copied_heads(sample: Sample, heads: Collection[str], copies: int) -> Sample:
    """The sample with its heads repeated, one copy after another, so that each query head meets its own key head."""

    def tile_heads(name: str, x: Tensor) -> Tensor:
        return x.repeat(*(copies if axis in heads else 1 for axis in sample.axes[name]))

    return replace(
        sample,
        inputs={name: tile_heads(name, x) for name, x in sample.inputs.items()},
        cotangents={name: tile_heads(name, x) for name, x in sample.cotangents.items()},
    )
