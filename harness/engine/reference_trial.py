"""Tries a user's reference before it judges any kernel.

An unsupported call is an error of the reference. A broken law is an incorrect promise of its declaration.
"""

import math
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from packproof.harness.engine.violations import evaluated
from packproof.properties.bounds.oracle import vjp
from packproof.properties.bounds.running_error import bounded
from packproof.properties.call import Call, KernelFault, Result
from packproof.properties.cases.case import Case
from packproof.properties.cases.drawing import draw
from packproof.properties.cases.sample import Sample
from packproof.properties.cases.space import Space, golden_case
from packproof.properties.declared import require
from packproof.properties.kernel_under_test import KernelUnderTest
from packproof.properties.laws.property import Property
from packproof.properties.light_torch import pulled_back
from packproof.properties.op import Op
from packproof.properties.promises import Promises
from packproof.properties.violation import Violation, apart
from packproof.refs import errors
from packproof.refs.axes import is_shared, parse
from packproof.refs.errors import UsageError
from packproof.refs.wording import counted

_LAYOUTS = {
    "a pack of zero sequences": (),
    "empty sequences": (0, 0, 3, 0),
    "one token": (1,),
    "two sequences": (2, 3),
}
_PACKS = ((2, 3), (3, 0, 2), (4, 1))
_MOST_CASES = 4  # for each law: the smallest ones


def try_reference(op: Op) -> None:
    """Call the op's reference, and its magnitude op if it has one, as every check does.

    Raises UsageError with the call, its result and the expected one.
    """
    _require_rows(op)
    for what, case in _cases(op):
        sample = draw(op, case)
        where = f"{op.name}: its reference, at {what} (lengths {list(case.lengths)}, float64, {_sizes(case)})"
        _try(op.reference, sample, where, absolute=False)
        if op.absolute is None:
            bounded(partial(vjp, op.reference, sample, gradients=True))  # raises for an operator without a rule
        else:
            _try(op.absolute, sample, where.replace("its reference", "its `absolute`"), absolute=True)


def try_laws(op: Op, laws: Iterable[Property]) -> None:
    """Judge the op's reference, as if it were a kernel, by the laws that follow from the op's declaration.

    Raises UsageError with the law, the violation and the field of the declaration to change.
    """
    space = Space(op, "float32", Promises())
    subject = KernelUnderTest(op, _Reference(op), Promises(), gradients=op.differentiable)
    cases = list(_small_packs(space))
    for law in laws:
        suited = sorted(law.suited(space, cases), key=lambda case: case.n_tokens) if law.of_the_op else []
        for case in suited[:_MOST_CASES]:
            violation, _ = evaluated(subject, law, case)
            if violation is not None:
                raise UsageError(_broken_law(op, law, case, violation))


class _Reference:
    """A Runner of an op's reference: computes in float64 as the oracle does, with inputs and results in fp32.

    Its own roundings, such as of another order of summation, are then far below the budget.
    """

    device = "cpu"

    def __init__(self, op: Op) -> None:
        self._op = op

    def run(self, call: Call) -> Result:
        """Returns the result, or raises KernelFault."""
        inputs = {n: x.double() if x.is_floating_point() else x for n, x in call.inputs.items()}
        wrt = [inputs[n].requires_grad_() for n in call.wrt]
        try:
            returned = self._op.reference(**inputs, **call.metadata, **call.options)
            named = dict(zip(call.outputs, returned if isinstance(returned, tuple) else (returned,), strict=True))
            reached = [n for n, y in named.items() if y.requires_grad and n in call.cotangents]
            incoming = [call.cotangents[n].double() for n in reached]
            slopes = pulled_back([named[n] for n in reached], wrt, incoming) if reached and wrt else ()
        except Exception as error:
            raise KernelFault("raised", _in_one_line(error)) from error
        gradients = {n: g.float() for n, g in zip(call.wrt, slopes, strict=False) if g is not None}
        return Result({n: y.detach().float() for n, y in named.items()}, gradients)

    @property
    def time_limit(self) -> float:
        return math.inf

    def printed(self) -> list[str]:
        return []

    def restart(self) -> None:
        """Does nothing: it has no state."""

    def impatient(self) -> AbstractContextManager[None]:
        return nullcontext()


def _small_packs(space: Space) -> Iterator[Case]:
    """Small packs without slack, with no optional input and with all of them."""
    for k, lengths in enumerate(_PACKS):
        for rich in (False, True):
            case = golden_case(space, k, lengths, space.plain_sizes[k % len(space.plain_sizes)], rich=rich)
            yield case.replace(slack=0, regime="normal")


def _broken_law(op: Op, law: Property, case: Case, violation: Violation) -> str:
    if violation.text:
        what = ", ".join(violation.lines())
    else:
        got, wanted = apart(violation.got, violation.wanted)
        what = f"{violation.tensor}, {violation.place}: {got}, {violation.other} {wanted}"
        what += f", {violation.note}" if violation.note else ""
    return f"{op.name}: its own reference breaks {law.name} at {case}: {what}. {law.of_the_op} (docs/new_op.md)"


def _require_rows(op: Op) -> None:
    """Raises UsageError for an output without rows of its own for each sequence, such as a scalar."""
    expected = (
        "axes that begin with t (a row for each token) or s (one for each sequence): what belongs to the whole pack, "
        "such as a scalar loss, cannot be compared sequence by sequence. Return its terms, one for each token or "
        "sequence, and let the caller sum them"
    )
    for name, spec in op.outputs.items():
        has_rows = not any(map(is_shared, parse(spec).alternatives))
        require(has_rows, f"op {op.name!r}", f"outputs[{name!r}]", spec, expected)


def _cases(op: Op) -> Iterator[tuple[str, Case]]:
    """Every layout at the first sizes; other sizes and options at simple layouts, with and without optional inputs."""
    every = tuple(n for n, spec in op.inputs.items() if parse(spec).optional)
    plain = tuple((name, values[0]) for name, values in op.options.items())
    for what, lengths in _LAYOUTS.items():
        yield what, Case(lengths, "float64", tuple(op.sizes[0].items()), options=plain)
    for sizes in op.sizes:
        for present in dict.fromkeys([(), every]):
            yield "two sequences", Case((2, 3), "float64", tuple(sizes.items()), present=present, options=plain)
    for name, values in op.options.items():
        for value in values[1:]:
            case = Case((2, 3), "float64", tuple(op.sizes[0].items()), options=plain)
            yield f"{name}={value!r}", case.with_option(name, value)


def _sizes(case: Case) -> str:
    return " ".join(f"{name}={size}" for name, size in case.sizes)


def _try(f: Callable[..., Any], sample: Sample, where: str, *, absolute: bool) -> None:
    """Raises UsageError unless the function returns the declared outputs and can be differentiated."""
    try:
        returned = f(**sample.in_float64(), **sample.metadata, **sample.options)
    except Exception as error:
        raise UsageError(f"{where}, raises {_in_one_line(error)}; {_WAY_OUT}") from error
    _check_outputs(returned, sample, where, absolute=absolute)
    try:
        values = vjp(f, sample, gradients=True, absolute=absolute)
    except Exception as error:
        raise UsageError(f"{where}, cannot be differentiated: {_in_one_line(error)}; {_WAY_OUT}") from error
    bad = next((n for n, x in values.items() if not torch.isfinite(x).all()), None)
    if bad is not None:
        raise UsageError(f"{where}, returns NaN or Inf in {bad}, expected finite numbers; {_WAY_OUT}")


_WAY_OUT = "every pack that a kernel may get has to have an answer there (docs/new_op.md)"


def _check_outputs(returned: Any, sample: Sample, where: str, *, absolute: bool) -> None:
    outputs = returned if isinstance(returned, tuple) else (returned,)
    if len(outputs) != len(sample.outputs):
        what = counted(len(outputs), "output") if isinstance(returned, tuple) else f"one {type(returned).__name__}"
        raise UsageError(f"{where}, returns {what}, expected ({', '.join(sample.outputs)})")
    for name, y in zip(sample.outputs, outputs, strict=True):
        if not isinstance(y, Tensor):
            raise UsageError(f"{where}, returns a {type(y).__name__} for {name}, expected a tensor")
        if tuple(y.shape) != sample.shape(name):
            axes = " ".join(sample.axes[name])
            raise UsageError(
                f"{where}, returns {name} of shape {tuple(y.shape)}, expected {sample.shape(name)} ({axes}); {_WAY_OUT}"
            )
        if y.dtype != torch.float64:
            raise UsageError(
                f"{where}, returns {name} as {str(y.dtype).removeprefix('torch.')}, expected float64, the dtype of the "
                "inputs that it was given"
            )
        if absolute and bool((y < 0).any()):
            raise UsageError(f"{where}, returns negative numbers for {name}, expected sums of absolute terms")
    attached = any(isinstance(y, Tensor) and y.requires_grad for y in outputs)
    if sum(sample.lengths) and sample.wrt and not attached:
        raise UsageError(f"{where}, returns {' and '.join(sample.outputs)} detached: no gradient reaches any input")


def _in_one_line(error: Exception) -> str:
    """Kind, first line, and the last line of the user's code on the traceback."""
    libraries = tuple(str(Path(file).parent) for file in (torch.__file__, errors.__file__))
    frames = traceback.extract_tb(error.__traceback__)
    users = [f for f in frames if not f.filename.startswith((*libraries, "<")) and f.filename != __file__]
    where = f" ({Path(users[-1].filename).name}:{users[-1].lineno})" if users else ""
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}{where}"
