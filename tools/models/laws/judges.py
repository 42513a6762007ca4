"""The properties of a module: each judges one convention in one mode, and shrinks a failure."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import torch

from packproof.base.errors import ArgumentError
from packproof.base.machine import limited_to_free_memory
from packproof.base.wording import plural
from packproof.harness.report import Cell, Failure, Status, Tier, Verdict
from packproof.models.laws.equality import PackedAndAlone
from packproof.models.laws.isolation import MAX_CHANGED_DOCUMENTS, Leakage, measure_leakage, with_document_changed
from packproof.models.laws.rounding import Difference
from packproof.models.subjects.conventions import Convention
from packproof.models.subjects.pack import PADDING, Lengths, Pack, shrink_lengths, smaller_padded_layouts
from packproof.models.subjects.refusals import ModuleCrashed, ModuleRefused
from packproof.models.subjects.subject import Subject
from packproof.models.subjects.tested_module import ModuleCall

PaddedLayout = tuple[Lengths, tuple[int, ...]]
Outcome = TypeVar("Outcome")
REFUSED = "the module refused: "
CRASHED = "the module crashed: "
IGNORED = "ignored: "
_LONG_SECONDS = 20.0  # for the long layouts of a property, by their estimates
_SHRINK_SECONDS = {"isolation": 10.0}
_USUAL_SHRINK_SECONDS = 5.0


@dataclass(frozen=True)
class Trial:
    """One convention of a module in one mode, and the layouts to judge it at."""

    subject: Subject
    base: Subject
    """The same module in eval mode, as it came."""
    convention: Convention
    seed: int
    layouts: Sequence[Lengths]
    """Layouts to try, small ones first."""
    long_layouts: Sequence[Lengths] = ()
    """Longer ones to try after them, as far as there is time."""
    many_layout: Lengths = ()
    """A layout of many documents, for `isolation`, which runs no document alone; () for none."""
    layouts_with_padding: Sequence[PaddedLayout] = ()
    """Layouts with padding."""
    labels: str = ""
    """The form of labels for a loss; "" if the module takes none."""
    requires_loss: bool = False
    """Whether the user named the labels: a module that refuses them is not judged then, and else is not asked."""
    shrinks: bool = True
    """Whether smaller layouts are tried for a failure, for some seconds: two runs may then end at different ones."""

    def with_first_layout(self, lengths: Lengths) -> "Trial":
        """The same trial with this layout first, unless it has many documents."""
        return replace(self, layouts=(lengths, *self.layouts)) if 0 < len(lengths) <= MAX_CHANGED_DOCUMENTS else self

    def measured_layouts(
        self, layouts: Sequence[Lengths], measure: Callable[[Pack], Outcome], notes: list[str]
    ) -> Iterator[tuple[Lengths, Outcome]]:
        """These layouts and the long ones, each with its measurement.

        A long one that takes too long, by the square of its tokens, or that the module refuses, is a note instead.
        """
        yield from ((lengths, self._measured(lengths, measure)) for lengths in layouts)
        seconds = seconds_per_pair = 0.0
        for lengths in self.long_layouts:
            n_pairs, start = sum(lengths) ** 2, time.monotonic()
            if seconds + n_pairs * seconds_per_pair > _LONG_SECONDS:
                notes.append(f"not judged at lengths {list(lengths)}: too slow")
                return
            try:
                with limited_to_free_memory() if self.subject.device == "cpu" else nullcontext():
                    measurement = self._measured(lengths, measure)
            except ModuleRefused as refusal:
                notes.append(f"not judged at lengths {list(lengths)}: {REFUSED}{refusal}")
                return
            seconds += time.monotonic() - start
            seconds_per_pair = (time.monotonic() - start) / n_pairs
            yield lengths, measurement

    def _measured(self, lengths: Lengths, measure: Callable[[Pack], Outcome]) -> Outcome:
        try:
            return measure(self.subject.pack(lengths))
        except ModuleCrashed as crash:
            crash.lengths = lengths
            raise


@dataclass(frozen=True)
class Judgement:
    """A verdict, and the padding of the layout at which it failed."""

    verdict: Verdict
    gaps: tuple[int, ...] = ()


Judge = Callable[[Trial, Cell], Judgement]


def verdict_of(cell: Cell, status: Status, examples: int, reason: str = "", failure: Failure | None = None) -> Verdict:
    tier: Tier = "gpu" if cell.device == "cuda" else "eager"
    refusals = 1 if status == "inconclusive" and not examples else 0
    return Verdict(cell, tier, status, examples + refusals, 0.0, examples, refusals, reason=reason, failure=failure)


def isolation(trial: Trial, cell: Cell) -> Judgement:
    """When one document changes, the others keep their bits and have no gradient at its tokens."""
    subject, notes, examples = trial.subject, list[str](), 0
    if reason := _inconclusive_reason(trial, subject.pack(trial.layouts[0])):
        return Judgement(verdict_of(cell, "inconclusive", 0, reason))
    layouts = (*trial.layouts, *([trial.many_layout] if trial.many_layout else ()))
    measure = partial(measure_leakage, subject, trial.convention, seed=trial.seed)
    for lengths, leakage in trial.measured_layouts(layouts, measure, notes):
        examples += 1
        if leakage.leaking_pairs:
            return Judgement(
                verdict_of(cell, "failed", examples, failure=_leak_failure(trial, lengths, leakage, examples))
            )
        if leakage.ties:
            notes.append(_near_ties_note(leakage.ties))
        if leakage.pairs_within_rounding:
            notes.append(f"others move by rounding, with a gradient of zero, at lengths {list(lengths)}")
    if not leakage.gradient:
        notes.append("by values alone: a compiled model has no gradient at its ids, and packing judges its parameters'")
    return Judgement(verdict_of(cell, "passed", examples, "; ".join(notes[:1])))


def packing(trial: Trial, cell: Cell) -> Judgement:
    """Outputs, and the sums of parameters' gradients, are those of the documents alone."""
    compare = PackedAndAlone.at_two_precisions(trial.subject, trial.convention, trial.seed)
    examples, inconclusive_reasons, ties, notes = 0, list[str](), 0, list[str]()
    for lengths, comparison in trial.measured_layouts(trial.layouts, compare, notes):
        examples, ties = examples + 1, ties + comparison.ties
        is_long = lengths in trial.long_layouts  # rounding adds up in one: it need not be judged
        (notes if is_long else inconclusive_reasons).extend(comparison.inconclusive_reasons)
        if comparison.first_failure:
            failure = _packing_failure(trial, compare, lengths, comparison.first_failure, examples)
            return Judgement(verdict_of(cell, "failed", examples, failure=failure))
    return Judgement(equality_verdict(cell, examples, inconclusive_reasons, ties, notes))


def padding(trial: Trial, cell: Cell) -> Judgement:
    """The contents of padding rows reach no document and no gradient, and no output there is NaN."""
    compare, examples, inconclusive_reasons, ties = None, 0, list[str](), 0
    for padded_layout in trial.layouts_with_padding:
        try:
            compare = compare or PackedAndAlone.at_two_precisions(trial.subject, trial.convention, trial.seed)
            lines, layout_ties, layout_reasons = _judge_padding(trial, compare, padded_layout)
        except (ModuleRefused, ArgumentError) as refusal:
            if not examples:
                return Judgement(verdict_of(cell, "skipped", 0, f"the module refused padding: {refusal}"))
            raise
        examples, ties, inconclusive_reasons = (
            examples + 1,
            ties + layout_ties,
            [*inconclusive_reasons, *layout_reasons],
        )
        if lines:
            (lengths, gaps), lines, attempts = _shrink_padding(trial, compare, padded_layout, lines)
            padding_text = f"padding of {', '.join(map(str, gaps))} rows before each document and after the last"
            return Judgement(
                verdict_of(
                    cell,
                    "failed",
                    examples,
                    failure=Failure(lengths, "output", (padding_text, *lines), examples, attempts),
                ),
                gaps,
            )
    return Judgement(equality_verdict(cell, examples, inconclusive_reasons, ties))


def equality_verdict(
    cell: Cell, examples: int, inconclusive_reasons: list[str], ties: int, notes: Sequence[str] = ()
) -> Verdict:
    if inconclusive_reasons:
        remainder = f"; so are {len(inconclusive_reasons) - 1} more" if inconclusive_reasons[1:] else ""
        return verdict_of(cell, "inconclusive", examples, f"{inconclusive_reasons[0]}{remainder}")
    all_notes = [*([_near_ties_note(ties)] if ties else []), *notes]
    return verdict_of(cell, "passed", examples, "; ".join(all_notes[:2]))


def _near_ties_note(ties: int) -> str:
    return f"near ties: {plural(ties, 'choice')} of a router or a top-k fell otherwise by rounding, and were made alike"


def _inconclusive_reason(trial: Trial, pack: Pack) -> str:
    """Why this module cannot be judged: it is random, or leaks nothing even without boundaries. "" if it can."""
    subject, convention = trial.subject, trial.convention
    x, boundaryless = subject.input(pack.tokens, trial.seed), pack.without_boundaries()
    packs = (boundaryless, pack, pack, pack)  # boundaries kept by the module settle first
    *_, first_output, second_output = (subject.call(ModuleCall(x, convention, layout)) for layout in packs)
    if not torch.equal(first_output.nan_to_num(), second_output.nan_to_num()):
        return "two equal calls differ: no document can be shown to be isolated from chance"
    if not first_output.isfinite().all():
        return "its outputs are not finite"
    if not measure_leakage(subject, convention, pack, trial.seed, boundaryless).leaking_pairs:
        return "the same call without boundaries leaks nothing either, so that this check could not see a leak"
    return ""


class Shrinker:
    """Tries smaller layouts for some seconds, and counts the attempts."""

    def __init__(self, law: str, *, shrinks: bool = True) -> None:
        seconds = _SHRINK_SECONDS.get(law, _USUAL_SHRINK_SECONDS) if shrinks else 0.0
        self.attempts, self._deadline = 0, time.monotonic() + seconds

    def smallest(
        self, lengths: Lengths, outcome: Outcome, measure: Callable[[Lengths], Outcome | None]
    ) -> tuple[Lengths, Outcome]:
        """The smallest layout that fails, and its outcome.

        lengths, outcome: a layout that fails.
        measure: returns the outcome of a layout that fails, None for any other.
        """
        outcomes = {lengths: outcome}

        def fails(candidate: Lengths) -> bool:
            if candidate_outcome := self.attempt(partial(measure, candidate)):
                outcomes[candidate] = candidate_outcome
            return candidate in outcomes

        smallest_lengths = shrink_lengths(lengths, fails)
        return smallest_lengths, outcomes[smallest_lengths]

    def attempt(self, check: Callable[[], Outcome | None]) -> Outcome | None:
        if time.monotonic() >= self._deadline:
            return None
        self.attempts += 1
        try:
            return check()
        except (ModuleRefused, ArgumentError):
            return None


def _leak_failure(trial: Trial, lengths: Lengths, leakage: Leakage, example: int) -> Failure:
    """The leak at the smallest layout with one, and the first module that leaks."""
    subject, convention, seed = trial.subject, trial.convention, trial.seed
    shrinker = Shrinker("isolation", shrinks=trial.shrinks)

    def measure(candidate: Lengths) -> Leakage | None:
        result = measure_leakage(subject, convention, subject.pack(candidate), seed)
        return result if result.leaking_pairs else None

    smallest_lengths, smallest_leakage = shrinker.smallest(lengths, leakage, measure)
    i, j = smallest_leakage.leaking_pairs[0]
    gradient = smallest_leakage.gradient.get((i, j))
    gradient_text = f", and their gradient at its tokens is up to {gradient:.3g}, not 0" if gradient else ""
    lines = [
        f"document {i} reaches document {j}: outputs of up to {smallest_leakage.scale:.3g} move by "
        f"{smallest_leakage.output_change[i, j]:.3g} when it changes{gradient_text}",
        *_culprit_lines(trial, leakage, lengths),
        *(
            ()
            if smallest_leakage.moves_output((i, j))
            else ("it leaks in the backward pass alone: outputs move by no more than rounding",)
        ),
        *_ineffective_arguments(trial, subject.pack(lengths), leakage),
    ]
    return Failure(smallest_lengths, "output", tuple(lines), example, shrinker.attempts)


def _culprit_lines(trial: Trial, leakage: Leakage, lengths: Lengths, gaps: tuple[int, ...] = ()) -> Iterator[str]:
    """The first module that leaks: in the forward pass, or in the backward pass if outputs do not move."""
    uncompiled, pair = trial.subject.uncompiled(), leakage.leaking_pairs[0]
    pack = uncompiled.pack(lengths, gaps)
    call = ModuleCall(uncompiled.input(pack.tokens, trial.seed), trial.convention, pack)
    if leakage.moves_output(pair):
        changed_x = with_document_changed(call.x, pack, pair[0], uncompiled, trial.seed)
        lines = uncompiled.module.leaking_module(call, changed_x, pair[0])
    else:
        lines = uncompiled.module.leaking_backward(call, pair, trial.seed)
    yield from lines
    if trial.subject.mode.compiled and not lines:
        yield "uncompiled it does not leak"


def _ineffective_arguments(trial: Trial, pack: Pack, leakage: Leakage) -> Iterator[str]:
    """The arguments without effect: for one document the module gives the same bits as for many."""
    subject, convention = trial.subject, trial.convention
    call = ModuleCall(subject.input(pack.tokens, trial.seed), convention, pack)

    def are_ineffective(names: Sequence[str]) -> bool:
        try:
            return torch.equal(subject.call(replace(call, without_boundaries=tuple(names))), leakage.output)
        except ModuleRefused:
            return False

    names = subject.module.changing_arguments(convention, pack)  # the others tell nothing
    heading, ineffective_names = IGNORED, names
    if not are_ineffective(names):
        heading, ineffective_names = "accepted without effect: ", tuple(n for n in names if are_ineffective([n]))
    if ineffective_names:
        yield f"{heading}{', '.join(ineffective_names)}: for one document the output has the same bits"


def _packing_failure(
    trial: Trial, compare: PackedAndAlone, lengths: Lengths, difference: Difference, example: int
) -> Failure:
    subject, shrinker = trial.subject, Shrinker("packing", shrinks=trial.shrinks)
    smallest_lengths, smallest_difference = shrinker.smallest(
        lengths, difference, lambda candidate: compare(subject.pack(candidate)).first_failure
    )
    lines = (
        str(smallest_difference),
        *_length_dependence(compare, subject, smallest_lengths, smallest_difference),
        *_differing_module_lines(compare, subject.pack(lengths), difference),
    )
    return Failure(smallest_lengths, smallest_difference.name, lines, example, shrinker.attempts)


def _length_dependence(
    compare: PackedAndAlone, subject: Subject, lengths: Lengths, difference: Difference
) -> Iterator[str]:
    """A line if the contents of the other documents do not reach this one: it then depends on their lengths."""
    if difference.document is None or len(lengths) > MAX_CHANGED_DOCUMENTS:
        return
    with suppress(ModuleRefused):
        other_documents = [j for j in range(len(lengths)) if j != difference.document]
        leakage = measure_leakage(
            subject, compare.convention, subject.pack(lengths), compare.seed, sources=other_documents
        )
        if all(reader != difference.document for _, reader in leakage.leaking_pairs):
            yield (
                f"what other documents hold does not reach {difference.name}: it follows how long they are, or where "
                "it lies among them"
            )


def _differing_module_lines(compare: PackedAndAlone, pack: Pack, difference: Difference) -> Iterator[str]:
    """The first module that differs from the document alone by more than rounding explains in the output."""
    if difference.document is not None:
        uncompiled = compare.high_precision.uncompiled()
        roundings = difference.roundings(uncompiled.dtype)
        call = ModuleCall(uncompiled.input(pack.tokens, compare.seed), compare.convention, pack)
        yield from uncompiled.module.differing_module(call, difference.document, roundings)


def _judge_padding(
    trial: Trial, compare: PackedAndAlone, padded_layout: PaddedLayout
) -> tuple[list[str], int, list[str]]:
    """A line for each violation through padding, the number of near ties, and the inconclusive reasons."""
    pack = trial.subject.pack(*padded_layout)
    leakage = measure_leakage(trial.subject, trial.convention, pack, trial.seed, sources=(PADDING,))
    rows = leakage.output[pack.document == PADDING]
    if rows.is_floating_point() and bool(rows.isnan().any()):
        return ["the output of padding is NaN, where no input is"], leakage.ties, []
    if leakage.leaking_pairs:
        i, j = leakage.leaking_pairs[0]
        lines = [
            f"padding reaches document {j}: outputs of up to {leakage.scale:.3g} move by "
            f"{leakage.output_change[i, j]:.3g} when it changes, and their gradient at its rows is up to "
            f"{leakage.gradient.get((i, j), 0.0):.3g}",
            *_culprit_lines(trial, leakage, *padded_layout),
        ]
        return lines, leakage.ties, []
    comparison = compare(pack)
    if comparison.first_failure:
        return [str(comparison.first_failure)], leakage.ties, []
    return [], leakage.ties + comparison.ties, comparison.inconclusive_reasons


def _shrink_padding(
    trial: Trial, compare: PackedAndAlone, padded_layout: PaddedLayout, lines: list[str]
) -> tuple[PaddedLayout, list[str], int]:
    shrinker = Shrinker("padding")
    for candidate in smaller_padded_layouts(*padded_layout, between_documents=trial.convention.padding == "between"):
        if candidate_lines := shrinker.attempt(partial(_padding_lines, trial, compare, candidate)):
            return candidate, candidate_lines, shrinker.attempts
    return padded_layout, lines, shrinker.attempts


def _padding_lines(trial: Trial, compare: PackedAndAlone, padded_layout: PaddedLayout) -> list[str]:
    return _judge_padding(trial, compare, padded_layout)[0]
