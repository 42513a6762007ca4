"""The oracle: the expected results of a call, from the float64 reference, and the error that a kernel may have."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from packproof.base.lazy import Deferred
from packproof.base.light_torch import vector_jacobian_product
from packproof.base.machine import lacks_host_memory, limited_to_free_memory
from packproof.base.stopwatch import span
from packproof.properties.bounds.budget import (
    SMALLEST_NORMAL,
    UNIT_ROUNDOFF,
    Budget,
    accumulator_roundoff,
    budget,
    intermediate_underflow,
    operand_roundoff,
    saved_output_roundoff,
)
from packproof.properties.bounds.drawn_roundings import (
    COPIES,
    COPIES_OF_LARGE_STATES,
    MAX_ELEMENTS_AT_ONCE,
    default_copies,
    deviations,
    elements_per_copy,
)
from packproof.properties.bounds.running_error import run_with_error_bounds
from packproof.properties.bounds.signs import Signs
from packproof.properties.calling.call import MachineLimit, VacuousBound
from packproof.properties.calling.tensor_key import TensorKey, gradient
from packproof.properties.cases.drawing import dtype_of
from packproof.properties.cases.sample import Sample
from packproof.properties.declarations.promises import Promises
from packproof.properties.ops.op import Op

_VACUOUS_SHARE = 0.01  # of the RMS of a tensor, on more than half of its elements
_MAX_DRAWN_ELEMENTS = 2**23  # elements of one copy
_NEGLIGIBLE_UNDERFLOW = 2.0**-20  # of B: what is smaller does not show in a budget
_NEGLIGIBLE = 2.0**-40  # relative to its terms: a smaller sum is the rounding of float64 alone


@dataclass(frozen=True)
class OracleAnswer:
    """Values and budgets of every output and gradient."""

    values: Mapping[TensorKey, Tensor]
    """The reference's values, in float64."""
    budgets: Mapping[TensorKey, Budget]
    """The error allowed for each element."""
    magnitudes: Mapping[TensorKey, Tensor]
    """B: the sums of absolute terms, from which the budgets follow."""
    operand_bounds_by_roundoff: Mapping[float, Deferred[Mapping[TensorKey, Tensor]]] = field(default_factory=dict)
    """B_op by the roundoff of operands, for ops that declare `operands`. Drawn for the first result that needs it: one
    within the other terms of its budget does not, and drawing takes several times as long as the reference."""
    drawn_from_few: bool = False
    """Whether B was drawn with few copies, since the states are large."""

    @property
    def vacuous(self) -> tuple[TensorKey, ...]:
        """The tensors with a budget as large as their values."""
        return tuple(key for key, tensor_budget in self.budgets.items() if tensor_budget.vacuous)


def oracle_answer(sample: Sample, promises: Promises, *, gradients: bool, copies: int | None = None) -> OracleAnswer:
    """Run the reference in float64 on the sample's inputs, in the values of the kernel's dtype, and bound its terms.

    copies: number of copies, where B is drawn; None takes fewer where states are large.
    """
    op, drawn_from_few = sample.op, False
    derived = is_derived(op, promises)
    floor = intermediate_underflow(op, promises, sample.token_dtype, _output_dtypes(sample).values())
    values: Mapping[TensorKey, Tensor]
    if op.roundings is not None:
        values = vjp(op.reference, sample, gradients=gradients)
        signs = Signs(smallest_normal=_smallest_operand(sample, promises))
        run, copies = partial(vjp, gradients=gradients), copies or default_copies(op.roundings, sample)
        magnitudes = deviations(op.roundings, sample, promises, run, values, signs, copies)
        drawn_from_few = copies < COPIES
    elif derived:
        values, magnitudes = run_with_error_bounds(lambda: vjp(op.reference, sample, gradients=gradients), floor)
    else:
        values = vjp(op.reference, sample, gradients=gradients)
        magnitudes = vjp(magnitude_op(op, promises), sample, gradients=gradients, absolute=True)
    answer = OracleAnswer(values, {}, magnitudes, drawn_from_few=drawn_from_few)
    return with_promises(answer, sample, promises)


def _smallest_operand(sample: Sample, promises: Promises) -> float:
    """The smallest normal number of operands: that of the tokens, or of fp32 if the kernel does not round to theirs."""
    of_tokens = SMALLEST_NORMAL[sample.token_dtype]
    are_tokens = operand_roundoff(sample.op, promises, sample.token_dtype) == UNIT_ROUNDOFF[sample.token_dtype]
    return of_tokens if are_tokens else min(of_tokens, SMALLEST_NORMAL[torch.float32])


def with_promises(answer: OracleAnswer, sample: Sample, promises: Promises) -> OracleAnswer:
    """The same answer with the budgets of other promises. These change the precision of operands and sums alone."""
    op, derived, token_dtype = sample.op, is_derived(sample.op, promises), sample.token_dtype
    dtypes = _output_dtypes(sample)
    u_saved = saved_output_roundoff(promises, dtypes.values())
    dtypes |= {gradient(n): x.dtype for n, x in sample.inputs.items()}
    u_op, bounds_by_roundoff = operand_roundoff(op, promises, token_dtype), answer.operand_bounds_by_roundoff
    if u_op and u_op not in bounds_by_roundoff:
        if op.operands is not None and has_decisive_operands(promises, u_op, token_dtype):
            bounds = _drawn_when_needed(partial(_operand_bounds, answer, sample, promises, u_op))
            bounds_by_roundoff = {**bounds_by_roundoff, u_op: bounds}
        elif op.roundings is not None and op.roundings.operands is not None and promises.cumsum:
            bounds = _drawn_when_needed(partial(_first_order_operand_bounds, answer, sample, promises))
            bounds_by_roundoff = {**bounds_by_roundoff, u_op: bounds}
    operand_bounds = bounds_by_roundoff.get(u_op)

    def tensor_budget(key: TensorKey, r: Tensor) -> Budget:
        B = answer.magnitudes[key]
        terms = partial(
            budget,
            *(r, B, dtypes[key], token_dtype, op, promises),
            derived=derived,
            u_saved=u_saved if key.is_gradient else 0.0,
        )

        def proves_nothing(checked_budget: Budget) -> bool:
            return is_vacuous(key, answer.values, B, sample, checked_budget)

        if operand_bounds is None:
            checked_budget = terms()
            vacuous = proves_nothing(checked_budget)
            return replace(checked_budget, vacuity=lambda: vacuous)
        return _with_drawn_operands(
            terms(operand_bound=torch.zeros_like(B)), lambda: terms(operand_bound=operand_bounds()[key]), proves_nothing
        )

    budgets = {key: tensor_budget(key, r) for key, r in answer.values.items()}
    return replace(answer, budgets=budgets, operand_bounds_by_roundoff=bounds_by_roundoff)


def _with_drawn_operands(
    without_operands: Budget, draw: Callable[[], Budget], proves_nothing: Callable[[Budget], bool]
) -> Budget:
    """The budget with the term of B_op, drawn for the first result that is not within the other terms.

    draw: the budget itself.
    proves_nothing: `is_vacuous` for its tensor.
    """
    drawn = Deferred(draw)
    is_vacuous_without, is_vacuous_drawn = (
        Deferred(lambda: proves_nothing(without_operands)),
        Deferred(lambda: proves_nothing(drawn())),
    )
    return replace(
        without_operands,
        operand_term=lambda: drawn().operands,
        vacuity=lambda: is_vacuous_drawn() if drawn.is_computed else is_vacuous_without(),
    )


def _drawn_when_needed(
    bounds: Callable[[], Mapping[TensorKey, Tensor]],
) -> Deferred[Mapping[TensorKey, Tensor]]:
    def drawn() -> Mapping[TensorKey, Tensor]:
        with span("reference"), reference_fits():
            return bounds()

    return Deferred(drawn)


@contextmanager
def reference_fits() -> Iterator[None]:
    """Raises MachineLimit where the memory of this machine is too small for what is computed inside."""
    try:
        with limited_to_free_memory():
            yield
    except (MemoryError, RuntimeError) as error:
        if not lacks_host_memory(error):
            raise
        raise MachineLimit(f"the reference does not fit into the memory of this machine: {error}") from error


def has_decisive_operands(promises: Promises, u_op: float, token_dtype: torch.dtype) -> bool:
    """Whether B_op decides a budget, so that it is worth drawing.

    It does not where operands are as precise as sums: K_op B, which bounds it, is an eighth of K_acc B then. Where
    decays are sums, K_acc is smaller.
    """
    return promises.cumsum or u_op > accumulator_roundoff(token_dtype)


def _output_dtypes(sample: Sample) -> dict[TensorKey, torch.dtype]:
    """The dtype of each output."""
    return {TensorKey(n): dtype_of(sample.op, n, sample.token_dtype_name) for n in sample.outputs}


def _operand_bounds(answer: OracleAnswer, sample: Sample, promises: Promises, u_op: float) -> dict[TensorKey, Tensor]:
    """B_op: the effect of operand roundings, at most B. B bounds no element that a subnormal operand reaches."""
    assert sample.op.operands is not None
    smallest_normal, elements = SMALLEST_NORMAL[sample.token_dtype], elements_per_copy(sample.op.operands, sample)
    if elements > _MAX_DRAWN_ELEMENTS:
        return dict(answer.magnitudes)
    copies = COPIES if elements * COPIES <= MAX_ELEMENTS_AT_ONCE else COPIES_OF_LARGE_STATES
    run = partial(vjp, gradients=any(key.is_gradient for key in answer.values))

    def drawn(signs: Signs, copies: int) -> dict[TensorKey, Tensor]:
        assert sample.op.operands is not None
        return deviations(sample.op.operands, sample, promises, run, answer.values, signs, copies)

    signs = Signs(u_op, smallest_normal)
    bounds = drawn(signs, copies)
    at_most = {key: bound.fmin(answer.magnitudes[key]) for key, bound in bounds.items()}
    if not signs.underflowed:
        return at_most
    underflows = drawn(Signs(u_op, smallest_normal, underflow_only=True), 1)  # one copy shows which elements they reach
    reached = {key: x > _NEGLIGIBLE_UNDERFLOW * answer.magnitudes[key] for key, x in underflows.items()}
    return {key: torch.where(reached[key], bound, at_most[key]) for key, bound in bounds.items()}


def _first_order_operand_bounds(answer: OracleAnswer, sample: Sample, promises: Promises) -> dict[TensorKey, Tensor]:
    """B_op of an op whose B is drawn: at most B, without the errors of fp32 sums (`Roundings.operands`)."""
    roundings = sample.op.roundings
    assert roundings is not None
    assert roundings.operands is not None
    signs = Signs(smallest_normal=SMALLEST_NORMAL[sample.token_dtype])
    run = partial(vjp, gradients=any(key.is_gradient for key in answer.values))
    copies = COPIES_OF_LARGE_STATES if answer.drawn_from_few else COPIES
    operands = replace(roundings, make=roundings.operands)
    bounds = deviations(operands, sample, promises, run, answer.values, signs, copies)
    return {key: B.fmin(answer.magnitudes[key]) for key, B in bounds.items()}


def is_derived(op: Op, promises: Promises) -> bool:
    """Whether B is derived from the op's reference alone (`running_error`)."""
    return op.absolute is None and op.roundings is None and not (promises.cumsum and op.cumsum)


def require_decisive(answer: OracleAnswer, sample: Sample, promises: Promises) -> None:
    """Raises VacuousBound if the budgets of all outputs are as large as their values."""
    if not sample.outputs or not all(answer.budgets[TensorKey(name)].vacuous for name in sample.outputs):
        return
    bound, way_out = (
        (f"derived from {sample.op.name}'s reference", "declare `absolute`")
        if is_derived(sample.op, promises)
        else (f"that {sample.op.name} declares", "leave out `absolute`, or sum fewer terms in it")
    )
    raise VacuousBound(
        f"the error bound {bound} is so large for {', '.join(map(str, answer.vacuous))} that it cannot judge "
        f"a kernel; {way_out}"
    )


def magnitude_op(op: Op, promises: Promises) -> Callable[..., Any]:
    """The declared magnitude op: it bounds the terms of the op's values and gradients (`bounds.magnitude_ops`)."""
    declared_op = op.cumsum(promises) if promises.cumsum and op.cumsum else op.absolute
    assert declared_op is not None
    return declared_op


def is_vacuous(
    key: TensorKey, values: Mapping[TensorKey, Tensor], absolute: Tensor, sample: Sample, tensor_budget: Budget
) -> bool:
    """Whether a budget is as large as the values of its tensor, so that it judges nothing. For any op and bound.

    It is vacuous in two cases. First, zeros in place of the tensor would pass. One element that cancels is not enough
    for this, and a tensor of zeros is judged by the error that a kernel may have. Second, the accumulation term of most
    elements exceeds a share of the tensor's RMS. For a gradient, which may cancel, the RMS is at least the size of such
    a gradient: outputs times incoming gradients, divided by the input.
    """
    r = values[key].abs()
    if r.numel() and bool((r <= tensor_budget.total).all()) and float(r.max()) > _NEGLIGIBLE * float(absolute.max()):
        return True
    typical_value = _rms([values[key]])
    if key.is_gradient:
        x = sample.inputs[key.name]
        output_rms = _rms(values[TensorKey(n)] for n in sample.cotangents)
        incoming_rms = _rms(sample.cotangents.values())
        typical_value = max(typical_value, output_rms * incoming_rms / max(_rms([x]), 1e-30))
    return (
        typical_value > 0 and float((tensor_budget.accumulation > _VACUOUS_SHARE * typical_value).double().mean()) > 0.5
    )


def _rms(tensors: Iterable[Tensor]) -> float:
    flat = torch.cat([x.detach().double().flatten() for x in tensors])
    return float(flat.square().mean().sqrt()) if len(flat) else 0.0


def vjp(f: Callable[..., Any], sample: Sample, *, gradients: bool, absolute: bool = False) -> dict[TensorKey, Tensor]:
    """Outputs and gradients of a reference in float64.

    absolute: `f` is a magnitude op, so incoming gradients are absolute.
    """
    inputs = sample.in_float64(gradients=gradients)
    results = f(**inputs, **sample.metadata, **sample.options)
    outputs = dict(zip(sample.outputs, results if isinstance(results, tuple) else (results,), strict=True))
    values = {TensorKey(n): y.detach() for n, y in outputs.items()}
    if gradients:
        differentiable = [n for n, y in outputs.items() if y.requires_grad]
        cotangents = [sample.cotangents[n].double() for n in differentiable]
        wrt = {n: inputs[n] for n in sample.wrt}
        incoming_gradients = [c.abs() for c in cotangents] if absolute else cotangents
        input_gradients = (
            vector_jacobian_product([outputs[n] for n in differentiable], list(wrt.values()), incoming_gradients)
            if differentiable
            else [None] * len(wrt)
        )
        for (n, x), g in zip(wrt.items(), input_gradients, strict=True):
            values[gradient(n)] = torch.zeros_like(x) if g is None else g.detach()
    return values
