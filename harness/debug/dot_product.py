"""The dot-product test of a vjp, which needs no reference: <J v, w> = <v, J' w>, row by row.

J v comes from differences of the function itself, in float64 where it takes that, J' w from its backward pass. Both are
summed in float64. The two sides may differ by the budgets of their elements (`properties.bounds.budget`):

    |<J v, w> - <v, J' w>|  <=  3/2 sum_j |w_j| e_j / h  +  truncation  +  sum_i |v_i| b_i

    e_j = K_acc u |y_j|             what an output may be off by; u |y_j| where no step changes a bit of it
    truncation = |d(h) - d(2h)|     of the central differences that (4 d(h) - d(2h)) / 3 is extrapolated from
    b_i = K_acc u_acc sqrt(n) R_i   what a gradient may be off by: B_i = sum_j |w_j J_ji| <= sqrt(n) R_i (Cauchy-Schwarz)

R_i is the root mean square of the gradient for incoming gradients +-w of random signs, and n the number of outputs; u is
the roundoff that the function is found to compute with (`_roundoff`), and h = (K_acc u) ** (1/3), where the first two
terms are of one size. v is drawn with the signs of J' w, one group of rows at a time: so the value is sum_i |v_i J' w_i|,
as large as the terms of the bound, and no random sum that any bound exceeds; and a wrong row is not diluted by the
others. As in `oracle`, 1% decides: where a row that is off by as much need not show, the test is inconclusive. Where a
kink may lie between the steps, smaller ones are taken, and what the slopes on both sides differ by is added.

The gradient in the dtype of the inputs, if that is narrower, is then held to the wide one, element by element, by the
same budget: |g - r| <= u_out |r| + eta_out + u_op B + K_acc u_acc (B + sqrt(n) R). B is the running error of the function's
operators (`running_error`), but K_op R at least, as where they cannot be seen: the roundings of n terms have random
signs.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from packproof.harness.debug.own_tensors import check_seed, kind, parameters
from packproof.properties.bounds.budget import K_ACC, K_OP, SMALLEST, UNIT_ROUNDOFF, accumulator, score
from packproof.properties.bounds.running_error import bounded
from packproof.properties.call import BoundVacuous, KernelFault
from packproof.refs.arguments import FLOATS
from packproof.refs.errors import ArgumentError, CheckFailed, PackproofError, UsageError
from packproof.refs.wording import counted

_SHARE = 0.01  # of a row's value: an error as large has to show
_GROUPS = 16  # of rows of one input
_SIGNS = 8  # draws of random signs
_MOVES = 3  # in which a roundoff may show
_STEPS = (1.0, 1 / 16)  # times h; the second where a kink may lie inside the first
_NAME = "dot product"


def dot_product_test(function: Callable[..., Any], *inputs: Tensor, seed: int = 0) -> None:
    """Check a backward pass without any reference: <J v, w> = <v, J' w>, J v from differences of the function itself.

    function: takes the tensors and returns a tensor, or a tuple of tensors. Give every tensor that it computes with as
    an input, so that it can be run in float64 too. inputs: fp64, fp32, bf16 or fp16 tensors to differentiate, finite.
    seed: of the directions.

    Every row of every input is tested (with many rows, several together), for a direction in which its terms add up.
    The allowed difference is the sum of the error budgets of all elements of both sides; their derivation is in the
    docstring of this module. In bf16 and fp16 the function is run in float64 besides, and its gradients are compared.

    Raises CheckFailed with the row, both sides and the allowed difference. Where the allowed difference is so large that
    a row could be off by 1% unseen, the test is inconclusive and raises BoundVacuous, a PackproofError; as for functions
    of bf16 tensors that take no wider ones. Raises ArgumentError for inputs that cannot be differentiated.

    >>> import torch, packproof
    >>> x = torch.linspace(-1, 1, 12).view(4, 3)
    >>> packproof.dot_product_test(torch.sin, x)
    >>> packproof.dot_product_test(torch.sin, x.bfloat16())
    >>> packproof.dot_product_test(lambda x: x.sin() * x.detach(), x)
    Traceback (most recent call last):
    packproof.refs.errors.CheckFailed: dot product: x, row 0: <J v, w> = 6.8661914 but <v, J' w> = 2.6942119; ...
    """
    points, names = _checked_inputs(function, inputs)
    generator = torch.Generator().manual_seed(check_seed(_NAME, seed))
    under_test = _Function(function, points)
    wide = under_test.widened(generator)
    if wide.roundoff > UNIT_ROUNDOFF[torch.float32]:
        raise BoundVacuous(
            f"{_NAME}: inconclusive: differences are lost in a roundoff of {wide.roundoff}; {under_test.way_out}"
        )
    w = [_signed(y, generator).to(y.dtype).double() for y in under_test.outputs]
    own = under_test.pulled(w)
    gradients = own if wide is under_test else wide.pulled(w)
    spread = _spreads(wide, w, gradients, generator)
    unseen = []
    for group in _groups(names, points):
        found = _compare(wide, group, w, gradients[group.number], spread, generator)
        if not found.holds:
            raise CheckFailed(f"{_NAME}: {group}: {found}")
        unseen += [f"{group}: {found}"] if found.is_vacuous else []
    if not any(float(r.sum()) for r in spread):
        unseen.append("no output changes with any input")
    unseen += [] if wide is under_test else _narrow(names, own, gradients, spread, _running_errors(wide, w), wide.terms)
    if unseen:
        raise BoundVacuous(f"{_NAME}: inconclusive: {unseen[0]}; {under_test.way_out}")


class _Function:
    """The function at its inputs in one dtype, deterministic; outputs and gradients in float64."""

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
        """The outputs somewhere; it gets copies, since it may write into what it gets."""
        with torch.no_grad():
            return [y.clone() for y in self._run([x.detach().clone() for x in points])]

    def pulled(self, w: Sequence[Tensor]) -> list[Tensor]:
        """J' w for each input, as computed: zeros where autograd reaches it from no output."""
        points = [x.detach().clone().requires_grad_() for x in self.points]
        passed = [x.clone() for x in points]  # no leaves, so that they may be written into
        reached = [(y, u.to(y.dtype)) for y, u in zip(self._run(passed), w, strict=True) if y.requires_grad]
        if not reached:
            return [torch.zeros_like(x) for x in self.points]
        try:
            outputs, incoming = zip(*reached, strict=True)
            found = torch.autograd.grad(outputs, points, incoming, allow_unused=True)
        except Exception as error:
            raise _raised(error, "in the backward pass: ") from error
        return [torch.zeros_like(x) if g is None else g for x, g in zip(self.points, found, strict=True)]

    def widened(self, generator: torch.Generator) -> "_Function":
        """The function in the widest dtype that it takes, with the roundoff that its outputs show there."""
        if not all(torch.equal(a, b) for a, b in zip(self.outputs, self.at(self.points), strict=True)):
            raise ArgumentError(f"{_NAME}: the function returns other values when it is called again; fix its seed")
        wide = self
        for dtype in (torch.float64, torch.float32):
            if UNIT_ROUNDOFF[dtype] >= max(UNIT_ROUNDOFF[x.dtype] for x in self.points):
                continue
            try:
                wide = _Function(self._function, self.points, dtype)
            except PackproofError as error:
                self.refusal = self.refusal or f"it does not take {_short(dtype)} ({error})"
                continue
            if [y.shape for y in wide.outputs] == [y.shape for y in self.outputs]:
                break
            wide = self
        wide.roundoff = _roundoff(wide, generator)
        wide.accumulator = max(wide.roundoff, *(accumulator(x.dtype) for x in self.points))
        return wide

    @property
    def way_out(self) -> str:
        """What to do where the test is inconclusive."""
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
                came = _short(y.dtype) if isinstance(y, Tensor) else kind(y)
                raise ArgumentError(f"{_NAME}: the function returned {came} but tensors of {_ALLOWED} were expected")
            if not y.isfinite().all():
                raise ArgumentError(f"{_NAME}: the function returned {_first_bad(y)} but finite values were expected")
        return outputs


@dataclass(frozen=True)
class _Group:
    """Rows [first, last] of an input."""

    number: int
    name: str
    first: int
    last: int
    is_row: bool

    def __str__(self) -> str:
        if not self.is_row:
            return self.name
        return f"{self.name}, " + (
            f"row {self.first}" if self.first == self.last else f"rows {self.first} to {self.last}"
        )

    def only(self, x: Tensor) -> Tensor:
        """x in these rows, zeros elsewhere."""
        if not self.is_row:
            return x
        kept = torch.zeros_like(x)
        kept[self.first : self.last + 1] = x[self.first : self.last + 1]
        return kept


@dataclass(frozen=True)
class _Found:
    """Both sides of the identity for one group. row: the value of a typical row, or of one of these. reached: whether
    any incoming gradient reaches these rows."""

    pushed: float
    back: float
    allowed: float
    row: float
    reached: bool

    @property
    def holds(self) -> bool:
        return abs(self.pushed - self.back) <= self.allowed

    @property
    def is_vacuous(self) -> bool:
        return self.allowed > _SHARE * self.row and (self.reached or self.pushed != 0)

    def __str__(self) -> str:
        if self.holds:
            return f"the allowed difference is {self.allowed:.2g} where a row holds {self.row:.2g}"
        sides = f"<J v, w> = {self.pushed:.8g} but <v, J' w> = {self.back:.8g}"
        return f"{sides}; the allowed difference is {self.allowed:.2g}"


def _compare(
    wide: _Function,
    group: _Group,
    w: Sequence[Tensor],
    gradient: Tensor,
    spread: Sequence[Tensor],
    generator: torch.Generator,
) -> _Found:
    """Both sides for a direction in which the terms of these rows add up."""
    x, g = wide.points[group.number], gradient.double()
    size = float(x.double().square().mean().sqrt()) or 1.0
    drawn = _signed(x, generator)
    v = group.only(torch.where(g == 0, drawn, drawn.abs() * g.sign()) * size)
    terms = float((v.abs() * spread[group.number]).sum())
    rounding = K_ACC * wide.accumulator * wide.terms**0.5 * terms
    rows = group.last - group.first + 1
    row = max(float((g.abs() * size).sum()) * 1.5 / max(len(g) if group.is_row else 1, 1), float((v * g).sum()) / rows)
    for nth, factor in enumerate(_STEPS):
        h = factor * (K_ACC * wide.roundoff) ** (1 / 3)
        slope, error, moved = _slope(wide, group.number, v, w, h, kinks=nth > 0)
        found = _Found(slope, float((moved * g).sum()), error + rounding, row, reached=terms > 0)
        if found.holds and not found.is_vacuous:
            break
    return found


def _slope(
    wide: _Function, number: int, v: Tensor, w: Sequence[Tensor], h: float, *, kinks: bool
) -> tuple[float, float, Tensor]:
    """<J v, w> by differences, what it may be off by, and v as it was rounded together with the input."""

    def moved(t: float) -> Tensor:
        return (wide.points[number].double() + t * v).to(wide.points[number].dtype)

    def at(t: float) -> list[Tensor]:
        points = [moved(t) if i == number else x for i, x in enumerate(wide.points)]
        return [y.double() for y in wide.at(points)]

    def dot(a: Sequence[Tensor], b: Sequence[Tensor]) -> float:
        return sum(float(((y - z) * u).sum()) for y, z, u in zip(a, b, w, strict=True))

    up, down, up2, down2 = at(h), at(-h), at(2 * h), at(-2 * h)
    near, far = dot(up, down) / (2 * h), dot(up2, down2) / (4 * h)
    scale = 0.0
    for y, u, *steps in zip(wide.values, w, up, down, up2, down2, strict=True):
        changed = torch.stack([z != y for z in steps]).any(0)
        scale += float(((u * y).abs() * torch.where(changed, K_ACC, 1.0)).sum())
    error = abs(near - far) + 1.5 * wide.roundoff * scale / h
    if kinks:
        bends = zip(up, down, wide.values, w, strict=True)
        error += sum(float(((a + b - 2 * y) * u).abs().sum()) for a, b, y, u in bends) / h
    return (4 * near - far) / 3, error, (moved(h).double() - moved(-h).double()) / (2 * h)


def _spreads(
    wide: _Function, w: Sequence[Tensor], gradients: Sequence[Tensor], generator: torch.Generator
) -> list[Tensor]:
    """R of each input."""
    squares = [g.double().square() for g in gradients]
    for _ in range(_SIGNS):
        signed = wide.pulled([u * _signed(u, generator).sign() for u in w])
        squares = [s + g.double().square() for s, g in zip(squares, signed, strict=True)]
    return [(s / (_SIGNS + 1)).sqrt() for s in squares]


def _running_errors(wide: _Function, w: Sequence[Tensor]) -> list[Tensor] | None:
    """E of the gradient of each input, None for operators of which no rule is known."""
    try:
        _, errors = bounded(lambda: dict(enumerate(wide.pulled(w))))
    except UsageError:
        return None
    return list(errors.values())


def _narrow(
    names: Sequence[str],
    own: Sequence[Tensor],
    wide: Sequence[Tensor],
    spread: Sequence[Tensor],
    errors: Sequence[Tensor] | None,
    terms: int,
) -> Iterator[str]:
    """Inputs at which the budget of the gradient in its own dtype is as large as the gradient. Raises CheckFailed where
    an element is further from the wide one than its budget."""
    for name, g, r, R, E in zip(names, own, wide, spread, errors or spread, strict=True):
        want, B, narrow = r.double(), torch.maximum(E, K_OP * R), g.dtype in (torch.bfloat16, torch.float16)
        u = UNIT_ROUNDOFF[g.dtype] if narrow else 0.0  # an fp32 tensor holds the accumulator itself
        allowed = u * (want.abs() + B) + SMALLEST[g.dtype] + K_ACC * accumulator(g.dtype) * (B + terms**0.5 * R)
        ratio = score(g, want, allowed)
        if ratio.numel() and float(ratio.max()) > 1:
            index = tuple(int(i) for i in torch.unravel_index(ratio.argmax(), ratio.shape))
            sides = f"{float(g[index]):.6g} in {_short(g.dtype)} but {float(want[index]):.6g} in {_short(r.dtype)}"
            raise CheckFailed(
                f"{_NAME}: the gradient of {name} at {list(index)} is {sides}; the allowed difference is "
                f"{float(allowed[index]):.2g}"
            )
        if float(allowed.sum()) >= float(want.abs().sum()) > 0:
            sides = f"the error budget of {_short(g.dtype)} is as large as the gradient of {name}"
            yield f"{sides}, which holds in {_short(r.dtype)}"


def _roundoff(wide: _Function, generator: torch.Generator) -> float:
    """The coarsest roundoff that its outputs show when its inputs move by an eighth of one, and by twice that: the
    outputs of a smooth function move by twice as much, to second order; rounded ones jump, or stay."""
    for dtype in sorted(FLOATS, key=lambda d: -UNIT_ROUNDOFF[d]):
        u = UNIT_ROUNDOFF[dtype]
        if u <= wide.roundoff:
            break
        for _ in range(_MOVES):
            r = [u / 8 * _signed(x, generator) for x in wide.points]
            start = [1 + u * _signed(x, generator) for x in wide.points]  # inputs of this dtype lie where nothing jumps
            places = zip(wide.points, start, r, strict=True)
            line = [[(x * (a + t * b)).to(x.dtype) for t in range(3)] for x, a, b in places]
            if any(
                _jumps(*each, dtype)
                for each in zip(*(wide.at(points) for points in zip(*line, strict=True)), strict=True)
            ):
                return u
    return wide.roundoff


def _jumps(y: Tensor, one: Tensor, two: Tensor, dtype: torch.dtype) -> bool:
    """Whether an output that moved is stored in this dtype, or moves by jumps of its roundoff."""
    bend, typical = (two.double() - 2 * one.double() + y.double()).abs(), y.double().square().mean().sqrt()
    stored = torch.equal(one.to(dtype).double(), one.double()) and not torch.equal(one, y)
    return stored or bool((bend > UNIT_ROUNDOFF[dtype] / 16 * typical).any())


def _groups(names: Sequence[str], points: Sequence[Tensor]) -> Iterator[_Group]:
    for number, (name, x) in enumerate(zip(names, points, strict=True)):
        rows = len(x) if x.ndim else 1
        step = -(-rows // _GROUPS) or 1
        for first in range(0, rows, step):
            yield _Group(number, name, first, min(first + step, rows) - 1, x.ndim > 0)


def _checked_inputs(function: Any, inputs: Sequence[Any]) -> tuple[list[Tensor], list[str]]:
    """The inputs and their names. Raises ArgumentError for what cannot be differentiated."""
    if not callable(function):
        raise ArgumentError(f"{_NAME}: the function is {kind(function)} but a function was expected")
    signature = parameters(function)
    names = [f"input {i}" for i in range(len(inputs))]
    if signature is not None:
        try:
            bound = signature.bind(*inputs)
        except TypeError as error:
            takes = f"the function takes {signature} but {counted(len(inputs), 'tensor')} came"
            raise ArgumentError(f"{_NAME}: {takes}: {error}") from None
        plain = [n for n in bound.arguments if signature.parameters[n].kind.name.startswith("POSITIONAL")]
        names = [*plain, *names[len(plain) :]] if plain else names
    if not any(isinstance(x, Tensor) and x.numel() for x in inputs):
        raise ArgumentError(f"{_NAME}: {counted(len(inputs), 'input')} but tensors with elements were expected")
    for name, x in zip(names, inputs, strict=True):
        if not isinstance(x, Tensor) or x.dtype not in FLOATS or x.layout is not torch.strided:
            came = kind(x) if not isinstance(x, Tensor) else _short(x.dtype if x.dtype not in FLOATS else x.layout)
            raise ArgumentError(f"{_NAME}: {name} is {came} but a dense tensor of {_ALLOWED} was expected")
        if x.device.type == "meta" or not x.isfinite().all():
            came = "on the meta device" if x.device.type == "meta" else _first_bad(x)
            raise ArgumentError(f"{_NAME}: {name} is {came} but finite values were expected")
    return list(inputs), names


def _raised(error: Exception, stage: str = "") -> PackproofError:
    if isinstance(error, PackproofError):
        return error
    return KernelFault("raised", f"{stage}{type(error).__name__}: {str(error).partition(chr(10))[0]}")


def _signed(x: Tensor, generator: torch.Generator) -> Tensor:
    """Numbers of random signs between 1 and 2: none so small that it hides an error."""
    size = 1 + torch.rand(x.shape, generator=generator, dtype=torch.float64)
    return (size * (2 * torch.randint(0, 2, x.shape, generator=generator) - 1)).to(x.device)


def _first_bad(x: Tensor) -> str:
    index = tuple((~x.isfinite()).nonzero()[0].tolist())
    return f"{float(x[index])} at {list(index)}"


def _short(kind_of: Any) -> str:
    return str(kind_of).removeprefix("torch.")


_ALLOWED = " or ".join(map(_short, FLOATS))
