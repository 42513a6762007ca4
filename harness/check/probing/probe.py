"""Infers the domain of a kernel without a declared one: from an accepted call, find the changes it refuses.

`search` finds the accepted call. Here each size, the layout and each optional argument of it is varied alone.
`conditions` writes the condition that fits the accepted and refused calls.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from packproof.base.names import SHORT_DTYPES, short_dtype
from packproof.harness.check.probing.conditions import (
    keys_conditions,
    largest_accepted,
    option_condition,
    sizes_condition,
    smallest_accepted,
    smallest_step,
)
from packproof.harness.check.probing.search import COMMON_SIZES, AcceptedCall, DomainSearch, OutOfCalls
from packproof.properties.cases import Case, Domain, Space, golden_cases
from packproof.properties.judgement import KernelUnderTest


@dataclass(frozen=True)
class InferredDomain:
    """The inferred domain of a kernel."""

    domain: Domain = Domain()  # noqa: RUF009  (frozen)
    """Its conditions; empty if no call was accepted, or none refused."""
    accepted_dtypes: str = ""
    """Short names of the dtypes accepted instead of the requested one; "" if that one is accepted."""


def probe(kernel: KernelUnderTest, space: Space, refused_case: Case) -> InferredDomain:
    """Infer the domain of a kernel that refused this case, in some dozen calls."""
    search, texts = DomainSearch(kernel, space), list[str]()
    with suppress(OutOfCalls):
        base = search.find_base(refused_case)
        if base is None:
            return InferredDomain()
        search.allow_calls()
        if base.case.dtype != space.dtype:
            return _accepted_dtypes(search, base)
        texts += [] if base.gradients or not kernel.gradients else ["not gradients"]
        search.gradients = base.gradients
        for find in (_sizes, _arguments, _layout, _keys):
            for text in find(search, base.case):
                texts.append(text)  # one by one: conditions found so far count if calls run out
    return InferredDomain(Domain.of(texts))


def _accepted_dtypes(search: DomainSearch, base: AcceptedCall) -> InferredDomain:
    """The accepted dtypes, if the space's dtype alone is refused."""
    names = [
        short_dtype(d)
        for d in SHORT_DTYPES
        if search.returns_result(base.case.replace(dtype=d), gradients=base.gradients)
    ]
    conditions = Domain.of(f"dtype in ({', '.join(names)})" if len(names) > 1 else f"dtype == {names[0]}")
    return InferredDomain(conditions, accepted_dtypes=", ".join(names))


def _sizes(search: DomainSearch, base: Case) -> Iterator[str]:
    """Conditions on the sizes: each varied alone, then pairs with a fixed ratio."""
    sizes = dict(base.sizes)
    integer_sizes = {n: size for n, size in sizes.items() if isinstance(size, int)}
    sizes_of_op = {
        n: {int(op_sizes[n]) for op_sizes in search.space.op.sizes if isinstance(op_sizes.get(n), int)}
        for n in integer_sizes
    }

    def accepts(factors: Mapping[str, int], value: int) -> bool | None:
        new_sizes = {**sizes, **{n: factor * value for n, factor in factors.items()}}
        return search.accepts(base.replace(sizes=tuple(new_sizes.items()))) if search.is_possible(new_sizes) else None

    def condition(factors: Mapping[str, int]) -> str | None:
        """The condition on the first size, with the others following it; None if only the base's value is accepted."""
        name = next(iter(factors))
        if all(accepts(factors, value) is not False for value in sizes_of_op[name]):
            return ""
        nearby_sizes = {
            m for n in search.mentioned_numbers if n <= max(COMMON_SIZES) for m in (n - 1, n, n + 1) if m > 0
        }
        answers = {v: accepts(factors, v) for v in sorted({*COMMON_SIZES, *nearby_sizes, *sizes_of_op[name]})}
        return sizes_condition(name, {v: ok for v, ok in answers.items() if ok is not None}, integer_sizes[name])

    bound_names: list[str] = []
    for name in integer_sizes:
        text = condition({name: 1})
        if text is None:
            bound_names.append(name)
        elif text:
            yield text
    bound_names.sort(key=lambda n: integer_sizes[n])
    while bound_names:
        name = bound_names.pop(0)
        ratios = {
            partner: integer_sizes[partner] // integer_sizes[name]
            for partner in bound_names
            if integer_sizes[partner] % integer_sizes[name] == 0
        }
        pairs = ((partner, ratio, condition({name: 1, partner: ratio})) for partner, ratio in ratios.items())
        tie = next(((partner, ratio, text) for partner, ratio, text in pairs if text is not None), None)
        if tie is None:
            yield f"{name} == {integer_sizes[name]}"
        else:
            partner, ratio, text = tie
            bound_names.remove(partner)
            relation = f"{name} == {partner}" if ratio == 1 else f"{partner} == {ratio} * {name}"
            yield from filter(None, [relation, text])


def _arguments(search: DomainSearch, base: Case) -> Iterator[str]:
    """Conditions on optional inputs and options."""
    accepted_inputs = list(base.present)
    for name in search.space.optional_inputs:
        if name in base.present:
            if not search.accepts(base.without(name)):
                yield name
        elif search.accepts(base.replace(present=(*base.present, name))):
            accepted_inputs.append(name)
        else:
            yield f"not {name}"
    for a, b in itertools.combinations(accepted_inputs, 2):
        inputs = tuple(dict.fromkeys((*base.present, a, b)))
        if len(inputs) > len(base.present) + (a not in base.present and b not in base.present) and not search.accepts(
            base.replace(present=inputs)
        ):
            yield f"not ({a} and {b})"
    for name, value in base.options:
        other_values = [v for v in search.space.options[name] if v != value]
        refused_values = [v for v in other_values if not search.accepts(base.with_option(name, v))]
        for v in list(refused_values):  # refused with an optional input only, or alone too
            conflicting_inputs = [n for n in base.present if search.accepts(base.without(n).with_option(name, v))]
            if conflicting_inputs:
                refused_values.remove(v)
                yield from (f"not ({n} and {option_condition(name, v)})" for n in conflicting_inputs)
        if refused_values and len(refused_values) == len(other_values):
            yield option_condition(name, value)
        else:
            yield from (option_condition(name, v, negated=True) for v in refused_values)


def _layout(search: DomainSearch, base: Case) -> Iterator[str]:
    """Conditions on the rows of the pack, on lengths and on slack."""
    has_several = len(base.lengths) > 1
    first_length, rest_length = base.lengths[0], sum(base.lengths[1:])
    total, numbers = first_length + rest_length, search.mentioned_numbers

    def accepts(*lengths: int, slack: int = 0) -> bool:
        return search.accepts(base.replace(lengths=lengths, slack=slack))

    def accepts_two(a: int, b: int) -> bool:
        return accepts(a, b) if has_several else accepts(a + b)

    step = length_step = 1
    if not accepts_two(first_length + 1, rest_length):
        step = smallest_step(lambda k: accepts_two(first_length + k, rest_length), numbers)
        length_step = (
            smallest_step(lambda k: accepts_two(first_length + k, rest_length - k), numbers)
            if not accepts_two(first_length + 1, rest_length - 1)
            else 1
        )
        if max(step, length_step) == 1:
            yield f"tokens <= {total}"
        else:
            yield f"length % {length_step} == 0" if length_step > 1 else f"tokens % {step} == 0"
    unit = shortest = max(step, length_step)
    accepts_empty = not has_several or accepts(first_length, 0, rest_length)
    if has_several:
        if not accepts_empty:
            yield "length > 0"
        shortest = length_step
        if length_step == 1 and not accepts(1, total - 1):
            shortest = smallest_accepted(lambda n: accepts(n, total - n), 1, min(base.lengths))
            yield f"length == 0 or length >= {shortest}"
        if not accepts(total):
            yield "sequences > 1"
    rows = -(-16 // unit) * unit
    if not accepts(*base.lengths, slack=rows):
        yield "slack == 0"
    if accepts_empty and not (accepts(0, 0, slack=4 * rows) or accepts(0, 0)):
        yield "longest > 0"
    if not has_several and total > unit and not accepts(total - unit, unit):
        yield "sequences == 1"
    elif not (step == length_step == 1 and not accepts_two(first_length + 1, rest_length)):
        yield from _maximum(search, base, unit, shortest)


def _keys(search: DomainSearch, base: Case) -> Iterator[str]:
    """Conditions on a second packing."""
    if search.space.packs_keys:
        yield from keys_conditions(
            lambda keys: search.accepts(base.replace(key_lengths=keys)), base.lengths, search.mentioned_numbers
        )


def _maximum(search: DomainSearch, base: Case, step: int, shortest: int) -> Iterator[str]:
    """Conditions on the number of tokens or sequences, up to the largest case.

    step: tokens come in multiples of it.
    shortest: the shortest length accepted.
    """
    packs = list(golden_cases(search.space)) or [base]
    max_tokens = -(-max(c.n_tokens + c.slack for c in packs) // step) * step
    max_sequences = max(len(c.lengths) for c in packs)
    total, numbers = sum(base.lengths), search.mentioned_numbers

    def accepts(lengths: Sequence[int]) -> bool:
        return search.accepts(base.replace(lengths=tuple(lengths), slack=0))

    def many_sequences(n: int) -> list[int]:
        return [shortest] * (n - 1) + [-(-n * shortest // step) * step - (n - 1) * shortest]

    if max_tokens > total and not accepts((step, max_tokens - step)):
        halves = [total] * (max_tokens // total) + ([max_tokens % total] if max_tokens % total else [])
        if accepts(halves):
            largest = largest_accepted(
                lambda n: accepts((step, n)), max(base.lengths), max_tokens - step, step, numbers
            )
            yield f"longest <= {largest}"
        else:
            largest = largest_accepted(lambda n: accepts((step, n - step)), total, max_tokens, step, numbers)
            yield f"tokens <= {largest}"
    elif not accepts(many_sequences(max_sequences)):
        yield f"sequences <= {largest_accepted(lambda n: accepts(many_sequences(n)), 2, max_sequences, 1, numbers)}"
