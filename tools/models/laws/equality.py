"""Packed equals alone: the outputs of each document, and the summed gradients of parameters."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from packproof.models.laws.isolation import max_abs
from packproof.models.laws.rounding import Difference, cast, difference_of, median, rounding_of, two_precisions
from packproof.models.laws.runs import document_rows, run_packed_and_alone, total_gradients
from packproof.models.subjects.conventions import Convention
from packproof.models.subjects.pack import FIRST_LENGTHS, PADDING, Pack
from packproof.models.subjects.subject import Subject
from packproof.models.subjects.tested_module import ModuleCall


@dataclass(frozen=True)
class PackedComparison:
    """The comparison of a pack with its documents alone."""

    differences: Sequence[Difference]
    """One for each document, and one for each parameter with a gradient."""
    ties: int = 0
    """Near ties that the pack decided differently from its documents alone, and that were fixed to the same choice."""

    @property
    def first_failure(self) -> Difference | None:
        return next((difference for difference in self.differences if difference.fails), None)

    @property
    def inconclusive_reasons(self) -> list[str]:
        return [difference.inconclusive_reason for difference in self.differences if difference.inconclusive_reason]


def compare_with_ties(compare: Callable[[bool], PackedComparison], *, can_align: bool) -> PackedComparison:
    """Compare, and once more with near ties aligned if that fails or is inconclusive: it costs time, and few modules
    choose.

    compare: from whether to align near ties.
    """
    comparison = compare(False)
    if (comparison.first_failure or comparison.inconclusive_reasons) and can_align:
        aligned_comparison = compare(True)
        return aligned_comparison if aligned_comparison.ties or not aligned_comparison.first_failure else comparison
    return comparison


@dataclass(frozen=True)
class PackedAndAlone:
    """Compares packs of a module with their documents alone."""

    subject: Subject
    high_precision: Subject
    """The module in the highest precision of all its computations."""
    low_precision: Subject
    """The module in a lower precision."""
    convention: Convention
    seed: int

    @classmethod
    def at_two_precisions(cls, subject: Subject, convention: Convention, seed: int) -> "PackedAndAlone":
        """Find the two precisions. Raises ModuleRefused."""
        call = ModuleCall(subject.input(sum(FIRST_LENGTHS), seed), convention, subject.pack(FIRST_LENGTHS))
        return cls(subject, *two_precisions(subject, call), convention, seed)

    def __call__(self, pack: Pack) -> PackedComparison:
        """Compare the pack with its documents alone. Raises ModuleRefused."""
        return compare_with_ties(partial(self._compare, pack), can_align=not self.high_precision.mode.compiled)

    def _compare(self, pack: Pack, align_ties: bool) -> PackedComparison:
        objective = _RandomSum(self.subject, self.convention, self.seed, pack)
        runs = run_packed_and_alone(self.high_precision, self.low_precision, pack, objective, align_ties=align_ties)
        outputs = runs.packed.output[document_rows(pack)]
        differences, start = list[Difference](), 0
        largest_output = max((max_abs(run.output) for run in runs.alone), default=0.0)
        for j, (alone, low) in enumerate(zip(runs.alone, runs.low, strict=True)):
            part = slice(start, start := start + pack.lengths[j])
            reference_scale = max_abs(alone.output) or largest_output
            difference = difference_of(
                f"document {j}", outputs[part], alone.output, low.output, *runs.units, reference_scale
            )
            differences.append(replace(difference, document=j))
        gradients = total_gradients(runs.alone), total_gradients(runs.low)
        differences += gradient_differences(runs.packed.gradients, *gradients, *runs.units)
        return PackedComparison(differences, runs.ties)


@dataclass(frozen=True)
class _RandomSum:
    """The outputs, and a random sum of those of documents."""

    has_shares = False
    subject: Subject
    convention: Convention
    seed: int
    pack: Pack

    def call(self, subject: Subject, called_pack: Pack, rows: slice) -> ModuleCall:
        x = cast(self.subject.input(self.pack.tokens, self.seed)[:, rows], subject)
        return ModuleCall(x, self.convention, called_pack)

    def cotangent(self, output: Tensor, called_pack: Pack, rows: slice) -> Tensor:
        weight = _weight((self.pack.tokens, *output.shape[1:]), self.seed)[rows].to(output)
        weight[called_pack.document == PADDING] = 0
        return weight


def gradient_differences(
    packed_gradients: Mapping[str, Tensor],
    alone_gradients: Mapping[str, Tensor],
    low_gradients: Mapping[str, Tensor],
    high_unit: float,
    low_unit: float,
) -> list[Difference]:
    """The differences of the parameters that have a gradient in all three."""
    names = [name for name in alone_gradients if name in packed_gradients and name in low_gradients]
    grads = [(alone_gradients[n], low_gradients[n]) for n in names]
    largest_gradient = max((max_abs(grad) for grad, _ in grads), default=0.0)
    usual_rounding = median(
        [rounding_of(grad, low_grad, high_unit, low_unit) / max_abs(grad) for grad, low_grad in grads if max_abs(grad)]
    )
    return [
        difference_of(
            f"gradient of {name}",
            packed_gradients[name],
            grad,
            low_grad,
            high_unit,
            low_unit,
            largest_gradient,
            usual_rounding,
        )
        for name, (grad, low_grad) in zip(names, grads, strict=True)
    ]


def _weight(shape: tuple[int, ...], seed: int) -> Tensor:
    """The same numbers in every precision."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
