"""Tries a user's reference before it judges any kernel.

An unsupported call is an error of the reference. A broken law is an incorrect promise of its declaration.
"""

import math
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from packproof.base import errors
from packproof.base.axes import is_shared, parse
from packproof.base.declared import require
from packproof.base.errors import KernelFault, UsageError
from packproof.base.light_torch import vector_jacobian_product
from packproof.base.wording import plural
from packproof.properties.bounds import run_with_error_bounds, vjp
from packproof.properties.calling import Call, Result
from packproof.properties.cases import Case, Sample, Space, draw, golden_case
from packproof.properties.declarations import Promises
from packproof.properties.judgement import KernelUnderTest, judge_case
from packproof.properties.laws import Property, Violation, distinct_texts
from packproof.properties.ops import OPS, Op

_LAYOUTS = {
    "a pack of zero sequences": (),
    "empty sequences": (0, 0, 3, 0),
    "one token": (1,),
    "two sequences": (2, 3),
}
_PACKS = ((2, 3), (3, 0, 2), (4, 1))
_MAX_CASES = 4  # for each law: the smallest ones


def try_reference(op: Op) -> None:
    """Call the op's reference, and its magnitude op if it has one, as every check does.

    Raises UsageError with the call, its result and the expected one.
    """
    _require_rows(op)
    for label, case in _cases(op):
        sample = draw(op, case)
        context = f"{op.name}: its reference, at {label} (lengths {list(case.lengths)}, float64, {_sizes_text(case)})"
        _try_function(op.reference, sample, context, absolute=False)
        if op.absolute is None:
            run_with_error_bounds(
                partial(vjp, op.reference, sample, gradients=True)
            )  # raises for an operator without a rule
        else:
            _try_function(op.absolute, sample, context.replace("its reference", "its `absolute`"), absolute=True)
    _try_labels(op)


def _try_labels(op: Op) -> None:
    """Raises UsageError if no output follows labels, ids or a mask: a kernel that ignores them would pass."""
    sizes, present = tuple(op.sizes[0].items()), _optional_inputs(op)
    case = Case((6, 7), "float64", sizes, present=present, options=_defaults(op))
    for name in sorted(op.integers_drawn("label", "id", "mask")):
        sample, other = draw(op, case), draw(op, case.replace(seed=3))
        changed = replace(sample, inputs={**sample.inputs, name: other.inputs[name]})
        before, after = (vjp(op.reference, x, gradients=False) for x in (sample, changed))
        if all(torch.equal(before[key], after[key]) for key in before):
            raise UsageError(
                f"{op.name}: its reference returns the same {' and '.join(sample.outputs)} whatever {name} holds, so "
                f"a kernel that ignores {name} would pass; expected that it reads {name}, or `inputs` without it"
            )


def try_laws(op: Op, laws: Iterable[Property]) -> None:
    """Judge the op's reference, as if it were a kernel, by the laws that follow from the op's declaration.

    Raises UsageError with the law, the violation and the field of the declaration to change.
    """
    space = Space(op, "float32", Promises())
    reference = KernelUnderTest(op, _ReferenceRunner(op), Promises(), gradients=op.differentiable)
    cases = list(_small_packs(space))
    for law in laws:
        suitable_cases = sorted(law.suited(space, cases), key=lambda case: case.n_tokens) if law.of_the_op else []
        for case in suitable_cases[:_MAX_CASES]:
            violation, _ = judge_case(reference, law, case)
            if violation is not None:
                raise UsageError(_broken_law(op, law, case, violation))


def fault_of_reference(op: Op, law: Property, case: Case, violation: Violation) -> str:
    """What is wrong with the reference of a user's op at a case where a kernel breaks a law; "" if nothing is.

    The violation is then no fault of the kernel. `try_reference` and `try_laws` have seen small packs alone.
    """
    if OPS.get(op.name) is op:
        return ""
    if violation.other == "reference" and math.isnan(violation.wanted):
        return (
            f"{op.name}: its own reference returns NaN at {case}: {violation.tensor}, {violation.location}; {_WAY_OUT}"
        )
    if not law.of_the_op:
        return ""
    reference = KernelUnderTest(op, _ReferenceRunner(op), Promises(), gradients=op.differentiable)
    plain_case = case.replace(dtype="float32", float32=(), narrow=(), configuration=0)
    own_violation, _ = judge_case(reference, law, plain_case)
    return "" if own_violation is None else _broken_law(op, law, plain_case, own_violation)


class _ReferenceRunner:
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
            result = self._op.reference(**inputs, **call.metadata, **call.options)
            named_outputs = dict(zip(call.outputs, result if isinstance(result, tuple) else (result,), strict=True))
            attached_outputs = [n for n, y in named_outputs.items() if y.requires_grad and n in call.cotangents]
            incoming = [call.cotangents[n].double() for n in attached_outputs]
            input_gradients = (
                vector_jacobian_product([named_outputs[n] for n in attached_outputs], wrt, incoming)
                if attached_outputs and wrt
                else ()
            )
        except Exception as error:
            raise KernelFault("raised", _one_line_of(error)) from error
        gradients = {n: g.float() for n, g in zip(call.wrt, input_gradients, strict=False) if g is not None}
        return Result({n: y.detach().float() for n, y in named_outputs.items()}, gradients)

    @property
    def time_limit(self) -> float:
        return math.inf

    def printed_lines(self) -> list[str]:
        return []

    def restart(self) -> None:
        """Does nothing: it has no state."""

    def with_short_timeout(self) -> AbstractContextManager[None]:
        return nullcontext()


def _small_packs(space: Space) -> Iterator[Case]:
    """Small packs without slack, with no optional input and with all of them."""
    for k, lengths in enumerate(_PACKS):
        for rich in (False, True):
            case = golden_case(space, k, lengths, space.plain_sizes[k % len(space.plain_sizes)], rich=rich)
            yield case.replace(slack=0, regime="normal")


def _broken_law(op: Op, law: Property, case: Case, violation: Violation) -> str:
    if violation.text:
        description = ", ".join(violation.lines())
    else:
        actual, expected = distinct_texts(violation.got, violation.wanted)
        description = f"{violation.tensor}, {violation.location}: {actual}, {violation.other} {expected}"
        description += f", {violation.note}" if violation.note else ""
    return f"{op.name}: its own reference breaks {law.name} at {case}: {description}. {law.of_the_op} (docs/new_op.md)"


def _require_rows(op: Op) -> None:
    """Raises UsageError for an output without rows of its own for each sequence that is no declared reduction."""
    for name, spec in op.outputs.items():
        has_rows = name in op.reductions or not any(map(is_shared, parse(spec).alternatives))
        expected = (
            "axes that begin with t (a row for each token) or s (one for each sequence). What belongs to the whole "
            "pack, such as a scalar loss, is compared with what the sequences give: declare how it follows from them, "
            f"by reductions={{{name!r}: 'sum'}}, 'mean over tokens', 'mean over sequences' or 'maximum'"
        )
        require(has_rows, f"op {op.name!r}", f"outputs[{name!r}]", spec, expected)


def _optional_inputs(op: Op) -> tuple[str, ...]:
    return tuple(n for n, spec in op.inputs.items() if parse(spec).optional)


def _defaults(op: Op) -> tuple[tuple[str, Any], ...]:
    return tuple((name, values[0]) for name, values in op.options.items())


def _cases(op: Op) -> Iterator[tuple[str, Case]]:
    """Every layout at the first sizes; other sizes and options at simple layouts, with and without optional inputs."""
    optional_inputs, default_options = _optional_inputs(op), _defaults(op)
    for label, lengths in _LAYOUTS.items():
        yield label, Case(lengths, "float64", tuple(op.sizes[0].items()), options=default_options)
    for sizes in op.sizes:
        for present in dict.fromkeys([(), optional_inputs]):
            yield (
                "two sequences",
                Case((2, 3), "float64", tuple(sizes.items()), present=present, options=default_options),
            )
    for name, values in op.options.items():
        for value in values[1:]:
            case = Case((2, 3), "float64", tuple(op.sizes[0].items()), options=default_options)
            yield f"{name}={value!r}", case.with_option(name, value)


def _sizes_text(case: Case) -> str:
    return " ".join(f"{name}={size}" for name, size in case.sizes)


def _try_function(f: Callable[..., Any], sample: Sample, context: str, *, absolute: bool) -> None:
    """Raises UsageError unless the function returns the declared outputs and can be differentiated."""
    try:
        result = f(**sample.in_float64(), **sample.metadata, **sample.options)
    except Exception as error:
        raise UsageError(f"{context}, raises {_one_line_of(error)}; {_WAY_OUT}") from error
    _check_outputs(result, sample, context, absolute=absolute)
    try:
        values = vjp(f, sample, gradients=True, absolute=absolute)
    except Exception as error:
        raise UsageError(f"{context}, cannot be differentiated: {_one_line_of(error)}; {_WAY_OUT}") from error
    nonfinite = next((n for n, x in values.items() if not torch.isfinite(x).all()), None)
    if nonfinite is not None:
        raise UsageError(f"{context}, returns NaN or Inf in {nonfinite}, expected finite numbers; {_WAY_OUT}")


_WAY_OUT = "every pack that a kernel may get has to have an answer there (docs/new_op.md)"


def _check_outputs(result: Any, sample: Sample, context: str, *, absolute: bool) -> None:
    outputs = result if isinstance(result, tuple) else (result,)
    if len(outputs) != len(sample.outputs):
        returned_text = plural(len(outputs), "output") if isinstance(result, tuple) else f"one {type(result).__name__}"
        raise UsageError(f"{context}, returns {returned_text}, expected ({', '.join(sample.outputs)})")
    for name, y in zip(sample.outputs, outputs, strict=True):
        if not isinstance(y, Tensor):
            raise UsageError(f"{context}, returns a {type(y).__name__} for {name}, expected a tensor")
        if tuple(y.shape) != sample.shape(name):
            axes = " ".join(sample.axes[name]) or "a scalar"
            raise UsageError(
                f"{context}, returns {name} of shape {tuple(y.shape)}, expected {sample.shape(name)} ({axes}); "
                f"{_WAY_OUT}"
            )
        if y.dtype != torch.float64:
            raise UsageError(
                f"{context}, returns {name} as {str(y.dtype).removeprefix('torch.')}, expected float64, the dtype of "
                "the inputs that it was given"
            )
        if absolute and bool((y < 0).any()):
            raise UsageError(f"{context}, returns negative numbers for {name}, expected sums of absolute terms")
    is_attached = any(isinstance(y, Tensor) and y.requires_grad for y in outputs)
    if sum(sample.lengths) and sample.wrt and not is_attached:
        raise UsageError(f"{context}, returns {' and '.join(sample.outputs)} detached: no gradient reaches any input")


def _one_line_of(error: Exception) -> str:
    """Kind, first line, and the last line of the user's code on the traceback."""
    package = Path(errors.__file__).parent.parent
    libraries = tuple(map(str, (Path(torch.__file__).parent, package / "base", package / "refs")))
    frames = traceback.extract_tb(error.__traceback__)
    user_frames = [f for f in frames if not f.filename.startswith((*libraries, "<")) and f.filename != __file__]
    location = f" ({Path(user_frames[-1].filename).name}:{user_frames[-1].lineno})" if user_frames else ""
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}{location}"
