"""Options and optional inputs that a kernel accepts without effect, at the failing case: a fallback ignores them."""

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

from packproof.base.axes import parse
from packproof.base.errors import KernelFault
from packproof.properties.bounds import same_bits
from packproof.properties.calling import Refusal, TensorKey
from packproof.properties.cases import Case, Sample
from packproof.properties.judgement import KernelUnderTest
from packproof.properties.laws import Violation, number

_TIME_LIMIT = 3.0


def without_effect(kernel: KernelUnderTest, case: Case, violation: Violation) -> list[str]:
    """A line for each option or input that changes the reference, and no bit of the kernel's outputs.

    case: the smallest failing case.
    """
    if violation.tensor is None or violation.tensor.is_gradient or violation.other != "reference":
        return []
    deadline, lines = time.monotonic() + _TIME_LIMIT, dict[str, str]()
    sample = kernel.sample(case)
    with kernel.runner.with_short_timeout(), suppress(KernelFault, Refusal):
        for name, changed, text in _other_calls(sample):
            if time.monotonic() > deadline:
                break
            if name not in lines and (excess := _ignored(kernel.values_only, sample, changed)):
                lines[name] = f"{text}; the reference differs by {number(excess)} x the budget"
    return [*lines.values()]


def _other_calls(sample: Sample) -> Iterator[tuple[str, Sample, str]]:
    """The same tensors with another value of an option, or without an optional input: its name, the call, a text."""
    op, options = sample.op, sample.options
    requests = {*op.on_request.values(), *([op.carry[2]] if op.carry else [])}
    for name in [n for n in op.options if n in options and n not in requests]:
        for value in op.options[name]:
            if value != options[name]:
                text = f"{name}={options[name]!r} has no effect: the outputs have the same bits with {name}={value!r}"
                yield name, replace(sample, options={**options, name: value}), text
    for name in sample.inputs:
        if parse(op.inputs[name]).optional:
            other_inputs = {n: x for n, x in sample.inputs.items() if n != name}
            text = f"{name} has no effect: the outputs have the same bits without it"
            yield name, replace(sample, inputs=other_inputs), text


def _ignored(kernel: KernelUnderTest, sample: Sample, other: Sample) -> float:
    """By how many budgets the reference's answers to two calls differ; 0 if they do not, or the kernel's do."""
    results, other_results = kernel.cached_run(sample), kernel.cached_run(other)
    if results.keys() != other_results.keys():
        return 0.0
    if not all(
        x.shape == other_results[key].shape and same_bits(x, other_results[key]).all() for key, x in results.items()
    ):
        return 0.0
    answer, other_answer = kernel.expect(sample), kernel.expect(other)

    def excess(key: TensorKey) -> float:
        allowed = answer.budgets[key].total + other_answer.budgets[key].total
        ratio = (answer.values[key] - other_answer.values[key]).abs() / allowed
        return float(ratio.nan_to_num(0.0).max()) if ratio.numel() else 0.0

    largest = max(map(excess, results), default=0.0)
    return largest if largest > 1 else 0.0
