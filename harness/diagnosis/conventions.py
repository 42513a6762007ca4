"""Whether a kernel that fails would pass if its adapter declared something else: tried, not guessed.

A suggestion holds at the smallest failing case and agrees with the reference at several golden ones, values and
gradients. That takes a call for each convention that there is, milliseconds on a CPU, and never more than seconds.
"""

import time
from collections.abc import Iterator
from itertools import islice

from packproof.properties.call import KernelFault, Refused
from packproof.properties.cases.case import Case
from packproof.properties.cases.domain import Domain
from packproof.properties.cases.space import Space, golden_cases
from packproof.properties.kernel_under_test import KernelUnderTest
from packproof.properties.laws.catalogue import PROPERTIES
from packproof.properties.laws.property import Property

_SECONDS = 5.0
_CONFIRMED_AT = 6
_MOST_TOKENS = 64
_MOST_SHOWN = 2
_NO_EMPTY = "length > 0"
_FATAL = ("crashed", "hung", "exited", "killed")


def suggestions(kernel: KernelUnderTest, law: Property, case: Case, space: Space) -> list[str]:
    """Lines that name what an adapter could declare instead, so that the kernel keeps the law; none for a kernel
    without an adapter, or where no single change does it in a few seconds.

    case: the smallest at which the law is broken. space: of the cases that the kernel is judged at.
    """
    if not kernel.conventions or _holds(kernel, PROPERTIES["reference"], case):
        return []
    until, cases = time.monotonic() + _SECONDS, _cases(space)
    found: list[str] = []
    with kernel.runner.impatient():
        try:
            for words, other, first in _others(kernel, case):
                if time.monotonic() > until or len(found) == _MOST_SHOWN:
                    break
                tried = [c for c in cases if other.domain.allows(kernel.op, c)]
                if (
                    tried
                    and all(_holds(other, law, c) for c in first)
                    and all(_holds(other, PROPERTIES["reference"], c) for c in tried)
                ):
                    found.append(
                        f"with {words} instead it agrees with the reference, here and in {len(tried)} other packs: "
                        "is that its convention?"
                    )
        except KernelFault:
            pass  # a convention that ends the process: the others are not worth it
    return found


def _others(kernel: KernelUnderTest, case: Case) -> Iterator[tuple[str, KernelUnderTest, list[Case]]]:
    """The kernel in each other convention, in words, and the cases at which the broken law has to hold."""
    if 0 in case.lengths and not {"length"} & {n for c in kernel.domain.conditions for n in c.names}:
        other = kernel.in_convention("")
        other.domain = kernel.domain & Domain.of(_NO_EMPTY)
        yield f"domain={_NO_EMPTY!r}", other, []
    for words in kernel.conventions:
        yield f"adapt(..., {words})", kernel.in_convention(words), [case]


def _cases(space: Space) -> list[Case]:
    """Small golden cases, in which all that the kernel takes is given."""
    small = (c for c in golden_cases(space) if 0 < c.n_tokens <= _MOST_TOKENS)
    return list(islice(small, _CONFIRMED_AT))


def _holds(kernel: KernelUnderTest, law: Property, case: Case) -> bool:
    """Raises KernelFault where the kernel takes its process down."""
    try:
        return next(law.check(kernel, case), None) is None
    except KernelFault as fault:
        if fault.kind in _FATAL:
            raise
        return False
    except Refused:
        return False
