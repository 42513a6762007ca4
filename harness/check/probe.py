"""Infers the domain of a kernel without a declared one: from an accepted call, find the changes it refuses.

A kernel checks its arguments one after another. To find an accepted call, the search changes one thing after another
until the refusal is a different one, and in the end there is none. Then each size, the layout and each optional
argument is varied alone. `probe_conditions` writes the condition that fits the accepted and refused calls.
"""

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from packproof.base.errors import KernelFault
from packproof.base.names import SHORT_DTYPES, short_dtype
from packproof.harness.check.probe_conditions import (
    keys_conditions,
    largest_accepted,
    sizes_condition,
    smallest_accepted,
    smallest_step,
)
from packproof.harness.report import SOURCE_LINE, refusal_key
from packproof.properties.calling import Refusal
from packproof.properties.cases import Case, Domain, Space, golden_cases
from packproof.properties.judgement import KernelUnderTest

_MAX_CALLS = 400  # most are refused at once; a kernel with one restriction needs some dozen
_MAX_ATTEMPTS = 4  # calls from which to try to get past one check: some checks allow none
_BASE_LENGTHS = (24, 40)  # two sequences, a multiple of 64 together
_LAYOUTS = (_BASE_LENGTHS, (32, 32), (64, 64), (128, 128), (5, 3), (2, 2), (100, 156), (64,), (1,))
_COMMON_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128, 160, 192, 256)
_POWERS_OF_TWO = (2, 4, 8, 16, 32, 64, 128, 256)


_DTYPE_NAME = re.compile(r"(torch\.)?\b(bfloat16|float(16|32|64)|bf16|fp(16|32|64)|half|float|double)\b", re.IGNORECASE)


@dataclass(frozen=True)
class InferredDomain:
    """The inferred domain of a kernel."""

    domain: Domain = Domain()  # noqa: RUF009  (frozen)
    """Its conditions; empty if no call was accepted, or none refused."""
    accepted_dtypes: str = ""
    """Short names of the dtypes accepted instead of the requested one; "" if that one is accepted."""


def probe(kernel: KernelUnderTest, space: Space, refused_case: Case) -> InferredDomain:
    """Infer the domain of a kernel that refused this case, in some dozen calls."""
    search, texts = _DomainSearch(kernel, space), list[str]()
    with suppress(_OutOfCalls):
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


def _check_key(refusal: str) -> str:
    """A key for the check that refuses, the same for every dtype in its message."""
    return refusal_key(_DTYPE_NAME.sub("dtype", refusal))


def _accepted_dtypes(search: "_DomainSearch", base: "_AcceptedCall") -> InferredDomain:
    """The accepted dtypes, if the space's dtype alone is refused."""
    names = [
        short_dtype(d)
        for d in SHORT_DTYPES
        if search.returns_result(base.case.replace(dtype=d), gradients=base.gradients)
    ]
    conditions = Domain.of(f"dtype in ({', '.join(names)})" if len(names) > 1 else f"dtype == {names[0]}")
    return InferredDomain(conditions, accepted_dtypes=", ".join(names))


@dataclass(frozen=True)
class _AcceptedCall:
    """A call that the kernel accepts, from which the search varies one thing at a time."""

    case: Case
    gradients: bool


class _OutOfCalls(Exception):
    """The search has used up its calls. Untested conditions stay unknown."""


class _DomainSearch:
    """Calls the kernel and remembers its answers.

    `gradients`: whether calls are differentiated.
    """

    def __init__(self, kernel: KernelUnderTest, space: Space) -> None:
        self.space = space
        self.gradients = kernel.gradients
        self.mentioned_numbers: set[int] = set()
        self._kernel = kernel
        self._answers: dict[tuple[Case, bool], str] = {}
        self._faults: set[tuple[Case, bool]] = set()
        self._attempts: Counter[str] = Counter()
        self.allow_calls()

    def allow_calls(self) -> None:
        """Allow `_MAX_CALLS` further calls."""
        self._max_answers = len(self._answers) + _MAX_CALLS

    def refusal(self, case: Case, gradients: bool | None = None) -> str:
        """Why the kernel refuses a case; "" if it accepts it, or if the case is outside the declared domain.

        Raises _OutOfCalls.
        """
        with_gradients = self.gradients if gradients is None else gradients
        key = case, with_gradients
        if key not in self._answers and self.space.domain.allows(self.space.op, case):
            if len(self._answers) >= self._max_answers:
                raise _OutOfCalls
            self._answers[key] = self._answer(case, with_gradients)
            self.mentioned_numbers |= {
                int(n) for n in re.findall(r"(?<![\w.])\d{1,6}(?![\w.])", SOURCE_LINE.sub("", self._answers[key]))
            }
        return self._answers.get(key, "")

    def _answer(self, case: Case, gradients: bool) -> str:
        try:
            self._kernel.call(self._kernel.sample(case), gradients=gradients)
        except Refusal as refused:
            return "" if refused.backward else str(refused)
        except KernelFault:
            self._faults.add((case, gradients))  # not a refusal; the properties will judge it
        return ""

    def accepts(self, case: Case, gradients: bool | None = None) -> bool:
        return not self.refusal(case, gradients)

    def returns_result(self, case: Case, *, gradients: bool) -> bool:
        """Whether the kernel was called and returned: an error of its own does not prove that it accepts the call."""
        key = case, gradients
        return self.accepts(case, gradients) and key in self._answers and key not in self._faults

    def find_base(self, refused_case: Case) -> _AcceptedCall | None:
        """An accepted call, found in steps: each step meets a new check.

        The dtype changes only if nothing else gets past the refusal of the space's dtype.
        """
        plain_case = self._plain_case(refused_case)
        base = self._find_base_from(plain_case, self.gradients, tuple(SHORT_DTYPES)) or self._find_base_in_any_dtype(
            plain_case, self.gradients
        )
        if base is None or base.case.dtype == self.space.dtype:
            return base
        self._attempts.clear()
        self.allow_calls()
        base_in_dtype = self._find_base_from(base.case.replace(dtype=self.space.dtype), base.gradients, ())
        return base_in_dtype or (base if self._is_dtype_refused(base) else None)

    def _is_dtype_refused(self, base: _AcceptedCall) -> bool:
        """Whether the space's dtype itself is refused.

        It is if every other change meets the same check, or a check that refuses the accepted dtype too.
        """
        changed_case = base.case.replace(dtype=self.space.dtype)
        check = _check_key(self.refusal(changed_case, base.gradients))
        for variant, gradients in self._steps(changed_case, base.gradients, ()):
            answer = self.refusal(variant, gradients)
            if (
                answer
                and _check_key(answer) != check
                and self.accepts(variant.replace(dtype=base.case.dtype), gradients)
            ):
                return False
        return True

    def _find_base_from(
        self, case: Case, gradients: bool, dtypes: Sequence[str], seen_checks: frozenset[str] = frozenset()
    ) -> _AcceptedCall | None:
        if not (text := self.refusal(case, gradients)):
            return self._as_base(case, gradients)
        seen_checks |= {_check_key(text)}
        self._attempts[_check_key(text)] += 1
        for variant, with_gradients in self._steps(case, gradients, dtypes):
            answer = self.refusal(variant, with_gradients)
            check = _check_key(answer)
            is_new_check = not answer or (check not in seen_checks and self._attempts[check] < _MAX_ATTEMPTS)
            if is_new_check and (base := self._find_base_from(variant, with_gradients, dtypes, seen_checks)):
                return base
        return None

    def _find_base_in_any_dtype(self, case: Case, gradients: bool) -> _AcceptedCall | None:
        """A call in another dtype with one more change, for a check of both that gives one message until both fit."""
        for dtype in SHORT_DTYPES:
            for variant, with_gradients in self._steps(case.replace(dtype=dtype), gradients, ()):
                if not self.refusal(variant, with_gradients) and (base := self._as_base(variant, with_gradients)):
                    return base
        return None

    def _as_base(self, case: Case, gradients: bool) -> _AcceptedCall | None:
        """The call as a base if it was accepted. In another dtype an error does not prove that the kernel takes it."""
        was_called = (case, gradients) in self._answers
        is_space_dtype = case.dtype == self.space.dtype
        return (
            _AcceptedCall(case, gradients)
            if was_called and (is_space_dtype or self.returns_result(case, gradients=gradients))
            else None
        )

    def _plain_case(self, case: Case) -> Case:
        options = tuple((n, self.space.options[n][0]) for n, _ in case.options)
        candidate = case.replace(
            lengths=_BASE_LENGTHS,
            key_lengths=None,
            slack=0,
            regime="normal",
            options=options,
            present=tuple(self.space.optional_inputs),
            seed=0,
        )
        return self.space.fit(candidate) or case

    def _steps(self, case: Case, gradients: bool, dtypes: Sequence[str]) -> Iterator[tuple[Case, bool]]:
        """Every change of one step, the fewest alternatives first. Last comes the dtype, to one of `dtypes`."""
        optional = self.space.optional_inputs
        changes = [case.replace(lengths=lengths) for lengths in _LAYOUTS]
        changes += [case.replace(present=()), *(case.without(n) for n in case.present)]
        changes += [case.replace(present=(*case.present, n)) for n in optional if n not in case.present]
        changes += [case.with_option(n, v) for n, _ in case.options for v in self.space.options[n]]
        changes += [case.replace(sizes=sizes) for sizes in self._size_steps(case)]
        changes += [case.replace(dtype=dtype) for dtype in dtypes]
        variants = [self.space.fit(c) for c in dict.fromkeys(changes)]
        if gradients:
            yield case, False
        yield from ((c, gradients) for c in variants if c and c != case)

    def _size_steps(self, case: Case) -> Iterator[tuple[tuple[str, Any], ...]]:
        """Other sizes: of the op, or of real models; one size changed, or several to the same value."""
        yield from (tuple(op_sizes.items()) for op_sizes in (*self.space.op.sizes, *self.space.op.model_sizes))
        sizes = dict(case.sizes)
        integer_sizes = [n for n, size in sizes.items() if isinstance(size, int)]
        values = [*sorted(n for n in self.mentioned_numbers if n <= max(_COMMON_SIZES)), *_POWERS_OF_TWO, 2, 3, 4]
        groups = [
            *itertools.combinations(integer_sizes, 1),
            *itertools.combinations(integer_sizes, 2),
            tuple(integer_sizes),
        ]
        for names, value in itertools.product(groups, dict.fromkeys(values)):
            if self.is_possible(new_sizes := {**sizes, **dict.fromkeys(names, value)}):
                yield tuple(new_sizes.items())

    def is_possible(self, sizes: dict[str, Any]) -> bool:
        """Whether the op can have these sizes."""
        numbers = {n for n, size in sizes.items() if isinstance(size, int)}
        return min((sizes[n] for n in numbers), default=1) > 0 and Domain.of(self.space.op.where).within(numbers).holds(
            sizes
        )


def _sizes(search: _DomainSearch, base: Case) -> Iterator[str]:
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
            m for n in search.mentioned_numbers if n <= max(_COMMON_SIZES) for m in (n - 1, n, n + 1) if m > 0
        }
        answers = {v: accepts(factors, v) for v in sorted({*_COMMON_SIZES, *nearby_sizes, *sizes_of_op[name]})}
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


def _arguments(search: _DomainSearch, base: Case) -> Iterator[str]:
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
                yield from (f"not ({n} and {name} == {v!r})" for n in conflicting_inputs)
        if refused_values and len(refused_values) == len(other_values):
            yield f"{name} == {value!r}"
        else:
            yield from (f"{name} != {v!r}" for v in refused_values)


def _layout(search: _DomainSearch, base: Case) -> Iterator[str]:
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


def _keys(search: _DomainSearch, base: Case) -> Iterator[str]:
    """Conditions on a second packing."""
    if search.space.packs_keys:
        yield from keys_conditions(
            lambda keys: search.accepts(base.replace(key_lengths=keys)), base.lengths, search.mentioned_numbers
        )


def _maximum(search: _DomainSearch, base: Case, step: int, shortest: int) -> Iterator[str]:
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
