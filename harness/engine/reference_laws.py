"""A user's reference is held to the laws before any kernel is: what it breaks, the op's declaration says wrongly."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch import Tensor

from packproof.harness.engine.violations import evaluated
from packproof.harness.execution.execute import InProcess
from packproof.properties.cases.case import Case
from packproof.properties.cases.space import Space, golden_case
from packproof.properties.kernel_under_test import KernelUnderTest
from packproof.properties.laws.property import Property
from packproof.properties.op import Op
from packproof.properties.promises import Promises
from packproof.properties.violation import Violation, apart
from packproof.refs.errors import UsageError

_LAYOUTS = ((2, 3), (3, 0, 2), (4, 1))
_MOST_CASES = 4  # of a law: the smallest ones


def try_laws(op: Op, laws: Iterable[Property]) -> None:
    """Judge the op's reference by the laws that follow from the op's declaration, as if it were a kernel.

    Raises UsageError that names the law, what broke it and the field of the declaration to change.
    """
    space = Space(op, "float32", Promises())
    subject = KernelUnderTest(op, InProcess(_rounded(op.reference)), Promises(), gradients=op.differentiable)
    cases = list(_cases(space))
    for law in laws:
        suited = sorted(law.suited(space, cases), key=lambda case: case.n_tokens) if law.of_the_op else []
        for case in suited[:_MOST_CASES]:
            violation, _ = evaluated(subject, law, case)
            if violation is not None:
                raise UsageError(_text(op, law, case, violation))


def _cases(space: Space) -> Iterator[Case]:
    """Small packs without slack, with nothing that is optional and with everything."""
    for k, lengths in enumerate(_LAYOUTS):
        for rich in (False, True):
            case = golden_case(space, k, lengths, space.plain_sizes[k % len(space.plain_sizes)], rich=rich)
            yield case.replace(slack=0, regime="normal")


def _rounded(reference: Callable[..., Any]) -> Callable[..., Any]:
    """The reference in float64, as the oracle calls it, between inputs and outputs in fp32: roundings of its own, such
    as those of another order of summation, are far below the budget then."""

    def kernel(**arguments: Any) -> Any:
        exact = {name: _exact(value) for name, value in arguments.items()}
        returned = reference(**exact)
        return tuple(y.float() for y in returned) if isinstance(returned, tuple) else returned.float()

    return kernel


def _exact(value: Any) -> Any:
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value


def _text(op: Op, law: Property, case: Case, violation: Violation) -> str:
    if violation.text:
        what = ", ".join(violation.lines())
    else:
        got, wanted = apart(violation.got, violation.wanted)
        what = f"{violation.tensor}, {violation.place}: {got}, {violation.other} {wanted}"
        what += f", {violation.note}" if violation.note else ""
    return f"{op.name}: its own reference breaks {law.name} at {case}: {what}. {law.of_the_op} (docs/new_op.md)"
