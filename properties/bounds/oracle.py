"""The oracle: the expected results of a call, from the float64 reference, and the error that a kernel may have."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from packproof.properties.bounds.budget import (
    SMALLEST_NORMAL,
    Budget,
    budget,
    operands,
    saved_outputs,
    saved_underflow,
)
from packproof.properties.bounds.drawn_roundings import AT_ONCE, COPIES, COPIES_OF_LARGE, deviations, size_of_one
from packproof.properties.bounds.running_error import bounded
from packproof.properties.bounds.signs import Signs
from packproof.properties.cases.drawing import dtype_of
from packproof.properties.cases.sample import Sample
from packproof.properties.light_torch import pulled_back
from packproof.properties.op import Op
from packproof.properties.promises import Promises
from packproof.properties.tensor_key import TensorKey, gradient

_VACUOUS = 0.01  # of the RMS of a tensor, on more than half of its elements
_MOST_DRAWN = 2**23  # elements of one copy
_NOTHING = 2.0**-40  # relative to its terms: a smaller sum is the rounding of float64 alone


@dataclass(frozen=True)
class Expected:
    """Values and budgets of every output and gradient."""

    values: Mapping[TensorKey, Tensor]
    """The reference's values, in float64."""
    budgets: Mapping[TensorKey, Budget]
    """The error allowed for each element."""
    absolute: Mapping[TensorKey, Tensor]
    """B: the sums of absolute terms, from which the budgets follow."""
    of_operands: Mapping[float, Mapping[TensorKey, Tensor]] = field(default_factory=dict)
    """B_op by the roundoff of operands, for ops that declare `operands`."""

    @property
    def vacuous(self) -> tuple[TensorKey, ...]:
        """The tensors with a budget as large as their values."""
        return tuple(key for key, allowed in self.budgets.items() if allowed.vacuous)


def expected(sample: Sample, promises: Promises, *, gradients: bool) -> Expected:
    """Run the reference in float64 on the sample's inputs, in the values of the kernel's dtype, and bound its terms."""
    op = sample.op
    derived = is_derived(op, promises)
    floor = saved_underflow(promises, _stored_outputs(sample).values())
    values: Mapping[TensorKey, Tensor]
    if op.roundings is not None:
        values = vjp(op.reference, sample, gradients=gradients)
        signs = Signs(least=SMALLEST_NORMAL[_tokens(sample)])
        absolute = deviations(op.roundings, sample, promises, partial(vjp, gradients=gradients), values, signs)
    elif derived:
        values, absolute = bounded(lambda: vjp(op.reference, sample, gradients=gradients), floor)
    else:
        values = vjp(op.reference, sample, gradients=gradients)
        absolute = vjp(magnitude_op(op, promises), sample, gradients=gradients, absolute=True)
    return with_promises(Expected(values, {}, absolute), sample, promises)


def with_promises(found: Expected, sample: Sample, promises: Promises) -> Expected:
    """The same answer with the budgets of other promises. These change the precision of operands and sums alone."""
    op, derived, tokens = sample.op, is_derived(sample.op, promises), _tokens(sample)
    stored = _stored_outputs(sample)
    u_saved = saved_outputs(promises, stored.values())
    stored |= {gradient(n): x.dtype for n, x in sample.inputs.items()}
    u_op, drawn = operands(op, promises, tokens), found.of_operands
    if op.operands is not None and u_op and u_op not in drawn:
        drawn = {**drawn, u_op: _of_operands(found, sample, promises, u_op)}
    of_operands = drawn.get(u_op, {})

    def allowed(key: TensorKey, r: Tensor) -> Budget:
        absolute, saved = found.absolute[key], u_saved if key.is_gradient else 0.0
        of_key = of_operands.get(key)
        terms = budget(
            r, absolute, stored[key], tokens, op, promises, derived=derived, u_saved=saved, of_operands=of_key
        )
        return replace(terms, vacuous=is_vacuous(key, found.values, absolute, sample, terms))

    budgets = {key: allowed(key, r) for key, r in found.values.items()}
    return Expected(found.values, budgets, found.absolute, drawn)


def _stored_outputs(sample: Sample) -> dict[TensorKey, torch.dtype]:
    """The dtype of each output."""
    tokens = str(_tokens(sample)).removeprefix("torch.")
    return {TensorKey(n): dtype_of(sample.op, n, tokens) for n in sample.outputs}


def _of_operands(found: Expected, sample: Sample, promises: Promises, u_op: float) -> dict[TensorKey, Tensor]:
    """B_op: the effect of operand roundings, at most B. Where an operand is subnormal, B does not bound it."""
    assert sample.op.operands is not None
    signs, size = Signs(u_op, SMALLEST_NORMAL[_tokens(sample)]), size_of_one(sample.op.operands, sample)
    if size > _MOST_DRAWN:
        return dict(found.absolute)
    copies = COPIES if size * COPIES <= AT_ONCE else COPIES_OF_LARGE
    run = partial(vjp, gradients=any(key.is_gradient for key in found.values))
    drawn = deviations(sample.op.operands, sample, promises, run, found.values, signs, copies)
    return drawn if signs.underflowed else {key: B.fmin(found.absolute[key]) for key, B in drawn.items()}


def _tokens(sample: Sample) -> torch.dtype:
    return sample.inputs[next(iter(sample.op.inputs))].dtype


def is_derived(op: Op, promises: Promises) -> bool:
    """Whether B is derived from the op's reference alone (`running_error`)."""
    return op.absolute is None and op.roundings is None and not (promises.cumsum and op.cumsum)


def magnitude_op(op: Op, promises: Promises) -> Callable[..., Any]:
    """The declared magnitude op: it bounds the terms of the op's values and gradients (`bounds.magnitude`)."""
    declared = op.cumsum(promises) if promises.cumsum and op.cumsum else op.absolute
    assert declared is not None
    return declared


def is_vacuous(
    key: TensorKey, values: Mapping[TensorKey, Tensor], absolute: Tensor, sample: Sample, allowed: Budget
) -> bool:
    """Whether a budget is as large as the values of its tensor, so that it judges nothing. For any op and bound.

    It is vacuous in two cases. First, zeros in place of the tensor would pass. One element that cancels is not enough
    for this, and a tensor of zeros is judged by the error that a kernel may have. Second, the accumulation term of most
    elements exceeds a share of the tensor's RMS. For a gradient, which may cancel, the RMS is at least the size of such
    a gradient: outputs times incoming gradients, divided by the input.
    """
    r = values[key].abs()
    if r.numel() and bool((r <= allowed.total).all()) and float(r.max()) > _NOTHING * float(absolute.max()):
        return True
    typical = _rms([values[key]])
    if key.is_gradient:
        x = sample.inputs[key.name]
        outputs = _rms(values[TensorKey(n)] for n in sample.cotangents)
        incoming = _rms(sample.cotangents.values())
        typical = max(typical, outputs * incoming / max(_rms([x]), 1e-30))
    return typical > 0 and float((allowed.accumulation > _VACUOUS * typical).double().mean()) > 0.5


def _rms(tensors: Iterable[Tensor]) -> float:
    flat = torch.cat([x.detach().double().flatten() for x in tensors])
    return float(flat.square().mean().sqrt()) if len(flat) else 0.0


def vjp(f: Callable[..., Any], sample: Sample, *, gradients: bool, absolute: bool = False) -> dict[TensorKey, Tensor]:
    """Outputs and gradients of a reference in float64.

    absolute: `f` is a magnitude op, so incoming gradients are absolute.
    """
    inputs = sample.in_float64(gradients=gradients)
    results = f(**inputs, **sample.metadata, **sample.options)
    named = dict(zip(sample.outputs, results if isinstance(results, tuple) else (results,), strict=True))
    values = {TensorKey(n): y.detach() for n, y in named.items()}
    if gradients:
        reached = [n for n, y in named.items() if y.requires_grad]
        cotangents = [sample.cotangents[n].double() for n in reached]
        wrt = {n: inputs[n] for n in sample.wrt}
        incoming = [c.abs() for c in cotangents] if absolute else cotangents
        found = pulled_back([named[n] for n in reached], list(wrt.values()), incoming) if reached else [None] * len(wrt)
        for (n, x), g in zip(wrt.items(), found, strict=True):
            values[gradient(n)] = torch.zeros_like(x) if g is None else g.detach()
    return values
