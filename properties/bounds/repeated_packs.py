"""The oracle's answer for a pack that repeats itself: that of one period, again and again.

A reference computes each sequence by itself, in Python, token by token. For thousands of equal sequences it would take
minutes. Packing invariance, which holds for a reference by its op's declaration, gives their values at once.
"""

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor

from packproof.base.axes import role
from packproof.base.lazy import Deferred
from packproof.properties.bounds.oracle import OracleAnswer, with_promises
from packproof.properties.calling.tensor_key import TensorKey
from packproof.properties.cases.sample import Sample
from packproof.properties.declarations.promises import Promises


def repeats_itself(sample: Sample) -> bool:
    """Whether the pack is its first `period` sequences over and over, bit for bit."""
    if not 0 < sample.period < len(sample.lengths) or sample.slack:
        return False
    return sample.select(range(sample.period)).repeated(len(sample.lengths)).digest == sample.digest


def repeated_answer(sample: Sample, promises: Promises, answer: Callable[[Sample], OracleAnswer]) -> OracleAnswer:
    """The answer for a pack that repeats itself.

    answer: the oracle's, for one period and for the sequences after the last whole one.
    """
    copies, n_more = divmod(len(sample.lengths), sample.period)
    of_period = answer(sample.select(range(sample.period)))
    of_rest = answer(sample.select(range(n_more))) if n_more else None

    def repeat(tensors: Mapping[TensorKey, Tensor], more: Mapping[TensorKey, Tensor] | None) -> dict[TensorKey, Tensor]:
        return {key: _repeat(sample, key, x, copies, None if more is None else more[key]) for key, x in tensors.items()}

    def repeated_bounds(u_op: float) -> Mapping[TensorKey, Tensor]:
        parts = [part.operand_bounds_by_roundoff[u_op]() for part in (of_period, of_rest) if part is not None]
        return repeat(parts[0], parts[1] if len(parts) > 1 else None)

    operand_bounds = {u_op: Deferred(partial(repeated_bounds, u_op)) for u_op in of_period.operand_bounds_by_roundoff}
    values = repeat(of_period.values, None if of_rest is None else of_rest.values)
    magnitudes = repeat(of_period.magnitudes, None if of_rest is None else of_rest.magnitudes)
    drawn_from_few = of_period.drawn_from_few or (of_rest is not None and of_rest.drawn_from_few)
    whole = OracleAnswer(values, {}, magnitudes, operand_bounds, drawn_from_few)
    return with_promises(whole, sample, promises)


def _repeat(sample: Sample, key: TensorKey, x: Tensor, copies: int, more: Tensor | None) -> Tensor:
    """The rows of a tensor along tokens or sequences, again and again; the sum of a gradient of a shared one."""
    if role(sample.axes[key.name]) == "shared":
        return x * copies + (0 if more is None else more)
    rows = x.repeat(copies, *[1] * (x.dim() - 1))
    return rows if more is None else torch.cat([rows, more])
