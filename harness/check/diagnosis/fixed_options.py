"""Whether a failing kernel matches the reference with another value of an option. Each value is run, not guessed."""

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from typing import Any

from packproof.base.errors import KernelFault
from packproof.base.wording import plural
from packproof.harness.check.diagnosis.conventions import holds, small_cases
from packproof.properties.calling import Call, Result, Runner
from packproof.properties.cases import Case, Space
from packproof.properties.judgement import KernelUnderTest
from packproof.properties.laws import REFERENCE, Violation
from packproof.properties.ops import Op

_TIME_LIMIT = 5.0


def fixed_options(kernel: KernelUnderTest, case: Case, violation: Violation, space: Space) -> list[str]:
    """A line that names an option and the value with which the kernel equals the reference; empty if there is none.

    case: the smallest case where the kernel differs from the reference.
    space: the space of the kernel's cases.
    """
    if violation.tensor is None or violation.other != "reference":
        return []
    deadline = time.monotonic() + _TIME_LIMIT
    with kernel.runner.with_short_timeout(), suppress(KernelFault):  # a call that ends the process stops the search
        for name, value in _other_values(kernel.op, case):
            runner = _FixedOptionRunner(kernel.runner, name, dict(case.options))
            variant = replace(kernel, runner=runner, cache=kernel.cache.without_results())
            case_value = _option_value(kernel.op, case, name)
            confirming_cases = small_cases(space, lambda c, n=name, x=case_value: _option_value(kernel.op, c, n) == x)  # type: ignore[misc]
            if time.monotonic() > deadline:
                return []
            if all(holds(variant, REFERENCE, _with_option(c, name, value)) for c in (case, *confirming_cases)):
                return [_suggestion(name, value, len(confirming_cases), takes_option=name in dict(case.options))]
    return []


def _suggestion(name: str, value: Any, n_confirming: int, *, takes_option: bool) -> str:
    statement = f"equals the reference with {name}={value!r}, here and in {plural(n_confirming, 'other pack')}"
    if takes_option:
        return f"{statement}: does it follow the option?"
    return f"{statement}: a kernel that has it fixed declares fixed={{{name!r}: {value!r}}}"


def _other_values(op: Op, case: Case) -> Iterator[tuple[str, Any]]:
    """Options that change values, not the set of outputs, each with its values other than the case's."""
    requests = {*op.on_request.values(), *([op.carry[2]] if op.carry else [])}
    for name, values in op.options.items():
        if name not in requests:
            yield from ((name, value) for value in values if value != _option_value(op, case, name))


def _option_value(op: Op, case: Case, name: str) -> Any:
    return dict(case.options).get(name, op.options[name][0])


def _with_option(case: Case, name: str, value: Any) -> Case:
    return case.replace(options=tuple({**dict(case.options), name: value}.items()))


class _FixedOptionRunner:
    """A runner that keeps one option of the kernel at the value of the failing call, whatever a call asks for."""

    def __init__(self, runner: Runner, name: str, options: dict[str, Any]) -> None:
        self._runner, self._name, self._options = runner, name, options
        self.device = runner.device

    def run(self, call: Call) -> Result:
        original_option = {self._name: self._options[self._name]} if self._name in self._options else {}
        other_options = {name: value for name, value in call.options.items() if name != self._name}
        return self._runner.run(replace(call, options={**other_options, **original_option}))

    @property
    def time_limit(self) -> float:
        return self._runner.time_limit

    def printed_lines(self) -> list[str]:
        return self._runner.printed_lines()

    def restart(self) -> None:
        self._runner.restart()

    def with_short_timeout(self) -> AbstractContextManager[None]:
        return self._runner.with_short_timeout()
