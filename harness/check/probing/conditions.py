"""The condition that fits accepted and refused calls: a multiple, a range, or a set."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from math import gcd
from typing import Any

_MAX_SET_SIZE = 4


def sizes_condition(name: str, answers: Mapping[int, bool], base: int) -> str | None:
    """The plainest condition true for all accepted sizes and false for all refused ones.

    answers: whether each size was accepted.

    Returns "" if no size was refused, None if only the base size was accepted.
    """
    accepted = sorted(size for size, ok in answers.items() if ok)
    refused = [size for size, ok in answers.items() if not ok]
    if not refused:
        return ""
    if set(accepted) <= {base}:
        return None
    largest_size, smallest_size, largest_tried = accepted[-1], accepted[0], max(answers)
    step = gcd(*accepted)
    for unit in sorted({1, step}):
        multiples = [size for size in answers if size % unit == 0]
        if any(smallest_size <= size <= largest_size and not answers[size] for size in multiples):
            continue
        parts = [f"{name} % {unit} == 0"] if unit > 1 else []
        low = smallest_size if any(size < smallest_size for size in multiples) else None
        high = (
            largest_size
            if any(size > largest_size for size in multiples) or (unit > 1 and largest_size < largest_tried // 2)
            else None
        )
        if unit > 1 and high is not None and len(accepted) <= _MAX_SET_SIZE:
            break  # a set reads better
        return " and ".join([*parts, *_range(name, low, high)])
    return f"{name} in ({', '.join(map(str, accepted))}{',' if len(accepted) == 1 else ''})"


def option_condition(name: str, value: Any, *, negated: bool = False) -> str:
    """That an option has this value, or another one; a tuple, such as a window, is an element of a tuple."""
    if isinstance(value, tuple):
        return f"{name} {'not in' if negated else 'in'} ({value!r},)"
    return f"{name} {'!=' if negated else '=='} {value!r}"


def _range(name: str, low: int | None, high: int | None) -> list[str]:
    if low is not None and high is not None:
        return [f"{low} <= {name} <= {high}"]
    return [f"{name} >= {low}"] if low is not None else [f"{name} <= {high}"] if high is not None else []


def smallest_step(accepts: Callable[[int], bool], hints: Iterable[int], max_step: int = 256) -> int:
    """The smallest accepted step: a power of two, or a number from the kernel's messages; 1 if none is accepted."""
    steps = {2**k for k in range(1, max_step.bit_length())} | {n for n in hints if 1 < n <= max_step}
    return next((step for step in sorted(steps) if accepts(step)), 1)


def smallest_accepted(accepts: Callable[[int], bool], refused: int, accepted: int) -> int:
    """The smallest accepted number, between a refused and an accepted one."""
    while accepted - refused > 1:
        middle = (accepted + refused) // 2
        accepted, refused = (middle, refused) if accepts(middle) else (accepted, middle)
    return accepted


def largest_accepted(accepts: Callable[[int], bool], low: int, high: int, step: int, hints: Iterable[int]) -> int:
    """The largest accepted multiple of the step, between `low`, which is accepted, and `high`, which is not."""
    for hint in sorted(hints):
        if low < hint < high and hint % step == 0 and accepts(hint):
            low = hint
        elif low < hint < high and hint % step == 0:
            high = hint
    while high - low > step:
        middle = low + (high - low) // (2 * step) * step
        low, high = (middle, high) if accepts(middle) else (low, middle)
    return low


def keys_conditions(
    accepts: Callable[[tuple[int, ...]], bool], lengths: tuple[int, ...], hints: Iterable[int]
) -> Iterator[str]:
    """Conditions on the keys of a second packing: whether it is accepted, and with which numbers of keys.

    lengths: the tokens of each sequence. The keys of the last one vary.
    """
    longer_lengths = tuple(n + 8 for n in lengths)
    keys = next((candidate for candidate in (longer_lengths, lengths) if accepts(candidate)), None)
    if keys is None:
        yield "not cu_seqlens_k"
        return

    def accepts_last(n_keys: int) -> bool:
        return accepts((*keys[:-1], n_keys))

    takes_one_more = accepts_last(keys[-1] + 1)
    step = 1 if takes_one_more else smallest_step(lambda k: accepts_last(keys[-1] + k), hints)
    takes_fewer = accepts_last(lengths[-1] - step)
    if step > 1:
        yield f"length_k % {step} == 0"
    if takes_one_more or step > 1:
        yield from [] if takes_fewer else ["length <= length_k"]
    else:
        yield "length_k <= length" if takes_fewer else "length_k == length"
    if takes_fewer and not accepts_last(0):
        yield "length_k > 0"
