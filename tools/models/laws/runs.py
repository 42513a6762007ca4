"""A pack and its documents alone: both run at the higher precision, the documents at the lower one too.

Near ties of choices can be decided alike in all three.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from packproof.models.laws.rounding import SAFETY, rounding_of
from packproof.models.subjects.choices import Choice, Choices
from packproof.models.subjects.pack import PADDING, Pack
from packproof.models.subjects.subject import Subject
from packproof.models.subjects.tested_module import ModuleCall, TieOrder


@dataclass(frozen=True)
class ModelPass:
    """One forward and backward pass."""

    output: Tensor
    gradients: Mapping[str, Tensor]
    """By parameter, where there is one."""
    choices: Choices = ()
    ties: int = 0
    """Near ties that were decided as in an earlier pass."""


class Objective(Protocol):
    """What a pass computes: a call, and the weights of the sum of its output that is differentiated."""

    has_shares: bool
    """Whether each document's gradients have a share of their own; else their sum is enough, in that of the last."""

    def call(self, subject: Subject, called_pack: Pack, rows: slice) -> ModuleCall:
        """The call of a subject.

        called_pack: the layout of the call: the whole pack, or one document alone.
        rows: its tokens in the whole pack.
        """
        ...

    def cotangent(self, output: Tensor, called_pack: Pack, rows: slice) -> Tensor:
        """The weights of what the call returned."""
        ...


@dataclass(frozen=True)
class PackedRuns:
    """The passes of one pack."""

    alone: Sequence[ModelPass]
    """Each document alone, at the higher precision."""
    low: Sequence[ModelPass]
    """The same at the lower precision."""
    packed: ModelPass
    units: tuple[float, float]
    """The unit roundoffs of both precisions."""

    @property
    def ties(self) -> int:
        return self.packed.ties + sum(run.ties for run in self.low)


def run_pass(
    subject: Subject,
    objective: Objective,
    called_pack: Pack,
    rows: slice,
    ties: TieOrder | None,
    *,
    adds_gradients: bool = False,
) -> ModelPass:
    """One pass: its output, and the gradients of the parameters that need one. Raises ModuleRefused.

    adds_gradients: whether they are only added to the sum of the module, and not returned.
    """
    call = replace(objective.call(subject, called_pack, rows), leaf="parameters", ties=ties)
    result = subject.result(call)
    gradients: Mapping[str, Tensor] = {}
    if subject.facts.trains and result.requires_grad:
        cotangent = objective.cotangent(result.output, called_pack, rows).to(result.output)
        if adds_gradients:
            subject.module.add_gradients(cotangent)
        else:
            gradients = subject.module.backward(cotangent)
    return ModelPass(result.output, gradients, result.choices, result.ties)


def run_packed_and_alone(
    high_precision: Subject, low_precision: Subject, pack: Pack, objective: Objective, *, align_ties: bool
) -> PackedRuns:
    """All passes of one pack. Raises ModuleRefused.

    align_ties: whether the pack and the lower precision repeat the choices of the documents alone at near ties.
    """
    units = torch.finfo(high_precision.dtype).eps, torch.finfo(low_precision.dtype).eps

    def run_documents(subject: Subject, reference_choices: Choices) -> list[ModelPass]:
        runs, start, sums = list[ModelPass](), 0, not objective.has_shares
        if sums:
            subject.module.start_sum()
        for j, length in enumerate(pack.lengths):
            document_rows = slice(start, start := start + length)
            own_choices = tuple(choice and choice.at_rows(document_rows) for choice in reference_choices)
            ties = TieOrder(own_choices, (float("inf"),) * len(own_choices)) if align_ties else None
            own_pack = subject.pack((length,))
            runs.append(run_pass(subject, objective, own_pack, pack.rows(j), ties, adds_gradients=sums))
        if sums and runs:
            runs[-1] = replace(runs[-1], gradients=subject.module.summed_gradients())
        return runs

    high = run_documents(high_precision, ())
    alone_choices = _joined_choices(high, pack)
    low = run_documents(low_precision, alone_choices)
    low_choices = _joined_choices(low, pack)

    def allowed_change(number: int, choice: Choice | None) -> float:
        low_choice = low_choices[number] if number < len(low_choices) else None
        return (
            SAFETY * rounding_of(choice.scores, low_choice.scores, *units)
            if choice and low_choice and low_choice.has_shape_of(choice)
            else 0.0
        )

    ties = None
    if align_ties:
        allowed = tuple(allowed_change(number, choice) for number, choice in enumerate(alone_choices))
        ties = TieOrder(tuple(alone_choices), allowed, document_rows(pack))
    packed_layout = high_precision.pack(pack.lengths, pack.gaps)
    packed = run_pass(high_precision, objective, packed_layout, slice(None), ties)
    return PackedRuns(high, low, packed, units)


def document_rows(pack: Pack) -> Tensor:
    """The rows of a pack that are no padding."""
    return (pack.document != PADDING).nonzero().flatten().cpu()


def total_gradients(runs: Sequence[ModelPass], factors: Sequence[float] | None = None) -> dict[str, Tensor]:
    """The sums of the passes' gradients, each pass times its factor. A pass of factor 0 is not read."""
    total = dict[str, Tensor]()
    for run, factor in zip(runs, factors or [1.0] * len(runs), strict=True):
        for name, grad in run.gradients.items() if factor else ():
            part = grad if factor == 1 else factor * grad
            total[name] = total[name] + part if name in total else part
    return total


def _joined_choices(runs: Sequence[ModelPass], pack: Pack) -> list[Choice | None]:
    choices_by_document = [run.choices for run, length in zip(runs, pack.lengths, strict=True) if length]
    return [Choice.concatenate(parts) for parts in zip(*choices_by_document, strict=False)]
