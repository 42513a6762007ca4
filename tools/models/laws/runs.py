"""A pack and its documents alone: both run at the higher precision, the documents at the lower one too.

Near ties of choices can be decided alike in all three.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from packproof.models.laws.rounding import SAFETY, rounding_of
from packproof.models.subjects.choices import Choice, Choices, TieBreaker
from packproof.models.subjects.pack import PADDING, Pack
from packproof.models.subjects.subject import Subject


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
    """What a pass computes: the compared output, and the scalar to differentiate."""

    def __call__(self, subject: Subject, called_pack: Pack, rows: slice) -> tuple[Tensor, Tensor]:
        """Calls the subject.

        called_pack: the layout of the call: the whole pack, or one document alone.
        rows: its tokens in the whole pack.
        """


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


def run_pass(subject: Subject, objective: Callable[[], tuple[Tensor, Tensor]], choices: TieBreaker | None) -> ModelPass:
    """One pass: its output, and the gradients of the parameters that need one. Raises ModuleRefused."""
    with torch.enable_grad(), choices or nullcontext():
        out, scalar = objective()
        if choices:
            choices.in_forward_pass = False
        parameters = {n: p for n, p in subject.module.named_parameters() if p.requires_grad}
        grads: Sequence[Tensor | None] = ()
        if parameters and scalar.requires_grad:
            grads = subject.differentiate(scalar, list(parameters.values()))
    gradients = {n: g for n, g in zip(parameters, grads, strict=False) if g is not None}
    return ModelPass(out.detach(), gradients, choices.choices if choices else (), choices.ties if choices else 0)


def run_packed_and_alone(
    high_precision: Subject, low_precision: Subject, pack: Pack, objective: Objective, *, align_ties: bool
) -> PackedRuns:
    """All passes of one pack. Raises ModuleRefused.

    align_ties: whether the pack and the lower precision repeat the choices of the documents alone at near ties.
    """
    units = torch.finfo(high_precision.dtype).eps, torch.finfo(low_precision.dtype).eps

    def run_documents(subject: Subject, reference_choices: Choices) -> list[ModelPass]:
        runs, start = list[ModelPass](), 0
        for j, length in enumerate(pack.lengths):
            document_rows = slice(start, start := start + length)
            own_choices = [choice and choice.at_rows(document_rows) for choice in reference_choices]
            choices = TieBreaker(length, own_choices, lambda *_: float("inf")) if align_ties else None
            own_pack = subject.pack((length,))
            runs.append(run_pass(subject, partial(objective, subject, own_pack, pack.rows(j)), choices))
        return runs

    high = run_documents(high_precision, ())
    alone_choices = _joined_choices(high, pack)
    low = run_documents(low_precision, alone_choices)
    low_choices = _joined_choices(low, pack)

    def allowed_change(number: int, choice: Choice) -> float:
        low_choice = low_choices[number] if number < len(low_choices) else None
        return (
            SAFETY * rounding_of(choice.scores, low_choice.scores, *units)
            if low_choice and low_choice.has_shape_of(choice)
            else 0.0
        )

    choices = TieBreaker(pack.tokens, alone_choices, allowed_change, document_rows(pack)) if align_ties else None
    packed_layout = high_precision.pack(pack.lengths, pack.gaps)
    packed = run_pass(high_precision, partial(objective, high_precision, packed_layout, slice(None)), choices)
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
