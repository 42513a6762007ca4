"""The rounds in which a cell judges its cases: the small, most telling ones run before the rest of any cell."""

from collections.abc import Collection, Sequence
from itertools import chain

from packproof.properties.cases.case import SHORT_DTYPES, Case
from packproof.properties.cases.layouts import Lengths
from packproof.properties.cases.space import Space
from packproof.properties.laws.catalogue import PROPERTIES
from packproof.properties.laws.property import Property

_SHARED = [law.name for law in PROPERTIES.values() if law.dtype_independent]
_TELLING, _AT_A_TIME = 5, 4  # cases in the first rounds, and in each later round
_CALL = 128  # what a call costs beside its tokens, in tokens


def rounds(cases: Sequence[Case], golden: Collection[Case], space: Space) -> list[list[Case]]:
    """Order the cases in rounds: (1) one sequence alone; (2) the golden cases that cover the most boundary classes per
    cost; (3) the rest, four at a time.

    One sequence comes first because code compiled for it may be reused for packs. If no case is golden, the first cases
    take their place. If there are only a few cases, each costs seconds (as with torch.compile), and they wait for the
    golden cases of other properties.
    """
    layouts: dict[Lengths, Case] = {}  # each with its first case; the others keep their order, to meet stale caches
    for case in cases:
        if case.n_tokens and case in golden:
            layouts.setdefault(case.lengths, case)
    telling = _telling([*layouts.values()] or cases[:_TELLING], space)
    first, rest = telling[:_TELLING], [*telling[_TELLING:], *_without(telling, cases)]
    idle = _TELLING + len(golden) // _AT_A_TIME if len(cases) <= _TELLING else 0
    later = (rest[at : at + _AT_A_TIME] for at in range(0, len(rest), _AT_A_TIME))
    return [*([] for _ in range(idle)), first[:2], *([case] for case in first[2:]), *later]


def numbered(golden: Sequence[Case], others: Sequence[Case], space: Space) -> dict[Case, int]:
    """The configuration number of autotuned kernels in each case: its index in judging order plus that of its dtype.

    So the cells of a kernel share runs, and together take every configuration.
    """
    ordered = chain.from_iterable(rounds([*golden, *others], golden, space))
    return {case: place + list(SHORT_DTYPES).index(case.dtype) for place, case in enumerate(ordered)}


def _telling(cases: Sequence[Case], space: Space) -> list[Case]:
    """A few cases that cover every class of all the cases: one sequence alone, then the most new classes per cost."""
    left = {case: space.boundary_classes(case) for case in cases}
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
    """The share of one of several dtypes: one case of each of its layouts, selected by the index of the property.

    If fewer layouts have a boundary than there are dtypes, several dtypes get the same one.
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
