"""Whether a failing kernel would pass if its adapter declared something else. Each alternative is run, not guessed.

A suggestion holds at the smallest failing case and agrees with the reference at several golden ones, values and
gradients. This takes one call for each available convention: milliseconds on a CPU, seconds at most.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import islice

from packproof.base.errors import KernelFault
from packproof.properties.calling import Refusal
from packproof.properties.cases import GATE, STRONG_GATES, Case, Domain, Space, golden_cases
from packproof.properties.judgement import KernelUnderTest
from packproof.properties.laws import REFERENCE, Property, Violation, against_reference

_TIME_LIMIT = 5.0
_MAX_CONFIRMING_CASES = 6
_MAX_TOKENS = 64
_MAX_SUGGESTIONS = 2
_NO_EMPTY_SEQUENCES = "length > 0"
_NO_EMPTY_KEYS = "length_k > 0"
_WEAKER_GATES_HINT = (
    "passes with weaker gates here: strong ones (a log-decay of -1e4 or less) spoil other tokens, as where decays are "
    f"differences of a running sum; if they are not legal, declare domain='{GATE} > -1e4'"
)
_FATAL_FAULTS = ("crashed", "hung", "exited", "killed")


def suggestions(kernel: KernelUnderTest, law: Property, case: Case, space: Space) -> list[str]:
    """Lines for the report, each naming a declaration under which the kernel keeps the law.

    Empty if no single change is enough, or none was found in a few seconds. For a kernel without an adapter the only
    suggestion is a domain without strong gates.

    law: the property to keep.
    case: the smallest case where the law is broken, or where the kernel declines the call.
    space: the space of the kernel's cases.
    """
    if case.regime == STRONG_GATES:
        with suppress(KernelFault):
            return [_WEAKER_GATES_HINT] if holds(kernel, law, case.replace(regime="hard decay")) else []
    if not kernel.conventions:
        return []
    deadline, lines = time.monotonic() + _TIME_LIMIT, list[str]()
    with kernel.runner.with_short_timeout(), suppress(KernelFault):  # a call that ends the process stops the search
        if holds(kernel, REFERENCE, case):
            return []  # the values agree, so the convention is correct
        confirming_cases = small_cases(space)
        for template, variant, required_cases in _other_conventions(kernel, case, space):
            if time.monotonic() > deadline or len(lines) == _MAX_SUGGESTIONS:
                break
            cases = [c for c in confirming_cases if variant.domain.allows(kernel.op, c)]
            trials = [*((REFERENCE, c) for c in (*required_cases, *cases)), *((law, c) for c in required_cases)]
            if cases and all(holds(variant, tested_law, c) for tested_law, c in trials):
                lines.append(template.format(len(cases)))
    return lines


def _other_conventions(
    kernel: KernelUnderTest, case: Case, space: Space
) -> Iterator[tuple[str, KernelUnderTest, list[Case]]]:
    """Each alternative: a text for the report, the kernel in that convention, and the cases it must pass."""
    domain = space.domain
    if 0 in case.lengths and domain.allows_length(0) and _holds_without_empty_sequences(kernel, case):
        condition = f"{_NO_EMPTY_SEQUENCES}; {_NO_EMPTY_KEYS}" if space.packs_keys else _NO_EMPTY_SEQUENCES
        variant = _in_convention(kernel, "", domain & Domain.of(condition))
        yield (
            f"passes {{}} packs without empty sequences: if they are not legal, declare domain={condition!r}",
            variant,
            [],
        )
    for convention in kernel.conventions:
        text = convention.replace("{", "{{").replace("}", "}}")
        template = f"passes with {text}, here and in {{}} other packs: is that the kernel's convention?"
        yield template, _in_convention(kernel, convention, domain), [case]


def _in_convention(kernel: KernelUnderTest, convention: str, domain: Domain) -> KernelUnderTest:
    return replace(kernel, convention=convention, domain=domain, cache=kernel.cache.without_results())


def _holds_without_empty_sequences(kernel: KernelUnderTest, case: Case) -> bool:
    """Whether the kernel agrees with the reference once empty sequences are removed, all other values unchanged."""
    sample = kernel.sample(case)
    keys = case.key_lengths or case.lengths
    nonempty = [j for j, (n, m) in enumerate(zip(case.lengths, keys, strict=True)) if n and m]
    return has_no_violation(lambda: against_reference(kernel, sample.select(nonempty)))


def small_cases(space: Space, predicate: Callable[[Case], bool] = lambda _: True) -> list[Case]:
    """Small golden cases with tokens: the first few that satisfy the predicate."""
    candidates = (c for c in golden_cases(space) if 0 < c.n_tokens <= _MAX_TOKENS and predicate(c))
    return list(islice(candidates, _MAX_CONFIRMING_CASES))


def holds(kernel: KernelUnderTest, law: Property, case: Case) -> bool:
    """Whether the kernel keeps the law at the case. Raises KernelFault if the kernel ends its process."""
    return has_no_violation(lambda: law.check(kernel, case))


def has_no_violation(check: Callable[[], Iterator[Violation]]) -> bool:
    """Whether the check yields no violation. Raises KernelFault if the kernel ends its process."""
    try:
        return next(check(), None) is None
    except KernelFault as fault:
        if fault.kind in _FATAL_FAULTS:
            raise
        return False
    except Refusal:
        return False
