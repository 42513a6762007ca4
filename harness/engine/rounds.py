"""The rounds in which a cell judges its cases: the small, most telling ones before any cell judges the rest."""

from collections.abc import Collection, Sequence
from itertools import chain

from packproof.properties.cases.case import SHORT, Case
from packproof.properties.cases.layouts import Lengths
from packproof.properties.cases.space import Space
from packproof.properties.laws.catalogue import PROPERTIES
from packproof.properties.laws.property import Property

_SHARED = [law.name for law in PROPERTIES.values() if law.dtype_independent]
_TELLING, _AT_A_TIME = 5, 4  # cases in the first rounds, and in each later round
_CALL = 128  # what a call costs beside its tokens, in tokens


def rounds(cases: Sequence[Case], golden: Collection[Case], space: Space) -> list[list[Case]]:
    """The same cases in rounds: first one sequence alone, since code compiled for it may be used for packs later, and
    one by one those golden cases with tokens that meet the most boundary classes at the least cost, or the first cases
    where none is golden; then those that meet the classes left, and the others in their order. Where there are only a
    few cases, which then cost seconds each, as with torch.compile, they wait for the golden ones of other properties.
    """
    layouts: dict[Lengths, Case] = {}  # each with the first case, so that stale caches meet the others in their order
    for case in cases:
        if case.n_tokens and case in golden:
            layouts.setdefault(case.lengths, case)
    telling = _telling([*layouts.values()] or cases[:_TELLING], space)
    first, rest = telling[:_TELLING], [*telling[_TELLING:], *_without(telling, cases)]
    idle = _TELLING + len(golden) // _AT_A_TIME if len(cases) <= _TELLING else 0
    later = (rest[at : at + _AT_A_TIME] for at in range(0, len(rest), _AT_A_TIME))
    return [*([] for _ in range(idle)), first[:2], *([case] for case in first[2:]), *later]


def numbered(golden: Sequence[Case], others: Sequence[Case], space: Space) -> dict[Case, int]:
    """The number of the configuration of autotuned kernels in each case: its place among all as they are judged, one
    further in each dtype. So the cells of a kernel share runs, and together take every configuration."""
    ordered = chain.from_iterable(rounds([*golden, *others], golden, space))
    return {case: place + list(SHORT).index(case.dtype) for place, case in enumerate(ordered)}


def _telling(cases: Sequence[Case], space: Space) -> list[Case]:
    """A few of the cases, which meet every class that any of them meets: one sequence alone, then each time the one
    that meets the most classes for its cost that those before it do not meet."""
    left = {case: space.classes(case) for case in cases}
    chosen = [case for case in cases if len(case.lengths) == 1][:1]
    met = frozenset[str]().union(*map(left.pop, chosen))
    while left:
        best = max(left, key=lambda case: len(left[case] - met) / _cost(case))
        if len(chosen) >= _TELLING and left[best] <= met:
            break
        chosen.append(best)
        met |= left.pop(best)
    return chosen


def _without(some: Sequence[Case], cases: Sequence[Case]) -> list[Case]:
    rest = list(cases)
    for case in some:
        rest.remove(case)
    return rest


def _cost(case: Case) -> int:
    return _CALL + case.n_tokens + case.slack + len(case.lengths)


def shared_out(law: Property, cases: Sequence[Case], dtype: int, dtypes: int) -> list[Case]:
    """The share of one of several dtypes: one case of each of its layouts, chosen by the place of the property.

    Where there are fewer layouts with a boundary than dtypes, several dtypes have the same one.
    """
    place = _SHARED.index(law.name) if law.name in _SHARED else len(_SHARED)
    layouts: dict[Lengths, list[Case]] = {}
    for case in cases:
        layouts.setdefault(case.lengths, []).append(case)
    representatives = [alike[place % len(alike)] for alike in layouts.values()]
    share = representatives[(dtype + place) % dtypes :: dtypes]
    if not any(case.has_boundary for case in share):
        share += [case for case in representatives if case.has_boundary][:1]
    return share
