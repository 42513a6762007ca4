"""Layouts of one shape: as many rows and sequences, of other lengths."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from packproof.properties.cases.case import Case

_STEPS = 5  # from lengths as equal as can be to all tokens in one sequence
_MORE_STEPS = 17
_DIVISOR = 16  # a kernel may be compiled once more for multiples of it, such as the longest length: once


@dataclass(frozen=True)
class Layouts:
    """Cases that differ in their lengths alone, each in one of three groups."""

    warm_up: list[Case]
    """With the least and the greatest longest length, with a multiple of 16 and with another: after these, a kernel
    knows the shape."""
    new: list[Case]
    """With other longest lengths."""
    spare: list[Case]
    """With further longest lengths, of sequences and of keys: memory kept for each grows with every call."""

    @classmethod
    def of_one_shape(cls, case: Case, allows: Callable[[Case], bool]) -> "Layouts":
        """The layouts of a case's shape.

        allows: whether one may be called.
        """
        layouts, more = (list(dict.fromkeys(filter(allows, _ladder(case, n)))) for n in (_STEPS, _MORE_STEPS))
        warm_up = dict.fromkeys(layouts[:1] + layouts[-1:])
        for is_multiple in (True, False):
            if not any((_longest(layout) % _DIVISOR == 0) == is_multiple for layout in warm_up):
                warm_up |= dict.fromkeys([x for x in layouts if (_longest(x) % _DIVISOR == 0) == is_multiple][:1])
        longest = set(map(_longest, layouts))
        spare = {_longest(layout): layout for layout in reversed(more) if _longest(layout) not in longest}
        return cls(list(warm_up), [layout for layout in layouts if layout not in warm_up], list(spare.values()))


def _ladder(case: Case, steps: int) -> Iterator[Case]:
    """The case with lengths as equal as can be; at each step one sequence grows, at last to all tokens."""
    for step in range(steps + 1):
        lengths = _lengths(sum(case.lengths), len(case.lengths), step / steps, step)
        if case.key_lengths is None:
            yield case.with_lengths(lengths)
        else:
            keys = _lengths(sum(case.key_lengths), len(case.key_lengths), step / steps, step)
            yield case.replace(lengths=lengths, key_lengths=keys)  # first: of these two, it is the spare one
            yield case.replace(key_lengths=keys)


def _lengths(tokens: int, sequences: int, share: float, position: int) -> tuple[int, ...]:
    """Lengths of so many sequences: one has its share of the others' tokens, which are as equal as can be."""
    if sequences < 2:
        return (tokens,) * sequences
    shortest = -(-tokens // sequences)
    longest = shortest + int((tokens - shortest) * share)
    length, more = divmod(tokens - longest, sequences - 1)
    other_lengths = [length + (k < more) for k in range(sequences - 1)]
    position %= sequences
    return (*other_lengths[:position], longest, *other_lengths[position:])


def _longest(case: Case) -> int:
    return max(case.key_lengths or case.lengths, default=0)
