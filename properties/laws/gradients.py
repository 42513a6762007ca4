"""The gradients property: which gradients are asked, how incoming ones arrive, and where the results go."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from packproof.base.law_names import LAWS
from packproof.properties.bounds.budget import UNIT_ROUNDOFF, Budget
from packproof.properties.calling.call import Placement
from packproof.properties.calling.tensor_key import TensorKey
from packproof.properties.cases.case import Case
from packproof.properties.cases.result_tensors import Tensors
from packproof.properties.cases.sample import Sample
from packproof.properties.cases.space import Space
from packproof.properties.judgement.comparison import Comparison, Origin
from packproof.properties.judgement.kernel_under_test import KernelUnderTest
from packproof.properties.laws.call_contract import STRIDES_REFUSED
from packproof.properties.laws.property import Illustration, Property
from packproof.properties.laws.torch_integration import is_rich, smallest_cases
from packproof.properties.laws.violation import Violation

_PACK = "aaa bbbbb cc"
_SUM_WEIGHT = -0.75  # the incoming gradient of a weighted sum; not 1, which a kernel may take for granted


def _gradients(kernel: KernelUnderTest, case: Case) -> Iterator[Violation]:
    sample = kernel.sample(case)
    if not (kernel.gradients and sample.wrt):
        return
    plain = kernel.cached_run(sample)
    for names, note in _subsets(sample.wrt).items():
        with kernel.optional(note, backward=True):
            yield from _compare(kernel, sample, kernel.run(sample, gradients=names, note=note), plain, note)
    yield from _compare_outputs_apart(kernel, sample, plain)
    yield from _compare_zeros(kernel, sample)
    if kernel.domain.allows_strides:
        yield from _compare_strides(kernel, sample, plain)
    with kernel.optional(note := "in a second backward pass over one graph", backward=True):
        actual = kernel.run(sample, mode="retained graph", note=note)
        yield from _compare(kernel, sample, actual, plain, note, exact=kernel.promises.deterministic)
    yield from _compare_accumulated(kernel, sample, plain)


def _subsets(wrt: tuple[str, ...]) -> dict[tuple[str, ...], str]:
    """Subsets of the inputs to differentiate by, with a note: none, each alone, all but one."""
    subsets = {tuple(n for n in wrt if n != name): f"without a gradient of {name}" for name in wrt}
    subsets |= {(name,): f"with a gradient of {name} alone" for name in wrt}
    return {**subsets, (): "without any gradient"}


def _compare(
    kernel: KernelUnderTest, sample: Sample, actual: Tensors, plain: Tensors, note: str, *, exact: bool = False
) -> Iterator[Violation]:
    for key, x in actual.items():
        yield from kernel.agree(key, x, plain[key], Origin(sample), exact=exact, other="before", note=note)


def _compare_outputs_apart(kernel: KernelUnderTest, sample: Sample, plain: Tensors) -> Iterator[Violation]:
    """A gradient is the sum of those of each output alone. The others have no incoming gradient, or one of zeros."""
    others = {"no": {}, "a zero": _filled(sample.cotangents, 0)} if len(sample.cotangents) > 1 else {}
    for word, cotangents in others.items():
        note = f"summed over the outputs, where the others have {word} incoming gradient"
        with kernel.optional(note, backward=True):
            parts = [
                kernel.run(replace(sample, cotangents={**cotangents, name: dy}), note=f"by {name}, {note}")
                for name, dy in sample.cotangents.items()
            ]
            for key in filter(lambda key: key.is_gradient, plain):
                summands = [part[key] for part in parts]
                total = torch.stack([x.double() for x in summands]).sum(0)
                yield from _compare_within(kernel, sample, key, total, plain[key], summands, note)


def _compare_within(
    kernel: KernelUnderTest,
    sample: Sample,
    key: TensorKey,
    actual: Tensor,
    expected: Tensor,
    stored: list[Tensor],
    note: str,
) -> Iterator[Violation]:
    """Compare what follows from a run, and from tensors that were stored, with another run."""

    def allowed() -> Budget:
        budget = kernel.budget(key, sample)
        roundings = [UNIT_ROUNDOFF[x.dtype] * x.double().abs() for x in stored]
        return replace(budget * (1 + len(stored)), rounding=budget.rounding * 2 + torch.stack(roundings).sum(0))

    rows = kernel.row_map(key, sample)
    yield from Comparison(key, actual, expected.double(), rows, allowed, baseline_name="before", note=note).violations()


def _filled(cotangents: Mapping[str, Tensor], value: float) -> dict[str, Tensor]:
    return {name: torch.full_like(dy, value) for name, dy in cotangents.items()}


def _compare_zeros(kernel: KernelUnderTest, sample: Sample) -> Iterator[Violation]:
    note = "with incoming gradients of zeros"
    with kernel.optional(note, backward=True):
        actual = kernel.run(replace(sample, cotangents=_filled(sample.cotangents, 0)), note=note)
        for key, x in actual.items():
            if key.is_gradient:
                rows, zeros = kernel.row_map(key, sample), torch.zeros_like(x)
                yield from Comparison(key, x, zeros, rows, baseline_name="expected", note=note).violations()


def _compare_strides(kernel: KernelUnderTest, sample: Sample, plain: Tensors) -> Iterator[Violation]:
    """Incoming gradients in other strides than the inputs: those of a sum, and transposed ones."""
    of_a_sum = replace(sample, cotangents=_filled(sample.cotangents, _SUM_WEIGHT))
    placements: tuple[tuple[Placement, Sample, str], ...] = (
        ("transposed", sample, "with transposed incoming gradients"),
        ("one element", of_a_sum, "with incoming gradients of one element, as of a sum"),
    )
    for placement, placed, note in placements:
        with kernel.optional(note, backward=True, words=STRIDES_REFUSED):
            expected = plain if placed is sample else kernel.run(placed)
            placed_tensors = {f"cotangent:{name}": placement for name in sample.cotangents}
            actual = kernel.run(placed, placement=placed_tensors, note=note)
            yield from _compare(kernel, placed, actual, expected, note)


def _compare_accumulated(kernel: KernelUnderTest, sample: Sample, plain: Tensors) -> Iterator[Violation]:
    """Each gradient goes through a hook that negates it, and is added to a copy of its input."""
    note = "through a hook that negates it, added to a gradient that is there already"
    with kernel.optional(note, backward=True):
        actual = kernel.run(sample, mode="accumulated", note=note)
        for key, x in actual.items():
            exact = kernel.promises.deterministic
            if not key.is_gradient:
                yield from kernel.agree(key, x, plain[key], Origin(sample), exact=exact, other="before", note=note)
                continue
            expected = sample.inputs[key.name] - plain[key]
            if exact:
                yield from Comparison(
                    key, x, expected, kernel.row_map(key, sample), None, baseline_name="expected", note=note
                ).violations()
            else:
                yield from _compare_within(kernel, sample, key, x, expected, [expected], note)


def _cases(space: Space, drawn_cases: Collection[Case]) -> list[Case]:
    """The smallest cases, rich and plain. Their layouts differ, so that dtypes can share them."""
    rich = smallest_cases(space, [case for case in drawn_cases if is_rich(space, case)])
    layouts = {case.lengths for case in rich}
    plain = [case for case in drawn_cases if not is_rich(space, case) and case.lengths not in layouts]
    return rich + smallest_cases(space, plain)


def _skip_reason(space: Space) -> str:
    return "" if space.op.differentiable else f"{space.op.name} has no input to differentiate by"


GRADIENTS = Property(
    "gradients",
    LAWS["gradients"],
    _gradients,
    cases=_cases,
    skip_reason=_skip_reason,
    nothing_to_compare="gradients are not judged",
    dtype_independent=True,
    decides_mutants=False,
    quick=True,
    illustration=Illustration(
        "f′(S) by some inputs = f′(S) by all;   f′ of all outputs = the sum over each output alone",
        ("all at once", _PACK),
        ("one by one", _PACK),
        "gradients that are wrong whenever they are asked",
    ),
)
