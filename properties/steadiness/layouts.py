"""Layouts of one shape: as many rows and sequences, of other lengths."""

from collections.abc import Callable, Iterator

from packproof.properties.cases.case import Case

_STEPS = 8  # from lengths as equal as can be to all tokens in one sequence
_DIVISOR = 16  # a kernel may be compiled anew for numbers that it divides, such as the longest length: once


def layouts_of_one_shape(case: Case, allows: Callable[[Case], bool]) -> tuple[list[Case], list[Case]]:
    """Layouts after which a kernel has seen a shape, and further ones. Their longest sequences differ in length.

    The first ones have the least and the greatest longest length; one is a multiple of 16, one is none.
    allows: whether a case is in the kernel's domain.
    """
    layouts = list(dict.fromkeys(filter(allows, _with_other_lengths(case))))
    first = dict.fromkeys(layouts[:1] + layouts[-1:])
    for is_multiple in (True, False):
        if not any((_longest(layout) % _DIVISOR == 0) == is_multiple for layout in first):
            candidates = [layout for layout in layouts if (_longest(layout) % _DIVISOR == 0) == is_multiple]
            first |= dict.fromkeys(candidates[:1])
    return list(first), [layout for layout in layouts if layout not in first]


def _with_other_lengths(case: Case) -> Iterator[Case]:
    for step in range(_STEPS + 1):
        lengths = _lengths(sum(case.lengths), len(case.lengths), step)
        if case.key_lengths is None:
            yield case.with_lengths(lengths)
        else:
            keys = _lengths(sum(case.key_lengths), len(case.key_lengths), step)
            yield case.replace(lengths=lengths, key_lengths=keys)
            yield case.replace(key_lengths=keys)


def _lengths(tokens: int, sequences: int, step: int) -> tuple[int, ...]:
    """Lengths of so many sequences, of which one is longer with each step and the others are as equal as can be."""
    if sequences < 2:
        return (tokens,) * sequences
    shortest = -(-tokens // sequences)
    longest = shortest + (tokens - shortest) * step // _STEPS
    length, more = divmod(tokens - longest, sequences - 1)
    others = [length + (k < more) for k in range(sequences - 1)]
    position = step % sequences
    return (*others[:position], longest, *others[position:])


def _longest(case: Case) -> int:
    return max(case.key_lengths or case.lengths, default=0)
