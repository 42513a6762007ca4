"""The budget for two runs of a kernel: that of a run against the reference, and the roundings of stored tensors."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from packproof.base.axes import is_shared
from packproof.properties.bounds.budget import UNDERFLOW_UNIT, UNIT_ROUNDOFF, Budget, accumulation_constant
from packproof.properties.bounds.oracle import OracleAnswer
from packproof.properties.calling.tensor_key import TensorKey
from packproof.properties.cases.drawing import dtype_of
from packproof.properties.cases.sample import Sample
from packproof.properties.declarations.promises import Promises


def budget_of_two_runs(
    answer: OracleAnswer, key: TensorKey, sample: Sample, *, handovers: int = 0, summands: Sequence[Tensor] = ()
) -> Budget:
    """The budget of one of two runs: twice this is allowed between them.

    It adds three roundings to the budget of a comparison with the reference. The first is for a shared gradient, the
    gradient of keys that several pieces have, or a reduction over the pack: the other run stored its summands or its
    sum. The second is for a gradient of a reduction: the share of a sequence is rounded to the dtype of its incoming
    gradient. The third is for a state, or its gradient, stored at each hand-over: it reaches an element with the weight
    of the state's terms, bounded by B.

    handovers: the number of hand-overs.
    summands: the stored summands of a gradient; empty if only the sum was stored.
    """
    budget = answer.budgets[key]
    rounding = budget.rounding
    if summands or is_shared(sample.axes[key.name]):
        magnitudes = [x.double().abs() for x in summands] or [answer.values[key].abs()]
        rounding = rounding + UNIT_ROUNDOFF[_dtype(key, sample)] * torch.stack(magnitudes).sum(0)
    if key.is_gradient and sample.op.reductions:
        is_only = sample.op.reductions.keys() >= sample.cotangents.keys()
        terms = answer.values[key].abs() if is_only else answer.magnitudes[key]
        rounding = rounding + max(UNIT_ROUNDOFF[x.dtype] for x in sample.cotangents.values()) * terms
    if handovers:
        rounding = rounding + handovers * _state_roundoff(sample) * answer.magnitudes[key]
    return replace(budget, rounding=rounding)


def _dtype(key: TensorKey, sample: Sample) -> torch.dtype:
    """The dtype of a shared tensor: the gradient of an input, or a reduction over the pack."""
    return sample.inputs[key.name].dtype if key.is_gradient else dtype_of(sample.op, key.name, sample.token_dtype_name)


def budget_of_lower_dtype(answer: OracleAnswer, key: TensorKey, dtype: torch.dtype, promises: Promises) -> Budget:
    """The budget of a run in which all arithmetic may be of a dtype of 16 bits: u_acc is its roundoff, too."""
    u, value, magnitude = UNIT_ROUNDOFF[dtype], answer.values[key], answer.magnitudes[key]
    rounding = answer.budgets[key].rounding + u * value.abs() + UNDERFLOW_UNIT[dtype]
    accumulation = accumulation_constant(promises, derived=False) * u * magnitude
    return Budget(rounding, lambda: torch.zeros_like(value), accumulation)


def _state_roundoff(sample: Sample) -> float:
    """The roundoff of the state as it is stored at a hand-over."""
    assert sample.op.carried_names is not None
    tensors = {**sample.cotangents, **sample.inputs}
    names, default = sample.op.carried_names, sample.token_dtype_name
    dtypes = (tensors[n].dtype if n in tensors else dtype_of(sample.op, n, default) for n in names)
    return max(UNIT_ROUNDOFF[dtype] for dtype in dtypes)
