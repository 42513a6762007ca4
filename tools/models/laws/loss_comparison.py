"""The loss of a pack against those of its documents alone: values, gradients, and labels that cross a boundary."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch
from torch import Tensor

from packproof.base.reductions import MAXIMUM, REDUCTIONS, Reduction, combine, shares
from packproof.models.laws.equality import PackedComparison, compare_with_ties, gradient_differences
from packproof.models.laws.isolation import max_abs
from packproof.models.laws.losses import EVERY, IGNORED_LABEL, LossOfPack
from packproof.models.laws.rounding import Difference, difference_of, two_precisions
from packproof.models.laws.runs import ModelPass, PackedRuns, run_packed_and_alone, total_gradients
from packproof.models.subjects.pack import FIRST_LENGTHS, Pack
from packproof.models.subjects.subject import Subject
from packproof.models.subjects.tested_module import ModuleCall

LOSS_REDUCTIONS = tuple(reduction for reduction in REDUCTIONS if reduction != MAXIMUM)
_ONE = (4,)  # the layout of the document that tells what counts


@dataclass(frozen=True)
class LossComparison(PackedComparison):
    """The comparison of one pack."""

    reductions: tuple[Reduction, ...] = ()
    """The reductions that the loss of the pack follows, whether asked for or not."""
    lines: tuple[str, ...] = ()
    """About the losses, where they follow no requested reduction."""


@dataclass(frozen=True)
class PackedLoss:
    """Compares losses of packs with those of their documents."""

    question: LossOfPack
    high_precision: Subject
    low_precision: Subject

    @classmethod
    def at_two_precisions(cls, question: LossOfPack) -> "PackedLoss":
        """Find the two precisions. Raises ModuleRefused."""
        pack = question.subject.pack(FIRST_LENGTHS)
        call = question.call(question.subject, pack, pack, slice(None), question.labels(pack))
        return cls(question, *two_precisions(question.subject, call))

    def inconclusive_reason(self) -> str:
        """Why nothing can be judged: the loss has no gradient, or does not change with its labels. "" if it can."""
        pack = self.question.subject.pack(FIRST_LENGTHS)
        labels = self.question.labels(pack)
        call = self.question.call(self.high_precision, pack, pack, slice(None), labels)
        result = self.high_precision.result(replace(call, leaf="parameters"))
        if self.high_precision.facts.trains and not result.requires_grad:
            return "the loss has no gradient"
        if torch.equal(self._loss(pack, labels), self._loss(pack, self.question.labels(pack, variant=1))):
            return "the loss does not change with its labels, so that one that crosses could not be seen"
        return "" if result.output.sum().isfinite() else "the loss is not finite"

    def crossing_document(self, pack: Pack) -> tuple[int, float, float] | None:
        """The first document whose first label counts in the pack, though not alone: its number, the loss of the pack
        and by how much it moves. None if no label crosses."""
        if self.question.form != EVERY or self._first_label_counts:
            return None
        labels, other_labels = self.question.labels(pack), self.question.labels(pack, variant=1)
        loss = self._loss(pack, labels)
        for document in range(len(pack.lengths)):
            changed_labels, row = labels.clone(), pack.rows(document).start
            changed_labels[row] = other_labels[row] if labels[row] != IGNORED_LABEL else 0
            changed_loss = self._loss(pack, changed_labels)
            if not torch.equal(loss.nan_to_num(), changed_loss.nan_to_num()):
                return document, float(loss.sum()), max_abs((loss - changed_loss).nan_to_num(nan=float("inf")))
        return None

    def is_changed_by(self, question: LossOfPack) -> bool:
        """Whether the loss of a pack is another one if it is asked in this way."""
        pack = self.question.subject.pack(FIRST_LENGTHS)
        loss = self._loss(pack, self.question.labels(pack))
        other_loss = question.value(self.high_precision, pack, question.labels(pack))
        return not torch.equal(loss, other_loss)

    def compare(self, pack: Pack, reductions: Sequence[Reduction]) -> LossComparison:
        """Compare the pack with its documents. Raises ModuleRefused.

        reductions: those that it may follow.
        """
        compare = partial(self._compare, pack, reductions)
        comparison = compare_with_ties(compare, can_align=not self.high_precision.mode.compiled)
        assert isinstance(comparison, LossComparison)
        return comparison

    @cached_property
    def is_per_token(self) -> bool:
        pack = self.question.subject.pack(FIRST_LENGTHS)
        return bool(self._loss(pack, self.question.labels(pack)).dim())

    def counts(self, pack: Pack) -> list[int]:
        """How many labels of each document count."""
        labels, start = self.question.labels(pack), 0 if self._first_label_counts else 1
        return [int((labels[pack.rows(j)][start:] != IGNORED_LABEL).sum()) for j in range(len(pack.lengths))]

    @cached_property
    def _first_label_counts(self) -> bool:
        """Whether the label of a document's first token counts: alone it does not where the module shifts."""
        if self.question.form != EVERY:
            return False
        pack = self.question.subject.pack(_ONE)
        labels = self.question.labels(pack)
        changed_labels = labels.clone()
        changed_labels[0] = IGNORED_LABEL
        return not torch.equal(self._loss(pack, labels), self._loss(pack, changed_labels))

    def _loss(self, pack: Pack, labels: Tensor) -> Tensor:
        return self.question.value(self.high_precision, self.high_precision.pack(pack.lengths), labels)

    def _compare(self, pack: Pack, reductions: Sequence[Reduction], align_ties: bool) -> LossComparison:
        objective = _WeightedLoss(self.question, pack, self.question.labels(pack))
        runs = run_packed_and_alone(self.high_precision, self.low_precision, pack, objective, align_ties=align_ties)
        if self.is_per_token:
            parts = [(runs.packed.output[pack.rows(j)], run, low) for j, (run, low) in enumerate(_pairs(runs))]
            values = [
                difference_of(f"loss of document {j}", packed, run.output, low.output, *runs.units, max_abs(run.output))
                for j, (packed, run, low) in enumerate(parts)
                if max_abs(run.output)
            ]
            return LossComparison(
                [*values, *_share_differences(runs, [1.0] * len(pack.lengths))], runs.ties, tuple(reductions)
            )
        return self._compare_scalars(runs, self.counts(pack), reductions)

    def _compare_scalars(
        self, runs: PackedRuns, counts: Sequence[int], reductions: Sequence[Reduction]
    ) -> LossComparison:
        if not any(counts):
            return LossComparison([], 0, LOSS_REDUCTIONS)
        shares_by_reduction = {reduction: shares(reduction, counts) for reduction in LOSS_REDUCTIONS}
        differences = {
            reduction: _value_difference(runs, factors) for reduction, factors in shares_by_reduction.items()
        }
        agreeing = tuple(
            reduction for reduction, value in differences.items() if not value.fails and not value.inconclusive_reason
        )
        reduction = next((r for r in agreeing if r in reductions), reductions[0])
        lines = () if reduction in agreeing else tuple(_loss_lines(runs, counts, agreeing))
        gradients = _share_differences(runs, shares_by_reduction[reduction]) if reduction in agreeing else []
        return LossComparison([differences[reduction], *gradients], runs.ties, agreeing, lines)


@dataclass(frozen=True)
class _WeightedLoss:
    """The loss; of a loss of each token, a random sum."""

    has_shares = True
    question: LossOfPack
    pack: Pack
    labels: Tensor

    def call(self, subject: Subject, called_pack: Pack, rows: slice) -> ModuleCall:
        return self.question.call(subject, called_pack, self.pack, rows, self.labels)

    def cotangent(self, output: Tensor, called_pack: Pack, rows: slice) -> Tensor:  # noqa: ARG002
        if not output.dim():
            return torch.ones_like(output)
        weight = torch.randn(self.pack.tokens, generator=torch.Generator().manual_seed(self.question.seed))
        return weight[rows].to(output)


def _pairs(runs: PackedRuns) -> list[tuple[ModelPass, ModelPass]]:
    return list(zip(runs.alone, runs.low, strict=True))


def _value_difference(runs: PackedRuns, factors: Sequence[float]) -> Difference:
    alone, low = (combine([run.output for run in passes], factors) for passes in (runs.alone, runs.low))
    return difference_of("loss", runs.packed.output, alone, low, *runs.units, max_abs(alone))


def _share_differences(runs: PackedRuns, factors: Sequence[float]) -> list[Difference]:
    """The gradients of the pack's loss against those of the documents, each times its share."""
    alone, low = (total_gradients(passes, factors) for passes in (runs.alone, runs.low))
    return gradient_differences(runs.packed.gradients, alone, low, *runs.units)


def _loss_lines(runs: PackedRuns, counts: Sequence[int], agreeing: Sequence[Reduction]) -> list[str]:
    losses = [float(run.output) for run in runs.alone]
    packed, counted = float(runs.packed.output), [j for j, count in enumerate(counts) if count]
    alternatives = ", ".join(f"{r} {float(combine(losses, shares(r, counts))):.6g}" for r in LOSS_REDUCTIONS)
    lines = [
        f"the pack has {packed:.6g}, documents alone {', '.join(f'{losses[j]:.6g}' for j in counted)}: {alternatives}"
    ]
    if agreeing:
        return [*lines, f"it is the {' and the '.join(agreeing)}"]
    tokens, divisor = sum(counts), sum(counts[j] * losses[j] for j in counted) / (packed or float("nan"))
    if abs(divisor - round(divisor)) < 1e-6 * divisor and round(divisor) != tokens:
        lines.append(f"it is the sum over tokens divided by {round(divisor)}, where {tokens} labels count")
    return lines
