"""The function of a dot-product test, in one dtype and with its measured roundoff."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from packproof.base.arguments import FLOATS
from packproof.base.errors import ArgumentError, KernelFault, PackproofError
from packproof.base.light_torch import vector_jacobian_product
from packproof.base.wording import plural
from packproof.debug.own_tensors import describe_value, readable_signature
from packproof.properties.bounds import UNIT_ROUNDOFF, accumulator_roundoff

NAME = "dot product"
_ROUNDOFF_TRIALS = 3  # random moves of the inputs; each may show the roundoff


class Function:
    """A deterministic function at its inputs, in one dtype. `values` are its outputs in float64."""

    def __init__(
        self, function: Callable[..., Any], points: Sequence[Tensor], dtype: torch.dtype | None = None
    ) -> None:
        self._function, self.dtype = function, dtype
        self.points = [x.detach().to(torch.promote_types(dtype or x.dtype, x.dtype)) for x in points]
        self.roundoff = self.accumulator = max(UNIT_ROUNDOFF[x.dtype] for x in self.points)
        self.outputs = self.evaluate(self.points)
        self.values = [y.double() for y in self.outputs]
        self.n_outputs = sum(y.numel() for y in self.outputs)
        self.refusal = ""

    def evaluate(self, points: Sequence[Tensor]) -> list[Tensor]:
        """The outputs at some points. The function gets copies, because it may write into its arguments."""
        with torch.no_grad():
            return [y.clone() for y in self._run([x.detach().clone() for x in points])]

    def vjp(self, w: Sequence[Tensor]) -> list[Tensor]:
        """J' w for each input, by autograd. Zeros for an input that no output depends on."""
        points = [x.detach().clone().requires_grad_() for x in self.points]
        arguments = [x.clone() for x in points]  # not leaves: autograd forbids in-place writes to leaves
        differentiable = [(y, u.to(y.dtype)) for y, u in zip(self._run(arguments), w, strict=True) if y.requires_grad]
        if not differentiable:
            return [torch.zeros_like(x) for x in self.points]
        try:
            outputs, incoming = zip(*differentiable, strict=True)
            gradients = vector_jacobian_product(outputs, points, incoming)
        except Exception as error:
            raise _as_packproof_error(error, "in the backward pass: ") from error
        return [torch.zeros_like(x) if g is None else g for x, g in zip(self.points, gradients, strict=True)]

    def widen(self, generator: torch.Generator) -> "Function":
        """The function in the widest dtype accepted, with its roundoff measured there."""
        if not all(torch.equal(a, b) for a, b in zip(self.outputs, self.evaluate(self.points), strict=True)):
            raise ArgumentError(f"{NAME}: the function returns other values when it is called again; fix its seed")
        wide = self
        for dtype in (torch.float64, torch.float32):
            if UNIT_ROUNDOFF[dtype] >= max(UNIT_ROUNDOFF[x.dtype] for x in self.points):
                continue
            try:
                wide = Function(self._function, self.points, dtype)
            except PackproofError as error:
                self.refusal = self.refusal or f"it does not take {short_name(dtype)} ({error})"
                continue
            if [y.shape for y in wide.outputs] == [y.shape for y in self.outputs]:
                break
            wide = self
        wide.roundoff = _roundoff(wide, generator)
        wide.accumulator = max(wide.roundoff, *(accumulator_roundoff(x.dtype) for x in self.points))
        return wide

    @property
    def advice(self) -> str:
        """Advice to the user if the test is inconclusive."""
        if self.refusal:
            return f"{self.refusal}: pass every tensor that it computes with as an input, or give float64 tensors"
        return "give float64 tensors, or fewer rows"

    def _run(self, points: Sequence[Tensor]) -> tuple[Tensor, ...]:
        try:
            result = self._function(*points)
        except Exception as error:
            raise _as_packproof_error(error) from error
        outputs = result if isinstance(result, tuple) else (result,)
        for y in outputs:
            if not isinstance(y, Tensor) or y.dtype not in FLOATS:
                actual = short_name(y.dtype) if isinstance(y, Tensor) else describe_value(y)
                raise ArgumentError(
                    f"{NAME}: the function returned {actual} but tensors of {_FLOAT_DTYPES_TEXT} were expected"
                )
            if not y.isfinite().all():
                raise ArgumentError(
                    f"{NAME}: the function returned {_first_nonfinite(y)} but finite values were expected"
                )
        return outputs


def _roundoff(wide: Function, generator: torch.Generator) -> float:
    """The coarsest roundoff visible in the outputs.

    The inputs move by an eighth of a roundoff, then by twice as much. The outputs of a smooth function then move by
    twice as much too, to second order. Rounded outputs jump, or stay.
    """
    for dtype in sorted(FLOATS, key=lambda d: -UNIT_ROUNDOFF[d]):
        u = UNIT_ROUNDOFF[dtype]
        if u <= wide.roundoff:
            break
        for _ in range(_ROUNDOFF_TRIALS):
            step = [u / 8 * random_signed(x, generator) for x in wide.points]
            # start off the grid: inputs stored in this dtype lie on it, and rounding does not jump there
            base = [1 + u * random_signed(x, generator) for x in wide.points]
            lines = zip(wide.points, base, step, strict=True)
            line_points = [[(x * (a + t * b)).to(x.dtype) for t in range(3)] for x, a, b in lines]
            outputs = zip(*(wide.evaluate(points) for points in zip(*line_points, strict=True)), strict=True)
            if any(_shows_roundoff(y0, y1, y2, dtype) for y0, y1, y2 in outputs):
                return u
    return wide.roundoff


def _shows_roundoff(y0: Tensor, y1: Tensor, y2: Tensor, dtype: torch.dtype) -> bool:
    """Whether an output has the precision of this dtype: it changed and fits into the dtype, or it jumps.

    y0, y1, y2: the output at three equidistant points of a line.
    """
    bend, typical = (y2.double() - 2 * y1.double() + y0.double()).abs(), y0.double().square().mean().sqrt()
    stored = torch.equal(y1.to(dtype).double(), y1.double()) and not torch.equal(y1, y0)
    return stored or bool((bend > UNIT_ROUNDOFF[dtype] / 16 * typical).any())


def check_inputs(function: Any, inputs: Sequence[Any]) -> tuple[list[Tensor], list[str]]:
    """The inputs and their names. Raises ArgumentError for inputs that cannot be differentiated."""
    if not callable(function):
        raise ArgumentError(f"{NAME}: the function is {describe_value(function)} but a function was expected")
    signature = readable_signature(function)
    names = [f"input {i}" for i in range(len(inputs))]
    if signature is not None:
        try:
            bound = signature.bind(*inputs)
        except TypeError as error:
            signature_text = f"the function takes {signature} but {plural(len(inputs), 'tensor')} came"
            raise ArgumentError(f"{NAME}: {signature_text}: {error}") from None
        parameter_names = [n for n in bound.arguments if signature.parameters[n].kind.name.startswith("POSITIONAL")]
        names = [*parameter_names, *names[len(parameter_names) :]] if parameter_names else names
    if not any(isinstance(x, Tensor) and x.numel() for x in inputs):
        raise ArgumentError(f"{NAME}: {plural(len(inputs), 'input')} but tensors with elements were expected")
    for name, x in zip(names, inputs, strict=True):
        if not isinstance(x, Tensor) or x.dtype not in FLOATS or x.layout is not torch.strided:
            actual = (
                describe_value(x)
                if not isinstance(x, Tensor)
                else short_name(x.dtype if x.dtype not in FLOATS else x.layout)
            )
            raise ArgumentError(f"{NAME}: {name} is {actual} but a dense tensor of {_FLOAT_DTYPES_TEXT} was expected")
        if x.device.type == "meta" or not x.isfinite().all():
            actual = "on the meta device" if x.device.type == "meta" else _first_nonfinite(x)
            raise ArgumentError(f"{NAME}: {name} is {actual} but finite values were expected")
    return list(inputs), names


def _as_packproof_error(error: Exception, stage: str = "") -> PackproofError:
    if isinstance(error, PackproofError):
        return error
    return KernelFault("raised", f"{stage}{type(error).__name__}: {str(error).partition(chr(10))[0]}")


def random_signed(x: Tensor, generator: torch.Generator) -> Tensor:
    """Numbers of random signs and sizes between 1 and 2: a smaller factor could hide an error."""
    size = 1 + torch.rand(x.shape, generator=generator, dtype=torch.float64)
    return (size * (2 * torch.randint(0, 2, x.shape, generator=generator) - 1)).to(x.device)


def _first_nonfinite(x: Tensor) -> str:
    index = tuple((~x.isfinite()).nonzero()[0].tolist())
    return f"{float(x[index])} at {list(index)}"


def short_name(dtype_or_layout: Any) -> str:
    return str(dtype_or_layout).removeprefix("torch.")


_FLOAT_DTYPES_TEXT = " or ".join(map(short_name, FLOATS))
