"""The search for a call that a kernel accepts, and what it answers to variations of that call.

A kernel checks its arguments one after another. The search changes one thing after another until the refusal is a
different one, and in the end there is none.
"""

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from packproof.base.errors import KernelFault
from packproof.base.names import SHORT_DTYPES
from packproof.harness.report import SOURCE_LINE, refusal_key
from packproof.properties.calling import Refusal
from packproof.properties.cases import Case, Domain, Space
from packproof.properties.judgement import KernelUnderTest

_MAX_CALLS = 400  # most are refused at once; a kernel with one restriction needs some dozen
_MAX_ATTEMPTS = 4  # calls from which to try to get past one check: some checks allow none
_BASE_LENGTHS = (24, 40)  # two sequences, a multiple of 64 together
_LAYOUTS = (_BASE_LENGTHS, (32, 32), (64, 64), (128, 128), (5, 3), (2, 2), (100, 156), (64,), (1,))
COMMON_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128, 160, 192, 256)
_POWERS_OF_TWO = (2, 4, 8, 16, 32, 64, 128, 256)


_DTYPE_NAME = re.compile(r"(torch\.)?\b(bfloat16|float(16|32|64)|bf16|fp(16|32|64)|half|float|double)\b", re.IGNORECASE)


def _check_key(refusal: str) -> str:
    """A key for the check that refuses, the same for every dtype in its message."""
    return refusal_key(_DTYPE_NAME.sub("dtype", refusal))


@dataclass(frozen=True)
class AcceptedCall:
    """A call that the kernel accepts, from which the search varies one thing at a time."""

    case: Case
    gradients: bool


class OutOfCalls(Exception):
    """The search has used up its calls. Untested conditions stay unknown."""


class DomainSearch:
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

        Raises OutOfCalls.
        """
        with_gradients = self.gradients if gradients is None else gradients
        key = case, with_gradients
        if key not in self._answers and self.space.domain.allows(self.space.op, case):
            if len(self._answers) >= self._max_answers:
                raise OutOfCalls
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

    def find_base(self, refused_case: Case) -> AcceptedCall | None:
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

    def _is_dtype_refused(self, base: AcceptedCall) -> bool:
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
    ) -> AcceptedCall | None:
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

    def _find_base_in_any_dtype(self, case: Case, gradients: bool) -> AcceptedCall | None:
        """A call in another dtype with one more change, for a check of both that gives one message until both fit."""
        for dtype in SHORT_DTYPES:
            for variant, with_gradients in self._steps(case.replace(dtype=dtype), gradients, ()):
                if not self.refusal(variant, with_gradients) and (base := self._as_base(variant, with_gradients)):
                    return base
        return None

    def _as_base(self, case: Case, gradients: bool) -> AcceptedCall | None:
        """The call as a base if it was accepted. In another dtype an error does not prove that the kernel takes it."""
        was_called = (case, gradients) in self._answers
        is_space_dtype = case.dtype == self.space.dtype
        return (
            AcceptedCall(case, gradients)
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
        values = [*sorted(n for n in self.mentioned_numbers if n <= max(COMMON_SIZES)), *_POWERS_OF_TWO, 2, 3, 4]
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
