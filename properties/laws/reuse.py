"""The reuse property: an answer follows from the arguments of its call, whatever another call has in their place."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import torch

from packproof.base.law_names import LAWS
from packproof.properties.calling.call import VacuousBound
from packproof.properties.cases.case import Case
from packproof.properties.cases.result_tensors import Tensors
from packproof.properties.cases.sample import Sample
from packproof.properties.judgement.comparison import Origin
from packproof.properties.judgement.kernel_under_test import KernelUnderTest
from packproof.properties.laws.invariance import against_reference
from packproof.properties.laws.property import Illustration, Property
from packproof.properties.laws.torch_integration import smallest_cases
from packproof.properties.laws.violation import Violation

_OTHER_SEED = 5000


def _reuse(kernel: KernelUnderTest, case: Case) -> Iterator[Violation]:
    """Call it with one other argument, then as before, each time with the same tensors, edited in place.

    What a kernel keeps of one call, by the tensors that stay, shows in the next. The answers are those of calls with
    new tensors. They come first: a kernel may keep the last call alone. What it keeps by the values of tensors is in
    these answers too, so that they are judged by the reference.
    """
    sample = _sample_for_every_option(kernel, case)
    plain_answer = kernel.cached_run(sample)
    changed_samples = []
    for changed, change in _samples_with_one_change(kernel, sample, case):
        with kernel.optional(change, backward=True):
            changed_samples.append((changed, kernel.cached_run(changed), change))
    for changed, _, change in changed_samples:
        if changed is not sample:
            yield from _against_reference(kernel, changed, f"{change}, after calls without this change")
    for changed, answer, change in changed_samples:
        gradients = kernel.gradients and changed is not sample
        note = f"{change}, all else in the tensors of the call before"
        yield from _compare(kernel, changed, answer, note, gradients=gradients)
        note = f"after a call {change}, all else in the same tensors"
        yield from _compare(kernel, sample, plain_answer, note, gradients=kernel.gradients)
    yield from _compare_after_the_next_call(kernel, sample, plain_answer)


def _against_reference(kernel: KernelUnderTest, changed: Sample, note: str) -> Iterator[Violation]:
    with suppress(VacuousBound):
        yield from against_reference(kernel, changed, note)


def _compare(
    kernel: KernelUnderTest, sample: Sample, answer: Tensors, note: str, *, gradients: bool
) -> Iterator[Violation]:
    actual = kernel.run(sample, gradients=gradients, same_tensors=True, edit_metadata=True, note=note)
    exact = kernel.promises.deterministic
    for key, x in actual.items():
        yield from kernel.agree(key, x, answer[key], Origin(sample), exact=exact, other="in new tensors", note=note)


def _compare_after_the_next_call(kernel: KernelUnderTest, sample: Sample, answer: Tensors) -> Iterator[Violation]:
    """What a call returned, and what it saved for its backward pass, is not overwritten by the next call."""
    note = "read after another call"
    with kernel.optional(note):
        for key, x in kernel.run(sample, mode="followed", note=note).items():
            yield from kernel.agree(key, x, answer[key], Origin(sample), exact=False, other="at once", note=note)


def _samples_with_one_change(kernel: KernelUnderTest, sample: Sample, case: Case) -> Iterator[tuple[Sample, str]]:
    """The sample with one thing changed, and what: each input, each option, the dtype of the offsets, the gradients.

    Options without an argument of the kernel stay. The sample itself stands for a call without gradients.
    """
    other_values = kernel.sample(case.replace(seed=case.seed + _OTHER_SEED)).inputs
    for name in sample.passed_inputs:
        yield replace(sample, inputs={**sample.inputs, name: other_values[name]}), f"with another {name}"
    for name, value in sample.options.items():
        if name in kernel.fixed:
            continue
        if others := [v for v in kernel.op.options[name] if v != value]:
            changed_case = case.with_option(name, others[0])
            if kernel.domain.allows(kernel.op, changed_case):
                options = {**sample.options, name: others[0]}
                drawn = kernel.sample(changed_case)
                cotangents = {**drawn.cotangents}  # the option may add outputs
                cotangents |= {n: dy for n, dy in sample.cotangents.items() if n in cotangents}
                labels = {n: drawn.inputs[n] for n in kernel.op.integers_drawn("label") if n in drawn.inputs}
                inputs = {**sample.inputs, **labels}  # the option may be the label of tokens that do not count
                changed_sample = replace(sample, options=options, cotangents=cotangents, inputs=inputs)
                yield changed_sample, f"with {name}={others[0]!r}"
    other_dtype = torch.int64 if sample.index_dtype == torch.int32 else torch.int32
    yield replace(sample, index_dtype=other_dtype), f"with {str(other_dtype).removeprefix('torch.')} offsets"
    if kernel.gradients:
        yield sample, "without gradients"


def _sample_for_every_option(kernel: KernelUnderTest, case: Case) -> Sample:
    """The sample of a case, with values that suit a call with an option and one without it.

    A step is positive before softplus and after it. Negative ones would be drawn for softplus alone; without it, states
    would grow beyond every number. Values for the plainest option suit all.
    """
    sample, op = kernel.sample(case), kernel.op
    options = {n: draw.partition("|")[2] for n, draw in op.draws.items()}
    drawn_for = {n: option for n, option in options.items() if n in sample.inputs and sample.options.get(option)}
    plain_cases = {n: case.with_option(option, op.options[option][0]) for n, option in drawn_for.items()}
    plain = {n: kernel.sample(plain_case).inputs[n] for n, plain_case in plain_cases.items()}
    return replace(sample, inputs={**sample.inputs, **plain}) if plain else sample


REUSE = Property(
    "reuse",
    LAWS["reuse"],
    _reuse,
    cases=smallest_cases,
    dtype_independent=True,
    decides_mutants=False,
    quick=True,
    illustration=Illustration(
        "f(S) after f(S with one other argument) = f(S)",
        ("alone", "aaa bbbbb cc"),
        ("after another", "aaa bbbbb cc"),
        "what is kept of calls that differ in two things",
        "Both calls get the same tensors; one is edited in place between them. Values that stay are not written again, "
        "so that a kernel may compare versions. Outputs of a call are read and differentiated after another one, too: "
        "a buffer that all calls share is overwritten then.",
    ),
)
