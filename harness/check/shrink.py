"""Shrinks a failing case: the shortest layout first, then the plainest value of everything else.

Hypothesis draws the cases; this shrinker knows the domain (drop sequences, land on chunk edges, merge neighbours). So
it ends at textbook minima, in a bounded number of kernel calls.
"""

import time
from collections.abc import Callable, Collection, Iterator
from typing import TypeVar

from packproof.harness.check.request import Allowance
from packproof.properties.cases import Case, Space

T = TypeVar("T")
Lengths = tuple[int, ...]
_MOST_PLAIN_ROWS = 512  # tokens and sequences of a pack whose reference is computed in full
_FIRST_EDGES = 4  # ends of chunks tried in one sequence, beside its last two; else it is cut in halves


def shrink(
    case: Case, space: Space, fails: Callable[[Case], bool], allowance: Allowance, other_cases: Collection[Case] = ()
) -> tuple[Case, int]:
    """The smallest case found that still fails, and the number of cases tried.

    other_cases: may fail too; the search begins at the smallest of them that does.
    """
    search = _ShrinkSearch(fails, allowance)
    case = search.start(case, other_cases)
    is_smaller = True
    while is_smaller and search.has_allowance:
        before = case
        case = search.descend(case, _plainer_cases, space)
        case = search.descend(case, _shorter_cases, space)
        is_smaller = case != before
    return case, search.n_tried


class _ShrinkSearch:
    """A search within its allowance of cases and seconds."""

    def __init__(self, fails: Callable[[Case], bool], allowance: Allowance) -> None:
        self._fails, self._allowance = fails, allowance
        self._seen: set[Case] = set()
        self._deadline = time.monotonic() + allowance.seconds
        self.n_tried = 0

    @property
    def has_allowance(self) -> bool:
        return self.n_tried < self._allowance.tries and time.monotonic() < self._deadline

    def start(self, case: Case, other_cases: Collection[Case]) -> Case:
        """The smallest other case that fails and is smaller than this one; else this one."""
        smaller_cases = sorted((c for c in other_cases if _cost(c) < _cost(case)), key=_cost)
        return next(
            (candidate for candidate in smaller_cases if self.has_allowance and self._test_case(candidate)), case
        )

    def descend(self, case: Case, moves: Callable[[Case, Space], Iterator[Case]], space: Space) -> Case:
        """Follow the first change that still fails, until none does."""
        has_moved = True
        while has_moved and self.has_allowance:
            has_moved = False
            for candidate in moves(case, space):
                if not self.has_allowance:
                    break
                if candidate not in self._seen and self._test_case(candidate):
                    case, has_moved = candidate, True
                    break
        return case

    def _test_case(self, case: Case) -> bool:
        self._seen.add(case)
        self.n_tried += 1
        return self._fails(case)


def _cost(case: Case) -> tuple[int, int, Lengths]:
    all_lengths = (*case.lengths, *(case.key_lengths or ()))
    return sum(all_lengths) + len(all_lengths), max(all_lengths, default=0), all_lengths


def _shorter_cases(case: Case, space: Space) -> Iterator[Case]:
    # thousands of keys cost more than a sequence: without it first, then with fewer keys
    key = _cost if case.key_lengths is None else lambda shorter: (len(shorter.lengths), _cost(shorter))
    for candidate in sorted(dict.fromkeys(_shorter_packs(case, space.chunk)), key=key):
        if _cost(candidate) < _cost(case):
            shorter = space.fit(candidate)
            if shorter and _cost(shorter) < _cost(case):
                yield shorter


def _shorter_packs(case: Case, chunk: int) -> Iterator[Case]:
    if case.period:
        yield from (case.with_lengths(case.lengths[:n]) for n in _nearer_counts(len(case.lengths)))
        return
    if case.key_lengths is None:
        for lengths in (*_fewer_sequences(case.lengths), *_shorter_lengths(case.lengths, chunk)):
            shorter = case.with_lengths(lengths)
            yield shorter
            if case.cuts is not None:  # tokens before the cuts may be gone: keep their distance from the end
                n_removed = case.n_tokens - sum(lengths)
                yield shorter.replace(cuts=tuple(max(cut - n_removed, 0) for cut in case.cuts))
        return
    n = len(case.lengths)
    for pairs in _fewer_sequences(tuple(zip(case.lengths, case.key_lengths, strict=True))):
        yield case.replace(lengths=tuple(a for a, _ in pairs), key_lengths=tuple(b for _, b in pairs))
    for lengths in _shorter_lengths(case.lengths, chunk):
        if len(lengths) == n:
            yield case.replace(lengths=lengths)
    for lengths in _shorter_lengths(case.key_lengths, chunk):
        if len(lengths) == n:
            yield case.replace(key_lengths=lengths)


def _fewer_sequences(sequences: tuple[T, ...]) -> Iterator[tuple[T, ...]]:
    """Without runs of sequences, long runs first."""
    n = len(sequences)
    run = n
    while run >= 1:
        for start in range(0, n - run + 1, max(run // 2, 1)):
            yield sequences[:start] + sequences[start + run :]
        run //= 2


def _nearer_counts(n: int) -> Iterator[int]:
    """Halves, then nearer and nearer to n, as in a binary search."""
    distance = n
    while distance := distance // 2:
        yield n - distance
        yield distance


def _fewer_cuts(cuts: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Without one of the cuts, then with one of them nearer to the start."""
    for k in range(len(cuts)):
        yield (*cuts[:k], *cuts[k + 1 :])
    for k, cut in enumerate(cuts):
        minimum = cuts[k - 1] if k else 0
        for earlier in sorted({minimum, minimum + 1, (minimum + cut) // 2, cut - 1}):
            if minimum <= earlier < cut:
                yield (*cuts[:k], earlier, *cuts[k + 1 :])


def _shorter_lengths(lengths: Lengths, chunk: int) -> Iterator[Lengths]:
    n = len(lengths)
    for j, length in enumerate(lengths):
        n_chunks = length // chunk
        edges = {k * chunk + d for k in (*range(_FIRST_EDGES), n_chunks - 1, n_chunks) for d in (-1, 0, 1)}
        for shorter in {0, 1, 2, 3, length // 2, length - 1, *_nearer_counts(length), *edges}:
            if 0 <= shorter < length:
                yield (*lengths[:j], shorter, *lengths[j + 1 :])
    for j in range(n - 1):
        merged_length = lengths[j] + lengths[j + 1]
        yield (*lengths[:j], merged_length, *lengths[j + 2 :])
        if lengths[j] and lengths[j + 1]:  # move the boundary, keep the tokens
            yield (*lengths[:j], 1, merged_length - 1, *lengths[j + 2 :])
            yield (*lengths[:j], merged_length - 1, 1, *lengths[j + 2 :])


def _plainer_cases(case: Case, space: Space) -> Iterator[Case]:
    candidates = filter(None, map(space.fit, _plain_changes(case, space)))
    yield from (candidate for candidate in candidates if candidate != case)


def _plain_changes(case: Case, space: Space) -> Iterator[Case]:
    plain_size = tuple(space.plain_sizes[0].items())
    yield case.replace(
        **dict.fromkeys(("present", "float32", "narrow"), ()),
        **{"slack": 0, "regime": "normal", "sizes": plain_size, "seed": 0, "options": _plain_options(case, space)},
    )
    yield case.replace(slack=0, regime="normal", sizes=plain_size, seed=0)
    yield case.replace(key_lengths=None)
    if case.n_tokens + len(case.lengths) <= _MOST_PLAIN_ROWS:
        yield case.replace(period=0)
    for change in (
        {"sizes": plain_size},
        {"regime": "normal"},
        {"slack": 0},
        {"slack": 1},
        {"seed": 0},
        {"configuration": 0},
        {"axes": tuple((n, 0) for n, _ in case.axes)},
        {"float32": ()},
        {"narrow": ()},
    ):
        if not (change.get("slack") == 1 and case.slack == 0):
            yield case.replace(**change)
    for cuts in _fewer_cuts(case.cuts or ()):
        yield case.replace(cuts=cuts)
    for name in case.present:
        yield case.without(name)
    for name, value in case.options:
        default = space.options[name][0]
        if value != default:
            yield case.with_option(name, default)


def _plain_options(case: Case, space: Space) -> tuple[tuple[str, object], ...]:
    return tuple((name, space.options[name][0]) for name, _ in case.options)
