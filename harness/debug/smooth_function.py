"""The function of a dot-product test, in one dtype and with its measured roundoff."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from packproof.harness.debug.own_tensors import kind, parameters
from packproof.properties.bounds.budget import UNIT_ROUNDOFF, accumulator
from packproof.properties.call import KernelFault
from packproof.properties.light_torch import pulled_back
from packproof.refs.arguments import FLOATS
from packproof.refs.errors import ArgumentError, PackproofError
from packproof.refs.wording import counted

NAME = "dot product"
_MOVES = 3  # random moves of the inputs; each may show the roundoff


class Function:
    """A deterministic function at its inputs, in one dtype. `values` are its outputs in float64."""

    def __init__(
        self, function: Callable[..., Any], points: Sequence[Tensor], dtype: torch.dtype | None = None
    ) -> None:
        self._function, self.dtype = function, dtype
        self.points = [x.detach().to(torch.promote_types(dtype or x.dtype, x.dtype)) for x in points]
        self.roundoff = self.accumulator = max(UNIT_ROUNDOFF[x.dtype] for x in self.points)
        self.outputs = self.at(self.points)
        self.values = [y.double() for y in self.outputs]
        self.terms = sum(y.numel() for y in self.outputs)
        self.refusal = ""

    def at(self, points: Sequence[Tensor]) -> list[Tensor]:
        """The outputs at some points. The function gets copies, because it may write into its arguments."""
        with torch.no_grad():
            return [y.clone() for y in self._run([x.detach().clone() for x in points])]

    def pulled(self, w: Sequence[Tensor]) -> list[Tensor]:
        """J' w for each input, by autograd. Zeros for an input that no output depends on."""
        points = [x.detach().clone().requires_grad_() for x in self.points]
        passed = [x.clone() for x in points]  # not leaves: autograd forbids in-place writes to leaves
        reached = [(y, u.to(y.dtype)) for y, u in zip(self._run(passed), w, strict=True) if y.requires_grad]
        if not reached:
            return [torch.zeros_like(x) for x in self.points]
        try:
            outputs, incoming = zip(*reached, strict=True)
            found = pulled_back(outputs, points, incoming)
        except Exception as error:
            raise _raised(error, "in the backward pass: ") from error
        return [torch.zeros_like(x) if g is None else g for x, g in zip(self.points, found, strict=True)]

    def widened(self, generator: torch.Generator) -> "Function":
        """The function in the widest dtype accepted, with its roundoff measured there."""
        if not all(torch.equal(a, b) for a, b in zip(self.outputs, self.at(self.points), strict=True)):
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
        wide.accumulator = max(wide.roundoff, *(accumulator(x.dtype) for x in self.points))
        return wide

    @property
    def way_out(self) -> str:
        """Advice to the user if the test is inconclusive."""
        if self.refusal:
            return f"{self.refusal}: pass every tensor that it computes with as an input, or give float64 tensors"
        return "give float64 tensors, or fewer rows"

    def _run(self, points: Sequence[Tensor]) -> tuple[Tensor, ...]:
        try:
            returned = self._function(*points)
        except Exception as error:
            raise _raised(error) from error
        outputs = returned if isinstance(returned, tuple) else (returned,)
        for y in outputs:
            if not isinstance(y, Tensor) or y.dtype not in FLOATS:
                came = short_name(y.dtype) if isinstance(y, Tensor) else kind(y)
                raise ArgumentError(f"{NAME}: the function returned {came} but tensors of {_ALLOWED} were expected")
            if not y.isfinite().all():
                raise ArgumentError(f"{NAME}: the function returned {_first_bad(y)} but finite values were expected")
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
        for _ in range(_MOVES):
            r = [u / 8 * signed(x, generator) for x in wide.points]
            # start off the grid: inputs stored in this dtype lie on it, and rounding does not jump there
            start = [1 + u * signed(x, generator) for x in wide.points]
            places = zip(wide.points, start, r, strict=True)
            line = [[(x * (a + t * b)).to(x.dtype) for t in range(3)] for x, a, b in places]
            outputs = zip(*(wide.at(points) for points in zip(*line, strict=True)), strict=True)
            if any(_jumps(y, one, two, dtype) for y, one, two in outputs):
                return u
    return wide.roundoff


def _jumps(y: Tensor, one: Tensor, two: Tensor, dtype: torch.dtype) -> bool:
    """Whether an output has the precision of this dtype: it changed and fits into the dtype, or it jumps.

    y0, y1, y2: the output at three equidistant points of a line.
    """
    bend, typical = (two.double() - 2 * one.double() + y.double()).abs(), y.double().square().mean().sqrt()
    stored = torch.equal(one.to(dtype).double(), one.double()) and not torch.equal(one, y)
    return stored or bool((bend > UNIT_ROUNDOFF[dtype] / 16 * typical).any())


def checked_inputs(function: Any, inputs: Sequence[Any]) -> tuple[list[Tensor], list[str]]:
    """The inputs and their names. Raises ArgumentError for inputs that cannot be differentiated."""
    if not callable(function):
        raise ArgumentError(f"{NAME}: the function is {kind(function)} but a function was expected")
    signature = parameters(function)
    names = [f"input {i}" for i in range(len(inputs))]
    if signature is not None:
        try:
            bound = signature.bind(*inputs)
        except TypeError as error:
            takes = f"the function takes {signature} but {counted(len(inputs), 'tensor')} came"
            raise ArgumentError(f"{NAME}: {takes}: {error}") from None
        plain = [n for n in bound.arguments if signature.parameters[n].kind.name.startswith("POSITIONAL")]
        names = [*plain, *names[len(plain) :]] if plain else names
    if not any(isinstance(x, Tensor) and x.numel() for x in inputs):
        raise ArgumentError(f"{NAME}: {counted(len(inputs), 'input')} but tensors with elements were expected")
    for name, x in zip(names, inputs, strict=True):
        if not isinstance(x, Tensor) or x.dtype not in FLOATS or x.layout is not torch.strided:
            came = kind(x) if not isinstance(x, Tensor) else short_name(x.dtype if x.dtype not in FLOATS else x.layout)
            raise ArgumentError(f"{NAME}: {name} is {came} but a dense tensor of {_ALLOWED} was expected")
        if x.device.type == "meta" or not x.isfinite().all():
            came = "on the meta device" if x.device.type == "meta" else _first_bad(x)
            raise ArgumentError(f"{NAME}: {name} is {came} but finite values were expected")
    return list(inputs), names


def _raised(error: Exception, stage: str = "") -> PackproofError:
    if isinstance(error, PackproofError):
        return error
    return KernelFault("raised", f"{stage}{type(error).__name__}: {str(error).partition(chr(10))[0]}")


def signed(x: Tensor, generator: torch.Generator) -> Tensor:
    """Numbers of random signs and sizes between 1 and 2: a smaller factor could hide an error."""
    size = 1 + torch.rand(x.shape, generator=generator, dtype=torch.float64)
    return (size * (2 * torch.randint(0, 2, x.shape, generator=generator) - 1)).to(x.device)


def _first_bad(x: Tensor) -> str:
    index = tuple((~x.isfinite()).nonzero()[0].tolist())
    return f"{float(x[index])} at {list(index)}"


def short_name(kind_of: Any) -> str:
    return str(kind_of).removeprefix("torch.")


_ALLOWED = " or ".join(map(short_name, FLOATS))
