"""The double_backward property: a second derivative is the reference's, or there is an error."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from torch import Tensor, autograd, full_like, stack, zeros_like

from packproof.base.errors import KernelFault
from packproof.base.law_names import LAWS
from packproof.base.light_torch import vector_jacobian_product
from packproof.properties.bounds.budget import (
    UNIT_ROUNDOFF,
    Budget,
    accumulation_constant,
    accumulator_roundoff,
    operand_roundoff,
    saved_output_roundoff,
)
from packproof.properties.bounds.oracle import is_derived, magnitude_op
from packproof.properties.bounds.running_error import run_with_error_bounds
from packproof.properties.calling.call import MachineLimit, Refusal
from packproof.properties.calling.tensor_key import TensorKey
from packproof.properties.cases.case import Case
from packproof.properties.cases.drawing import dtype_of
from packproof.properties.cases.sample import Sample
from packproof.properties.judgement.comparison import Comparison
from packproof.properties.judgement.kernel_under_test import KernelUnderTest
from packproof.properties.laws.property import Illustration, Property
from packproof.properties.laws.torch_integration import smallest_cases
from packproof.properties.laws.violation import Violation

_NOTE = "differentiated twice"


def _double_backward(kernel: KernelUnderTest, case: Case) -> Iterator[Violation]:
    """An incorrect second derivative lacks whole terms, so half of the digits are compared.

    The allowed error is the root of the roundoff (of the dtype, of operands or of saved outputs) times the largest
    element of each tensor. Where large terms cancel, accumulation adds K_acc u_acc B; B has the terms of the magnitude
    op, which are only some of all terms.
    """
    sample = kernel.sample(case)
    if not (kernel.gradients and sample.wrt):
        return
    try:
        result = kernel.call(sample, mode="double backward")
    except KernelFault as fault:
        if fault.kind != "raised":
            yield Violation(text=str(fault), note=_NOTE, fault=fault.kind)
        return
    except MachineLimit:
        raise
    except Refusal:
        return
    expected, terms = _expected_derivatives(kernel, sample)
    token_dtype = sample.token_dtype
    u_acc, u_op = accumulator_roundoff(token_dtype), operand_roundoff(sample.op, kernel.promises, token_dtype)
    outputs = (dtype_of(sample.op, name, sample.token_dtype_name) for name in sample.outputs)
    u_saved = saved_output_roundoff(kernel.promises, outputs)
    k_acc = accumulation_constant(kernel.promises, derived=is_derived(sample.op, kernel.promises))
    largest = max((float(x.abs().max()) for x in expected.values() if x.numel()), default=0.0)
    for key, x in expected.items():
        incoming = key.kind == "second gradient of incoming"
        leaf = (sample.cotangents if incoming else sample.inputs)[key.name]
        actual = result.gradients.get(f"cotangent:{key.name}" if incoming else key.name, zeros_like(leaf))
        roundoff = max(UNIT_ROUNDOFF[leaf.dtype], u_op, u_saved)
        error = roundoff**0.5 * float(x.abs().max() if x.numel() else 0) + roundoff * largest
        budget = Budget(full_like(x, error), partial(zeros_like, x), k_acc * u_acc * terms[key].abs())
        yield from Comparison(key, actual, x, kernel.row_map(key, sample), budget, note=_NOTE).violations()


def _expected_derivatives(
    kernel: KernelUnderTest, sample: Sample
) -> tuple[Mapping[TensorKey, Tensor], Mapping[TensorKey, Tensor]]:
    """The reference's second derivatives, and the magnitude of their terms."""
    op = sample.op
    if is_derived(op, kernel.promises) or op.roundings:
        return run_with_error_bounds(lambda: second_derivative(op.reference, sample))
    magnitudes = second_derivative(magnitude_op(op, kernel.promises), sample, absolute=True)
    return second_derivative(op.reference, sample), magnitudes


def second_derivative(f: Callable[..., object], sample: Sample, *, absolute: bool = False) -> dict[TensorKey, Tensor]:
    """Differentiate twice in float64, as runners do: the sum of all products of a first gradient of `f` with its input.

    absolute: `f` is a magnitude op, so incoming gradients and factors are absolute.
    """
    inputs = sample.in_float64()
    incoming_gradients = {
        n: c.double().abs() if absolute else c.detach().double() for n, c in sample.cotangents.items()
    }
    cotangents = {n: c.requires_grad_() for n, c in incoming_gradients.items()}
    results = f(**inputs, **sample.metadata, **sample.options)
    outputs = dict(zip(sample.outputs, results if isinstance(results, tuple) else (results,), strict=True))
    differentiable = [n for n, y in outputs.items() if y.requires_grad]
    first_gradients: Sequence[Tensor | None] = [None] * len(sample.wrt)
    if differentiable:  # without sequences a reference may have no graph
        first_gradients = vector_jacobian_product(
            [outputs[n] for n in differentiable],
            [inputs[n] for n in sample.wrt],
            [cotangents[n] for n in differentiable],
            create_graph=True,
        )
    factors = {n: inputs[n].detach().abs() if absolute else inputs[n].detach() for n in sample.wrt}
    graph_gradients = [
        (n, g) for n, g in zip(sample.wrt, first_gradients, strict=True) if g is not None and g.requires_grad
    ]
    products = [(g * factors[n]).sum() for n, g in graph_gradients]
    leaves = {TensorKey(n, "second gradient"): inputs[n] for n in sample.wrt}
    leaves |= {TensorKey(n, "second gradient of incoming"): c for n, c in cotangents.items()}
    second_gradients: Sequence[Tensor | None] = [None] * len(leaves)
    if products:
        second_gradients = autograd.grad(stack(products).sum(), list(leaves.values()), allow_unused=True)
    return {
        key: zeros_like(x) if g is None else g for (key, x), g in zip(leaves.items(), second_gradients, strict=True)
    }


DOUBLE_BACKWARD = Property(
    "double_backward",
    LAWS["double_backward"],
    _double_backward,
    cases=smallest_cases,
    nothing_to_compare="no second derivative: differentiating twice raises an error, or gradients are not judged",
    decides_mutants=False,
    quick=True,
    illustration=Illustration(
        "f″(S) = r″(S),   or an error",
        ("kernel", "aaa bbbbb cc"),
        ("reference", "aaa bbbbb cc"),
        "small errors: terms that are missing show, rounding does not",
    ),
)
