"""Whether a kernel fails for want of a declaration: a domain without empty packs, a fixed option, a rounding.

Each is tried, not guessed: the kernel is run once more at the failing case and in a few other packs.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import fields, replace
from typing import Any

from packproof.base.errors import KernelFault
from packproof.base.wording import plural
from packproof.harness.check.diagnosis.conventions import holds, small_cases
from packproof.harness.check.diagnosis.fixed_option_runner import FixedOptionRunner
from packproof.properties.cases import Case, Domain, Space
from packproof.properties.declarations import Promises
from packproof.properties.judgement import KernelUnderTest
from packproof.properties.laws import REFERENCE, Property, Violation
from packproof.properties.ops import Op
from packproof.properties.snippets import PastedLines, changed_declaration

_TIME_LIMIT = 5.0
_SIXTEEN_BITS, _DECAYS = "16 bits", "decays"
_ROUNDINGS: tuple[
    tuple[str, Any, str, str], ...
] = (  # a promise of further roundings, its value, where it is made, and what a kernel does that makes it
    (
        "saved_outputs",
        True,
        _SIXTEEN_BITS,
        "its backward pass reads the outputs as they were stored, as torch's softmax does",
    ),
    ("compute", "tf32", "float32", "it multiplies in tf32, as tl.dot does unless told otherwise"),
    ("cumsum", True, _DECAYS, "its decays are differences of a running sum"),
)


def missing_declaration(
    kernel: KernelUnderTest,
    law: Property,
    case: Case,
    violation: Violation,
    space: Space,
    pasted: PastedLines | None,
) -> list[str]:
    """Lines that name a declaration with which the kernel keeps the law; empty if there is none.

    case: the smallest case where the law is broken.
    space: the space of the kernel's cases.
    pasted: the kernel in lines to paste.
    """
    deadline = time.monotonic() + _TIME_LIMIT
    with kernel.runner.with_short_timeout(), suppress(KernelFault):  # a call that ends the process stops the search
        if violation.fault == "raised" and not case.n_tokens:
            return _no_empty_packs(kernel, law, case, space, pasted)
        if violation.tensor is None or violation.other != "reference":
            return []
        for find in (_rounding, _fixed_option):
            if lines := find(kernel, case, space, pasted, deadline):
                return lines
    return []


def _no_empty_packs(
    kernel: KernelUnderTest, law: Property, case: Case, space: Space, pasted: PastedLines | None
) -> list[str]:
    """Whether only packs without tokens make the kernel raise an error."""
    condition = "length > 0" if case.lengths else "sequences > 0"
    other_cases = [c for c in _other_cases(space, case) if 0 not in c.lengths]
    cache = kernel.cache.without_results()
    variant = replace(kernel, domain=kernel.domain & Domain.of(condition), cache=cache, tuned={})
    if not all(holds(variant, law, c) for c in other_cases):
        return []
    illegal = "empty sequences are" if case.lengths else "a pack without sequences is"
    statement = f"passes {plural(len(other_cases), 'pack')} of sequences with tokens: if {illegal} not legal"
    return _advice(statement, pasted, {"domain": repr(condition)})


def _rounding(
    kernel: KernelUnderTest, case: Case, space: Space, pasted: PastedLines | None, deadline: float
) -> list[str]:
    """Whether the promise of a further rounding explains the difference.

    A rounding shows in most packs. A fault that shows in a few is none, however small it is.
    """
    other_cases, kernel = _other_cases(space, case), replace(kernel, tuned={})
    if 2 * sum(holds(kernel, REFERENCE, c) for c in other_cases) > len(other_cases):
        return []
    places = {_SIXTEEN_BITS if case.dtype in ("bfloat16", "float16") else case.dtype}
    places |= {_DECAYS} if kernel.op.has_decays else set()
    for name, value, where, explanation in _ROUNDINGS:
        if where not in places or getattr(kernel.promises, name) == value or time.monotonic() > deadline:
            continue
        variant = replace(kernel, promises=replace(kernel.promises, **{name: value}))
        if all(holds(variant, REFERENCE, c) for c in (case, *other_cases)):
            statement = f"holds with {name}={value!r}, here and in {plural(len(other_cases), 'other pack')}"
            declaration = {"promises": _promises_text(variant.promises)}
            return _advice(f"{statement}: if {explanation}", pasted, declaration)
    return []


def _fixed_option(
    kernel: KernelUnderTest, case: Case, space: Space, pasted: PastedLines | None, deadline: float
) -> list[str]:
    """Whether the kernel computes another value of an option than it is asked for."""
    for name, value in _other_values(kernel.op, case):
        runner = FixedOptionRunner(kernel.runner, name, dict(case.options))
        variant = replace(kernel, runner=runner, cache=kernel.cache.without_results(), tuned={})
        case_value = _option_value(kernel.op, case, name)
        other_cases = _other_cases(
            space,
            case,
            lambda c, n=name, x=case_value: _option_value(kernel.op, c, n) == x,  # type: ignore[misc]
        )
        if time.monotonic() > deadline:
            return []
        if all(holds(variant, REFERENCE, _with_option(c, name, value)) for c in (case, *other_cases)):
            other_packs = plural(len(other_cases), "other pack")
            statement = f"equals the reference with {name}={value!r}, here and in {other_packs}"
            if name in dict(case.options):
                return [f"{statement}: does it follow the option?"]
            return _advice(f"{statement}: if it has that fixed", pasted, {"fixed": f"{{{name!r}: {value!r}}}"})
    return []


def _promises_text(promises: Promises) -> str:
    values = {field.name: getattr(promises, field.name) for field in fields(promises)}
    made = [f"{name}={value!r}" for name, value in values.items() if value != getattr(Promises(), name)]
    return f"packproof.Promises({', '.join(made)})"


def _advice(condition: str, pasted: PastedLines | None, declaration: dict[str, str]) -> list[str]:
    if pasted is None:
        return [f"{condition}, declare {', '.join(f'{name}={text}' for name, text in declaration.items())}"]
    first_line, *lines = changed_declaration(pasted, declaration)
    return [f"{condition}, {first_line}", *lines]


def _other_cases(space: Space, case: Case, predicate: Callable[[Case], bool] = lambda _: True) -> list[Case]:
    """Small cases to confirm a declaration, without slack unless the case has some."""
    return small_cases(space, lambda c: predicate(c) and bool(c.slack) <= bool(case.slack))


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
