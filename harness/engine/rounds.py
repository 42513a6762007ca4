"""The rounds in which a cell judges its cases: the small, most telling ones before any cell judges the rest."""

from collections.abc import Callable, Collection, Sequence

from packproof.properties.case import Case

_TELLING, _AT_A_TIME = 4, 16  # cases in the first round, and in each later one
_CALL = 128  # what a call costs beside its tokens, in tokens


def rounds(
    cases: Sequence[Case], golden: Collection[Case], classes: Callable[[Case], frozenset[str]]
) -> list[list[Case]]:
    """The same cases in rounds: first those golden ones with tokens that meet the most boundary classes at the least
    cost, then the others in their order. Where none is golden, the first cases are the first round."""
    first = _telling([case for case in cases if case.n_tokens and case in golden] or cases[:_TELLING], classes)
    rest = list(cases)
    for case in first:
        rest.remove(case)
    return [first, *(rest[at : at + _AT_A_TIME] for at in range(0, len(rest), _AT_A_TIME))] if first else []


def _telling(cases: Sequence[Case], classes: Callable[[Case], frozenset[str]]) -> list[Case]:
    """A few of the cases, each the one that meets the most classes for its cost that those before it do not meet."""
    left = {case: classes(case) for case in cases}
    chosen: list[Case] = []
    met: frozenset[str] = frozenset()
    while left and len(chosen) < _TELLING:
        best = max(left, key=lambda case: len(left[case] - met) / _cost(case))
        chosen.append(best)
        met |= left.pop(best)
    return chosen


def _cost(case: Case) -> int:
    return _CALL + case.n_tokens + case.slack + len(case.lengths)
