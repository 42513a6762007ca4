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

from packproof.harness.engine.probe_conditions import bounded, largest, multiple_of, sizes_condition
from packproof.harness.results.coverage import LINE, kind_of
from packproof.harness.results.names import short
from packproof.properties.call import KernelFault, Refused
from packproof.properties.cases.case import SHORT, Case
from packproof.properties.cases.domain import Domain
from packproof.properties.cases.space import Space, golden_cases
from packproof.properties.kernel_under_test import KernelUnderTest

_MOST_CALLS = 400  # most are refused at once; a kernel with one restriction needs some dozen
_MOST_WAYS = 4  # calls from which to try to get past one check: some checks allow none
_TOKENS = (24, 40)  # two sequences, a multiple of 64 together
_LAYOUTS = (_TOKENS, (32, 32), (64, 64), (128, 128), (5, 3), (2, 2), (100, 156), (64,), (1,))
_USUAL = (1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128, 160, 192, 256)
_POWERS = (2, 4, 8, 16, 32, 64, 128, 256)


_DTYPE = re.compile(r"(torch\.)?\b(bfloat16|float(16|32|64)|bf16|fp(16|32|64)|half|float|double)\b", re.IGNORECASE)


@dataclass(frozen=True)
class Found:
    """The inferred domain of a kernel."""

    domain: Domain = Domain()  # noqa: RUF009  (frozen)
    """Its conditions; empty if no call was accepted, or none refused."""
    others_only: str = ""
    """Short names of the dtypes accepted instead of the requested one; "" if that one is accepted."""


def probe(kernel: KernelUnderTest, space: Space, refused: Case) -> Found:
    """Infer the domain of a kernel that refused this case, in some dozen calls."""
    search, texts = _DomainSearch(kernel, space), list[str]()
    with suppress(_OutOfCalls):
        base = search.base(refused)
        if base is None:
            return Found()
        search.begin()
        if base.case.dtype != space.dtype:
            return _dtypes(search, base)
        texts += [] if base.gradients or not kernel.gradients else ["not gradients"]
        search.gradients = base.gradients
        for find in (_sizes, _arguments, _layout, _keys):
            for text in find(search, base.case):
                texts.append(text)  # one by one: conditions found so far count if calls run out
    return Found(Domain.of(texts))


def _check_of(refusal: str) -> str:
    """A key for the check that refuses, the same for every dtype in its message."""
    return kind_of(_DTYPE.sub("dtype", refusal))


def _dtypes(search: "_DomainSearch", base: "_Base") -> Found:
    """The accepted dtypes, if the space's dtype alone is refused."""
    names = [short(d) for d in SHORT if search.returns(base.case.replace(dtype=d), gradients=base.gradients)]
    conditions = Domain.of(f"dtype in ({', '.join(names)})" if len(names) > 1 else f"dtype == {names[0]}")
    return Found(conditions, others_only=", ".join(names))


@dataclass(frozen=True)
class _Base:
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
        self.numbers: set[int] = set()
        self._kernel = kernel
        self._known: dict[tuple[Case, bool], str] = {}
        self._faults: set[tuple[Case, bool]] = set()
        self._tried: Counter[str] = Counter()
        self.begin()

    def begin(self) -> None:
        """Allow `_MAX_CALLS` further calls."""
        self._most = len(self._known) + _MOST_CALLS

    def refusal(self, case: Case, gradients: bool | None = None) -> str:
        """Why the kernel refuses a case; "" if it accepts it, or if the case is outside the declared domain.

        Raises _OutOfCalls.
        """
        differentiated = self.gradients if gradients is None else gradients
        key = case, differentiated
        if key not in self._known and self.space.domain.allows(self.space.op, case):
            if len(self._known) >= self._most:
                raise _OutOfCalls
            self._known[key] = self._answer(case, differentiated)
            self.numbers |= {int(n) for n in re.findall(r"(?<![\w.])\d{1,6}(?![\w.])", LINE.sub("", self._known[key]))}
        return self._known.get(key, "")

    def _answer(self, case: Case, gradients: bool) -> str:
        try:
            self._kernel.call(self._kernel.sample(case), gradients=gradients)
        except Refused as refused:
            return "" if refused.backward else str(refused)
        except KernelFault:
            self._faults.add((case, gradients))  # not a refusal; the properties will judge it
        return ""

    def accepts(self, case: Case, gradients: bool | None = None) -> bool:
        return not self.refusal(case, gradients)

    def returns(self, case: Case, *, gradients: bool) -> bool:
        """Whether the kernel was called and returned: an error of its own does not prove that it accepts the call."""
        key = case, gradients
        return self.accepts(case, gradients) and key in self._known and key not in self._faults

    def base(self, refused: Case) -> _Base | None:
        """An accepted call, found in steps: each step meets a new check.

        The dtype changes only if nothing else gets past the refusal of the space's dtype.
        """
        plain = self._plain(refused)
        base = self._towards(plain, self.gradients, tuple(SHORT)) or self._by_two_steps(plain, self.gradients)
        if base is None or base.case.dtype == self.space.dtype:
            return base
        self._tried.clear()
        self.begin()
        here = self._towards(base.case.replace(dtype=self.space.dtype), base.gradients, ())
        return here or (base if self._dtype_alone(base) else None)

    def _dtype_alone(self, base: _Base) -> bool:
        """Whether the space's dtype itself is refused.

        It is if every other change meets the same check, or a check that refuses the accepted dtype too.
        """
        changed = base.case.replace(dtype=self.space.dtype)
        check = _check_of(self.refusal(changed, base.gradients))
        for tried, gradients in self._steps(changed, base.gradients, ()):
            answer = self.refusal(tried, gradients)
            if answer and _check_of(answer) != check and self.accepts(tried.replace(dtype=base.case.dtype), gradients):
                return False
        return True

    def _towards(
        self, case: Case, gradients: bool, dtypes: Sequence[str], met: frozenset[str] = frozenset()
    ) -> _Base | None:
        if not (text := self.refusal(case, gradients)):
            return self._usable(case, gradients)
        met |= {_check_of(text)}
        self._tried[_check_of(text)] += 1
        for tried, differentiated in self._steps(case, gradients, dtypes):
            answer = self.refusal(tried, differentiated)
            check = _check_of(answer)
            past = not answer or (check not in met and self._tried[check] < _MOST_WAYS)
            if past and (found := self._towards(tried, differentiated, dtypes, met)):
                return found
        return None

    def _by_two_steps(self, case: Case, gradients: bool) -> _Base | None:
        """A call in another dtype with one more change, for a check of both that gives one message until both fit."""
        for dtype in SHORT:
            for tried, differentiated in self._steps(case.replace(dtype=dtype), gradients, ()):
                if not self.refusal(tried, differentiated) and (found := self._usable(tried, differentiated)):
                    return found
        return None

    def _usable(self, case: Case, gradients: bool) -> _Base | None:
        """The call as a base if it was accepted. In another dtype an error does not prove that the kernel takes it."""
        called = (case, gradients) in self._known
        own = case.dtype == self.space.dtype
        return _Base(case, gradients) if called and (own or self.returns(case, gradients=gradients)) else None

    def _plain(self, case: Case) -> Case:
        options = tuple((n, self.space.options[n][0]) for n, _ in case.options)
        plain = case.replace(
            lengths=_TOKENS,
            key_lengths=None,
            slack=0,
            regime="normal",
            options=options,
            present=tuple(self.space.optional),
            seed=0,
        )
        return self.space.fit(plain) or case

    def _steps(self, case: Case, gradients: bool, dtypes: Sequence[str]) -> Iterator[tuple[Case, bool]]:
        """Every change of one step, the fewest alternatives first. Last comes the dtype, to one of `dtypes`."""
        optional = self.space.optional
        changes = [case.replace(lengths=lengths) for lengths in _LAYOUTS]
        changes += [case.replace(present=()), *(case.without(n) for n in case.present)]
        changes += [case.replace(present=(*case.present, n)) for n in optional if n not in case.present]
        changes += [case.with_option(n, v) for n, _ in case.options for v in self.space.options[n]]
        changes += [case.replace(sizes=sizes) for sizes in self._size_steps(case)]
        changes += [case.replace(dtype=dtype) for dtype in dtypes]
        others = [self.space.fit(c) for c in dict.fromkeys(changes)]
        if gradients:
            yield case, False
        yield from ((c, gradients) for c in others if c and c != case)

    def _size_steps(self, case: Case) -> Iterator[tuple[tuple[str, Any], ...]]:
        """Other sizes: of the op, or of real models; one size changed, or several to the same value."""
        yield from (tuple(listed.items()) for listed in (*self.space.op.sizes, *self.space.op.model_sizes))
        sizes = dict(case.sizes)
        mine = [n for n, size in sizes.items() if isinstance(size, int)]
        values = [*sorted(n for n in self.numbers if n <= max(_USUAL)), *_POWERS, 2, 3, 4]
        groups = [*itertools.combinations(mine, 1), *itertools.combinations(mine, 2), tuple(mine)]
        for names, value in itertools.product(groups, dict.fromkeys(values)):
            if self.possible(changed := {**sizes, **dict.fromkeys(names, value)}):
                yield tuple(changed.items())

    def possible(self, sizes: dict[str, Any]) -> bool:
        """Whether the op can have these sizes."""
        numbers = {n for n, size in sizes.items() if isinstance(size, int)}
        return min((sizes[n] for n in numbers), default=1) > 0 and Domain.of(self.space.op.where).within(numbers).holds(
            sizes
        )


def _sizes(search: _DomainSearch, base: Case) -> Iterator[str]:
    """Conditions on the sizes: each varied alone, then pairs with a fixed ratio."""
    sizes = dict(base.sizes)
    mine = {n: size for n, size in sizes.items() if isinstance(size, int)}
    usual = {n: {int(listed[n]) for listed in search.space.op.sizes if isinstance(listed.get(n), int)} for n in mine}

    def takes(factors: Mapping[str, int], value: int) -> bool | None:
        changed = {**sizes, **{n: factor * value for n, factor in factors.items()}}
        return search.accepts(base.replace(sizes=tuple(changed.items()))) if search.possible(changed) else None

    def condition(factors: Mapping[str, int]) -> str | None:
        """The condition on the first size, with the others following it; None if only the base's value is accepted."""
        name = next(iter(factors))
        if all(takes(factors, value) is not False for value in usual[name]):
            return ""
        near = {m for n in search.numbers if n <= max(_USUAL) for m in (n - 1, n, n + 1) if m > 0}
        found = {v: takes(factors, v) for v in sorted({*_USUAL, *near, *usual[name]})}
        return sizes_condition(name, {v: ok for v, ok in found.items() if ok is not None}, mine[name])

    bound: list[str] = []
    for name in mine:
        text = condition({name: 1})
        if text is None:
            bound.append(name)
        elif text:
            yield text
    bound.sort(key=lambda n: mine[n])
    while bound:
        name = bound.pop(0)
        ratios = {other: mine[other] // mine[name] for other in bound if mine[other] % mine[name] == 0}
        pairs = ((other, ratio, condition({name: 1, other: ratio})) for other, ratio in ratios.items())
        tied = next(((other, ratio, text) for other, ratio, text in pairs if text is not None), None)
        if tied is None:
            yield f"{name} == {mine[name]}"
        else:
            other, ratio, text = tied
            bound.remove(other)
            equal = f"{name} == {other}" if ratio == 1 else f"{other} == {ratio} * {name}"
            yield from filter(None, [equal, text])


def _arguments(search: _DomainSearch, base: Case) -> Iterator[str]:
    """Conditions on optional inputs and options."""
    taken = list(base.present)
    for name in search.space.optional:
        if name in base.present:
            if not search.accepts(base.without(name)):
                yield name
        elif search.accepts(base.replace(present=(*base.present, name))):
            taken.append(name)
        else:
            yield f"not {name}"
    for a, b in itertools.combinations(taken, 2):
        both = tuple(dict.fromkeys((*base.present, a, b)))
        if len(both) > len(base.present) + (a not in base.present and b not in base.present) and not search.accepts(
            base.replace(present=both)
        ):
            yield f"not ({a} and {b})"
    for name, value in base.options:
        others = [v for v in search.space.options[name] if v != value]
        refused = [v for v in others if not search.accepts(base.with_option(name, v))]
        for v in list(refused):  # refused with an optional input only, or alone too
            beside = [n for n in base.present if search.accepts(base.without(n).with_option(name, v))]
            if beside:
                refused.remove(v)
                yield from (f"not ({n} and {name} == {v!r})" for n in beside)
        if refused and len(refused) == len(others):
            yield f"{name} == {value!r}"
        else:
            yield from (f"{name} != {v!r}" for v in refused)


def _layout(search: _DomainSearch, base: Case) -> Iterator[str]:
    """Conditions on the rows of the pack, on lengths and on slack."""
    several = len(base.lengths) > 1
    first, last = base.lengths[0], sum(base.lengths[1:])
    total, numbers = first + last, search.numbers

    def takes(*lengths: int, slack: int = 0) -> bool:
        return search.accepts(base.replace(lengths=lengths, slack=slack))

    def two(a: int, b: int) -> bool:
        return takes(a, b) if several else takes(a + b)

    step = each = 1
    if not two(first + 1, last):
        step = multiple_of(lambda k: two(first + k, last), numbers)
        each = multiple_of(lambda k: two(first + k, last - k), numbers) if not two(first + 1, last - 1) else 1
        if max(step, each) == 1:
            yield f"tokens <= {total}"
        else:
            yield f"length % {each} == 0" if each > 1 else f"tokens % {step} == 0"
    unit = shortest = max(step, each)
    empty = not several or takes(first, 0, last)
    if several:
        if not empty:
            yield "length > 0"
        shortest = each
        if each == 1 and not takes(1, total - 1):
            shortest = bounded(lambda n: takes(n, total - n), 1, min(base.lengths))
            yield f"length == 0 or length >= {shortest}"
        if not takes(total):
            yield "sequences > 1"
    rows = -(-16 // unit) * unit
    if not takes(*base.lengths, slack=rows):
        yield "slack == 0"
    if empty and not (takes(0, 0, slack=4 * rows) or takes(0, 0)):
        yield "longest > 0"
    if not several and total > unit and not takes(total - unit, unit):
        yield "sequences == 1"
    elif not (step == each == 1 and not two(first + 1, last)):
        yield from _most(search, base, unit, shortest)


def _keys(search: _DomainSearch, base: Case) -> Iterator[str]:
    """Whether a second packing is accepted: of keys as long as the queries, or longer."""
    longer = tuple(n + 8 for n in base.lengths)
    if search.space.packs_keys and not any(search.accepts(base.replace(key_lengths=n)) for n in (base.lengths, longer)):
        yield "not cu_seqlens_k"


def _most(search: _DomainSearch, base: Case, step: int, shortest: int) -> Iterator[str]:
    """Conditions on the number of tokens or sequences, up to the largest case.

    step: tokens come in multiples of it.
    shortest: the shortest length accepted.
    """
    packs = list(golden_cases(search.space)) or [base]
    most = -(-max(c.n_tokens + c.slack for c in packs) // step) * step
    many = max(len(c.lengths) for c in packs)
    total, numbers = sum(base.lengths), search.numbers

    def takes(lengths: Sequence[int]) -> bool:
        return search.accepts(base.replace(lengths=tuple(lengths), slack=0))

    def crowd(n: int) -> list[int]:
        return [shortest] * (n - 1) + [-(-n * shortest // step) * step - (n - 1) * shortest]

    if most > total and not takes((step, most - step)):
        halves = [total] * (most // total) + ([most % total] if most % total else [])
        if takes(halves):
            yield f"longest <= {largest(lambda n: takes((step, n)), max(base.lengths), most - step, step, numbers)}"
        else:
            yield f"tokens <= {largest(lambda n: takes((step, n - step)), total, most, step, numbers)}"
    elif not takes(crowd(many)):
        yield f"sequences <= {largest(lambda n: takes(crowd(n)), 2, many, 1, numbers)}"
