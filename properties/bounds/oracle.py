"""The oracle: what a call should return, from the float64 reference, and how far from it a kernel may be."""

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
_NOTHING = 2.0**-40  # of its terms: a sum that is zero but for the rounding of float64


@dataclass(frozen=True)
class Expected:
    """Values and budgets of every output and gradient.

    absolute: the sums of absolute terms that the budgets follow from. of_operands: what roundings of operands do, by
    their roundoff, where they are drawn apart.
    """

    values: Mapping[TensorKey, Tensor]
    budgets: Mapping[TensorKey, Budget]
    absolute: Mapping[TensorKey, Tensor]
    of_operands: Mapping[float, Mapping[TensorKey, Tensor]] = field(default_factory=dict)

    @property
    def vacuous(self) -> tuple[TensorKey, ...]:
        """The tensors whose budget is as large as what it judges."""
        return tuple(key for key, allowed in self.budgets.items() if allowed.vacuous)


def expected(sample: Sample, promises: Promises, *, gradients: bool) -> Expected:
    """Run the reference in float64 on the sample's inputs, as they are in the kernel's dtype, and bound its terms."""
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
    """The same with the budgets of other promises, which differ in the precision of operands and sums alone."""
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
    """B_op: what roundings of operands do, at most B; where one is below the smallest normal number, B is no bound."""
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
    """Whether the error bound of an op follows from its reference alone."""
    return op.absolute is None and op.roundings is None and not (promises.cumsum and op.cumsum)


def magnitude_op(op: Op, promises: Promises) -> Callable[..., Any]:
    """The declared magnitude op, which bounds the terms of the op's values and gradients (`bounds.magnitude`)."""
    declared = op.cumsum(promises) if promises.cumsum and op.cumsum else op.absolute
    assert declared is not None
    return declared


def is_vacuous(
    key: TensorKey, values: Mapping[TensorKey, Tensor], absolute: Tensor, sample: Sample, allowed: Budget
) -> bool:
    """Whether a budget is as large as what it judges, for any op and however its bound was found.

    It is where zeros in the place of the tensor would pass. One element that cancels is not enough for that; and a
    tensor that is zero itself is judged by how far from it a kernel may be. It also is where the sums alone may put
    most of a tensor off by a part of what it holds, or, for a gradient that cancels, of what such a gradient holds:
    outputs times incoming gradients, by the input.
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
    """Outputs and gradients of a reference in float64; of a magnitude op, with `absolute`, at absolute incoming
    gradients."""
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
