"""The properties of a module: each judges one convention in one mode, and shrinks a failure."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import torch

from packproof.harness.modules.conventions import Convention
from packproof.harness.modules.culprit import first_differing_module, first_leaking_backward, first_leaking_module
from packproof.harness.modules.equality import Difference, PackedAndAlone
from packproof.harness.modules.isolation import MANY, Reach, reach
from packproof.harness.modules.pack import PADDING, Lengths, Pack, smaller, smaller_gaps
from packproof.harness.modules.subject import ModuleRefused, Subject
from packproof.harness.results.events import Cell, Failure, Status, Tier, Verdict
from packproof.refs.errors import ArgumentError
from packproof.refs.wording import counted

Padded = tuple[Lengths, tuple[int, ...]]
Found = TypeVar("Found")
_SHRINK_SECONDS = {"isolation": 10.0, "packing": 5.0, "padding": 5.0}


@dataclass(frozen=True)
class Trial:
    """One convention of a module in one mode, and the layouts to judge it at."""

    subject: Subject
    convention: Convention
    seed: int
    layouts: Sequence[Lengths]
    """Layouts to try, small ones first."""
    many: Lengths = ()
    """A layout of many documents, for `isolation`, which runs no document alone; () for none."""
    padded: Sequence[Padded] = ()
    """Layouts with padding."""

    def starting_at(self, lengths: Lengths) -> "Trial":
        """The same trial with this layout first, unless it has many documents."""
        return replace(self, layouts=(lengths, *self.layouts)) if 0 < len(lengths) <= MANY else self


@dataclass(frozen=True)
class Judged:
    """A verdict, and the padding of the layout at which it failed."""

    verdict: Verdict
    gaps: tuple[int, ...] = ()


Judge = Callable[[Trial, Cell], Judged]


def verdict_of(cell: Cell, status: Status, examples: int, reason: str = "", failure: Failure | None = None) -> Verdict:
    tier: Tier = "gpu" if cell.device == "cuda" else "eager"
    refused = 1 if status == "inconclusive" and not examples else 0
    return Verdict(cell, tier, status, examples + refused, 0.0, examples, refused, reason=reason, failure=failure)


def isolation(trial: Trial, cell: Cell) -> Judged:
    """When one document changes, the others keep their bits and have no gradient at its tokens."""
    subject, notes, judged = trial.subject, list[str](), 0
    if why := _void(trial, subject.pack(trial.layouts[0])):
        return Judged(verdict_of(cell, "inconclusive", 0, why))
    for lengths in (*trial.layouts, *([trial.many] if trial.many else ())):
        found = reach(subject, trial.convention, subject.pack(lengths), trial.seed)
        judged += 1
        if found.leaks:
            return Judged(verdict_of(cell, "failed", judged, failure=_leak(trial, lengths, found, judged)))
        if found.ties:
            notes.append(_tied(found.ties))
        if found.rounded:
            notes.append(f"others move by rounding, with a gradient of zero, at lengths {list(lengths)}")
    if not found.gradient:
        notes.append("by values alone: a compiled model has no gradient at its ids, and packing judges its parameters'")
    return Judged(verdict_of(cell, "passed", judged, "; ".join(notes[:1])))


def packing(trial: Trial, cell: Cell) -> Judged:
    """Outputs, and the sums of parameters' gradients, are those of the documents alone."""
    compare, subject = PackedAndAlone.of(trial.subject, trial.convention, trial.seed), trial.subject
    judged, vacuous, ties = 0, list[str](), 0
    for lengths in trial.layouts:
        judged += 1
        found = compare(subject.pack(lengths))
        vacuous, ties = [*vacuous, *found.vacuous], ties + found.ties
        if found.failing:
            failure = _unequal(compare, subject, lengths, found.failing, judged)
            return Judged(verdict_of(cell, "failed", judged, failure=failure))
    return Judged(_equal(cell, judged, vacuous, ties))


def padding(trial: Trial, cell: Cell) -> Judged:
    """The contents of padding rows reach no document and no gradient, and no output there is NaN."""
    compare, judged, vacuous, ties = None, 0, list[str](), 0
    for padded in trial.padded:
        try:
            compare = compare or PackedAndAlone.of(trial.subject, trial.convention, trial.seed)
            lines, found_ties, unclear = _through_padding(trial, compare, padded)
        except (ModuleRefused, ArgumentError) as refused:
            if not judged:
                return Judged(verdict_of(cell, "skipped", 0, f"the module refused padding: {refused}"))
            raise
        judged, ties, vacuous = judged + 1, ties + found_ties, [*vacuous, *unclear]
        if lines:
            (lengths, gaps), lines, tried = _least_padding(trial, compare, padded, lines)
            where = f"padding of {', '.join(map(str, gaps))} rows before each document and after the last"
            return Judged(
                verdict_of(cell, "failed", judged, failure=Failure(lengths, "output", (where, *lines), judged, tried)),
                gaps,
            )
    return Judged(_equal(cell, judged, vacuous, ties))


JUDGES: dict[str, Judge] = {"isolation": isolation, "packing": packing, "padding": padding}


def _equal(cell: Cell, judged: int, vacuous: list[str], ties: int) -> Verdict:
    if vacuous:
        more = f"; so are {len(vacuous) - 1} more" if vacuous[1:] else ""
        return verdict_of(cell, "inconclusive", judged, f"{vacuous[0]}{more}")
    return verdict_of(cell, "passed", judged, _tied(ties) if ties else "")


def _tied(ties: int) -> str:
    return (
        f"near ties: {counted(ties, 'choice')} of a router or a top-k fell otherwise by rounding, and were made alike"
    )


def _void(trial: Trial, pack: Pack) -> str:
    """Why this module cannot be judged: it is random, or leaks nothing even without boundaries. "" if it can."""
    subject, convention = trial.subject, trial.convention
    x, arguments = subject.input(pack.tokens, trial.seed), subject.arguments(convention, pack)
    told_nothing = subject.arguments(convention, pack.without_boundaries())
    calls = (told_nothing, arguments, arguments, arguments)  # boundaries kept by the module settle first
    with torch.no_grad():
        *_, once, twice = (subject.call_with(x, each, convention) for each in calls)
    if not torch.equal(once.nan_to_num(), twice.nan_to_num()):
        return "two equal calls differ: no document can be shown to be isolated from chance"
    if not once.isfinite().all():
        return "its outputs are not finite"
    if not reach(subject, convention, pack, trial.seed, told_nothing).leaks:
        return "the same call without boundaries leaks nothing either, so that this check could not see a leak"
    return ""


class _Smaller:
    """Tries smaller layouts for some seconds, and counts the attempts."""

    def __init__(self, law: str) -> None:
        self.tried, self._until = 0, time.monotonic() + _SHRINK_SECONDS[law]

    def fails(self, look: Callable[[], Found | None]) -> Found | None:
        if time.monotonic() > self._until:
            return None
        self.tried += 1
        try:
            return look()
        except (ModuleRefused, ArgumentError):
            return None


def _leak(trial: Trial, lengths: Lengths, found: Reach, example: int) -> Failure:
    """The leak at the smallest layout with one, and the first module that leaks."""
    subject, convention, seed = trial.subject, trial.convention, trial.seed
    at, search = {lengths: found}, _Smaller("isolation")

    def leaks(candidate: Lengths) -> bool:
        def look() -> Reach | None:
            there = reach(subject, convention, subject.pack(candidate), seed)
            return there if there.leaks else None

        if there := search.fails(look):
            at[candidate] = there
        return candidate in at

    small = smaller(lengths, leaks)
    there = at[small]
    i, j = there.leaks[0]
    gradient = there.gradient.get((i, j))
    slope = f", and their gradient at its tokens is up to {gradient:.3g}, not 0" if gradient else ""
    lines = [
        f"document {i} reaches document {j}: outputs of up to {there.scale:.3g} move by {there.moved[i, j]:.3g} when "
        f"it changes{slope}",
        *_culprit(trial, found, lengths),
        *(
            ()
            if there.moves((i, j))
            else ("it leaks in the backward pass alone: outputs move by no more than rounding",)
        ),
        *_without_effect(trial, subject.pack(lengths), found),
    ]
    return Failure(small, "output", tuple(lines), example, search.tried)


def _culprit(trial: Trial, found: Reach, lengths: Lengths, gaps: tuple[int, ...] = ()) -> Iterator[str]:
    """The first module that leaks: in the forward pass, or in the backward pass if outputs do not move."""
    plain, pair = trial.subject.uncompiled(), found.leaks[0]
    pack = plain.pack(lengths, gaps)
    if found.moves(pair):
        culprit = first_leaking_module(plain, trial.convention, pack, pair[0], trial.seed)
    else:
        culprit = first_leaking_backward(plain, trial.convention, pack, pair, trial.seed)
    if culprit:
        yield from culprit.lines()
    elif trial.subject.mode.compiled:
        yield "uncompiled it does not leak"


def _without_effect(trial: Trial, pack: Pack, found: Reach) -> Iterator[str]:
    """The arguments without effect: for one document the module gives the same bits as for many."""
    subject, convention = trial.subject, trial.convention
    x, arguments = subject.input(pack.tokens, trial.seed), subject.arguments(convention, pack)
    of_one = subject.arguments(convention, pack.without_boundaries())
    idle = []
    for name in [n for n, value in arguments.items() if not isinstance(value, bool)]:
        try:
            with torch.no_grad():
                out = subject.call_with(x, arguments | {name: of_one[name]}, convention)
        except ModuleRefused:
            continue
        if torch.equal(out, found.output):
            idle.append(name)
    if idle:
        yield f"accepted without effect: {', '.join(idle)}: for one document the output has the same bits"


def _unequal(
    compare: PackedAndAlone, subject: Subject, lengths: Lengths, difference: Difference, example: int
) -> Failure:
    at, search = {lengths: difference}, _Smaller("packing")

    def differs(candidate: Lengths) -> bool:
        if there := search.fails(lambda: compare(subject.pack(candidate)).failing):
            at[candidate] = there
        return candidate in at

    small = smaller(lengths, differs)
    lines = (
        _off(at[small]),
        *_not_through_values(compare, subject, small, at[small]),
        *_first_apart(compare, subject.pack(lengths), difference),
    )
    return Failure(small, at[small].what, lines, example, search.tried)


def _not_through_values(
    compare: PackedAndAlone, subject: Subject, lengths: Lengths, difference: Difference
) -> Iterator[str]:
    """A line if the contents of the other documents do not reach this one: it then depends on their lengths."""
    if difference.document is None or len(lengths) > MANY:
        return
    with suppress(ModuleRefused):
        others = [j for j in range(len(lengths)) if j != difference.document]
        found = reach(subject, compare.convention, subject.pack(lengths), compare.seed, sources=others)
        if all(reached != difference.document for _, reached in found.leaks):
            yield (
                f"what other documents hold does not reach {difference.what}: it follows how long they are, or where "
                "it lies among them"
            )


def _first_apart(compare: PackedAndAlone, pack: Pack, difference: Difference) -> Iterator[str]:
    """The first module that differs from the document alone by more than rounding explains in the output."""
    if difference.document is not None:
        plain = compare.high.uncompiled()
        roundings = difference.allowed / ((difference.scale or 1.0) * torch.finfo(plain.dtype).eps / 2)
        found = first_differing_module(plain, compare.convention, pack, difference.document, compare.seed, roundings)
        yield from found.lines() if found else ()


def _off(difference: Difference) -> str:
    return (
        f"{difference.what}: off by {difference.found:.3g} from the document alone, in values of up to "
        f"{difference.scale:.3g}; rounding explains {difference.allowed:.3g}"
    )


def _through_padding(trial: Trial, compare: PackedAndAlone, padded: Padded) -> tuple[list[str], int, list[str]]:
    """A line for each violation through padding, the number of near ties, and the inconclusive reasons."""
    pack = trial.subject.pack(*padded)
    found = reach(trial.subject, trial.convention, pack, trial.seed, sources=(PADDING,))
    rows = found.output[pack.document == PADDING]
    if rows.is_floating_point() and bool(rows.isnan().any()):
        return ["the output of padding is NaN, where no input is"], found.ties, []
    if found.leaks:
        i, j = found.leaks[0]
        lines = [
            f"padding reaches document {j}: outputs of up to {found.scale:.3g} move by {found.moved[i, j]:.3g} when it "
            f"changes, and their gradient at its rows is up to {found.gradient.get((i, j), 0.0):.3g}",
            *_culprit(trial, found, *padded),
        ]
        return lines, found.ties, []
    compared = compare(pack)
    if compared.failing:
        return [_off(compared.failing)], found.ties, []
    return [], found.ties + compared.ties, compared.vacuous


def _least_padding(
    trial: Trial, compare: PackedAndAlone, padded: Padded, lines: list[str]
) -> tuple[Padded, list[str], int]:
    search = _Smaller("padding")
    for candidate in smaller_gaps(*padded, between=trial.convention.padding == "between"):
        if found := search.fails(partial(_lines, trial, compare, candidate)):
            return candidate, found, search.tried
    return padded, lines, search.tried


def _lines(trial: Trial, compare: PackedAndAlone, padded: Padded) -> list[str]:
    return _through_padding(trial, compare, padded)[0]
