"""The property `loss`: labels, values and gradients of the loss of a pack."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from packproof.base.reductions import SUM, Reduction
from packproof.harness.report import Cell, Failure, Status
from packproof.models.laws.judges import REFUSED, Judgement, Shrinker, Trial, equality_verdict, verdict_of
from packproof.models.laws.loss_comparison import LOSS_REDUCTIONS, LossComparison, PackedLoss
from packproof.models.laws.losses import EVERY, FIRST_IGNORED, IGNORED_LABEL, LossOfPack
from packproof.models.subjects.pack import Lengths, Pack
from packproof.models.subjects.refusals import ModuleRefused

CROSSING_LABEL = "label"  # the tensor of a failure by a label that crosses


def loss(trial: Trial, cell: Cell) -> Judgement:
    """No label crosses; the loss is a reduction of the documents' losses, and its gradients are theirs by shares."""
    question = LossOfPack(trial.subject, trial.convention, trial.labels, trial.seed)
    if refusal := question.refusal():
        status: Status = "inconclusive" if trial.requires_loss else "skipped"
        return Judgement(verdict_of(cell, status, 0, f"{REFUSED}{refusal}"))
    refusal_of_precisions: ModuleRefused | None = None
    try:
        packed_loss = PackedLoss.at_two_precisions(question)
    except ModuleRefused as error:  # as kernels of 16 bits alone do: a label that crosses is seen in one precision
        refusal_of_precisions, packed_loss = error, PackedLoss(question, trial.subject, trial.subject)
    if reason := packed_loss.inconclusive_reason():
        return Judgement(verdict_of(cell, "inconclusive", 0, reason))
    if failure := _first_crossing(trial, packed_loss):
        return Judgement(verdict_of(cell, "failed", failure.example, failure=failure))
    if refusal_of_precisions:
        raise refusal_of_precisions
    reductions, inconclusive_reasons, ties, examples, long_notes = LOSS_REDUCTIONS, list[str](), 0, 0, list[str]()

    def compare(pack: Pack) -> LossComparison:
        return packed_loss.compare(pack, reductions)

    for lengths, comparison in trial.measured_layouts(trial.layouts, compare, long_notes):
        examples, ties = examples + 1, ties + comparison.ties
        if comparison.first_failure:
            failure = _reduction_failure(packed_loss, lengths, reductions, comparison, examples)
            return Judgement(verdict_of(cell, "failed", examples, failure=failure))
        is_long = lengths in trial.long_layouts  # rounding adds up in one: it need not be judged
        (long_notes if is_long else inconclusive_reasons).extend(comparison.inconclusive_reasons)
        reductions = tuple(r for r in reductions if r in comparison.reductions) or reductions
    notes = [*_reduction_notes(packed_loss, reductions), *long_notes, *_label_notes(packed_loss)]
    if not packed_loss.is_per_token:
        item_failure, item_notes = _judge_items(packed_loss, trial.layouts[0], examples)
        if item_failure:
            return Judgement(verdict_of(cell, "failed", examples, failure=item_failure))
        notes += item_notes
    return Judgement(equality_verdict(cell, examples, inconclusive_reasons, ties, notes))


def _first_crossing(trial: Trial, packed_loss: PackedLoss) -> Failure | None:
    """The first label that crosses, in any layout."""
    for number, lengths in enumerate(trial.layouts, 1):
        if crossing := packed_loss.crossing_document(trial.subject.pack(lengths)):
            return _crossing_failure(packed_loss, lengths, crossing, number)
    return None


def _crossing_failure(
    packed_loss: PackedLoss, lengths: Lengths, crossing: tuple[int, float, float], example: int
) -> Failure:
    subject, shrinker = packed_loss.question.subject, Shrinker("loss")
    smallest_lengths, (document, value, change) = shrinker.smallest(
        lengths, crossing, lambda candidate: packed_loss.crossing_document(subject.pack(candidate))
    )
    lines = (
        f"the label of document {document}'s first token crosses: the loss {value:.6g} moves by {change:.3g} when it "
        "changes, and alone it does not count",
        f"shift inside each document; or send {IGNORED_LABEL} there, as DataCollatorWithFlattening does, and ask with "
        "--labels first_ignored",
    )
    return Failure(smallest_lengths, CROSSING_LABEL, lines, example, shrinker.attempts)


def _reduction_failure(
    packed_loss: PackedLoss,
    lengths: Lengths,
    reductions: Sequence[Reduction],
    comparison: LossComparison,
    example: int,
) -> Failure:
    subject, shrinker = packed_loss.question.subject, Shrinker("loss")

    def compare(candidate: Lengths) -> LossComparison | None:
        result = packed_loss.compare(subject.pack(candidate), reductions)
        return result if result.first_failure else None

    smallest_lengths, comparison = shrinker.smallest(lengths, comparison, compare)
    difference = comparison.first_failure
    assert difference
    if comparison.lines:
        requested = f"not the {reductions[0]}" if len(reductions) == 1 else f"no {' or '.join(reductions)}"
        lines = (f"the loss is {requested} of the documents' losses", *comparison.lines)
    else:
        share_text = f", each times its share ({comparison.reductions[0]})" if not packed_loss.is_per_token else ""
        lines = (f"{difference}", f"compared with the documents alone{share_text}")
    return Failure(smallest_lengths, difference.name, lines, example, shrinker.attempts)


def _judge_items(packed_loss: PackedLoss, lengths: Lengths, example: int) -> tuple[Failure | None, list[str]]:
    """With num_items_in_batch a loss is a sum over it: packs of one batch add up."""
    question = packed_loss.question
    if not question.may_take_items:
        return None, []
    pack = question.subject.pack(lengths)
    question = question.with_items(2 * pack.tokens)
    try:
        if not packed_loss.is_changed_by(question):
            if not question.takes_items:
                return None, ["num_items_in_batch: accepted without effect"]
            return Failure(lengths, "loss", ("num_items_in_batch changes nothing",), example, 0), []
        with_items = replace(packed_loss, question=question)
        comparison = with_items.compare(pack, [SUM])
    except ModuleRefused:
        if question.takes_items:
            raise
        return None, []
    if comparison.first_failure:
        failure = _reduction_failure(with_items, lengths, [SUM], comparison, example)
        return replace(failure, lines=("with num_items_in_batch:", *failure.lines)), []
    return None, []


def _reduction_notes(packed_loss: PackedLoss, reductions: Sequence[Reduction]) -> Iterator[str]:
    if packed_loss.is_per_token:
        yield "the loss of each token"
    elif reductions == LOSS_REDUCTIONS:
        yield "the reduction of the loss cannot be told at these layouts"
    else:
        yield f"the loss is the {reductions[0]}"


def _label_notes(packed_loss: PackedLoss) -> Iterator[str]:
    question = packed_loss.question
    if question.form == FIRST_IGNORED and packed_loss.is_changed_by(replace(question, form=EVERY)):
        yield f"with {IGNORED_LABEL} as the label of each document's first token, without which labels cross"
