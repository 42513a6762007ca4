"""Whether a kernel is wrong only where elements of an input are equal: an op with a choice has two answers there.

This is tried, not guessed. The kernel is run again at the failing case, with equal elements moved apart by the smallest
steps of their dtype, and with the draw of the hint.
"""

from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace

import torch
from torch import Tensor

from packproof.base.errors import KernelFault
from packproof.harness.check.diagnosis.conventions import has_no_violation
from packproof.properties.cases import Case, Sample, draw
from packproof.properties.judgement import KernelUnderTest
from packproof.properties.laws import Violation, against_reference

_N_DRAWS = 5
_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}  # by the size of an element


def tie_hint(kernel: KernelUnderTest, case: Case, violation: Violation) -> list[str]:
    """Lines on a choice among equal elements, with the declaration that avoids it; empty if ties are not the cause.

    case: the smallest case where the law is broken.
    """
    key, op = violation.tensor, kernel.op
    sample = kernel.sample(case)
    tied_inputs = [n for n, x in sample.inputs.items() if op.draws.get(n, "normal") == "normal" and _has_ties(x)]
    if key is None or violation.text or not tied_inputs:
        return []
    with kernel.runner.with_short_timeout(), suppress(KernelFault):  # a call that ends the process stops the search
        if _agrees(kernel, sample) or not _agrees(kernel, _without_ties(sample, tied_inputs)):
            return []
        for names in (*([n] for n in tied_inputs), tied_inputs):
            draws = {**op.draws, **dict.fromkeys(names, "distinct")}
            samples = (_without_ties(sample, names), *_draws(kernel, case, draws))
            if all(_agrees(kernel, s) for s in samples):
                inputs, answers = " and ".join(names), "gradients" if key.is_gradient else "answers"
                return [
                    f"a tie: elements of {inputs} are equal; once they differ, the kernel equals the reference",
                    f"if the op chooses among elements, as max and topk do, a tie has two correct {answers}: "
                    "add to its packproof.Op",
                    f"    draws={draws}",
                ]
    return []


def _has_ties(x: Tensor) -> bool:
    values = x.flatten().sort().values
    return bool((values[1:] == values[:-1]).any())


def _draws(kernel: KernelUnderTest, case: Case, draws: Mapping[str, str]) -> Iterator[Sample]:
    """Samples of the case, and of the same with other seeds, from these distributions."""
    op = replace(kernel.op, draws=draws)
    return (draw(op, case.replace(seed=case.seed + i)) for i in range(_N_DRAWS))


def _agrees(kernel: KernelUnderTest, sample: Sample) -> bool:
    return has_no_violation(lambda: against_reference(kernel, sample))


def _without_ties(sample: Sample, names: Collection[str]) -> Sample:
    return replace(sample, inputs={n: moved_apart(x) if n in names else x for n, x in sample.inputs.items()})


def moved_apart(x: Tensor) -> Tensor:
    """The tensor without equal elements: each at least one step of the dtype above the next smaller one."""
    integers = _INTEGERS[x.element_size()]
    ranks, order = _reflected(x.flatten().view(integers).long(), integers).sort(stable=True)
    steps = torch.arange(len(ranks))
    separate = (ranks - steps).cummax(0).values + steps
    bits = torch.empty_like(separate).scatter(0, order, _reflected(separate, integers))
    return bits.to(integers).view(x.dtype).view(x.shape)


def _reflected(bits: Tensor, integers: torch.dtype) -> Tensor:
    """The bits of floats as integers of the same order, and back: those of negative floats are in reverse."""
    return torch.where(bits < 0, torch.iinfo(integers).min - bits, bits)
