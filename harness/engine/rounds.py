"""The rounds in which a cell judges its cases: the small, most telling ones before any cell judges the rest."""

from collections.abc import Collection, Sequence

from packproof.properties.case import Case
from packproof.properties.cases import Space

_TELLING, _AT_A_TIME = 4, 4  # cases that have a round of their own, and in each later round
_CALL = 128  # what a call costs beside its tokens, in tokens


def rounds(cases: Sequence[Case], golden: Collection[Case], space: Space) -> list[list[Case]]:
    """The same cases in rounds: first one by one those golden ones with tokens that meet the most boundary classes at
    the least cost, or the first cases where none is golden; then the others in their order. Where there are only a few
    cases, which then cost seconds each, as with torch.compile, they wait for the golden ones of other properties."""
    first = _telling([case for case in cases if case.n_tokens and case in golden] or cases[:_TELLING], space)
    rest = list(cases)
    for case in first:
        rest.remove(case)
    idle = _TELLING + len(golden) // _AT_A_TIME if len(cases) <= _TELLING else 0
    later = (rest[at : at + _AT_A_TIME] for at in range(0, len(rest), _AT_A_TIME))
    return [*([] for _ in range(idle)), *([case] for case in first), *later]


def _telling(cases: Sequence[Case], space: Space) -> list[Case]:
    """A few of the cases, each the one that meets the most classes for its cost that those before it do not meet."""
    left = {case: space.classes(case) for case in cases}
    chosen: list[Case] = []
    met: frozenset[str] = frozenset()
    while left and len(chosen) < _TELLING:
        best = max(left, key=lambda case: len(left[case] - met) / _cost(case))
        chosen.append(best)
        met |= left.pop(best)
    return chosen


def _cost(case: Case) -> int:
    return _CALL + case.n_tokens + case.slack + len(case.lengths)
